"""What a checkpoint's headers say against what its config.json demands: names, types, shapes. No data is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from conformance.checkpoint import layout
from conformance.checkpoint.folder import Files
from conformance.checkpoint.header import Entry
from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import checkpoint
from references.checkpoint import Tensor

_MOST = 16


class _Both(NamedTuple):
    files: Files
    due: dict[str, Tensor]


def _both(context: Context) -> _Both:
    files = context.files
    assert files is not None, "claims that need --checkpoint are not applicable without"
    return _Both(files, context.once("files.due", lambda: layout.due(files)))


@claim("loader.files.names")
def names(stack: Stack, context: Context) -> Evidence:
    files, due = _both(context)
    missing = [name for name in due if name not in files.entries]
    extra = [name for name in files.entries if name not in due]
    findings = [
        Finding(where=f"{files.folder}: {name}", expected=_words(due[name]), got="in no file", meaning=due[name].kind)
        for name in missing
    ]
    findings += [
        Finding(
            where=f"{files.entries[name].file}: {name}",
            expected="no such tensor, by config.json",
            got=_words(files.entries[name]),
            meaning=_unknown(name, due),
        )
        for name in extra
    ]
    kinds = Counter(checkpoint.kind(name) for name in files.entries)
    words = [f"{len(n)} {what} ({n[0]})" for n, what in ((missing, "missing"), (extra, "not due")) if n]
    return Evidence(
        ok=not findings,
        summary=f"{len(files.entries)} tensors of {len(kinds)} kinds: " + (", ".join(words) or "all that is due"),
        expected=dict(Counter(tensor.kind for tensor in due.values())),
        measured=dict(kinds),
        findings=_some_of_each_kind(findings),
        notes=[f"headers: sha256 {files.digest}"],
        method="headers of every file",
    )


@claim("loader.files.dtypes")
def dtypes(stack: Stack, context: Context) -> Evidence:
    return _held(context, "type", lambda tensor: tensor.dtype)


@claim("loader.files.shapes")
def shapes(stack: Stack, context: Context) -> Evidence:
    return _held(context, "shape", lambda tensor: list(tensor.shape))


def _held(context: Context, what: str, of: Callable[[Tensor | Entry], str | list[int]]) -> Evidence:
    """Of every tensor that is due and there: is `of` of the entry that of the table?"""
    files, due = _both(context)
    there = [name for name in due if name in files.entries]
    wrong = [name for name in there if of(files.entries[name]) != of(due[name])]
    findings = [
        Finding(
            where=f"{files.entries[name].file}: {name}",
            expected=f"{what} {of(due[name])}",
            got=f"{what} {of(files.entries[name])}",
            meaning=due[name].kind,
        )
        for name in wrong
    ]
    first = (
        f"{findings[0].where} is of {findings[0].got}, {of(due[wrong[0]])} due" if findings else f"each of its {what}"
    )
    return Evidence(
        ok=not findings,
        summary=f"{len(there)} tensors: {first}" + (f"; {len(wrong)} in all" if wrong else ""),
        expected={due[name].kind: of(due[name]) for name in there},
        measured={due[name].kind: of(files.entries[name]) for name in there} if wrong else "as due",
        findings=_some_of_each_kind(findings),
        method="headers of every file",
    )


def _words(tensor: Tensor | Entry) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _unknown(name: str, due: dict[str, Tensor]) -> str:
    """Why it is not due, where that can be told."""
    released = name.removeprefix("model.").replace("weight_scale_inv", "scale")
    if released != name and released in due:
        return f"released as {released}: a converted checkpoint"
    of_other_layers = {tensor.kind for tensor in due.values()}
    return "another kind of layer has it" if checkpoint.kind(name) in of_other_layers else "no kind of layer has it"


def _some_of_each_kind(findings: list[Finding]) -> list[Finding]:
    """At most `_MOST`, the first of every kind before the second of any."""
    seen: Counter[str] = Counter()
    ranked = []
    for finding in findings:
        key = checkpoint.kind(finding.where.rpartition(": ")[2])
        ranked.append((seen[key], finding))
        seen[key] += 1
    return [finding for _, finding in sorted(ranked, key=lambda pair: pair[0])[:_MOST]]
