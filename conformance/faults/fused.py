"""Faults of a GEMM that ends in SwiGLU: its weights' rows paired wrongly, or another epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.faults.quant_seam import QuantFault
from conformance.stacks.quant_protocol import Activations, Quantized, QuantizedWeight
from references import codes, interleave, nvfp4, swiglu

Epilogue = Callable[[torch.Tensor, torch.Tensor, float | None], torch.Tensor]


class _Held(NamedTuple):
    inner: Any
    gate: torch.Tensor
    up: torch.Tensor
    alphas: torch.Tensor


def _prepared(inner: Any, w: QuantizedWeight) -> _Held:
    """The clean handle, and the weights decoded, without global scales."""
    shape = (*w.codes.shape[:2], -1)
    plain = nvfp4.Nvfp4(codes.unpack(w.codes).flatten(0, 1), w.scales.flatten(0, 1))
    gate, up = nvfp4.dequantize(plain, 1.0).view(shape).chunk(2, dim=1)
    return _Held(inner.prepare(w), gate, up, w.global_scales.double().view(len(w.codes), -1).expand(-1, 2).clone())


def _ending(
    epilogue: Epilogue, alphas: str = "right", pairs: Callable[[int], torch.Tensor] | None = None
) -> QuantFault:
    """Computed from the operands, FP64, with another end. `alphas`: `right`, `gate` (for both), or `after` SiLU."""

    def run(
        inner: Any, held: _Held, a: Activations, offsets: Any, sizes: Any, limit: float | None, out: torch.Tensor
    ) -> None:
        inner.run(held.inner, a, offsets, sizes, limit, out)
        assert a.scales is not None
        x = nvfp4.dequantize(nvfp4.Nvfp4(codes.unpack(a.x), a.scales), 1.0)
        for expert, (start, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
            rows = x[start : start + size]
            gate, up = rows @ held.gate[expert].T, rows @ held.up[expert].T
            of_gate, of_up = (float(v) for v in held.alphas[expert])
            if alphas == "gate":
                of_up = of_gate
            before = 1.0 if alphas == "after" else of_gate
            y = epilogue(gate * before, up * of_up, limit)
            if alphas == "after":
                y = y * of_gate
            if pairs is not None:
                y = y[:, pairs(y.shape[1])]
            out[start : start + size] = y.to(out.dtype)

    return QuantFault(swiglu={"prepare": _prepared, "run": run, "close": lambda inner, held: inner.close(held.inner)})


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def _after(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    if limit is None:
        return _silu(gate) * up
    return _silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


def _both_sides(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    return swiglu.swiglu(gate if limit is None else gate.clamp(min=-limit), up, limit)


def _up_above_only(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    gate, kept = (t if limit is None else t.clamp(max=limit) for t in (gate, up))
    return _silu(gate) * kept


def _overflowing(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """sigmoid as exp(x) / (1 + exp(x)), in float32."""
    kept, factor = swiglu.clamp(gate, up, limit)
    power = torch.exp(kept.float())
    return kept * (power / (1 + power)) * factor


def _hard(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """A sigmoid of straight lines."""
    kept, factor = swiglu.clamp(gate, up, limit)
    return kept * (kept / 4 + 0.5).clamp(0, 1) * factor


def _rows(change: Callable[[int], torch.Tensor]) -> QuantFault:
    """Rows of [gate; up], codes and scales, in another order."""

    def prepare(inner: Any, w: QuantizedWeight) -> Any:
        order = change(w.codes.shape[1] // 2)
        return inner.prepare(w._replace(codes=w.codes[:, order], scales=w.scales[:, order]))

    return QuantFault(swiglu={"prepare": prepare})


def _halved(half: int) -> torch.Tensor:
    """Interleaved by 4, and read by 8."""
    read = interleave.order(half, 8 if half % 8 == 0 else 1)
    return interleave.order(half, 4 if half % 8 == 0 else 1)[read.argsort()]


def _uninitialised(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """The gate's buffer is not filled yet when a tile of 64 columns begins."""
    y = swiglu.swiglu(gate, up, limit)
    y[:, torch.arange(y.shape[1]) % 64 < 8] = 0
    return y


