"""What checks look at: the run's settings and everything measured so far, each thing measured once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from conformance import expected
from conformance.errors import Blocked, NotSupported, StackError, StackRefused, UnfitShape, one_line
from conformance.geometry import Geometry
from conformance.needs import VIRTUAL_TP_MODELS
from conformance.provenance.boxes import ProvenanceMap
from conformance.stacks import parts as parts_of_stacks
from conformance.stacks.parts import Parts
from conformance.stacks.protocols import (
    SHARDS,
    ExpertsInfo,
    KernelChoice,
    KnownBackends,
    LoadedWeights,
    MoeCalls,
    MoeKernel,
    ParameterInfo,
    PlanBuilder,
    PlanOutcome,
    PlanRequest,
    ShardLoader,
)
from conformance.target import Combination, Target
from references import plan

if TYPE_CHECKING:
    from conformance.checkpoint.folder import Files
    from conformance.e2e.measured import Measured
    from conformance.provenance.checkpoint import Checkpoint
    from conformance.provenance.loaded import LoadedMaps
    from conformance.provenance.model_maps import ModelMaps
    from conformance.stacks.attention_calls_protocol import AttentionCalls
    from conformance.stacks.attention_protocol import AttentionKernel
    from conformance.stacks.compile.protocol import Compiler
    from conformance.stacks.graph_protocol import GraphRunner
    from conformance.stacks.hyper_protocol import HyperConnections
    from conformance.stacks.model_protocol import ModelLoader
    from conformance.stacks.op_protocol import Listed
    from conformance.stacks.prepare_protocol import Preparation
    from conformance.stacks.quant_calls_protocol import QuantCalls
    from conformance.stacks.quant_protocol import FusedSwiglu, GroupedGemm, Quantizer, QuantLinear
    from conformance.stacks.runner_protocol import MoeRunner
    from conformance.stacks.selection_protocol import Selection
    from conformance.world.ranks import Ranks


class Loaded(msgspec.Struct, frozen=True):
    """One parameter of one rank: the due map, the measured map, and whether its bytes begin as zeros."""

    due: ProvenanceMap
    seen: ProvenanceMap
    starts_zero: bool


class Context:
    """Handed to every check beside the stack. Planner, loader and kernel may be wrapped by a planted fault.

    `parts`: what the stack offers beside them, see `stacks.parts`. `maps` tells where the kernel's weights come from
    (None: the reference's right maps); `spoil` is a fault at the weights that the kernel is given. `files`: what
    `--checkpoint` holds. `world` runs all ranks at once (None: in turn); rank processes plant the fault `fault`
    themselves. `loader_only`: what is prepared comes from the measured loader or from nowhere (a fault was planted in
    it). `e2e` gives what engines answered.
    """

    def __init__(
        self,
        target: Target,
        planner: PlanBuilder,
        loader: ShardLoader,
        parts: Parts | None = None,
        maps: Callable[[], LoadedMaps] | None = None,
        spoil: Callable[[LoadedWeights, int], LoadedWeights] | None = None,
        files: Files | None = None,
        world: Callable[[Context, str, bool], Ranks] | None = None,
        fault: str = "",
        loader_only: bool = False,
        e2e: Callable[[], Measured] | None = None,
    ):
        self.target = target
        self.files = files
        self.loader = loader
        self._planner = planner
        self._parts = parts or {}
        self._find_maps = maps
        self._spoil = spoil
        self._loader_only = loader_only
        self._models: dict[tuple[int, bool], ModelMaps | StackError] = {}
        self._find_world = world
        self.fault = fault
        self._open_e2e = e2e
        self.ranks = range(target.tp)
        self._moe: MoeKernel | None = None
        self._kept: dict[str, Any] = {}
        self._maps: LoadedMaps | None = None
        self._plans: dict[bool, PlanOutcome] = {}
        self._ranks: dict[int, tuple[ExpertsInfo, dict[str, Loaded | StackError]] | StackError] = {}

    @property
    def geometry(self) -> Geometry:
        return self.target.geometry

    @property
    def padded(self) -> bool:
        """Does virtual TP pad, so that tails must be written? Rounding for a kernel asks for no more than zeros, and so
        does a model that virtual TP is not for."""
        virtual = bool(expected.needs_virtual_tp(self.geometry, self.target.tp))
        return virtual and self.geometry.model_type in VIRTUAL_TP_MODELS

    @property
    def virtual(self) -> bool:
        """Are heads given out by eights, as virtual TP does it? Where it is needed; and where it is not, by a stack
        that pads them all the same: then both are whole shares (contracts: heads are align_up(ceil(heads / tp), 8))."""
        g, tp = self.geometry, self.target.tp
        if expected.needs_virtual_tp(g, tp):
            return True
        if not g.output_groups or g.attention_heads // tp % plan.HEAD_ALIGNMENT == 0:
            return False  # no difference
        try:
            outcome = self.plan()
        except StackError:
            return False
        heads = (outcome.axes or {}).get("heads")
        return outcome.padding == "planned" and heads is not None and heads.per_rank != g.attention_heads // tp

    @property
    def virtual_beside_experts(self) -> bool:
        """Does it need virtual TP under expert parallelism too, which deals experts out whole?"""
        return bool(expected.needs_virtual_tp(self.geometry, self.target.tp, expert_parallel=True))

    def plan(self, force: bool = False) -> PlanOutcome:
        """The stack's answer to the configuration; with `force`, the plan it would make without its guard."""
        if force not in self._plans:
            t = self.target
            request = PlanRequest(t.geometry, t.tp, t.capability, t.attention, t.backend, force)
            self._plans[force] = self._planner.plan(request)
        return self._plans[force]

    def known_backends(self) -> KnownBackends:
        """Raises NotSupported where the planner answers no guard questions."""
        found: KnownBackends = self.once("known backends", self._asked("backends"))
        return found

    def guards(self, combinations: Sequence[Combination]) -> list[PlanOutcome]:
        """The stack's answers at this geometry and tensor-parallel size; each combination is asked once a run."""
        known: dict[Combination, PlanOutcome] = self.once("guards", dict)
        new = [c for c in dict.fromkeys(combinations) if c not in known]
        answers = self._asked("guards")([self._request(c) for c in new]) if new else []
        known.update(zip(new, answers, strict=True))
        return [known[c] for c in combinations]

    def kernel(self, widths: Sequence[int]) -> KernelChoice:
        """The stack's MoE kernel choice for the run's backend, and its rounding of these widths."""
        t = self.target
        request = self._request(Combination(t.attention, t.backend, t.capability))
        found: KernelChoice = self.once(f"kernel {widths}", lambda: self._asked("kernel")(request, widths))
        return found

    def schemes(self, draft: bool) -> dict[str, str]:
        """{module: quantization scheme} of the target's layers, or of the draft's."""
        t = self.target
        request = self._request(Combination(t.attention, t.backend, t.capability, draft=draft))
        found: dict[str, str] = self.once(f"schemes {draft}", lambda: self._asked("schemes")(request))
        return found

    def _request(self, asked: Combination) -> PlanRequest:
        t = self.target
        return PlanRequest(
            t.geometry,
            t.tp,
            asked.capability,
            asked.attention,
            asked.moe,
            expert_parallel=asked.expert_parallel,
            draft=asked.draft,
        )

    def _asked(self, name: str) -> Callable[..., Any]:
        found = getattr(self._planner, name, None)
        if found is None:
            raise NotSupported(f"the stack's planner answers no such questions (no `{name}()`)")
        method: Callable[..., Any] = found
        return method

    def experts_info(self, rank: int) -> ExpertsInfo:
        """One rank's routed-expert layer as built. Raises Blocked where the stack refuses to build it."""
        return self._survey(rank)[0]

    def loaded(self, parameter: str, rank: int) -> Loaded:
        """Raises the StackError that measuring that parameter raised (UnfitShape where no right map exists)."""
        outcome = self._survey(rank)[1][parameter]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def measured_maps(self, words: str) -> LoadedMaps:
        """The maps of this context's own loader. Raises what measuring a parameter raised."""
        from conformance.provenance.loaded import LoadedMaps

        loads = {name: [self.loaded(name, rank) for rank in self.ranks] for name in SHARDS}
        zero = frozenset(name for name, ranks in loads.items() if all(one.starts_zero for one in ranks))
        return LoadedMaps({name: [one.seen for one in ranks] for name, ranks in loads.items()}, words, zero)

    @property
    def model_loader(self) -> ModelLoader:
        """Raises NotSupported where the stack loads no whole models for this harness."""
        found: ModelLoader = self._opener("model_loader")()
        return found

    def model(self, rank: int, draft: bool = False) -> ModelMaps:
        """One rank's whole (shortened) model as its loader left it, measured once; `draft`: its draft model.

        Raises Blocked where the stack refuses to build it, StackRefused with its words where it refuses to load it.
        """
        from conformance.provenance import model_maps

        if (rank, draft) not in self._models:
            try:
                tensors = model_maps.tensors(self.geometry, draft)
                self._models[rank, draft] = model_maps.measure(self.model_loader, self.target, rank, tensors, draft)
            except StackError as error:
                self._models[rank, draft] = error
        outcome = self._models[rank, draft]
        if isinstance(outcome, StackError):
            raise outcome
        return outcome

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What several checks of a run share, made by the first that asks; an exception is not kept."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def _opener(self, name: str) -> Callable[..., Any]:
        """Raises NotSupported where the stack lacks the part."""
        return parts_of_stacks.opener(self._parts, name)

    @property
    def moe(self) -> MoeKernel:
        """Raises NotSupported where the stack has no MoE kernel of its own."""
        if self._moe is None:
            self._moe = self._opener("moe")()
        return self._moe

    @property
    def moe_calls(self) -> MoeCalls | None:
        """Tells what would be called of MoE kernels on other GPUs; None where the stack does not."""
        return self._parts.get("moe_calls")

    @property
    def attention_calls(self) -> AttentionCalls | None:
        """The same of attention kernels."""
        return self._parts.get("attention_calls")

    @property
    def quant_calls(self) -> QuantCalls | None:
        """The same of quantisers, and of GEMMs on what they quantise."""
        return self._parts.get("quant_calls")

    def graphs(self, name: str = "graph") -> GraphRunner:
        """`graph`, `attention_graph` or `layer_graph`. Raises NotSupported where the stack captures none of it for this
        harness."""
        runner: GraphRunner = self.once(f"graphs {name}", self._opener(name))
        return runner

    @property
    def custom_ops(self) -> Listed:
        """Raises NotSupported where the stack shows no operators of its own."""
        from conformance.stacks.op_protocol import Listed

        found = self._opener("custom_ops")()
        return found if isinstance(found, Listed) else Listed(found)

    @property
    def attention(self) -> AttentionKernel:
        """Raises NotSupported where the stack offers no attention."""
        kernel: AttentionKernel = self.once("attention", self._opener("attention"))
        return kernel

    @property
    def hyper(self) -> HyperConnections:
        """Raises NotSupported where the stack offers none."""
        found: HyperConnections = self.once("hyper", self._opener("hyper"))
        return found

    @property
    def compiler(self) -> Compiler:
        """Raises NotSupported where the stack offers none."""
        found: Compiler = self._opener("compiler")()
        return found

    @property
    def e2e(self) -> Measured:
        """Raises NotSupported where the stack has no engine for this harness."""
        if self._open_e2e is None:
            raise NotSupported("the stack offers no engine to this harness (no `engine()`)")
        found: Measured = self.once("e2e", self._open_e2e)
        return found

    @property
    def quantizer(self) -> Quantizer:
        """Raises NotSupported where the stack quantises nothing for this harness; so do the next four."""
        found: Quantizer = self.once("quantizer", self._opener("quantizer"))
        return found

    @property
    def gemm(self) -> GroupedGemm:
        found: GroupedGemm = self.once("gemm", self._opener("gemm"))
        return found

    @property
    def swiglu(self) -> FusedSwiglu:
        found: FusedSwiglu = self.once("swiglu", self._opener("swiglu"))
        return found

    @property
    def linear(self) -> QuantLinear:
        found: QuantLinear = self.once("linear", self._opener("linear"))
        return found

    @property
    def moe_runner(self) -> MoeRunner:
        found: MoeRunner = self.once("moe_runner", self._opener("moe_runner"))
        return found

    @property
    def maps(self) -> LoadedMaps:
        """Where the weights come from that the MoE kernel is given. Raises what measuring the loader raised."""
        if self._maps is None:
            from conformance.provenance import loaded

            self._maps = self._find_maps() if self._find_maps else loaded.due(self.target)
        return self._maps

    @property
    def world(self) -> Ranks:
        """The ranks of this run, together if each can have a process and a device. Raises what `moe` raises."""
        return self.ranks_on(self.moe.capabilities().device)

    def ranks_on(self, device: str, weights: bool = True) -> Ranks:
        """The ranks of a kernel on `device` (cpu, cuda). `weights`: they load experts as this run's loader does."""
        from conformance.world.ranks import InTurn

        if self._find_world is None:
            return InTurn(self, "no processes were asked for")
        return self._find_world(self, device, weights)

    def of_rank(self, rank: int) -> Context:
        """The same for one rank alone: checks that go through `ranks` look at that one."""
        alone = copy(self)
        alone.ranks, alone._kept = range(rank, rank + 1), {}
        return alone

    def weights(self, rank: int, checkpoint: Checkpoint) -> LoadedWeights:
        """One rank's parameters as loaded from that checkpoint: what the MoE kernel is given."""
        weights: LoadedWeights = self.maps.weights(rank, checkpoint)
        return self._spoil(weights, rank) if self._spoil else weights

    def given(self, rank: int, checkpoint: Checkpoint, stale: int) -> LoadedWeights:
        """As `weights`, for a preparation that waits for no loader: where the loader cannot be measured, as the
        reference's right map loads. `stale` stands where nothing was written."""
        weights: LoadedWeights = self.given_maps.weights(rank, checkpoint, stale)
        return self._spoil(weights, rank) if self._spoil else weights

    @property
    def given_maps(self) -> LoadedMaps:
        from conformance.provenance import loaded

        try:
            return self.maps
        except StackError as error:
            if self._loader_only:
                raise
            due = self.once("due maps", lambda: loaded.due(self.target))
            found: LoadedMaps = msgspec.structs.replace(
                due, origin=f"the reference's right map: the loader cannot be measured ({one_line(error)[:160]})"
            )
            return found

    @property
    def preparation(self) -> Preparation:
        """Raises NotSupported where the stack prepares no weights for this harness."""
        found: Preparation = self._opener("preparation")()
        return found

    @property
    def selection(self) -> Selection:
        """Raises NotSupported where the stack has no selection of kernels to ask."""
        found: Selection = self._opener("selection")()
        return found

    def _survey(self, rank: int) -> tuple[ExpertsInfo, dict[str, Loaded | StackError]]:
        """Build a rank's layer once and measure all of its parameters, each with its own outcome."""
        if rank not in self._ranks:
            try:
                self._ranks[rank] = self._measure(rank)
            except StackError as error:
                self._ranks[rank] = error
        outcome = self._ranks[rank]
        if isinstance(outcome, StackError):
            raise outcome
        return outcome

    def _measure(self, rank: int) -> tuple[ExpertsInfo, dict[str, Loaded | StackError]]:
        from conformance.provenance.measure import Due, measure_layer  # torch: collecting must not draw it in

        t = self.target
        experts = t.geometry.experts
        try:
            layer = self.loader.open_experts(t.experts_request(rank, experts))
        except StackRefused as refusal:
            raise Blocked(f"the stack refuses to build it: {refusal}") from None
        outcomes: dict[str, Loaded | StackError] = {}
        due: dict[str, Due] = {}
        try:
            for parameter, shards in SHARDS.items():
                info = layer.info.parameters.get(parameter)
                try:
                    if info is None:
                        raise NotSupported(f"the layer as built has no {parameter}")
                    due_boxes = due_map(t, rank, parameter, info, experts)
                    due[parameter] = Due(due_boxes, shards, t.geometry.checkpoint_shape(parameter))
                except StackError as error:
                    outcomes[parameter] = error
            for parameter, seen in (measure_layer(layer, due, t.seed + rank) if due else {}).items():
                if isinstance(seen, StackError):
                    outcomes[parameter] = seen
                    continue
                try:
                    starts_zero = not any(bool(layer.initial(parameter, e).any()) for e in {0, experts - 1})
                    outcomes[parameter] = Loaded(due[parameter].map, seen, starts_zero)
                except StackError as error:
                    outcomes[parameter] = error
        finally:
            layer.close()
        return layer.info, outcomes


def due_map(target: Target, rank: int, parameter: str, info: ParameterInfo, experts: int) -> ProvenanceMap:
    """The reference's map for a parameter as built. Raises UnfitShape where none exists."""
    try:
        return expected.experts_map(target.geometry, target.tp, rank, parameter, info, experts)
    except ValueError as error:
        raise UnfitShape(f"{parameter} as built, ({info.rows}, {info.cols}) bytes: {error}") from None
