"""Which claims a run consists of, which are required in it, and what blocks a claim."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from conformance import catalogue
from conformance.catalogue import Claim
from conformance.gate.settings import Resolved
from conformance.result import BLOCKING, ClaimResult


def planned(run: Resolved, selected: Collection[str] | None = None) -> list[Claim]:
    """The claims of this run in schedule order: required ones, and in the full policy the others of its layers too.

    `selected`: ids that pytest kept. A policy with `only_required` never runs more than its own claims.
    """
    return [
        claim
        for claim in catalogue.claims().values()
        if claim.layer in run.layers
        and (selected is None or claim.id in selected)
        and (claim.id in run.required or (not run.policy.only_required and claim.check))
    ]


def blocker(claim: Claim, results: Mapping[str, ClaimResult]) -> str:
    """The claim that stands in the way (`plan.axes.heads fail`), or empty. Only claims that ran can block."""
    needed = catalogue.dependencies().get(claim.group, ())
    for result in results.values():
        if result.group in needed and result.status in BLOCKING:
            return f"{result.id} {result.status}"
    return ""
