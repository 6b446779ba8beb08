"""What checks look at: the run's settings and everything measured so far, each thing measured once."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from conformance import expected
from conformance.errors import Blocked, NotSupported, StackError, StackRefused, UnfitShape
from conformance.geometry import Geometry
from conformance.provenance.boxes import ProvenanceMap
from conformance.stacks.protocols import (
    SHARDS,
    ExpertsInfo,
    ExpertsRequest,
    LoadedWeights,
    MoeCalls,
    MoeKernel,
    ParameterInfo,
    PlanBuilder,
    PlanOutcome,
    PlanRequest,
    ShardLoader,
)

if TYPE_CHECKING:
    from conformance.provenance.checkpoint import Checkpoint
    from conformance.provenance.loaded import LoadedMaps
    from conformance.provenance.model_maps import ModelMaps
    from conformance.stacks.model_protocol import ModelLoader
    from conformance.world.ranks import Ranks


class Target(msgspec.Struct, frozen=True):
    """What is judged: model, tensor-parallel size, backend pair and the CUDA capability it is meant for."""

    geometry: Geometry
    tp: int
    backend: str
    attention: str | None
    capability: tuple[int, int] | None
    #: Kernel roundings that the profile's data knows for this backend, in elements.
    intermediate_roundings: tuple[int, ...]
    hidden_roundings: tuple[int, ...]
    force: bool = False
    #: Attributes that `--repair` declares on parameters before loading.
    attributes: dict[str, dict[str, int]] = {}
    seed: int = 20261129
    #: More batch sizes, which take minutes on a CPU.
    nightly: bool = False

    def experts_request(self, rank: int, experts: int) -> ExpertsRequest:
        return ExpertsRequest(
            self.geometry,
            self.tp,
            rank,
            self.backend,
            experts,
            self.capability,
            self.attention,
            self.force,
            self.attributes,
        )


class Loaded(msgspec.Struct, frozen=True):
    """One parameter of one rank: the due map, the measured map, and whether its bytes begin as zeros."""

    due: ProvenanceMap
    seen: ProvenanceMap
    starts_zero: bool


class Context:
    """Handed to every check beside the stack. Planner, loader and kernel may be wrapped by a planted fault.

    `moe` opens the stack's MoE kernel, `models` its whole-model loader. `maps` tells where the kernel's weights come
    from (None: the reference's right maps); `spoil` is a fault at the weights that the kernel is given. `world` runs
    all ranks at once (None: in turn); rank processes plant the fault `fault` themselves. `moe_calls` tells what would
    be called on other GPUs.
    """

    def __init__(
        self,
        target: Target,
        planner: PlanBuilder,
        loader: ShardLoader,
        moe: Callable[[], MoeKernel] | None = None,
        maps: Callable[[], LoadedMaps] | None = None,
        spoil: Callable[[LoadedWeights, int], LoadedWeights] | None = None,
        models: Callable[[], ModelLoader] | None = None,
        world: Callable[[Context], Ranks] | None = None,
        fault: str = "",
        moe_calls: MoeCalls | None = None,
    ):
        self.target = target
        self._planner = planner
        self._loader = loader
        self._open_moe = moe
        self._find_maps = maps
        self._spoil = spoil
        self._open_models = models
        self._models: dict[tuple[int, bool], ModelMaps | StackError] = {}
        self._find_world = world
        self.fault = fault
        self.moe_calls = moe_calls
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
        """Does this tensor-parallel size need padding at all?"""
        return bool(expected.needs_padding(self.geometry, self.target.tp))

    def plan(self, force: bool = False) -> PlanOutcome:
        """The stack's answer to the configuration; with `force`, the plan it would make without its guard."""
        if force not in self._plans:
            t = self.target
            request = PlanRequest(t.geometry, t.tp, t.capability, t.attention, t.backend, force)
            self._plans[force] = self._planner.plan(request)
        return self._plans[force]

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
        if self._open_models is None:
            raise NotSupported("the stack offers no loader of whole models to this harness (no `model_loader()`)")
        return self._open_models()

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

    @property
    def moe(self) -> MoeKernel:
        """Raises NotSupported where the stack has no MoE kernel of its own."""
        if self._moe is None:
            if self._open_moe is None:
                raise NotSupported("the stack offers no MoE kernel to this harness (no `moe()`)")
            self._moe = self._open_moe()
        return self._moe

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
        from conformance.world.ranks import InTurn

        return self._find_world(self) if self._find_world else InTurn(self, "no processes were asked for")

    def of_rank(self, rank: int) -> Context:
        """The same for one rank alone: checks that go through `ranks` look at that one."""
        alone = copy(self)
        alone.ranks, alone._kept = range(rank, rank + 1), {}
        return alone

    def weights(self, rank: int, checkpoint: Checkpoint) -> LoadedWeights:
        """One rank's parameters as loaded from that checkpoint: what the MoE kernel is given."""
        weights: LoadedWeights = self.maps.weights(rank, checkpoint)
        return self._spoil(weights, rank) if self._spoil else weights

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
            layer = self._loader.open_experts(t.experts_request(rank, experts))
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
