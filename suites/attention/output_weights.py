"""Weights of the output projection, group by group of the model, and cut for a rank: E4M3 with scales of 128 x 128."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch

from conformance.stacks.attention_protocol import OutputRequest
from references import attention_output, attention_rope
from suites.attention.bench import Bench, D

_ONE, _PLAIN, _BLOCK = 0x38, 127, 128  # E4M3's 1.0, E8M0's 2^0
POSITIONS = 9000


class Weights(NamedTuple):
    """wo_a (G R, n) and wo_b (hidden, G R) of a rank's groups: codes and scales, uint8. Virtual groups are zero."""

    wo_a: torch.Tensor
    wo_a_scale: torch.Tensor
    wo_b: torch.Tensor
    wo_b_scale: torch.Tensor

    def decoded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """FP32, which holds them exactly."""
        a, b = (self.wo_a, self.wo_a_scale), (self.wo_b, self.wo_b_scale)
        return attention_output.fp8_blocks(*a, torch.float32), attention_output.fp8_blocks(*b, torch.float32)


class Group(Protocol):
    """(bench, group of the model) -> its wo_a (R, n), scales, its wo_b (hidden, R), scales."""

    __name__: str

    def __call__(self, bench: Bench, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]: ...


def sizes(bench: Bench) -> tuple[int, int, int]:
    """(R, n, hidden): o-LoRA rank, channels of a group's heads, hidden size."""
    g = bench.context.geometry
    return g.o_lora_rank, bench.heads // bench.groups * D, g.hidden_size


def of_rank(bench: Bench, rank: int, group: Group) -> Weights:
    """As `cut`, each made once a run."""
    once: Weights = bench.context.once(f"attention.output {group.__name__} {rank}", lambda: cut(bench, rank, group))
    return once


def cut(bench: Bench, rank: int, group: Group) -> Weights:
    """As a right loader leaves them."""
    parts = []
    for g in range(rank * bench.groups, (rank + 1) * bench.groups):
        virtual = g >= bench.context.geometry.output_groups
        made = group(bench, 0 if virtual else g)
        parts.append([torch.zeros_like(part) if virtual else part for part in made])
    a, a_scale, b, b_scale = zip(*parts, strict=True)
    whole = (torch.cat(a), torch.cat(a_scale), torch.cat(b, 1), torch.cat(b_scale, 1))
    return Weights(*(part.contiguous().to(bench.can.device) for part in whole))


def one_hot(bench: Bench, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every row of wo_a picks a channel that is not rotated, every row of wo_b the same row of one group's."""
    low, wide, hidden = sizes(bench)
    picks = channels(bench, group)
    a = torch.zeros(low, wide, dtype=torch.uint8)
    a[torch.arange(low), picks] = _ONE
    b = torch.zeros(hidden, low, dtype=torch.uint8)
    out = torch.arange(hidden)
    mine = out % bench.context.geometry.output_groups == group
    b[out[mine], rows(bench, hidden)[mine]] = _ONE
    return a, _scale(a), b, _scale(b)


def channels(bench: Bench, group: int) -> torch.Tensor:
    """(R,): the channel among the group's that each row of wo_a picks."""
    low, wide, _ = sizes(bench)
    free = torch.arange(wide).view(-1, D)[:, : D - 64].flatten()
    return free[torch.randperm(len(free), generator=bench.rng(50 + group))[torch.arange(low) % len(free)]]


def rows(bench: Bench, hidden: int) -> torch.Tensor:
    """(hidden,): the row of wo_a's result that each output picks."""
    return torch.randint(0, sizes(bench)[0], (hidden,), generator=bench.rng(49))


def _scale(codes: torch.Tensor) -> torch.Tensor:
    return torch.full((-(-codes.shape[0] // 128), -(-codes.shape[1] // 128)), _PLAIN, dtype=torch.uint8)


def random(bench: Bench, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of all sizes, no NaN; scales that differ from block to block, so that outputs are about 1."""
    low, wide, hidden = sizes(bench)
    rng = bench.rng(60 + group)
    made = []
    for shape, depth in (((low, wide), wide), ((hidden, low), low * bench.context.geometry.output_groups)):
        codes = torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)
        codes[(codes & 0x7F) == 0x7F] = _ONE
        middle = 127 - round(torch.tensor(float(depth)).log2().item() / 2) - 7
        scale = torch.randint(middle - 2, middle + 3, _scale(codes).shape, generator=rng).to(torch.uint8)
        made += [codes, scale]
    return made[0], made[1], made[2], made[3]


def uneven(bench: Bench, given: Weights) -> tuple[Weights, torch.Tensor]:
    """The same with columns of wo_a, in blocks of 128, up to 2^30 times as large, and factors (heads, D) that make as
    much smaller what they meet: the four blocks of a head differ, and each counts as much as the others. So do rows of
    wo_a, and columns of wo_b. Virtual groups stay as they are."""
    low, wide, _ = sizes(bench)
    device = given.wo_a.device
    power = torch.arange(wide // _BLOCK, device=device) * 20 % 31
    between = torch.arange(low * bench.groups // _BLOCK, device=device)[:, None] * 20 % 31
    a_scale = (given.wo_a_scale + power - between).where(given.wo_a_scale > 0, 0).to(torch.uint8)
    b_scale = (given.wo_b_scale + between.T).where(given.wo_b_scale > 0, 0).to(torch.uint8)
    factors = torch.exp2(-power.float()).repeat_interleave(_BLOCK).view(-1, D).repeat(bench.groups, 1)
    return given._replace(wo_a_scale=a_scale, wo_b_scale=b_scale), factors.bfloat16()


def table(bench: Bench) -> torch.Tensor:
    return attention_rope.table(attention_rope.of_layer(bench.context.geometry.config, 4), POSITIONS).float()


def request(bench: Bench, weights: Weights) -> OutputRequest:
    t = bench.context.target
    at = table(bench).to(bench.can.device)
    return OutputRequest(t.geometry, bench.heads, bench.groups, *weights, at, t.capability)


@contextmanager
def opened(bench: Bench, weights: Weights) -> Iterator[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """The layer as a function: o (T, P, D), positions -> (T, hidden) bfloat16, poisoned before."""
    layer = bench.kernel.output(request(bench, weights))

    def run(o: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = bench.guarded((len(o), sizes(bench)[2]), torch.bfloat16, "out")
        layer.run(o, positions, out)
        return out

    try:
        yield run
    finally:
        layer.close()


def unsharded(bench: Bench, group: int, heads: torch.Tensor, positions: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """What one group of the whole model adds, its heads read off no rank: (T, hidden) FP64."""
    own = heads.chunk(bench.context.geometry.output_groups, 1)[group]
    a, a_scale, b, b_scale = (part.to(bench.can.device) for part in random(bench, group))
    wo_a, wo_b = attention_output.fp8_blocks(a, a_scale), attention_output.fp8_blocks(b, b_scale)
    return attention_output.project(own, positions, at, wo_a, wo_b, 1)
