"""Plant every fault in a stack and see which claims notice: the kill matrix."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

import hardware_profiles
from conformance import catalogue, geometry
from conformance.checkpoint import folder
from conformance.checkpoint.folder import Files
from conformance.context import Context
from conformance.e2e.replies import SERVING
from conformance.errors import NotSupported, UsageError, nearest
from conformance.faults.catalogue import FAULTS
from conformance.faults.engines import needed
from conformance.faults.fault import Fault
from conformance.faults.parts import planted_parts
from conformance.faults.remembered import RememberedPlanner
from conformance.faults.seams import FaultyLoader, FaultyPlanner
from conformance.gate.runner import evaluate, offered
from conformance.gate.settings import layer_names
from conformance.result import NO_GO, Status
from conformance.stacks import parts, registry
from conformance.stacks.protocols import PlanBuilder, Stack, StackOptions
from conformance.target import Target
from conformance.world import leases
from conformance.world.ranks import Worlds
from references import plan

if TYPE_CHECKING:
    from conformance.e2e.measured import Measured
    from conformance.faults.selftest_apart import Apart
    from conformance.provenance.loaded import LoadedMaps

Statuses = dict[str, tuple[Status, str]]

#: Small, and yet nothing in it divides by 3: 256 channels are 96/96/64 of kernel width 128.
GEOMETRY, TP, BACKEND, PROFILE = "deepseek-v4-tiny", 3, "flashinfer_cutlass", "sm120"


#: `no fault here`: the backend's kernel is as wide as a rank's share, and the wrong formula comes out right; or the
#: claims do not apply to the backend.
#: `not judged`: the claims that should catch it do not fail clean, but cannot be judged here (not supported, blocked).
OUTCOMES = ("caught", "alive", "fails clean", "not judged", "not planted", "no fault here")


class Planted(msgspec.Struct):
    """`caught` only if every claim that the fault names fails planted and passes clean.

    `spared`: named claims that did not fail. `fails_clean`: named claims that say nothing here, since the stack
    fails them, or cannot be judged by them, without the fault. `also`: other claims that failed.
    """

    id: str
    layer: str
    what: str
    claims: list[str]
    caught: bool
    caught_by: list[str]
    spared: list[str]
    fails_clean: list[str]
    also: list[str]
    outcome: str
    #: Why nothing was planted: what a claim said instead of failing, or how the process ended that should have planted.
    reason: str = ""


class Report(msgspec.Struct):
    stack: str
    geometry: str
    tp: int
    #: Claim -> status and reason where the stack does not pass without any fault.
    clean: dict[str, str]
    faults: list[Planted]
    counts: dict[str, int]
    exit_code: int


def _in_scope(stack_name: str, layers: tuple[str, ...] | None) -> list[str]:
    """Of a real stack not the faults of `e2e`, unless it is named (each takes minutes), nor those of one backend."""
    every = catalogue.LAYERS if stack_name == "reference" else catalogue.LAYERS[:-1]
    chosen = every if layers is None else layers
    ours = [name for name, fault in FAULTS.items() if fault.layer in chosen]
    return [name for name in ours if stack_name == "reference" or not FAULTS[name].backend]


class _Place(NamedTuple):
    """Whose arithmetic and layout is emulated, and of which model; empty: the self-test's own."""

    profile: str = ""
    backend: str = ""
    geometry: str = ""


def _by_place(stack_name: str, names: list[str], backend: str | None) -> dict[_Place, list[str]]:
    """A real stack is what it is, and a backend that was asked for stays."""
    found: dict[_Place, list[str]] = {}
    for fault in (FAULTS[name] for name in names):
        emulated = _Place(fault.profile, "" if backend else fault.backend, fault.geometry)
        found.setdefault(emulated if stack_name == "reference" else _Place(), []).append(fault.id)
    return found


