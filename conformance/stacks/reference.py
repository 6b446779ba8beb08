"""The `reference` stack: right by construction, on a CPU. It judges the harness, never a machine.

It shares no formula and no helper with `references/`: shares are found by counting up instead of by rounding,
and shards by cutting the checkpoint into equal pieces instead of by computing offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from conformance import __version__
from conformance.errors import StackRefused
from conformance.stacks.protocols import (
    SHARDS,
    Axis,
    ExpertsInfo,
    ExpertsRequest,
    KernelChoice,
    KnownBackends,
    ParameterInfo,
    PlanOutcome,
    PlanRequest,
    StackInfo,
    StackOptions,
    Vetted,
)

if TYPE_CHECKING:
    import torch

    from conformance.geometry import Geometry
    from conformance.stacks.attention_calls_protocol import CallRequest
    from conformance.stacks.op_protocol import CustomOp
    from conformance.stacks.protocols import MoeCall, MoeRequest
    from conformance.stacks.quant_calls_protocol import QuantCallRequest
    from conformance.stacks.reference_attention import ReferenceAttention
    from conformance.stacks.reference_compiler import ReferenceCompiler
    from conformance.stacks.reference_engine import ReferenceEngine
    from conformance.stacks.reference_gemm import ReferenceGemm, ReferenceLinear, ReferenceSwiglu
    from conformance.stacks.reference_graphs import ReferenceAttentionGraphs, ReferenceGraphs, ReferenceLayerGraphs
    from conformance.stacks.reference_hyper import ReferenceHyper
    from conformance.stacks.reference_model import ReferenceModelLoader
    from conformance.stacks.reference_moe import ReferenceMoe
    from conformance.stacks.reference_prepare import ReferencePreparation
    from conformance.stacks.reference_quant import ReferenceQuantizer
    from conformance.stacks.reference_runner import ReferenceRunner
    from conformance.stacks.reference_selection import ReferenceSelection
    from conformance.stacks.shared import FilePart


def open_stack(options: StackOptions) -> ReferenceStack:
    return ReferenceStack(options)


class ReferenceStack:
    name = "reference"

    def __init__(self, options: StackOptions):
        self._emulate = options.emulate
        self._arithmetic = options.arithmetic
        self._vetted = options.vetted
        self._heads, self._scales = options.head_paddings, options.output_scales

    def info(self) -> StackInfo:
        return StackInfo(
            name=self.name,
            subject="reference",
            version=__version__,
            backends=["any: the profile's rounding is emulated"],
            capabilities=[
                "plan",
                "loader",
                "virtual-tp",
                "quant",
                "attention",
                f"moe ({self._arithmetic} x MXFP4)",
                "graph",
                "e2e",
            ],
        )

    def planner(self) -> ReferencePlanner:
        steps = self._emulate.get("intermediate", 32), self._emulate.get("hidden", 32)
        return ReferencePlanner(self._vetted, self._arithmetic, *steps)

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

    def attention_calls(self, request: CallRequest) -> list[MoeCall]:
        from conformance.stacks.reference_attention_calls import calls

        return calls(request)

    def quant_calls(self, request: QuantCallRequest) -> dict[str, list[MoeCall]]:
        from conformance.stacks.reference_quant_calls import calls

        return calls(request)

    def preparation(self) -> ReferencePreparation:
        from conformance.stacks.reference_prepare import ReferencePreparation

        steps = self._emulate.get("intermediate", 32), self._emulate.get("hidden", 32)
        return ReferencePreparation(self._arithmetic, steps)

    def selection(self) -> ReferenceSelection:
        from conformance.stacks.reference_selection import ReferenceSelection

        return ReferenceSelection()

    def attention(self) -> ReferenceAttention:
        from conformance.stacks.reference_attention import ReferenceAttention

        return ReferenceAttention(self._heads, self._scales)

    def hyper(self) -> ReferenceHyper:
        from conformance.stacks.reference_hyper import ReferenceHyper

        return ReferenceHyper()

    def graph(self) -> ReferenceGraphs:
        from conformance.stacks.reference_graphs import ReferenceGraphs

        return ReferenceGraphs(self._arithmetic)

    def attention_graph(self) -> ReferenceAttentionGraphs:
        from conformance.stacks.reference_graphs import ReferenceAttentionGraphs

        return ReferenceAttentionGraphs(self.attention())

    def layer_graph(self) -> ReferenceLayerGraphs:
        from conformance.stacks.reference_graphs import ReferenceLayerGraphs

        return ReferenceLayerGraphs(self.attention(), self._arithmetic)

    def custom_ops(self) -> list[CustomOp]:
        from conformance.stacks.reference_ops import listed

        return listed()

    def compiler(self) -> ReferenceCompiler:
        from conformance.stacks.reference_compiler import ReferenceCompiler

        return ReferenceCompiler()

    def engine(self) -> ReferenceEngine:
        from conformance.stacks.reference_engine import ReferenceEngine

        return ReferenceEngine()

    def quantizer(self) -> ReferenceQuantizer:
        from conformance.stacks.reference_quant import ReferenceQuantizer

        return ReferenceQuantizer()

    def gemm(self) -> ReferenceGemm:
        from conformance.stacks.reference_gemm import ReferenceGemm

        return ReferenceGemm()

    def swiglu(self) -> ReferenceSwiglu:
        from conformance.stacks.reference_gemm import ReferenceSwiglu

        return ReferenceSwiglu()

    def moe_runner(self) -> ReferenceRunner:
        from conformance.stacks.reference_runner import ReferenceRunner

        return ReferenceRunner()

    def linear(self) -> ReferenceLinear:
        from conformance.stacks.reference_gemm import ReferenceLinear

        return ReferenceLinear()

    def close(self) -> None:
        pass


def _share(size: int, tp: int, step: int) -> Axis:
    """The smallest share that is a whole number of steps and whose tp-fold holds the axis."""
    per_rank = step
    while per_rank * tp < size:
        per_rank += step
    return Axis(size, per_rank * tp, per_rank)


#: What the guard is asked about beside the vetted pairs: backends that no profile vets, by vLLM's names.
_OTHER_ATTENTION = ("FLASHMLA_SPARSE_DSV4", "FLASH_ATTN", "TRITON_MLA")
_OTHER_MOE = ("deep_gemm", "deep_gemm_mega_moe", "marlin")


def head_step(heads: int, groups: int, channels: int, tp: int) -> int:
    """Heads are given out one by one where every rank gets whole ones of all anyway, else by eights."""
    return 8 if heads % tp or groups % tp or channels % (32 * tp) else 1


class ReferencePlanner:
    """`vetted`: what its guard accepts where padding is needed (None: no guard). Steps, arithmetic: its kernel's."""

    def __init__(
        self,
        vetted: tuple[Vetted, ...] | None = None,
        arithmetic: str = "bf16",
        intermediate_step: int = 32,
        hidden_step: int = 32,
    ):
        self._vetted = vetted
        self._arithmetic = arithmetic
        self._steps = intermediate_step, hidden_step

    def plan(self, request: PlanRequest) -> PlanOutcome:
        g, tp = request.geometry, request.tp
        whole = Axis(g.intermediate, g.intermediate, g.intermediate)  # expert parallelism cuts no expert
        axes = {"routed": whole if request.expert_parallel else _share(g.intermediate, tp, 32)}
        if g.output_groups:
            cut = 0 if request.expert_parallel else g.intermediate
            step = head_step(g.attention_heads, g.output_groups, cut, tp)
            heads = axes["heads"] = _share(g.attention_heads, tp, step)
            heads_in_group = g.attention_heads // g.output_groups
            groups = [size / heads_in_group for size in (g.attention_heads, heads.padded, heads.per_rank)]
            if not all(n.is_integer() for n in groups):
                raise StackRefused(f"{heads.per_rank} heads a rank do not make whole groups of {heads_in_group}")
            axes["groups"] = Axis(*map(int, groups))
        if g.shared_experts:
            axes["shared"] = _share(g.shared_intermediate, tp, 128)
        rows = next(n for n in range(g.vocab, g.vocab + 64 * tp + 1) if n % 64 == 0 and n % tp == 0)
        axes["vocab"] = Axis(g.vocab, rows, rows // tp)
        outcome = PlanOutcome("accepted", axes=axes, unpadded=dict(g.unpadded), origin="plan", padding="nothing")
        if any(axis.original != axis.padded for axis in axes.values()):
            outcome.padding = "planned"
        indivisible = any(axes[name].original % tp for name in ("heads", "groups") if name in axes)
        indivisible |= axes["routed"].padded > axes["routed"].original  # a rank's share would cut a scale group
        if indivisible and (why := self._refusal(request)):
            outcome = PlanOutcome("refused", why, padding="refused")
            if request.force:
                outcome.axes, outcome.unpadded, outcome.origin, outcome.forced = axes, dict(g.unpadded), "plan", True
        return outcome

    def _refusal(self, request: PlanRequest) -> str:
        """The guard: why a configuration that needs padding is refused; empty if it is vetted, or nothing guards."""
        if self._vetted is None or request.geometry.model_type != "deepseek_v4":
            return ""
        if request.expert_parallel:
            return "padding is for tensor parallelism alone; expert parallelism is on"
        if "mega_moe" in request.moe:
            return "padding does not go with MegaMoE"
        if (request.capability, request.attention, request.moe) in self._vetted:
            return ""
        where = "no CUDA" if request.capability is None else "CUDA {}.{}".format(*request.capability)
        return f"padding is not vetted for {request.attention} attention with {request.moe} MoE on {where}"

    def backends(self) -> KnownBackends:
        vetted = self._vetted or ()
        return KnownBackends(
            tuple(sorted({*_OTHER_ATTENTION, *(attention for _, attention, _ in vetted)})),
            tuple(sorted({*_OTHER_MOE, *(moe for _, _, moe in vetted)})),
        )

    def guards(self, requests: Sequence[PlanRequest]) -> list[PlanOutcome]:
        return [self.plan(request) for request in requests]

    def kernel(self, request: PlanRequest, widths: Sequence[int]) -> KernelChoice:
        intermediate, hidden = self._steps
        return KernelChoice(
            request.moe,
            [request.moe],
            request.moe,
            scheme=self._arithmetic,
            roundings={width: _share(width, 1, intermediate).padded for width in widths},
            hidden=_share(request.geometry.hidden_size, 1, hidden).padded,
        )

    def schemes(self, request: PlanRequest) -> dict[str, str]:
        """DeepSeek-V4's: FP8 in 128x128 blocks for every linear layer, MXFP4 for routed experts."""
        modules = ["attention", "output projection", "shared experts"]
        modules += ["embedding projection", "hidden projection"] if request.draft else []
        return dict.fromkeys(modules, "FP8 128x128") | {"routed experts": "MXFP4"}


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
        self._user: object = None

    def zeros(self, sizes: list[int], user: object) -> list[torch.Tensor]:
        """Flat uint8 tensors of those sizes, all zero: memory of their own while another user holds this."""
        import torch

        total = sum(sizes)
        if self._user is not None:
            return list(torch.zeros(total, dtype=torch.uint8).split(sizes))
        self._user = user
        if self._memory is None or self._memory.numel() < total:
            self._memory = None
            self._memory = torch.empty(total, dtype=torch.uint8)
        return list(self._memory[:total].zero_().split(sizes))

    def release(self, user: object) -> None:
        if self._user is user:
            self._user = None


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

    def share(self, part: FilePart) -> None:
        """Any memory is a source here."""

    def unshare(self, part: FilePart) -> None:
        pass

    def _data(self, parameter: str) -> torch.Tensor:
        if self._held is None:
            shapes = {name: (self._experts, p.rows, p.cols) for name, p in self.info.parameters.items()}
            flat = self._arena.zeros([e * rows * cols for e, rows, cols in shapes.values()], self)
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
        self._arena.release(self)
