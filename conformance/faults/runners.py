"""Faults of a MoE runner on NVFP4 weights: at its ids and weights, or with one step computed otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.errors import StackRefused
from conformance.faults.quant_seam import QuantFault
from conformance.stacks.runner_protocol import RunnerRequest, Stages
from references import codes, nvfp4, swiglu

# --- ids, weights and batches as called


def _calling(change: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> QuantFault:
    """`change(request, x, ids, weights)` gives what the clean runner is called with."""

    def prepare(inner: Any, request: RunnerRequest) -> Any:
        return inner.prepare(request), request

    def run(inner: Any, held: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: Any) -> None:
        inner.run(held[0], *change(held[1], x, ids, weights), out)

    def stages(inner: Any, held: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Stages:
        told: Stages = inner.stages(held[0], *change(held[1], x, ids, weights))
        return told

    return QuantFault(moe_runner=_opened(prepare, run, stages))


def _opened(prepare: Any, run: Any, stages: Any) -> dict[str, Callable[..., Any]]:
    """Hooks for handles that are pairs, the clean one first."""
    return {
        "prepare": prepare,
        "run": run,
        "stages": stages,
        "shared": lambda inner, held, x, out: inner.shared(held[0], x, out),
        "close": lambda inner, held: inner.close(held[0]),
    }


def _ids(change: Callable[[RunnerRequest, torch.Tensor], torch.Tensor]) -> QuantFault:
    return _calling(lambda r, x, ids, weights: (x, change(r, ids).int(), weights))


def _local(r: RunnerRequest, ids: torch.Tensor) -> torch.Tensor:
    return (ids >= r.first) & (ids < r.first + len(r.w13.codes))


def _last_of_tile_lost(r: RunnerRequest, ids: torch.Tensor) -> torch.Tensor:
    """Of an expert's tokens, those beyond whole tiles of 128, where it has one."""
    kept = ids.clone()
    for expert in range(r.first, r.first + len(r.w13.codes)):
        slots = (ids.flatten() == expert).nonzero().flatten()
        if len(slots) > 128:
            kept.view(-1)[slots[len(slots) // 128 * 128 :]] = -1
    return kept


def _last_slot_wins(r: RunnerRequest, ids: torch.Tensor) -> torch.Tensor:
    """`=` where `+=` is due."""
    local = _local(r, ids)
    later = local.flip(1).cumsum(1).flip(1) - local.long()
    return torch.where(later > 0, -1, ids)


def _sorted(r: RunnerRequest, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Any:
    """Routes are taken to come by ascending id."""
    return x, ids.sort(1).values, weights


not_offset = _ids(lambda r, ids: ids + r.first)
offset_twice = _ids(lambda r, ids: torch.where(ids >= 0, ids - r.first, ids))
minus_one_wraps = _ids(lambda r, ids: torch.where(ids == -1, r.first + len(r.w13.codes) - 1, ids))
beyond_clamped = _ids(lambda r, ids: ids.clamp(max=r.first + len(r.w13.codes) - 1))
last_of_tile_lost = _ids(_last_of_tile_lost)
last_slot_wins = _ids(_last_slot_wins)
sorted_taken = _calling(_sorted)


def _duplicates_once(r: RunnerRequest, ids: torch.Tensor) -> torch.Tensor:
    """An expert that a token names twice is counted once."""
    first = torch.stack([(ids[:, :j] == ids[:, j : j + 1]).any(1) for j in range(ids.shape[1])], 1)
    return torch.where(first, -1, ids)


duplicates_once = _ids(_duplicates_once)


class _Stale:
    """Rows of an earlier call stay in the sum."""

    def __init__(self) -> None:
        self.left: torch.Tensor | None = None

    def __call__(self, inner: Any, handle: Any, x: Any, ids: Any, weights: Any, out: torch.Tensor) -> None:
        inner.run(handle, x, ids, weights, out)
        kept = out.clone()
        if self.left is not None and len(self.left) > len(out):
            out += self.left[: len(out)]
        self.left = kept


def _too_many_taken(inner: Any, handle: Any, x: Any, ids: Any, weights: Any, out: torch.Tensor) -> None:
    try:
        inner.run(handle, x, ids, weights, out)
    except StackRefused:
        most = inner.capabilities().tokens
        inner.run(handle, x[:most], ids[:most], weights[:most], out[:most])


def _square(inner: Any, handle: Any, x: Any, ids: Any, weights: Any, out: torch.Tensor) -> None:
    """The scatter goes by another width than the hidden size: its last columns are left."""
    inner.run(handle, x, ids, weights, out)
    out[:, out.shape[1] // 128 * 128 :] = 0


stale = QuantFault(moe_runner={"run": _Stale})
too_many_taken = QuantFault(moe_runner={"run": _too_many_taken})
other_width = QuantFault(moe_runner={"run": _square})


def _empty_weighed(inner: Any, handle: Any, x: Any, ids: Any, weights: torch.Tensor, out: torch.Tensor) -> None:
    """Empty slots are zeros times their weight."""
    inner.run(handle, x, ids, weights, out)
    out[(weights.isnan() & (ids < 0)).any(1)] = torch.nan


def _padding_mixed(inner: Any, handle: Any, x: Any, ids: Any, weights: Any, out: torch.Tensor) -> None:
    """Rows of nobody are multiplied along, and their NaN is there."""
    inner.run(handle, x, ids, weights, out)
    out += (x * 0).to(out.dtype)


def _nan_of_neighbour(inner: Any, handle: Any, x: torch.Tensor, ids: Any, weights: Any, out: torch.Tensor) -> None:
    """A tile of eight rows shares its NaN."""
    inner.run(handle, x, ids, weights, out)
    for row in x.isnan().any(1).nonzero().flatten().tolist():
        out[row // 8 * 8 : row // 8 * 8 + 8] = torch.nan


def _ids_overwritten(inner: Any, handle: Any, x: Any, ids: torch.Tensor, weights: Any, out: torch.Tensor) -> None:
    """Ids become local ones where they lie."""
    inner.run(handle, x, ids, weights, out)
    ids.add_(1)


empty_weighed = QuantFault(moe_runner={"run": _empty_weighed})
padding_mixed = QuantFault(moe_runner={"run": _padding_mixed})
nan_of_neighbour = QuantFault(moe_runner={"run": _nan_of_neighbour})
ids_overwritten = QuantFault(moe_runner={"run": _ids_overwritten})


def _counted_as_table(inner: Any, ids: torch.Tensor, experts: int) -> Any:
    """A boolean for every slot and expert."""
    table = ids.flatten()[:, None] == torch.arange(experts, device=ids.device)
    counts = table.sum(0)
    return counts, torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _counted_in_bytes(inner: Any, ids: torch.Tensor, experts: int) -> Any:
    counts, _ = inner.count(ids, experts)
    counts = counts % 128
    return counts, torch.cat([counts.new_zeros(1), counts.cumsum(0)])


counted_as_table = QuantFault(moe_runner={"count": _counted_as_table})
counted_in_bytes = QuantFault(moe_runner={"count": _counted_in_bytes})

# --- one step computed otherwise


class Steps(NamedTuple):
    """What a step is; each may be another than the right one."""

    activation: Callable[..., torch.Tensor] = swiglu.swiglu
    gate_and_up: Callable[[RunnerRequest, torch.Tensor], torch.Tensor] = lambda r, alphas: alphas
    up_first: bool = False
    down: Callable[[torch.Tensor], torch.Tensor] = lambda w: w
    weighted: str = "result"  #: what the routing weight multiplies: `input`, `activation`, or the result
    input_scale: Callable[[RunnerRequest, torch.Tensor], float] = lambda r, x: r.input_scale
    by: Callable[[RunnerRequest], float] = lambda r: r.activation_scale
    combine: torch.dtype = torch.float64


def _stepped(steps: Steps) -> QuantFault:
    def prepare(inner: Any, request: RunnerRequest) -> Any:
        kept = request._replace(w13=_cloned(request.w13), w2=_cloned(request.w2))
        return inner.prepare(request), kept

    def run(inner: Any, held: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: Any) -> None:
        inner.run(held[0], x, ids, weights, out)  # refuses what is to be refused
        out.copy_(_computed(steps, held[1], x, ids, weights).out)

    def stages(inner: Any, held: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Stages:
        made = _computed(steps, held[1], x, ids, weights)
        told: Stages = inner.stages(held[0], x, ids, weights)
        place = {(int(t), int(s)): n for n, (t, s) in enumerate(zip(told.token, told.slot, strict=True))}
        order = torch.tensor([place[int(t), int(s)] for t, s in zip(made.token, made.slot, strict=True)])
        activation, y = told.activation.clone(), told.y.clone()
        activation[order], y[order] = made.activation.to(activation.dtype), made.y.to(y.dtype)
        scales, elements = told.quantized.scales.clone(), told.quantized.codes.clone()
        scales[order], elements[order] = made.quantized
        quantized = told.quantized._replace(codes=elements, scales=scales)
        return told._replace(activation=activation, quantized=quantized, y=y, out=made.out.to(told.out.dtype))

    return QuantFault(moe_runner=_opened(prepare, run, stages))


def _cloned(w: Any) -> Any:
    return type(w)(*(t.clone() for t in w))


class _Made(NamedTuple):
    token: torch.Tensor
    slot: torch.Tensor
    activation: torch.Tensor
    quantized: tuple[torch.Tensor, torch.Tensor]  #: scales, packed codes
    y: torch.Tensor
    out: torch.Tensor


def _computed(s: Steps, r: RunnerRequest, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> _Made:
    """All of it in FP64, slot by slot."""
    token, slot = torch.where(_local(r, ids))
    expert, weight = ids[token, slot].long() - r.first, weights[token, slot].double()[:, None]
    given = x[token].double() * (weight if s.weighted == "input" else 1)
    seen = nvfp4.rounded(given, s.input_scale(r, x))
    of = s.gate_and_up(r, r.w13.global_scales.double())
    w13 = _values(r.w13.codes, r.w13.scales)
    h = torch.stack([w13[e] @ row for e, row in zip(expert, seen, strict=True)]) if len(token) else w13[:0, :, 0]
    gate, up = h.chunk(2, dim=1)
    if s.up_first:
        gate, up = up, gate
    activation = s.activation(gate * of[expert, :1], up * of[expert, 1:], r.limit).bfloat16().double()
    loud = activation * (weight if s.weighted == "activation" else 1)
    q = nvfp4.quantize(loud, s.by(r))
    again = nvfp4.dequantize(q, r.activation_scale)
    down = s.down(_values(r.w2.codes, r.w2.scales)) * r.w2.global_scales.double()[:, None, None]
    y = torch.stack([down[e] @ row for e, row in zip(expert, again, strict=True)]) if len(token) else x[:0].double()
    y = y.bfloat16().double()
    out = torch.zeros(x.shape, dtype=s.combine)
    for n in range(len(token)):
        term = y[n] * (weight[n] if s.weighted == "result" else 1)
        out[token[n]] += term.to(s.combine)
    return _Made(token, slot, activation, (q.scales, codes.pack(q.codes)), y, out)


def _values(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    flat = nvfp4.Nvfp4(codes.unpack(packed).flatten(0, 1), scales.flatten(0, 1))
    return nvfp4.dequantize(flat, 1.0).view(*packed.shape[:2], -1)


def _after(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    y = gate * torch.sigmoid(gate)
    return y * up if limit is None else y.clamp(max=limit) * up.clamp(-limit, limit)


def _transposed(w: torch.Tensor) -> torch.Tensor:
    return w.reshape(w.shape[0], w.shape[2], w.shape[1]).mT


def _mean(r: RunnerRequest, alphas: torch.Tensor) -> torch.Tensor:
    return alphas.mean(1, keepdim=True).expand_as(alphas)


limit_not_passed = _stepped(Steps(lambda g, u, limit: swiglu.swiglu(g, u, None)))
clamped_after = _stepped(Steps(_after))
up_first = _stepped(Steps(up_first=True))
mean_of_scales = _stepped(Steps(gate_and_up=_mean))
gates_scale_for_both = _stepped(Steps(gate_and_up=lambda r, a: a[:, :1].expand_as(a)))
down_transposed = _stepped(Steps(down=_transposed))
weighted_input = _stepped(Steps(weighted="input"))
weighted_activation = _stepped(Steps(weighted="activation"))
weights_ignored = _stepped(Steps(weighted="nothing"))
activation_by_input_scale = _stepped(Steps(by=lambda r: r.input_scale))
sum_in_bf16 = _stepped(Steps(combine=torch.bfloat16))
scale_of_the_batch = _stepped(
    Steps(input_scale=lambda r, x: nvfp4.own_global_scale(x) * 0.97 if len(x) > 1 else r.input_scale)
)

# --- the shared expert


def _scaled(factor: float) -> QuantFault:
    def change(inner: Any, handle: Any, x: torch.Tensor, out: torch.Tensor) -> None:
        inner.shared(handle, x, out)
        out *= factor

    return QuantFault(moe_runner={"shared": change})


def _last_rows_lost(inner: Any, handle: Any, x: torch.Tensor, out: torch.Tensor) -> None:
    """Scales of one group are not padded to whole tiles."""
    inner.shared(handle, x, out)
    if len(x) > 128:
        out[len(x) // 128 * 128 :] = 0


def _other_weights(change: Callable[[RunnerRequest], RunnerRequest]) -> QuantFault:
    """The shared expert is prepared otherwise than the routed ones."""

    def prepare(inner: Any, request: RunnerRequest) -> Any:
        kept = request._replace(w13=_cloned(request.w13), w2=_cloned(request.w2))
        return inner.prepare(request), inner.prepare(change(kept))

    hooks = _opened(
        prepare,
        lambda inner, held, *rest: inner.run(held[0], *rest),
        lambda inner, held, *rest: inner.stages(held[0], *rest),
    )
    return QuantFault(moe_runner=hooks | {"shared": lambda inner, held, x, out: inner.shared(held[1], x, out)})


def _merged(r: RunnerRequest) -> RunnerRequest:
    """The larger of gate's and up's global scales for both."""
    scales = r.w13.global_scales
    return r._replace(w13=r.w13._replace(global_scales=scales.amax(1, keepdim=True).expand_as(scales).contiguous()))


shared_by_routed_factor, shared_added_thrice = _scaled(1.5), _scaled(3.0)
shared_last_rows = QuantFault(moe_runner={"shared": _last_rows_lost})
shared_unlimited, shared_merged = _other_weights(lambda r: r._replace(limit=None)), _other_weights(_merged)