def run(
    stack_name: str, options: StackOptions, only: list[str], backend: str | None, layers: str | None = None
) -> Report:
    """Raises UsageError for an unknown stack, fault, backend or layer and for a fault of none of these layers,
    StackError where the stack cannot be opened."""
    for name in only:
        if name not in FAULTS:
            raise nearest(name, FAULTS, "fault")
    chosen = None if layers is None else catalogue.check_layers(layer_names(layers))
    for name in only:
        if chosen is not None and FAULTS[name].layer not in chosen:
            raise UsageError(f"--fault {name} is of layer {FAULTS[name].layer}, outside of --layers {layers}")
    names = only or _in_scope(stack_name, chosen)
    _target(stack_name, backend or BACKEND)
    planted, alarms = dict[str, Planted](), dict[str, str]()
    for place, some in _by_place(stack_name, names, backend).items():
        bench = _bench(stack_name, options, some, place.backend or backend, place)
        try:
            planted |= {name: bench.plant(name) for name in some}
            alarms |= _alarms(bench.clean, place)
        finally:
            bench.close()
    return _report(stack_name, alarms, [planted[name] for name in names])


def _bench(
    stack_name: str, options: StackOptions, only: list[str], backend: str | None, place: _Place
) -> Bench | Apart:
    if registry.is_foreign(stack_name):
        from conformance.faults.selftest_apart import Apart

        return Apart(stack_name, options, only, backend)
    return Bench(stack_name, options, only, backend, profile=place.profile or PROFILE, model=place.geometry)


def _alarms(clean: Statuses, place: _Place) -> dict[str, str]:
    """What does not pass without a fault."""
    beside = f" ({', '.join(filter(None, place))})" if any(place) else ""
    return {i + beside: f"{status}: {why}" for i, (status, why) in clean.items() if status is not Status.PASS}


def _report(stack_name: str, alarms: dict[str, str], planted: list[Planted]) -> Report:
    outcomes = [p.outcome for p in planted]
    counts = {word: outcomes.count(word) for word in OUTCOMES}
    return Report(stack_name, GEOMETRY, TP, alarms, planted, counts, _exit_code(stack_name, alarms, counts))


def _exit_code(stack_name: str, alarms: dict[str, str], counts: dict[str, int]) -> int:
    """What fails clean is a false alarm on our own stack; on a real one it is listed, and proves nothing."""
    if counts["alive"] or (stack_name == "reference" and alarms):
        return 1
    unproved = counts["not planted"] or counts["fails clean"] or counts["not judged"]
    return 3 if unproved or not counts["caught"] else 0


def _target(stack_name: str, backend: str, profile_name: str = PROFILE, model: str = "") -> Target:
    known = hardware_profiles.backends()
    if backend not in known:
        raise nearest(backend, known, "backend")
    b = known[backend]
    profile = hardware_profiles.load(profile_name)
    attention = b.attention or profile.attention
    assert attention is not None
    # The pair under test is taken as vetted: what is judged here is the harness, with any backend.
    own = (profile.capability, attention, b.name)
    emulated = stack_name == "reference" or b.name == profile.backend
    return Target(
        _model(model),
        TP,
        b.name,
        attention,
        profile.capability,
        b.intermediate,
        b.hidden,
        vetted=tuple(dict.fromkeys([*hardware_profiles.vetted(), own])),
        arithmetic=profile.arithmetic if emulated else None,
        layout=b.layout,
        planting=True,
        head_paddings=profile.head_paddings,
        output_scales=profile.output_scales,
    )


#: Another model's sizes, as small, and with heads that TP3 divides: 256 channels are 96/96/64 here too.
_SMALL = {
    "gpt-oss-120b": {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "vocab_size": 256,
        "num_local_experts": 4,
    }
}


def _model(name: str = "") -> geometry.Geometry:
    """With one hash-routed layer, so that there is one of every kind, and two output groups a rank. `name`: another."""
    if name:
        return geometry.parse(geometry.load(name).config | _SMALL[name], name)
    return geometry.parse(geometry.load(GEOMETRY).config | {"num_hash_layers": 1, "o_groups": 4}, GEOMETRY)


