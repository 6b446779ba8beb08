"""Loaded bytes against the files' own: every routed expert of every layer, on every rank."""

from __future__ import annotations

import time
from collections import Counter

from conformance.checkpoint import dense
from conformance.checkpoint import routed as files
from conformance.context import Context
from conformance.needs import lacks
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import checkpoint


@claim("loader.files.bytes")
def routed(stack: Stack, context: Context) -> Evidence:
    started = time.perf_counter()
    seen = files.verify(context)
    seconds = time.perf_counter() - started
    assert context.files is not None
    findings = [
        Finding(
            where=f"rank {w.rank}, {w.parameter} row {w.row}, byte {w.col}, after loading {w.name}",
            expected=f"0x{w.due:02X}, byte {w.offset} of {w.file}",
            got=f"0x{w.got:02X}",
            meaning=f"the first of {w.differing} bytes of this block that are not the file's",
            rank=w.rank,
        )
        for w in seen.wrong
    ]
    everything = sum(len(parts) for parts in files.experts(context.files).values())
    others = len(context.files.entries) - len(seen.names)
    kinds = Counter(checkpoint.kind(name) for name in seen.names)
    held = f"{len(seen.names)} routed-expert tensors ({seen.nbytes} bytes) on {context.target.tp} ranks"
    return Evidence(
        ok=not findings,
        summary=f"{held}: " + (f"{findings[0].where}: {findings[0].got}" if findings else "the files' own bytes"),
        expected={kind: f"{count} tensors, byte for byte" for kind, count in kinds.items()},
        measured={"tensors": len(seen.names), "bytes": seen.nbytes, "differences": len(seen.wrong)},
        findings=findings,
        notes=[
            "verified: " + ", ".join(f"{kind} ({count})" for kind, count in kinds.items()),
            f"not verified here: the other {others} tensors of the files (loader.files.tensors)",
            f"{seen.nbytes / max(seconds, 1e-9) / 1e9:.2f} GB of files a second",
            *([f"stopped after {len(seen.names)} of {everything}"] if len(seen.names) < everything else []),
        ],
        method="each expert loaded into one slot, read back, compared with the file",
    )


@claim("loader.files.tensors")
def tensors(stack: Stack, context: Context) -> Evidence:
    assert context.files is not None
    seen = dense.verify(context)
    names, wrong = set(seen.names), list(seen.wrong)
    drafting = not lacks(context.target, "draft") and not lacks(context.target, "drafting")
    if drafting:
        more = dense.verify(context, draft=True)
        names |= more.names
        wrong += more.wrong
    findings = [
        Finding(
            where=f"rank {w.rank}, {w.parameter} row {w.row}, column {w.col}, after loading {w.name} of {w.file}",
            expected="the file's element",
            got="another one",
            meaning=f"the first of {w.differing} bytes of this block that are not the file's",
            rank=w.rank,
        )
        for w in wrong
    ]
    rest = [name for name in context.files.entries if name not in names and ".ffn.experts." not in name]
    return Evidence(
        ok=not findings,
        summary=f"{len(names)} tensors on {context.target.tp} ranks: "
        + (f"{findings[0].where}: {findings[0].meaning}" if findings else "the files' own bytes"),
        expected="the files' own bytes in every parameter",
        measured={"tensors": len(names), "differences": len(wrong)},
        findings=findings[:12],
        notes=[
            "routers are verified for the first experts only, hash tables for the first route",
            *([f"not verified: {len(rest)} tensors, {rest[0]} first"] if rest else []),
        ],
        method="layers take turns in a model that is built with one layer of each kind",
    )
