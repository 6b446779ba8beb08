"""Runs claims one after the other and turns what happens into a status. The gate and pytest both use it."""

from __future__ import annotations

import shlex
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from conformance import errors
from conformance.catalogue import Claim
from conformance.context import Context
from conformance.gate import schedule, sources, waivers
from conformance.gate.apart import Apart
from conformance.gate.seats import Seats
from conformance.gate.settings import Resolved
from conformance.result import ClaimResult, Evidence, Status
from conformance.stacks import parts, registry
from conformance.stacks.protocols import Stack, StackInfo
from conformance.world.ranks import Worlds

if TYPE_CHECKING:
    from conformance.e2e.measured import Measured

Record = Callable[[ClaimResult], None]


class Runner:
    """One run: stacks are opened once, on first use, and kept. `record` is called after each claim.

    `claims` run in order through `run_claim`; results of an earlier, broken run may be given as `known`. `apart`: judge
    stacks of foreign code in processes of their own (such a process has a Runner too, which does not). They get the
    GPUs that a claim needs and nobody else has, and keep them; `greedy`: from the start, where they are free, as many
    as any claim of the run needs. `folder`: the run's, for what engines answered.
    """

    def __init__(
        self,
        run: Resolved,
        record: Record,
        known: dict[str, ClaimResult] | None = None,
        saw_stack: Callable[[StackInfo], None] = lambda info: None,
        apart: bool = True,
        greedy: bool = True,
        folder: Path | None = None,
    ):
        self.run = run
        self.results: dict[str, ClaimResult] = {}
        self._record = record
        self._saw_stack = saw_stack
        self._known = known or {}
        self._apart = apart
        self._seats = Seats(run, greedy)
        self._folder = folder
        self._stacks: dict[str, Stack | Apart | Exception] = {}
        self._opened: list[Stack | Apart] = []
        self._contexts: dict[str, Context] = {}
        self._worlds: dict[str, Worlds] = {}

    def run_claim(self, claim: Claim) -> ClaimResult:
        """The claim's result; never raises for anything that a stack or a check does."""
        if claim.id in self._known:
            result = msgspec.structs.replace(self._known[claim.id], required=claim.id in self.run.required)
        else:
            started = time.perf_counter()
            status, reason, evidence = self._outcome(claim)
            result = ClaimResult(
                id=claim.id,
                layer=claim.layer,
                group=claim.group,
                status=status,
                required=claim.id in self.run.required,
                reason=reason,
                evidence=evidence,
                seconds=round(time.perf_counter() - started, 3),
                repeat=repeat_command(self.run, claim.id) if status is not Status.PASS else "",
            )
            result = waivers.apply(result, self.run.waivers)
            self._record(result)
        self.results[claim.id] = result
        return result

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()
        self._worlds.clear()
        for stack in self._opened:
            with suppress(Exception):  # what a stack does at its end costs no verdict
                stack.close()
        self._opened.clear()
        self._stacks.clear()
        self._seats.close()

    def stack(self, name: str) -> Stack | Apart:
        """The open stack, its info kept. Raises what its first opening raised again and again."""
        if name not in self._stacks:
            try:
                apart = self._apart and registry.is_foreign(name)
                stack = (
                    Apart(name, self.run, self._seats.environment)
                    if apart
                    else registry.open_stack(name, self.run.stack_options)
                )
                self._opened.append(stack)
                self._saw_stack(_checked_info(name, stack))
                self._stacks[name] = stack
            except errors.UsageError:
                raise
            except Exception as error:
                self._stacks[name] = error
        known = self._stacks[name]
        if isinstance(known, Exception):
            raise known
        return known

    def recheck(self) -> None:
        """Open every stack whose results an earlier run left, so that one which has changed is refused. Results of a
        stack that cannot be opened any more are measured again."""
        for layer in sorted({result.layer for result in self._known.values()}):
            try:
                self.stack(self.run.stacks[layer])
            except errors.UsageError:
                raise
            except Exception:
                self._known = {i: r for i, r in self._known.items() if r.layer != layer}

    def _context(self, stack: Stack | Apart) -> Context:
        if stack.name not in self._contexts:
            self._worlds[stack.name] = Worlds(stack.name, self.run.stack_options)
            self._contexts[stack.name] = Context(
                self.run.target,
                offered(stack, "planner"),
                offered(stack, "loader"),
                parts.of(stack),
                lambda: sources.maps(self.run, self.results, lambda name: self._context(self.stack(name))),
                files=self.run.files,
                world=self._worlds[stack.name].of,
                e2e=lambda: self._e2e(stack),
            )
        return self._contexts[stack.name]

    def _e2e(self, stack: Any) -> Measured:
        from conformance.e2e import opening

        return opening.measured(stack, self.run.target, self._folder / "e2e" if self._folder else None)

    def _outcome(self, claim: Claim) -> tuple[Status, str, Evidence | None]:
        if reason := claim.not_applicable(self.run.target, self.run.given):
            return Status.NOT_APPLICABLE, reason, None
        if not claim.check:
            return Status.NOT_RUN, "this version of the harness has no check for it", None
        if not self.run.settings.no_gate and (blocker := schedule.blocker(claim, self.results)):
            return Status.BLOCKED, f"needs {blocker}; --no-gate runs it all the same", None
        return self.judge(claim)

    def judge(self, claim: Claim) -> tuple[Status, str, Evidence | None]:
        """Run its check, whatever stands in the way. Raises UsageError where a stack shows that the call is wrong."""
        try:
            name = self.run.stacks.get(claim.of) or self.run.stacks[claim.layer]
            if self._apart and registry.is_foreign(name):
                self._seats.suit(claim, [stack for stack in self._opened if isinstance(stack, Apart)])
            stack = self.stack(name)
            if isinstance(stack, Apart):
                return self._seats.told(stack.judge(claim, self.results))
            context = self._context(stack)
        except (errors.UsageError, KeyboardInterrupt):
            raise
        except BaseException as error:
            return *_status_of(error), None
        return evaluate(claim, stack, context)


