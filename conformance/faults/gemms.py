"""Faults of grouped GEMMs and quantised linear layers, at their operands, their groups and their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.errors import NotSupported, StackRefused
from conformance.faults.quant_seam import QuantFault
from conformance.stacks.quant_protocol import Activations, QuantizedWeight
from references import codes

# --- weights as prepared


def _preparing(change: Callable[[QuantizedWeight], QuantizedWeight]) -> QuantFault:
    return QuantFault(gemm={"prepare": lambda inner, w: inner.prepare(change(w))})


nibbles_swapped = _preparing(lambda w: w._replace(codes=w.codes >> 4 | w.codes << 4))
scales_of_next_block = _preparing(lambda w: w._replace(scales=w.scales.roll(1, 2)))
scales_of_32 = _preparing(
    lambda w: w._replace(scales=w.scales[..., ::2].repeat_interleave(2, 2)[..., : w.scales.shape[2]])
)


def _scales_missing(inner: Any, w: QuantizedWeight) -> Any:
    one = 0x38 if inner.capabilities().weights == "nvfp4" else 127
    return inner.prepare(w._replace(scales=torch.full_like(w.scales, one)))


def _nan_scale_finite(inner: Any, w: QuantizedWeight) -> Any:
    """The NaN byte is taken for the number before it."""
    nan = 0x7F if inner.capabilities().weights == "nvfp4" else 0xFF
    return inner.prepare(w._replace(scales=torch.where(w.scales == nan, nan - 1, w.scales)))


scales_missing = QuantFault(gemm={"prepare": _scales_missing})
nan_scale_finite = QuantFault(gemm={"prepare": _nan_scale_finite})
scales_rows_moved = _preparing(lambda w: w._replace(scales=torch.cat([w.scales[:, 32:], w.scales[:, :32]], 1)))
scales_of_first = _preparing(lambda w: w._replace(scales=w.scales[:1].expand_as(w.scales)))
global_of_next = _preparing(lambda w: w._replace(global_scales=w.global_scales.roll(1, 0)))
last_row_dropped = _preparing(lambda w: w._replace(codes=_cleared(w.codes, 1)))
last_block_dropped = _preparing(lambda w: w._replace(scales=_cleared(w.scales, 2)))


def _cleared(bytes_: torch.Tensor, axis: int) -> torch.Tensor:
    cleared = bytes_.clone()
    cleared.narrow(axis, bytes_.shape[axis] - 1, 1).zero_()
    return cleared


# --- activations and groups as called


def _quantised(a: Activations) -> tuple[torch.Tensor, torch.Tensor]:
    """(scales, global scales). Raises NotSupported where activations are BF16: they have none."""
    if a.scales is None or a.global_scales is None:
        raise NotSupported("this kernel's activations are not quantised: they have no scales")
    return a.scales, a.global_scales


def _running(change: Callable[..., None]) -> QuantFault:
    return QuantFault(gemm={"run": change})


def _scales_of_next_row(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    scales, _ = _quantised(a)
    inner.run(handle, a._replace(scales=scales.roll(1, 0)), offsets, sizes, out)


def _activation_global_missing(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: Any) -> None:
    _, globals_ = _quantised(a)
    inner.run(handle, a._replace(global_scales=torch.ones_like(globals_)), offsets, sizes, out)


def _packed_at_zero(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """Rows are read as if groups of their padded size followed each other: group e at e times the largest."""
    most = int(sizes.max())
    wrong = [min(e * most, max(len(a.x) - int(size), 0)) for e, size in enumerate(sizes.tolist())]
    for expert, (start, size) in enumerate(zip(wrong, sizes.tolist(), strict=True)):
        only = torch.where(torch.arange(len(sizes), device=sizes.device) == expert, sizes, 0).int()
        part = torch.full_like(out, torch.nan)
        inner.run(handle, a, torch.full_like(offsets, start), only, part)
        own = int(offsets[expert])
        out[own : own + size] = part[start : start + size]


def _last_group_dropped(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: Any) -> None:
    left = sizes.clone()
    left[sizes.nonzero().flatten()[-1:]] = 0
    inner.run(handle, a, offsets, left, out)


def _empty_shifts(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """Experts are counted by groups that are not empty."""
    order = torch.cat([sizes.nonzero().flatten(), (sizes == 0).nonzero().flatten()])
    inner.run(handle, a, offsets[order].contiguous(), sizes[order].contiguous(), out)


def _beyond_written(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    inner.run(handle, a, offsets, sizes, out)
    last = int((offsets + sizes).max())
    out[last : last + 1] = 1


def _rows_mixed(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """A NaN in one row reaches its whole group."""
    inner.run(handle, a, offsets, sizes, out)
    for start, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        if out[start : start + size].isnan().any():
            out[start : start + size] = torch.nan


def _nan_swallowed(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    inner.run(handle, a, offsets, sizes, out)
    for start, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        out[start : start + size] = out[start : start + size].nan_to_num(0.0)


def _in_bf16(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """Sums in BF16: what K is cut into two for, and rounded in between."""
    scales, _ = _quantised(a)
    half = scales.shape[1] // 2
    left, right = scales.clone(), scales.clone()
    left[:, half:], right[:, :half] = 0, 0
    parts = torch.full_like(out, torch.nan), torch.full_like(out, torch.nan)
    for some, part in zip((left, right), parts, strict=True):
        inner.run(handle, a._replace(scales=some), offsets, sizes, part)
    written = ~parts[0].isnan()
    out[written] = (parts[0] + parts[1])[written]


activation_scales_moved = _running(_scales_of_next_row)
activation_global_missing = _running(_activation_global_missing)
packed_at_zero = _running(_packed_at_zero)
last_group_dropped = _running(_last_group_dropped)
empty_shifts = _running(_empty_shifts)
beyond_written = _running(_beyond_written)
rows_mixed = _running(_rows_mixed)
nan_swallowed = _running(_nan_swallowed)
sums_in_bf16 = _running(_in_bf16)


def _global_of_next_group(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: Any) -> None:
    _, globals_ = _quantised(a)
    inner.run(handle, a._replace(global_scales=globals_.roll(1, 0)), offsets, sizes, out)


def _padded_sizes(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """Each group computes whole eights of rows, the last group first: rows of the next one are overwritten."""
    for expert in reversed(range(len(sizes))):
        size = min(-(-int(sizes[expert]) // 8) * 8, len(a.x) - int(offsets[expert]))
        only = torch.zeros_like(sizes)
        only[expert] = size
        inner.run(handle, a, offsets, only, out)


def _columns_doubled(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """Packing is taken to be along N: every column is there twice, and half of them are not there."""
    inner.run(handle, a, offsets, sizes, out)
    out.copy_(out[:, torch.arange(out.shape[1], device=out.device) // 2].clone())


def _tokens_first(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """(T, G, D) seen as (G T, D) without a permute, where all groups are alike."""
    groups, size = len(sizes), int(sizes[0])
    order = torch.arange(len(a.x), device=a.x.device)
    if groups > 1 and bool((sizes == size).all()) and bool((offsets.diff() == size).all()):
        order[: groups * size] = order[: groups * size].view(size, groups).T.flatten()
    scales = None if a.scales is None else a.scales[order]
    inner.run(handle, a._replace(x=a.x[order], scales=scales), offsets, sizes, out)


def _beyond_256(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """Rows of a group are counted in a byte."""
    inner.run(handle, a, offsets, sizes, out)
    for start, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        out[start + 256 : start + max(size, 256)] = 0


def _input_overwritten(inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
    """Activations are the kernel's workspace once it is through."""
    inner.run(handle, a, offsets, sizes, out)
    a.x.zero_()


