"""A run folder read back: what was recorded, whether it still says what was attested, and how two runs differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from conformance.errors import UsageError
from conformance.gate.folder import Manifest, harness_commit, read_evidence, recorded_settings
from conformance.gate.settings import Settings, resolve
from conformance.gate.verdict import Verdict, judge
from conformance.report import attestation
from conformance.result import ClaimResult

T = TypeVar("T")


class Recorded(NamedTuple):
    """`path` and `manifest` as an open RunFolder has them; `verdict` None: the run never came to its end."""

    path: Path
    manifest: Manifest
    results: list[ClaimResult]
    verdict: Verdict | None

    @property
    def final(self) -> Verdict:
        """Raises UsageError where the run never came to a verdict."""
        if self.verdict is None:
            raise UsageError(f"{self.path}: the run has no verdict.json: `conformance gate ... --resume` finishes it")
        return self.verdict


class Checked(NamedTuple):
    """`wrong`: what does not agree. `unknown`: what could not be checked here."""

    wrong: list[str]
    unknown: list[str]


class Difference(msgspec.Struct):
    """One thing that two runs have differently; `what` is a claim's id, or a line of the manifest."""

    what: str
    kind: str
    before: Any
    after: Any


def read(path: Path) -> Recorded:
    """Raises UsageError: no run folder, or a file in it that cannot be read."""
    if not (path / "manifest.json").is_file():
        raise UsageError(f"{path}: no run folder (no manifest.json): a folder that `conformance gate` wrote was due")
    verdict = path / "verdict.json"
    return Recorded(
        path,
        _decoded(path / "manifest.json", Manifest),
        read_evidence(path),
        _decoded(verdict, Verdict) if verdict.exists() else None,
    )


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: not readable: {error}") from None


def verify(run: Recorded) -> Checked:
    """The verdict against the evidence and the must-pass list, and the attestation against all files.

    Raises UsageError where the run never came to a verdict.
    """
    wrong = [*_against_evidence(run), *_against_attestation(run)]
    again, unknown = _judged_again(run)
    if again is not None and (again.verdict, again.headline) != (run.final.verdict, run.final.headline):
        wrong.append(f"verdict.json: {run.final.headline} is recorded; its evidence makes it {again.headline}")
    return Checked(wrong, unknown)


def _against_evidence(run: Recorded) -> Iterator[str]:
    """Each claim of the verdict as the evidence has it; what the run never reached has no evidence."""
    evidence = {result.id: result for result in run.results}
    for claim in run.final.claims:
        known = evidence.pop(claim.id, None)
        if known is None and claim.status != "not-run":
            yield f"{claim.id}: {claim.status} in verdict.json, and not in evidence.jsonl"
        elif known is not None and known != claim:
            told = f"{claim.status}, while evidence.jsonl has {known.status}"
            yield f"{claim.id}: {told if claim.status != known.status else 'evidence.jsonl has other values'}"
    yield from (f"{name}: in evidence.jsonl, and not in verdict.json" for name in evidence)


def _against_attestation(run: Recorded) -> Iterator[str]:
    """The attestation as it would be made from the files today."""
    path = run.path / "attestation.json"
    if not path.exists():
        yield "attestation.json: not there; every run that came to a verdict has one"
        return
    recorded = _decoded(path, dict[str, Any])
    due = msgspec.json.decode(attestation.render(run, run.final))
    for where, got, want in _unequal(recorded, due):
        yield f"attestation.json: {where} is {got}; {want} was due by the files"


def _judged_again(run: Recorded) -> tuple[Verdict | None, list[str]]:
    """The verdict that the evidence makes with today's must-pass list, and what stands in the way of making it."""
    manifest, final = run.manifest, run.final
    given = {name: value for name, value in manifest.settings.items() if name in Settings.__struct_fields__}
    if given.get("emulate"):
        del given["profile"]  # the emulation implies it
    try:
        resolved = resolve(msgspec.convert(given, Settings))
    except (UsageError, msgspec.ValidationError) as error:
        return None, [f"the must-pass list was not made again: {error}"]
    unknown = []
    if (commit := harness_commit()) != manifest.harness_commit:
        unknown.append(f"another harness ({commit or 'no clone'}) checks what {manifest.harness_commit} wrote")
    now = recorded_settings(resolved)
    if changed := [name for name in now if now[name] != manifest.settings.get(name)]:
        return None, [*unknown, f"the must-pass list was not made again: {changed[0]} is another one now"]
    layers = ", ".join(resolved.layers) if resolved.settings.layers else ""
    selection = final.scope.removeprefix(layers).removeprefix("; ") if final.scope != "full" else ""
    return judge(resolved, run.results, selection), unknown


def differences(before: Recorded, after: Recorded) -> list[Difference]:
    """Who was judged and how, then claims: status, what was measured, and its maps. Seconds are nobody's finding."""
    a, b = before.final, after.final
    found = [
        Difference(name, "run", getattr(a, name), getattr(b, name))
        for name in ("headline", "profile", "stack", "geometry", "tp", "backend")
        if getattr(a, name) != getattr(b, name)
    ]
    for name in dict.fromkeys([*before.manifest.stacks, *after.manifest.stacks]):
        versions = [
            f"{i.version}, {len(i.identity)} files" if (i := run.manifest.stacks.get(name)) else "not there"
            for run in (before, after)
        ]
        same = before.manifest.stacks.get(name) == after.manifest.stacks.get(name)
        found += [] if same else [Difference(f"stack {name}", "run", *versions)]
    old, new = ({claim.id: claim for claim in verdict.claims} for verdict in (a, b))
    for name in dict.fromkeys([*old, *new]):
        found += _claims(name, old.get(name), new.get(name))
    return found


def _claims(name: str, old: ClaimResult | None, new: ClaimResult | None) -> Iterator[Difference]:
    then, now = (claim.status if claim else "not in it" for claim in (old, new))
    if then != now:
        yield Difference(name, "status", str(then), str(now))
    if not (old and new and old.evidence and new.evidence):
        return
    for kind in ("expected", "measured", "bound"):
        values = getattr(old.evidence, kind), getattr(new.evidence, kind)
        if values[0] != values[1]:
            yield Difference(name, kind, *values)
    if old.evidence.maps != new.evidence.maps:
        yield Difference(name, "maps", _ranks(old.evidence.maps), _ranks(new.evidence.maps))


def _ranks(maps: Iterable[Any]) -> str:
    return ", ".join(f"rank {m.rank}: {len(m.boxes)} runs" for m in maps) or "no maps"


def _unequal(got: Any, due: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, got, due) of the leaves that two JSON values have differently."""
    if isinstance(got, dict) and isinstance(due, dict):
        for key in dict.fromkeys([*due, *got]):
            yield from _unequal(got.get(key), due.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(got, list) and isinstance(due, list) and len(got) == len(due):
        for index, (one, other) in enumerate(zip(got, due, strict=True)):
            yield from _unequal(one, other, f"{where}[{index}]")
    elif got != due:
        yield where or "the statement", got, due