def _carried(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """The first gates of a tile of 128 rows are those that the tile before left in the buffer."""
    kept = gate.clone()
    kept[128:, :8] = gate[: max(len(gate) - 128, 0), :8]
    return swiglu.swiglu(kept, up, limit)


def _quantising(change: Callable[[torch.Tensor, Quantized, float], Quantized]) -> QuantFault:
    """`change(product, right result, global scale)`, rows of nobody in both. The product is the kernel's own."""

    def run(inner: Any, held: _Held, a: Activations, offsets: Any, sizes: Any, limit: Any, scale: float) -> Quantized:
        right = inner.run_quantized(held.inner, a, offsets, sizes, limit, scale)
        product = torch.zeros(len(a.x), held.gate.shape[1], dtype=torch.float32)
        inner.run(held.inner, a, offsets, sizes, limit, product)
        return change(product.nan_to_num(), right, scale)

    return QuantFault(
        swiglu={
            "prepare": _prepared,
            "run": lambda inner, held, *rest: inner.run(held.inner, *rest),
            "run_quantized": run,
            "close": lambda inner, held: inner.close(held.inner),
        }
    )


def _by_amax(moved: Callable[[torch.Tensor], torch.Tensor]) -> QuantFault:
    """Block scales of other elements than the block's: `moved` (M, I) of magnitudes."""

    def change(product: torch.Tensor, right: Quantized, scale: float) -> Quantized:
        scales = nvfp4.scale_bytes(nvfp4.scale_quotients(moved(product.abs()), scale))
        return right._replace(codes=codes.pack(nvfp4.element_codes(product, scales, scale)), scales=scales)

    return _quantising(change)


def _first_eight(size: torch.Tensor) -> torch.Tensor:
    return size * (torch.arange(size.shape[1]) % 16 < 8)


def _own_scale(product: torch.Tensor, right: Quantized, scale: float) -> Quantized:
    q = nvfp4.quantize(product, nvfp4.own_global_scale(product))
    return right._replace(codes=codes.pack(q.codes), scales=q.scales)


def _rounded_first(product: torch.Tensor, right: Quantized, scale: float) -> Quantized:
    q = nvfp4.quantize(product.bfloat16(), scale)
    return right._replace(codes=codes.pack(q.codes), scales=q.scales)


def _gates_too(product: torch.Tensor, right: Quantized, scale: float) -> Quantized:
    """Twice as many columns."""
    return right._replace(codes=right.codes.repeat(1, 2), scales=right.scales.repeat(1, 2))


quantised_by_half = _by_amax(_first_eight)
quantised_by_neighbours = _by_amax(lambda size: size.roll(8, 1))
quantised_by_own = _quantising(_own_scale)
quantised_rounded = _quantising(_rounded_first)
quantised_gates_too = _quantising(_gates_too)
quantised_rows = _quantising(lambda product, right, scale: right._replace(scales=right.scales.roll(1, 0)))
buffer_uninitialised, buffer_carried = _ending(_uninitialised), _ending(_carried)
silu_on_all = _ending(lambda g, u, limit: _silu(swiglu.clamp(g, u, limit)[0]) * _silu(swiglu.clamp(g, u, limit)[1]))
clamp_after = _ending(_after)
clamp_missing = _ending(lambda g, u, limit: swiglu.swiglu(g, u, None))
clamp_both_sides = _ending(_both_sides)
up_above_only = _ending(_up_above_only)
alpha_after = _ending(swiglu.swiglu, "after")
gate_alpha_for_both = _ending(swiglu.swiglu, "gate")
overflowing = _ending(_overflowing)
hard_sigmoid = _ending(_hard)
left_interleaved = _ending(
    swiglu.swiglu, pairs=lambda n: torch.arange(n).view(2, -1).T.flatten() if n % 2 == 0 else torch.arange(n)
)
granularity_halved = _rows(_halved)
up_first = _rows(lambda half: torch.arange(2 * half).roll(half))
one_row_on = _rows(lambda half: torch.cat([torch.arange(half), half + torch.arange(half).roll(1)]))
gates_by_number = _rows(lambda half: interleave.order(half, 8 if half % 8 == 0 else 1))
subtile_before = _rows(lambda half: torch.cat([torch.arange(half).roll(8), half + torch.arange(half)]))


def _nan_swallowed(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """The clamp's minimum takes the number of the two."""
    if limit is None:
        return swiglu.swiglu(gate, up, None)
    return swiglu.swiglu(gate.nan_to_num(limit), up.nan_to_num(limit), limit)


def _nan_spread(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """Rows of a tile of 16 share their NaN."""
    y = swiglu.swiglu(gate, up, limit)
    for row in y.isnan().any(1).nonzero().flatten().tolist():
        y[row // 16 * 16 : row // 16 * 16 + 16] = torch.nan
    return y


nan_swallowed, nan_spread = _ending(_nan_swallowed), _ending(_nan_spread)