rows_beyond_256, gemm_input_overwritten = _running(_beyond_256), _running(_input_overwritten)
activation_global_of_next = _running(_global_of_next_group)
padded_sizes = _running(_padded_sizes)
columns_doubled = _running(_columns_doubled)
tokens_first = _running(_tokens_first)


def _flat_scales(w: QuantizedWeight) -> QuantizedWeight:
    """Scales padded to 128 rows an expert, as activations' are a group, and read without padding."""
    experts, n, columns = w.scales.shape
    padded = torch.nn.functional.pad(w.scales, (0, 0, 0, -n % 128))
    return w._replace(scales=padded.reshape(-1, columns)[: experts * n].view(experts, n, columns).contiguous())


layout_of_activations = _preparing(_flat_scales)


class _ByShape:
    """Prepared weights are kept by their shape alone."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], QuantizedWeight] = {}

    def __call__(self, inner: Any, w: QuantizedWeight) -> Any:
        first = self.kept.setdefault(tuple(w.codes.shape), QuantizedWeight(*(t.clone() for t in w)))
        return inner.prepare(QuantizedWeight(*(t.clone() for t in first)))


class _ByRows:
    """A kernel is kept by its group sizes, without N: what it wrote for the first N is all that it writes."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], int] = {}

    def __call__(self, inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
        columns = self.kept.setdefault((a.x.shape[1], *sizes.tolist()), out.shape[1])
        part = torch.full_like(out, torch.nan)
        inner.run(handle, a, offsets, sizes, part)
        out[:, :columns] = part[:, :columns]


weights_by_shape = QuantFault(gemm={"prepare": _ByShape})
kernel_without_n = QuantFault(gemm={"run": _ByRows})


class _FirstShape:
    """What was compiled for the first shapes: later calls compute no more rows and columns than the first one."""

    def __init__(self) -> None:
        self.limit: tuple[int, int] | None = None

    def __call__(self, inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
        if self.limit is None:
            self.limit = int(sizes.max()), out.shape[1]
        rows, columns = self.limit
        part = torch.full_like(out, torch.nan)
        inner.run(handle, a, offsets, sizes.clamp(max=rows), part)
        out[:, :columns] = part[:, :columns]


class _FirstBuffers:
    """Bound to the addresses of its first call of that size: what lies there now is read."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, ...], Activations] = {}

    def __call__(self, inner: Any, handle: Any, a: Activations, offsets: Any, sizes: Any, out: torch.Tensor) -> None:
        first = self.seen.setdefault(tuple(a.x.shape), a)
        inner.run(handle, first, offsets, sizes, out)


first_shape = QuantFault(gemm={"run": _FirstShape})
first_buffers = QuantFault(gemm={"run": _FirstBuffers})


# --- the linear layer


def _linear(change: Callable[..., Any]) -> QuantFault:
    """`change(inner, weights, split, bias, input_scale)` prepares."""
    return QuantFault(linear={"prepare": change})


def _one_scalar(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """The second global scale is never read."""
    return inner.prepare(_all_of(w, lambda g: g[..., :1]), split, bias, scale)


def _largest(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return inner.prepare(_all_of(w, lambda g: g.amax(-1, keepdim=True)), split, bias, scale)


def _mean(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return inner.prepare(_all_of(w, lambda g: g.mean(-1, keepdim=True)), split, bias, scale)


def _all_of(w: QuantizedWeight, change: Callable[[torch.Tensor], torch.Tensor]) -> QuantizedWeight:
    if w.global_scales.numel() < 2:
        return w
    return w._replace(global_scales=change(w.global_scales).expand_as(w.global_scales).contiguous())


def _folded(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """Both parts by the larger global scale, the difference folded into block scales and rounded to E4M3 again."""
    if split is None:
        return inner.prepare(w, split, bias, scale)
    most = w.global_scales.max()
    ratio = (w.global_scales.flatten() / most).double()
    parts = w.scales.split([split, w.scales.shape[1] - split], 1)
    moved = [codes.encode_e4m3(codes.decode_e4m3(part) * r) for part, r in zip(parts, ratio, strict=True)]
    shared = torch.full_like(w.global_scales, float(most))
    return inner.prepare(w._replace(scales=torch.cat(moved, 1), global_scales=shared), split, bias, scale)


def _middle(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return inner.prepare(w, None if split is None else w.codes.shape[1] // 2, bias, scale)


def _bias_dropped(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return inner.prepare(w, split, None, scale)


def _bias_scaled(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """Added before the global scale is."""
    scaled = None if bias is None else bias * w.global_scales.flatten()[0].to(bias.dtype)
    return inner.prepare(w, split, scaled, scale)


def _input_scale_inverted(
    inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: float | None = None
) -> Any:
    return inner.prepare(w, split, bias, 1 / scale if scale else scale)


def _any_input_scale(
    inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: float | None = None
) -> Any:
    """0, Inf and NaN are taken."""
    try:
        return inner.prepare(w, split, bias, scale)
    except StackRefused:
        return inner.prepare(w, split, bias, 1.0)


def _nan_on_overflow(inner: Any, handle: Any, x: torch.Tensor) -> torch.Tensor:
    y = inner.run(handle, x)
    return torch.where(x.abs().amax() > 2.0**16, y * torch.nan, y) if x.numel() else y


def _any_width(inner: Any, handle: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return inner.run(handle, x)
    except StackRefused:
        return inner.run(handle, torch.nn.functional.pad(x, (0, 32)))


def _flattened(inner: Any, handle: Any, x: torch.Tensor) -> torch.Tensor:
    y = inner.run(handle, x)
    return y.flatten(0, -2) if x.dim() > 2 else y


def _alpha_twice(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return inner.prepare(w._replace(global_scales=w.global_scales * w.global_scales), split, bias, scale)


def _columns_swapped(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return inner.prepare(w._replace(codes=w.codes >> 4 | w.codes << 4), split, bias, scale)


def _smallest(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return inner.prepare(_all_of(w, lambda g: g.amin(-1, keepdim=True)), split, bias, scale)


def _alpha_missing(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return inner.prepare(w._replace(global_scales=torch.ones_like(w.global_scales)), split, bias, scale)


def _calibrated(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """The input's global scale is what a warm-up on normal numbers found."""
    return inner.prepare(w, split, bias, 4.5 / 2688 if scale and scale > 0 and scale < float("inf") else scale)


class _LateHandle:
    """The tensors given are read at the first call: an adapter that keeps no copy."""

    def __init__(self, prepare: Callable[[], Any]):
        self._prepare, self._handle = prepare, None

    def opened(self) -> Any:
        self._handle = self._handle or self._prepare()
        return self._handle


def _views_read_flat(inner: Any, handle: Any, x: torch.Tensor) -> torch.Tensor:
    """Strides of a view are left out."""
    if x.is_contiguous() or x.dim() != 2:
        return inner.run(handle, x)
    return inner.run(handle, torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset()))


def _any_weights(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """Whatever is given is prepared."""
    try:
        return inner.prepare(w, split, bias, scale)
    except StackRefused:
        return None


def _bias_of_first(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """The second part of the rows has no bias."""
    if bias is not None and split is not None:
        bias = bias.clone()
        bias[split:] = 0
    return inner.prepare(w, split, bias, scale)


class _FirstScale:
    """The first input's own scale serves all that follow: without one given, the layer is opened again with it."""

    def __init__(self, inner: Any, given: tuple[Any, ...], scale: float | None):
        self.given, self.scale = given, scale
        self.handle = inner.prepare(*given, scale)

    def run(self, inner: Any, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = inner.run(self.handle, x)
        if self.scale is None and x.numel():
            self.scale = float(x.abs().max()) / 2688 or 1.0
            self.handle = inner.prepare(*self.given, self.scale)
        return y


def _keeping_scale(inner: Any, w: QuantizedWeight, split: Any = None, bias: Any = None, scale: Any = None) -> Any:
    kept = QuantizedWeight(*(t.clone() for t in w))
    return _FirstScale(inner, (kept, split, None if bias is None else bias.clone()), scale)


def _unrounded(inner: Any, handle: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = inner.run(handle, x)
    return y.float()


def _input_scaled(inner: Any, handle: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = inner.run(handle, x)
    x.mul_(0.5)
    return y


bias_of_first, unrounded = _linear(_bias_of_first), QuantFault(linear={"run": _unrounded})
linear_input_scaled = QuantFault(linear={"run": _input_scaled})
first_scale_kept = QuantFault(
    linear={
        "prepare": _keeping_scale,
        "run": lambda inner, kept, x: kept.run(inner, x),
        "close": lambda inner, kept: inner.close(kept.handle),
    }
)
smallest_scale, alpha_missing, calibrated = _linear(_smallest), _linear(_alpha_missing), _linear(_calibrated)
any_weights = _linear(_any_weights)
linear_views_flat = QuantFault(linear={"run": _views_read_flat})
reads_what_was_given = QuantFault(
    linear={
        "prepare": lambda inner, *given, **named: _LateHandle(lambda: inner.prepare(*given, **named)),
        "run": lambda inner, late, x: inner.run(late.opened(), x),
        "close": lambda inner, late: inner.close(late.opened()),
    }
)
one_scalar, largest_scale, mean_scale = _linear(_one_scalar), _linear(_largest), _linear(_mean)
scales_folded, split_in_the_middle = _linear(_folded), _linear(_middle)
bias_dropped, bias_scaled = _linear(_bias_dropped), _linear(_bias_scaled)
input_scale_inverted, any_input_scale = _linear(_input_scale_inverted), _linear(_any_input_scale)
alpha_twice, linear_nibbles = _linear(_alpha_twice), _linear(_columns_swapped)
nan_on_overflow = QuantFault(linear={"run": _nan_on_overflow})
any_width = QuantFault(linear={"run": _any_width})
leading_axes_lost = QuantFault(linear={"run": _flattened})
