"""Tensors as simple types, for a channel between two processes; runs on both ends. Stdlib and torch only.

A view keeps its strides and its offset, so that the far end sees the same memory layout, gaps and all.
"""

_MARK = "tensor"


def packed(value):
    """Tensors within lists and tuples become (mark, dtype, shape, strides, bytes of what they span)."""
    import torch

    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        axes = zip(tensor.shape, tensor.stride(), strict=True)
        span = sum((n - 1) * step for n, step in axes) + 1 if tensor.numel() else 0
        flat = torch.as_strided(tensor, (span,), (1,), tensor.storage_offset())
        data = flat.contiguous().view(torch.uint8).numpy().tobytes()
        return (_MARK, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride()), data)
    if isinstance(value, (list, tuple)):
        return [packed(one) for one in value]
    return value


def unpacked(value):
    import torch

    if isinstance(value, tuple) and value and value[0] == _MARK:
        _, dtype, shape, strides, data = value
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return torch.as_strided(flat.view(getattr(torch, dtype)), shape, strides)
    if isinstance(value, list):
        return [unpacked(one) for one in value]
    return value
