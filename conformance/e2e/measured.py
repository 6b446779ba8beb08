"""Everything that a run's e2e claims look at: one record an engine, each measured once and kept in the run folder."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from conformance.e2e import limits
from conformance.e2e.client import Client, Told
from conformance.e2e.limits import Limits
from conformance.e2e.prompts import RECIPE, TOP, Prompts, prompts
from conformance.e2e.record import About, Record, load
from conformance.e2e.replies import SERVING, spoilt
from conformance.e2e.watched import watched
from conformance.errors import (
    AdapterError,
    NotSupported,
    StackCrashed,
    StackError,
    StackRefused,
    StackTimeout,
    UsageError,
)
from conformance.needs import LARGEST_REFERENCE
from conformance.stacks.engine_protocol import Answer, Drafts, Engine, EngineRequest, EngineSession

if TYPE_CHECKING:
    from references.v4_model import Model

_CONTEXT = 3072
#: Requests at a time, beside one, and the seconds in which all of a load must be under way.
LOADS, _LOAD_SECONDS = (8, 32), 120.0
#: Tokens that a server, and an engine that cuts prompts into chunks, answer with: the first ones show what is wrong.
_SERVED, _CHUNKED = 8, 4
#: Tokens of an answer with drafts: enough steps for an interval; and draft tokens a step (MTP2).
DRAFTED, DRAFTS = 32, 2
#: What is measured of an engine: see Record.
PARTS = frozenset({"solo", "again", "batch", "forced", "long", "blocks"})


class Drafting(NamedTuple):
    """Answers without drafts (with DRAFTS tokens more), with them, and what the engine counted."""

    without: list[Answer]
    answers: list[Answer]
    drafts: Drafts


class Plan:
    """What is measured: a checkpoint's folder, the sizes, where records are kept, what is planted where.

    `faults`: size -> a fault that the engine plants in itself; `clean`: measured elsewhere, for the sizes without one;
    `parts`: what is measured of an engine (a planted fault needs only what its claims look at). `names`: of servers
    that are up, which have numbers instead of sizes; `against`: the base's record, from an earlier run. `drafting`: the
    checkpoint whose draft layer is judged, if not the same. `backend`: of the routed experts, where one was asked for.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        sizes: tuple[int, ...],
        stack: str,
        device: str,
        kept: Path | None = None,
        limits_file: str | None = None,
        faults: dict[int, dict[str, Any]] | None = None,
        clean: Measured | None = None,
        parts: frozenset[str] = PARTS,
        names: dict[int, str] | None = None,
        against: Record | None = None,
        drafting: Path | None = None,
        backend: str = "",
    ):
        self.folder, self.config, self.sizes, self.stack, self.device = folder, config, sizes, stack, device
        self.kept, self.limits_file = kept, limits_file
        self.faults, self.clean, self.parts = faults or {}, clean, parts
        self.names, self.against, self.drafting = names or {}, against, drafting or folder
        self.backend = backend


def _of_the_dead(code: int | None, silence: StackTimeout) -> StackError:
    """A server that is silent because it has ended by itself crashed; one that was killed proves nothing."""
    if code is None:
        return silence
    words = f"the server, or a process of it, ended with exit status {code} while it was asked ({silence})"
    if code == -signal.SIGKILL:
        return AdapterError(f"{words}; killed from outside (out of memory?)")
    return StackCrashed(words)