def _checked_info(name: str, stack: Stack | Apart) -> StackInfo:
    """Who is under test, told in simple types and under its own name. A stack that dies before it has told is not
    judged for it: the machine, or our way of starting it, may be at fault."""
    try:
        info = stack.info()
    except errors.StackCrashed as error:
        raise errors.AdapterError(f"before any claim: {error}") from error
    try:
        msgspec.json.encode(info)
    except (TypeError, ValueError) as error:
        raise errors.AdapterError(f"stack {name} tells of itself in other than simple types: {error}") from error
    if info.name != name or (info.subject == "reference") != (name == "reference"):
        raise errors.AdapterError(f"stack {name} calls itself {info.name!r}, subject {info.subject!r}")
    return info


def offered(stack: Stack | Apart, part: str) -> Any:
    """A stack's planner or loader; where it has none (a kernel library's stack), what says so when it is used."""
    if hasattr(stack, part):
        return getattr(stack, part)()
    return _Lacking(f"the stack {stack.name} has no {part}")


class _Lacking:
    def __init__(self, words: str):
        self._words = words

    def __getattr__(self, name: str) -> Any:
        raise errors.NotSupported(self._words)


def evaluate(claim: Claim, stack: Stack, context: Context) -> tuple[Status, str, Evidence | None]:
    """Run one check: (status, reason, evidence). Only a UsageError and Ctrl-C get through."""
    try:
        evidence = claim.function()(stack, context)
        if not isinstance(evidence, Evidence):
            raise TypeError(f"{claim.check} returned {type(evidence).__name__}, no Evidence")
        evidence.stack = stack.name
        msgspec.json.encode(evidence)  # what cannot be written down is no evidence
    except (errors.UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a SystemExit out of foreign code would end the gate with its own exit code
        return *_status_of(error), None
    return (Status.PASS, "", evidence) if evidence.ok else (Status.FAIL, errors.one_line(evidence.summary), evidence)


def _status_of(error: BaseException) -> tuple[Status, str]:
    words = errors.one_line(error)
    match error:
        case errors.StackMissing():
            return Status.NOT_RUN, words
        case errors.NotSupported():
            return Status.NOT_SUPPORTED, words
        case errors.Blocked():
            return Status.BLOCKED, words
        case errors.StackRefused():
            return Status.FAIL, words
        case errors.StackCrashed():
            return Status.CRASH, words
        case errors.StackTimeout():
            return Status.TIMEOUT, words
        case errors.AdapterError():
            return Status.ERROR, words
        case errors.UnfitShape():
            return Status.FAIL, words
    at = traceback.extract_tb(error.__traceback__)[-1]
    return Status.ERROR, f"{type(error).__name__}: {words} ({Path(at.filename).name}:{at.lineno})"


def repeat_command(run: Resolved, claim_id: str) -> str:
    """The one line that repeats just this claim."""
    s = run.settings
    options: list[tuple[str, str | bool | None]] = [
        ("--profile", None if s.emulate else run.profile.name),
        ("--emulate", s.emulate),
        ("--stack", s.stack),
        ("--vllm-python", s.vllm_python),
        ("--vllm-source", s.vllm_source),
        ("--python", s.python),
        ("--geometry", None if s.checkpoint or s.model else s.geometry),
        ("--checkpoint", s.checkpoint),
        ("--checkpoint-bytes", s.checkpoint_bytes),
        ("--tp", s.tp),
        ("--layers", "e2e" if "," in s.tp and not s.endpoint else None),
        ("--model", s.model),
        ("--limits", s.limits),
        ("--endpoint", s.endpoint),
        ("--against", s.against),
        ("--backend", s.backend),
        ("--loader-run", s.loader_run),
        ("--policy", s.policy if run.policy.only_required else None),
        ("--repair", s.repair or None),
        ("--force-shard", s.force_shard),
        ("--nightly", s.nightly),
    ]
    words = ["conformance", "gate", "--claim", claim_id]
    for name, value in options:
        if value is True:
            words.append(name)
        elif value:
            words += [name, str(value)]
    return shlex.join(words)
