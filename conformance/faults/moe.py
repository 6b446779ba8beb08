"""Faults of the MoE layer: wrong bytes at the kernel, wrong arithmetic in it, wrong use of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.faults import loader
from conformance.faults.kernel import MoeFault, Run

if TYPE_CHECKING:
    import torch

_VICTIM = 1  # the expert that faults of a single expert hit
_GARBAGE = 0x7F
_BAD_TACTIC = 2


def _swapped_halves(parameter: str, expert: int, data: torch.Tensor) -> None:
    if parameter.startswith("w13"):
        data.copy_(data.roll(data.shape[0] // 2, 0))


def _swapped_gate_scales(parameter: str, expert: int, data: torch.Tensor) -> None:
    if parameter == "w13_weight_scale":
        data.copy_(data.roll(data.shape[0] // 2, 0))


def _lost_scale_group(parameter: str, expert: int, data: torch.Tensor) -> None:
    """The second scale group of W2 reads as 2^-127."""
    if parameter == "w2_weight_scale" and expert == _VICTIM:
        data[:, 1] = 0


def _lost_channel(parameter: str, expert: int, data: torch.Tensor) -> None:
    """Channel 37 of the rank: the odd element of byte 18."""
    if parameter == "w2_weight" and expert == _VICTIM:
        data[:, 18] &= 0x0F


def _stale_w13_tail(parameter: str, expert: int, data: torch.Tensor) -> None:
    """The last row of W1's half: it meets zeros in W2, and no output shows it."""
    if parameter == "w13_weight":
        data[data.shape[0] // 2 - 1] = _GARBAGE


def _scales_of_the_expert_before(parameter: str, expert: int) -> int:
    return expert - 1 if parameter.endswith("_scale") and expert else expert


def _clamp_after_silu(
    gate: torch.Tensor, up: torch.Tensor, limit: float | None, alpha: float, beta: float
) -> torch.Tensor:
    swish = gate * (alpha * gate).sigmoid()
    return swish * (up + beta) if limit is None else swish.clamp(max=limit) * (up.clamp(-limit, limit) + beta)


def _clamp_both_sides(
    gate: torch.Tensor, up: torch.Tensor, limit: float | None, alpha: float, beta: float
) -> torch.Tensor:
    if limit is not None:
        gate, up = gate.clamp(-limit, limit), up.clamp(-limit, limit)
    return gate * (alpha * gate).sigmoid() * (up + beta)


def _mxfp8(x: torch.Tensor, up: bool) -> torch.Tensor:
    """Groups of 32 with a power of two next to amax / 448: above it or below it."""
    import torch

    groups = x.unflatten(-1, (-1, 32))
    power = (groups.abs().nan_to_num(0.0).amax(-1, keepdim=True).double() / 448).log2()
    scale = torch.exp2((power.ceil() if up else power.floor()).clamp(-127, 127))
    codes = (groups / scale).clamp(-448, 448).float().to(torch.float8_e4m3fn)
    return (codes.double() * scale).flatten(-2).to(x.dtype)


def _amax_rounded_down(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return _mxfp8(x, up=False)


def _not_requantised(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return x if stage == "activation" else _mxfp8(x, up=True)


def _input_not_quantised(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return x if stage == "input" else _mxfp8(x, up=True)


def _one_expert_scaled(run: Run) -> None:
    run.inner(run.x, run.ids, run.weights * (1 + 0.02 * (run.ids == _VICTIM)), run.out)


def _last_rank(run: Run) -> bool:
    return run.request.tp > 1 and run.request.rank == run.request.tp - 1


def _dropped_rank(run: Run) -> None:
    run.inner(run.x, run.ids, run.weights, run.out)
    if _last_rank(run):
        run.out.zero_()


def _doubled_rank(run: Run) -> None:
    run.inner(run.x, run.ids, run.weights, run.out)
    if _last_rank(run):
        run.out.mul_(2)


def _weight_twice(run: Run) -> None:
    run.inner(run.x, run.ids, run.weights * run.weights, run.out)


def _map_off_by_one(run: Run) -> None:
    moved = (run.ids + 1) % run.request.experts
    run.inner(run.x, moved.where(run.ids >= 0, run.ids), run.weights, run.out)


def _not_written(run: Run) -> None:
    """The last token's row is left as it was."""
    done = run.out.clone()
    run.inner(run.x, run.ids, run.weights, done)
    run.out[:-1] = done[:-1]


def _bf16_sum(run: Run) -> None:
    """One slot after the other, added up in the output's own type."""
    run.out.zero_()
    for slot in range(run.ids.shape[1]):
        one = run.out.clone()
        run.inner(run.x, run.ids[:, slot : slot + 1], run.weights[:, slot : slot + 1], one)
        run.out.add_(one)


def _swallowed(run: Run) -> None:
    run.inner(run.x.nan_to_num(posinf=0.0, neginf=0.0), run.ids, run.weights, run.out)


def _race(run: Run) -> None:
    """Every other call loses the last bit of one output."""
    run.inner(run.x, run.ids, run.weights, run.out)
    if run.number % 2:
        run.out[0, 0] *= 1 + 2.0**-7


def _tactic_wrong(run: Run) -> None:
    """One tactic does not write its last tile."""
    run.inner(run.x, run.ids, run.weights, run.out)
    if run.tactic == _BAD_TACTIC:
        run.out[:, -8:] = 0


def _tactic_races(run: Run) -> None:
    """One tactic gives other bits every other call."""
    run.inner(run.x, run.ids, run.weights, run.out)
    if run.tactic == _BAD_TACTIC and run.number % 2:
        run.out[:, 0] *= 1 + 2.0**-7


unit_blind = MoeFault(loader=loader.unit_blind("w2_weight", "w2_weight_scale"))
half_fix = MoeFault(loader=loader.unit_blind("w2_weight"))
swapped = MoeFault(weights=_swapped_halves)
swapped_scales = MoeFault(weights=_swapped_gate_scales)
clamp_missing = MoeFault(limit=lambda limit: None)
clamp_after_silu = MoeFault(activation=_clamp_after_silu)
clamp_both_sides = MoeFault(activation=_clamp_both_sides)
amax_rounded_down = MoeFault(quantise=_amax_rounded_down)
not_requantised = MoeFault(quantise=_not_requantised)
input_not_quantised = MoeFault(quantise=_input_not_quantised)
lost_scale_group = MoeFault(weights=_lost_scale_group)
lost_channel = MoeFault(weights=_lost_channel)
one_expert_scaled = MoeFault(run=_one_expert_scaled)
expert_scale_stride = MoeFault(from_expert=_scales_of_the_expert_before)
stale_tail = MoeFault(weights=_stale_w13_tail)
dropped_rank = MoeFault(run=_dropped_rank)
doubled_rank = MoeFault(run=_doubled_rank)
weight_twice = MoeFault(run=_weight_twice)
map_off_by_one = MoeFault(run=_map_off_by_one)
not_written = MoeFault(run=_not_written)
bf16_sum = MoeFault(run=_bf16_sum)
nan_swallowed = MoeFault(run=_swallowed)
race = MoeFault(run=_race)
tactic_wrong = MoeFault(run=_tactic_wrong)
tactic_races = MoeFault(run=_tactic_races)
