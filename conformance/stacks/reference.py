"""The `reference` stack: right by construction, on a CPU. It judges the harness, never a machine.

It shares no formula and no helper with `references/`: shares are found by counting up instead of by rounding,
and shards by cutting the checkpoint into equal pieces instead of by computing offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance import __version__
from conformance.errors import StackRefused
from conformance.stacks.protocols import (
    SHARDS,
    Axis,
    ExpertsInfo,
    ExpertsRequest,
    ParameterInfo,
    PlanOutcome,
    PlanRequest,
    StackInfo,
    StackOptions,
)

if TYPE_CHECKING:
    import torch

    from conformance.geometry import Geometry
    from conformance.stacks.protocols import MoeCall, MoeRequest
    from conformance.stacks.reference_model import ReferenceModelLoader
    from conformance.stacks.reference_moe import ReferenceMoe


def open_stack(options: StackOptions) -> ReferenceStack:
    return ReferenceStack(options)


class ReferenceStack:
    name = "reference"

    def __init__(self, options: StackOptions):
        self._emulate = options.emulate
        self._arithmetic = options.arithmetic

    def info(self) -> StackInfo:
        return StackInfo(
            name=self.name,
            subject="reference",
            version=__version__,
            backends=["any: the profile's rounding is emulated"],
            capabilities=["plan", "loader", "virtual-tp", f"moe ({self._arithmetic} x MXFP4)"],
        )

    def planner(self) -> ReferencePlanner:
        return ReferencePlanner()

    def loader(self) -> ReferenceLoader:
        return ReferenceLoader(self._emulate.get("intermediate", 32), self._emulate.get("hidden", 32))

    def model_loader(self) -> ReferenceModelLoader:
        from conformance.stacks.reference_model import ReferenceModelLoader

        return ReferenceModelLoader(self._emulate.get("intermediate", 32))

    def moe(self) -> ReferenceMoe:
        from conformance.stacks.reference_moe import ReferenceMoe

        return ReferenceMoe(self._arithmetic)

    def moe_calls(self, request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
        from conformance.stacks.reference_calls import calls

        return calls(request, capability, tokens, slots)

    def close(self) -> None:
        pass


def _share(size: int, tp: int, step: int) -> Axis:
    """The smallest share that is a whole number of steps and whose tp-fold holds the axis."""
    per_rank = step
    while per_rank * tp < size:
        per_rank += step
    return Axis(size, per_rank * tp, per_rank)


class ReferencePlanner:
    def plan(self, request: PlanRequest) -> PlanOutcome:
        g, tp = request.geometry, request.tp
        axes = {"routed": _share(g.intermediate, tp, 32)}
        if g.output_groups:
            heads = axes["heads"] = _share(g.attention_heads, tp, 8)
            heads_in_group = g.attention_heads // g.output_groups
            groups = [size / heads_in_group for size in (g.attention_heads, heads.padded, heads.per_rank)]
            if not all(n.is_integer() for n in groups):
                raise StackRefused(f"{heads.per_rank} heads a rank do not make whole groups of {heads_in_group}")
            axes["groups"] = Axis(*map(int, groups))
        if g.shared_experts:
            axes["shared"] = _share(g.shared_intermediate, tp, 128)
        rows = next(n for n in range(g.vocab, g.vocab + 64 * tp + 1) if n % 64 == 0 and n % tp == 0)
        axes["vocab"] = Axis(g.vocab, rows, rows // tp)
        return PlanOutcome("accepted", axes=axes, unpadded=dict(g.unpadded), origin="plan")


class ReferenceLoader:
    def __init__(self, intermediate_step: int, hidden_step: int):
        self._steps = intermediate_step, hidden_step
        self._arena = Arena()

    def open_experts(self, request: ExpertsRequest) -> ReferenceExperts:
        return ReferenceExperts(request, *self._steps, self._arena)


class Arena:
    """Memory that layers take turns in: first use of fresh pages costs more than everything else here."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def zeros(self, sizes: list[int]) -> list[torch.Tensor]:
        """Flat uint8 tensors of those sizes, all zero. Those that were handed out before are overwritten."""
        import torch

        total = sum(sizes)
        if self._memory is None or self._memory.numel() < total:
            self._memory = None
            self._memory = torch.empty(total, dtype=torch.uint8)
        return list(self._memory[:total].zero_().split(sizes))


class ReferenceExperts:
    """One rank's routed experts: 1.3 GB for V4-Flash at TP3, in memory that all ranks take turns in."""

    def __init__(self, request: ExpertsRequest, intermediate_step: int, hidden_step: int, arena: Arena):
        self._arena = arena
        g: Geometry = request.geometry
        self._rank, self._experts = request.rank, request.experts
        self._share = _share(g.intermediate, request.tp, 32).per_rank
        self._intermediate = g.intermediate
        width = _share(self._share, 1, intermediate_step).padded
        hidden = _share(g.hidden_size, 1, hidden_step).padded
        self.info = ExpertsInfo(
            parameters={
                "w13_weight": ParameterInfo(2 * width, hidden // 2, "uint8"),
                "w13_weight_scale": ParameterInfo(2 * width, hidden // 32, "uint8"),
                "w2_weight": ParameterInfo(hidden, width // 2, "uint8"),
                "w2_weight_scale": ParameterInfo(hidden, width // 32, "uint8"),
            },
            kernel_width=width,
            logical_width=self._share,
            backend=request.backend,
        )
        self._held: dict[str, torch.Tensor] | None = None

    def allocate(self, nbytes: int) -> torch.Tensor:
        import torch

        return torch.empty(nbytes, dtype=torch.uint8)

    def _data(self, parameter: str) -> torch.Tensor:
        if self._held is None:
            shapes = {name: (self._experts, p.rows, p.cols) for name, p in self.info.parameters.items()}
            flat = self._arena.zeros([e * rows * cols for e, rows, cols in shapes.values()])
            self._held = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), flat, strict=True)}
        return self._held[parameter]

    def initial(self, parameter: str, expert: int) -> torch.Tensor:
        import torch

        p = self.info.parameters[parameter]
        return torch.zeros((p.rows, p.cols), dtype=torch.uint8)

    def fill(self, parameter: str, value: int) -> None:
        self._data(parameter).fill_(value)

    def load(self, parameter: str, shard: str, expert: int, source: torch.Tensor) -> None:
        if shard not in SHARDS[parameter]:
            raise StackRefused(f"{parameter} is loaded from {SHARDS[parameter]}, not from {shard!r}")
        target = self._data(parameter)[expert]
        dim = 0 if parameter.startswith("w13") else 1
        if dim == 0:
            target = target.chunk(2, dim=0)[SHARDS[parameter].index(shard)]
        elements_in_unit = self._intermediate // source.shape[dim]
        pieces = source.split(self._share // elements_in_unit, dim=dim)
        if self._rank >= len(pieces):
            target.zero_()
            return
        piece = pieces[self._rank]
        target[: piece.shape[0], : piece.shape[1]] = piece
        target[piece.shape[0] :] = 0
        target[:, piece.shape[1] :] = 0

    def read(self, parameter: str, expert: int) -> torch.Tensor:
        return self._data(parameter)[expert]

    def write(self, parameter: str, expert: int, data: torch.Tensor) -> None:
        self._data(parameter)[expert] = data

    def close(self) -> None:
        self._held = None
