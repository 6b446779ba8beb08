"""Tensors that the harness sends through a shared buffer, where it keeps its memory or on this process's GPU."""

import contextlib

from .sessions import buffers


@contextlib.contextmanager
def lent(buffer, spans, tensors, device="cpu"):
    """Inside, {name: tensor}. `spans`: [start, bytes, written?] in the buffer; `tensors`: name -> [start of its span,
    dtype, shape, stride, offset in elements]. On a CPU they are the buffer itself; from another device what was written
    is copied back at the end."""
    import torch

    shared = buffers[buffer]
    memory = {start: shared[start : start + size].to(device) for start, size, _ in spans}
    made = {}
    for name, (start, dtype, shape, stride, offset) in tensors.items():
        kind = getattr(torch, dtype)
        span = memory[start]
        flat = span[: span.numel() // kind.itemsize * kind.itemsize].view(kind)
        made[name] = flat.as_strided(shape, stride, flat.storage_offset() + offset)
    yield made
    if device != "cpu":
        torch.cuda.synchronize()
        for start, size, written in spans:
            if written:
                shared[start : start + size].copy_(memory[start])