class Measured:
    def __init__(self, plan: Plan, engine: Callable[[], Engine], version: str):
        self.plan, self._engine, self._version = plan, engine, version
        self.sizes, self.base = plan.sizes, plan.sizes[0]
        context = min(_CONTEXT, plan.config.get("max_position_embeddings") or _CONTEXT)
        self._context = context
        self.prompts: Prompts = prompts(plan.config, context)
        self._records: dict[int, Record] = {}
        self._kept: dict[str, Any] = {}

    @cached_property
    def model(self) -> str:
        return limits.digest(self.plan.folder)

    @cached_property
    def limits(self) -> Limits:
        return self._limits_of(self.model)

    def name(self, tp: int) -> str:
        return self.plan.names.get(tp, f"TP{tp}")

    @property
    def others(self) -> tuple[int, ...]:
        return self.sizes[1:]

    @property
    def sequences(self) -> list[list[int]]:
        """Prompts with the base engine's answers: what every engine scores."""
        if self.plan.clean:
            return self.plan.clean.sequences
        answers = self.record(self.base).solo
        return [p + a.tokens for p, a in zip(self.prompts.short, answers, strict=True)]

    def record(self, tp: int) -> Record:
        found: Record = self._once(f"record {tp}", lambda: self._found(tp) or self._measure(tp))
        self._records[tp] = found
        return found

    def _once(self, what: str, measure: Callable[[], Any]) -> Any:
        """Raises what measuring raised, each time it is asked for."""
        if what not in self._kept:
            try:
                self._kept[what] = measure()
            except StackError as error:
                self._kept[what] = error
        found = self._kept[what]
        if isinstance(found, StackError):
            raise found
        return found

    @property
    def records(self) -> dict[int, Record]:
        """Those that were asked for so far."""
        return dict(self._records)

    @property
    def chunk(self) -> int:
        """Half a window: a prompt's chunks cross window and compression borders."""
        return max(16, (self.plan.config.get("sliding_window") or 128) // 2)

    def chunked(self) -> tuple[list[Answer], list[Answer]]:
        """The largest size once more, with prompts cut into chunks and the prefix cache on: each prompt alone, and all
        of them again, which the cache then knows."""
        found: tuple[list[Answer], list[Answer]] = self._once("chunked", self._in_chunks)
        return found

    def _in_chunks(self) -> tuple[list[Answer], list[Answer]]:
        with self._session(chunk=self.chunk, prefix_cache=True) as session:
            return self._alone(session, _CHUNKED), self._alone(session, _CHUNKED)

    def graphed(self) -> tuple[list[Answer], list[Answer]]:
        """The largest size once more, from captured graphs: each prompt alone, and all of them in a batch."""
        found: tuple[list[Answer], list[Answer]] = self._once("graphed", self._in_graphs)
        return found

    def _in_graphs(self) -> tuple[list[Answer], list[Answer]]:
        with self._session(graph=True) as session:
            alone = self._alone(session, self.prompts.answer)
            return alone, session.generate(self.prompts.short, self.prompts.answer, TOP)

    def drafting(self) -> Drafting:
        """The largest size with its draft layer, and without."""
        found: Drafting = self._once("drafting", self._with_drafts)
        return found

    def _with_drafts(self) -> Drafting:
        folder = str(self.plan.drafting)
        with self._session(model=folder, draft=DRAFTS) as session:
            answers, drafts = self._alone(session, DRAFTED), session.drafts()
        if self.plan.clean:
            return Drafting(self.plan.clean.drafting().without, answers, drafts)
        with self._session(model=folder) as session:
            return Drafting(self._alone(session, DRAFTED + DRAFTS), answers, drafts)

    @cached_property
    def drafts_due(self) -> Drafts:
        """What the reference implementation's draft layer would have been worth to the same answers."""
        from references.v4_draft import accepted
        from references.v4_model import Model

        if self.plan.clean:
            return self.plan.clean.drafts_due
        model = Model(self.plan.drafting)
        pairs = zip(self.prompts.short, self.drafting().without, strict=True)
        found = [accepted(model, prompt, answer.tokens, DRAFTED, DRAFTS) for prompt, answer in pairs]
        counts = zip(*(one.accepted for one in found), strict=True)
        return Drafts(sum(one.steps for one in found), tuple(map(sum, counts)))

    @cached_property
    def drafting_limits(self) -> Limits:
        if self.plan.drafting == self.plan.folder:
            return self.limits
        return self._limits_of(limits.digest(self.plan.drafting))

    def _limits_of(self, model: str) -> Limits:
        return limits.find(model, self.plan.device, self.plan.limits_file, self.plan.backend)

    @property
    def served_tokens(self) -> int:
        return min(_SERVED, self.prompts.answer)

    def served(self) -> Told:
        """What the stack's own server at the largest size answers; a planted fault of serving spoils the replies."""
        tp = self.sizes[-1]
        fault = self.plan.faults.get(tp) or {}
        if self.plan.clean and str(fault.get("kind")).startswith(SERVING):
            return spoilt(self.plan.clean.served(), fault["kind"])
        found: Told = self._once("served", lambda: self._serve(tp))
        return found

    def _serve(self, tp: int) -> Told:
        server = self._engine().serve(self._request(tp, sequences=max(LOADS)))
        try:
            most = server.context or self.plan.config.get("max_position_embeddings") or _CONTEXT
            client = Client(server.url, server.model)
            asked = self.prompts.short, self.served_tokens, LOADS, _LOAD_SECONDS, most + 1
            told = watched(lambda: client.everything(*asked), server.ended)
            if server.ended() is not None:
                raise StackTimeout("its last answers are errors")
            return told
        except StackTimeout as silence:
            raise _of_the_dead(server.ended(), silence) from None
        finally:
            server.close()

    @cached_property
    def reference(self) -> Model:
        """Raises NotSupported for a model that the references do not implement."""
        from references.v4_model import Model

        if self.plan.config.get("model_type") != "deepseek_v4":
            raise NotSupported(f"no reference implementation of {self.plan.config.get('model_type')}")
        if (self.plan.config.get("hidden_size") or 0) > LARGEST_REFERENCE:
            raise NotSupported(f"the reference implementation takes hidden sizes up to {LARGEST_REFERENCE}")
        return Model(self.plan.folder)

    @cached_property
    def truth(self) -> list[torch.Tensor]:
        """The reference's log-probabilities of each sequence (S, vocabulary)."""
        if self.plan.clean:
            return self.plan.clean.truth
        return [self.reference.log_probabilities(torch.tensor(s)) for s in self.sequences]

    def _found(self, tp: int) -> Record | None:
        """What the run folder, or the clean measurement, already holds."""
        if self.plan.clean and tp not in self.plan.faults:
            return self.plan.clean.record(tp)
        if self.plan.against and tp == self.base:
            return self.plan.against
        path = self._path(tp)
        if path is None or not path.exists():
            return None
        found = load(path)
        if found.about != self._about(tp):
            raise UsageError(f"{path}: of {found.about}; {self._about(tp)} was due: name another --run-dir")
        return found

    def _path(self, tp: int) -> Path | None:
        kind = "server" if self.plan.names else "tp"
        return self.plan.kept / f"{kind}{tp}.safetensors" if self.plan.kept and not self.plan.faults else None

    def _about(self, tp: int) -> About:
        return About(self.plan.stack, self._version, self.model, tp, RECIPE, self.base, self.plan.backend)

    def _request(self, tp: int, **options: Any) -> EngineRequest:
        known = {"model": str(self.plan.folder), "context": self._context, "backend": self.plan.backend}
        known |= {"fault": self.plan.faults.get(tp)}
        return EngineRequest(tp=tp, **{**known, **options})

    @contextmanager
    def _session(self, **options: Any) -> Iterator[EngineSession]:
        """One more engine at the largest size."""
        session = self._open(self.sizes[-1], **options)
        try:
            yield session
        finally:
            session.close()

    def _open(self, tp: int, **options: Any) -> EngineSession:
        try:
            return self._engine().open(self._request(tp, **options))
        except StackRefused as refusal:
            raise StackRefused(f"{self.name(tp)}: the engine refuses to start: {refusal}") from None

    def _alone(self, session: EngineSession, tokens: int) -> list[Answer]:
        return [session.generate([p], tokens, TOP)[0] for p in self.prompts.short]

    def _scored(self, tp: int, solo: list[Answer]) -> list[list[int]]:
        """The base's answers, which a planted fault never changes: with one, they are the clean base's."""
        if tp == self.base and not self.plan.clean:
            return [p + a.tokens for p, a in zip(self.prompts.short, solo, strict=True)]
        return self.sequences

    def _measure(self, tp: int) -> Record:
        if tp != self.base and not self.plan.clean:
            self.record(self.base)  # its answers are what this one scores; raises what that raised
        session = self._open(tp)
        ended = ""
        try:
            short, long, parts = self.prompts.short, self.prompts.long, self.plan.parts
            if tp == self.base and not self.plan.clean:
                parts |= {"solo"}  # what every engine scores
            solo = self._alone(session, self.prompts.answer) if "solo" in parts else []
            record = Record(
                self._about(tp),
                solo=solo,
                again=[session.generate([p], self.prompts.answer, TOP)[0] for p in short[:2]]
                if "again" in parts
                else [],
                batch=session.generate(short, self.prompts.answer, TOP) if "batch" in parts else [],
                forced=[session.score(s, TOP) for s in self._scored(tp, solo)] if "forced" in parts else [],
                long=session.score(long, TOP) if long and "long" in parts else None,
                blocks=session.trace(self.prompts.traced) if "blocks" in parts else {},
                notes=session.notes,
            )
        finally:
            ended = session.close()
        record.ended = ended
        if path := self._path(tp):
            record.save(path)
        return record
