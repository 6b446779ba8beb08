"""The MoE runner under test: weights whose answer is known, calls with poisoned memory, and what is due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.stacks.quant_protocol import QuantizedWeight
from conformance.stacks.runner_protocol import RunnerRequest
from suites.quant.bench import on_the_gpu
from suites.quant.exact import Exact
from suites.quant.operands import Matrix, of_values, random_elements, random_scales

#: A token of 6 in its first place: gate 48, where SiLU is the identity, up -1.5, activation -72, every step exact.
TOKEN, ACTIVATION = 6.0, -72.0
_GATE, _UP = (4.0, 2.0), (-0.5, 0.5)  # element, global scale


class Weights(NamedTuple):
    """[gate; up] (E, 2 I, H), their global scales (E, 2); down (E, H, I), its (E,)."""

    w13: Matrix
    of13: torch.Tensor
    w2: Matrix
    of2: torch.Tensor

    def gate_up(self, expert: int) -> torch.Tensor:
        """(2 I, H) FP64."""
        plain = self.w13.values[expert]
        return plain * self.of13[expert].double().repeat_interleave(len(plain) // 2)[:, None]

    def down(self, expert: int) -> torch.Tensor:
        return self.w2.values[expert] * self.of2[expert].double()

    def part(self, first: int, last: int) -> Weights:
        some = slice(first, last)
        w13, w2 = (Matrix(m.format, m.codes[some], _some(m.scales, some)) for m in (self.w13, self.w2))
        return Weights(w13, self.of13[some], w2, self.of2[some])


def _some(scales: torch.Tensor | None, some: slice) -> torch.Tensor | None:
    return None if scales is None else scales[some]


class Place(NamedTuple):
    """Which experts a rank holds, of how many, and how it quantises."""

    first: int
    experts: int
    limit: float | None = None
    input_scale: float = 2.0**-3
    activation_scale: float = 4.0


class Bench:
    def __init__(self, stack: Stack, context: Context, *needs: str):
        self.runner: Any = context.moe_runner
        self.can = self.runner.capabilities()
        self.seed = context.target.seed
        on_the_gpu(stack, context, self.can.device, self.can.runs)
        if lacking := [need for need in needs if need not in self.can.offers]:
            raise NotSupported(f"{stack.name}'s MoE runner offers no {', '.join(lacking)}")
        self.exact = Exact(self.can.runs, self.seed)
        #: Neither is the other, nor twice or half of it.
        self.intermediate, self.hidden = (
            -(-size // step) * step for size, step in zip((48, 160), self.can.steps, strict=True)
        )
        #: Experts of one rank.
        self.held = min(self.can.experts, 5)

    def generator(self, salt: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + salt)

    def telling(self, experts: int) -> tuple[Weights, torch.Tensor]:
        """Weights that make `TOKEN` an answer of each expert's own, alike in every output; the answers (E,) FP64."""
        i, h = self.intermediate, self.hidden
        w13 = torch.zeros(experts, 2 * i, h)
        w13[:, :i, 0], w13[:, i:, 0] = _GATE[0], _UP[0]
        number = torch.arange(experts)
        element = torch.tensor([1, 1.5, 2, 3, 4, 6, 0.5])[number % 7]
        of2 = torch.exp2((number % 5 - 2).float())
        w2 = torch.zeros(experts, h, i)
        w2[:, torch.arange(h), torch.arange(h) % i] = element[:, None]
        scales = torch.tensor([_GATE[1], _UP[1]]).repeat(experts, 1)
        made = Weights(of_values(w13, "nvfp4"), scales, of_values(w2, "nvfp4"), of2)
        return made, (element * of2).double() * ACTIVATION

    def random(self, experts: int) -> Weights:
        i, h = self.intermediate, self.hidden
        generator = self.generator(experts)

        def matrix(rows: int, columns: int) -> Matrix:
            some = random_scales((experts, rows, columns // 16), "nvfp4", generator, narrow=True)
            return of_values(random_elements((experts, rows, columns), generator), "nvfp4", some)

        of13 = torch.rand(experts, 2, generator=generator) / 8 + 0.03
        return Weights(matrix(2 * i, h), of13, matrix(h, i), torch.rand(experts, generator=generator) + 0.5)

    def tokens(self, count: int) -> torch.Tensor:
        x = torch.zeros(count, self.hidden, dtype=torch.bfloat16)
        x[:, 0] = TOKEN
        return x

    @contextmanager
    def opened(self, w: Weights, place: Place) -> Iterator[object]:
        """A handle; the weights given are overwritten once they are prepared."""
        tensors = [(m.stored.clone(), m.scales.clone(), of.clone()) for m, of in ((w.w13, w.of13), (w.w2, w.of2))]  # type: ignore[union-attr]
        w13, w2 = (QuantizedWeight(*(t.to(self.can.device) for t in three)) for three in tensors)
        handle = self.runner.prepare(RunnerRequest(w13, w2, *place))
        for tensor in (*w13, *w2):
            tensor.fill_(0xFF if tensor.dtype == torch.uint8 else torch.nan)
        try:
            yield handle
        finally:
            self.runner.close(handle)

    def on_device(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.to(self.can.device) for t in tensors)

    def run(self, handle: object, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """(T, H) on the CPU, FP64."""
        out, given = self.out(x), self.on_device(x, ids.int(), weights.float())
        before = [t.clone().cpu() for t in given]
        self.runner.run(handle, *given, out)
        for name, tensor, old in zip(("x", "ids", "weights"), given, before, strict=True):
            self.exact.same(f"{name} afterwards", tensor, old)
        return out.cpu().double()

    def out(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full(x.shape, torch.nan, dtype=getattr(torch, self.can.output), device=self.can.device)

    def rounded(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(getattr(torch, self.can.output)).double()

    def evidence(self, right: str) -> Evidence:
        return self.exact.evidence(right, {"slot": self.can.slot, "output": self.can.output})


def answers(ids: torch.Tensor, own: torch.Tensor, first: int) -> torch.Tensor:
    """ids (T, k) -> what each slot is due to answer, FP64: 0 where the rank does not hold the expert."""
    local = ids - first
    return torch.where((local >= 0) & (local < len(own)), own[local.clamp(0, len(own) - 1)], 0.0)