@cache
def _files() -> Files:
    """A checkpoint of the geometry, with one hash-routed layer, made once a process and removed at its end."""
    from references import make_checkpoint

    made = Path(tempfile.mkdtemp(prefix="conformance-checkpoint-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    make_checkpoint.write(made, _model().config, files=2)
    return folder.read(str(made))


class Bench:
    """What faults are planted in. `planner` remembers answers, `worlds` keeps rank processes.

    `clean`: what the claims that the faults `only` (all: none named) look at say of the stack as it is; measured here
    unless it is known. Raises what opening the stack raises.
    """

    def __init__(
        self,
        stack_name: str,
        options: StackOptions,
        only: list[str],
        backend: str | None,
        clean: Statuses | None = None,
        profile: str = PROFILE,
        model: str = "",
    ):
        self.profile, self.model = profile, model
        self.target = _target(stack_name, backend or BACKEND, profile, model)
        padding = {"intermediate": self.target.intermediate_roundings[0], "hidden": self.target.hidden_roundings[0]}
        own = hardware_profiles.backends()[self.target.backend].arithmetic
        arithmetic = own or hardware_profiles.load(profile).arithmetic
        emulated = msgspec.structs.replace(
            options,
            emulate=padding,
            arithmetic=arithmetic,
            vetted=self.target.vetted,
            head_paddings=self.target.head_paddings,
            output_scales=self.target.output_scales,
        )
        chosen = [FAULTS[i] for i in only or FAULTS if _planted_here(FAULTS[i], profile, model)]
        with_files = any(claim.startswith("loader.files.") for fault in chosen for claim in fault.claims)
        self.files = _files() if with_files else None
        self.stack: Stack = registry.open_stack(stack_name, emulated)
        self.worlds = Worlds(stack_name, emulated)
        self.e2e_target, self.e2e = _e2e(self.stack, self.target, chosen, backend or "")
        try:
            self.planner: PlanBuilder = RememberedPlanner(offered(self.stack, "planner"))
            self._context = _context(self)
            looked_at = _looked_at(chosen) if only else _all_claims(chosen)
            self.clean = clean or _statuses(self.stack, self._context, looked_at)
        except BaseException:
            self.close()
            raise

    def plant(self, fault: str) -> Planted:
        return _plant(self, FAULTS[fault], self.clean, self._context)

    def close(self) -> None:
        self.worlds.close()
        self.stack.close()


def _context(bench: Bench, fault: Fault | None = None, clean: Context | None = None) -> Context:
    """The stack with the fault planted. The kernel's weights are those of the stack's own loader, measured once."""
    stack, planner, target, files = bench.stack, bench.planner, bench.target, bench.files
    loader = offered(stack, "loader")
    fed_by, offers, moe = loader, parts.of(stack), fault and fault.moe
    if fault:
        offers = planted_parts(offers, fault)
        if fault.plan or fault.guard:
            planner = FaultyPlanner(planner, fault.plan, fault.guard)
        if fault.loader:
            loader = FaultyLoader(loader, fault.loader)
        if fault.files and files:
            files = fault.files(files)
    if moe and moe.loader:
        fed_by, clean = FaultyLoader(loader, moe.loader), None
    source = clean or Context(target, planner, fed_by)
    return Context(
        target,
        planner,
        loader,
        offers,
        lambda: _fed(stack, source),
        moe.spoil if moe else None,
        files,
        bench.worlds.of,
        fault=fault.id if fault and (moe or fault.graph or fault.attention or fault.reduce) else "",
        loader_only=bool(moe and moe.loader),
        e2e=lambda: _engines(bench, fault),
    )


def _engines(bench: Bench, fault: Fault | None) -> Measured:
    """What engines answer; with a fault of theirs planted, only those that have it run again."""
    if bench.e2e is None:
        raise NotSupported(f"the stack {bench.stack.name} offers no engine to this harness (no `engine()`)")
    if fault is None or fault.engine is None:
        return bench.e2e
    from conformance.e2e import opening

    faults = fault.engine.planted(bench.e2e.sizes)
    parts = needed(fault.claims)
    return opening.measured(bench.stack, bench.e2e_target, faults=faults, clean=bench.e2e, parts=parts)


def _e2e(stack: Stack, target: Target, chosen: list[Fault], asked: str) -> tuple[Target, Measured | None]:
    """What clean engines answer, if a fault is for an engine. Nothing is started yet. Two GPUs are enough."""
    if not any(fault.engine for fault in chosen) or not hasattr(stack, "engine"):
        return target, None
    from conformance.e2e import opening

    folder = opening.small() if stack.name == "reference" else opening.plain()
    gpus = len(leases.visible())
    sizes = (1, 2) if gpus == 2 else (2, 3)
    found = msgspec.structs.replace(target, model=str(folder), sizes=sizes, asked=asked if gpus else "")
    return found, opening.measured(stack, found, parts=needed(c for f in chosen if f.engine for c in f.claims))


def _fed(stack: Stack, source: Context) -> LoadedMaps:
    """The maps that the kernel's weights follow: of the stack's own loader, or the right ones where it has none."""
    from conformance.provenance import loaded

    if not hasattr(stack, "loader"):
        return loaded.due(source.target)
    return source.measured_maps(f"the loader of {stack.name}")


def _all_claims(chosen: list[Fault]) -> set[str]:
    layers = {"plan", "loader"} | {fault.layer for fault in chosen}
    return {claim.id for claim in catalogue.claims().values() if claim.layer in layers}


def _looked_at(chosen: list[Fault]) -> set[str]:
    """Claims that run with these faults planted: those that they name, and cheap ones beside them (kernels and whole
    models take longer than all others together)."""
    ids: set[str] = set()
    for fault in chosen:
        group = "loader.moe" if fault.loader else "plan" if fault.plan or fault.guard else ""
        beside = {claim.id for claim in catalogue.claims().values() if group and claim.group.startswith(group)}
        ids |= {*fault.claims, *beside}
    return ids


def _statuses(stack: Stack, context: Context, ids: set[str]) -> Statuses:
    found = {}
    given = _given(context)
    for claim in catalogue.claims().values():
        if claim.id in ids and claim.check and not claim.not_applicable(context.target, given):
            status, reason, _ = evaluate(claim, stack, context)
            found[claim.id] = status, reason
    return found


def _given(context: Context) -> tuple[str, ...]:
    return ("checkpoint", "checkpoint-bytes") if context.files else ()


def _planted_here(fault: Fault, profile: str, model: str) -> bool:
    return (fault.profile or PROFILE, fault.geometry) == (profile, model)


def _no_fault(fault: Fault, reason: str) -> Planted:
    return Planted(
        fault.id, fault.layer, fault.what, list(fault.claims), False, [], [], [], [], "no fault here", reason=reason
    )


def _plant(bench: Bench, fault: Fault, clean: Statuses, clean_context: Context) -> Planted:
    stack, target = bench.stack, bench.target
    if not _planted_here(fault, bench.profile, bench.model):
        whose = fault.geometry or fault.profile
        return _no_fault(fault, f"it is one of {whose}'s, planted in the reference stack alone")
    context = _context(bench, fault, clean_context)
    kinds = stack.engine().kinds if fault.engine and hasattr(stack, "engine") else ()
    plantable = not fault.engine or fault.engine.kind in kinds or fault.engine.kind.startswith(SERVING)
    statuses = _statuses(stack, context, _looked_at([fault])) if plantable else {}
    failed = [i for i, (status, _) in statuses.items() if status in NO_GO]
    passes_clean = {i for i, (status, _) in clean.items() if status is Status.PASS}
    fails_clean = [i for i in fault.claims if i not in passes_clean]
    caught_by = [i for i in fault.claims if i in failed and i in passes_clean]
    spared = [i for i in fault.claims if i in passes_clean and i not in failed]
    share = plan.routed_intermediate(target.geometry.intermediate, target.tp).per_rank
    same = any(plan.kernel_width(share, rounding) == share for rounding in target.intermediate_roundings)
    unmeasured = [i for i in spared if i not in statuses or statuses[i][0] is not Status.PASS]
    applies = any(not catalogue.get(i).not_applicable(target, _given(context)) for i in fault.claims)
    if (fault.rounded and same) or not applies or not plantable:
        outcome = "no fault here"
    elif unmeasured:
        outcome = "not planted"
    elif spared:
        outcome = "alive"
    else:
        judged = any(clean[i][0] in NO_GO for i in fails_clean if i in clean)
        outcome = "caught" if caught_by else "fails clean" if judged else "not judged"
    return Planted(
        id=fault.id,
        layer=fault.layer,
        what=fault.what,
        claims=list(fault.claims),
        caught=outcome == "caught",
        caught_by=caught_by,
        spared=spared,
        fails_clean=fails_clean,
        also=[i for i in failed if i not in fault.claims],
        outcome=outcome,
        reason=_reason(outcome, statuses, unmeasured, clean, fails_clean),
    )


def _reason(outcome: str, statuses: Statuses, unmeasured: list[str], clean: Statuses, fails_clean: list[str]) -> str:
    if outcome == "not planted" and unmeasured[0] in statuses:
        return ": ".join(statuses[unmeasured[0]])
    known = [i for i in fails_clean if i in clean] if outcome == "not judged" else []
    return ": ".join(clean[known[0]]) if known else ""
