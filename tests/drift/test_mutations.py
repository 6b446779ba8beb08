"""Every planted fault is called drift by its rule, and located; the clean mini-checkout is silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.drift.finding import Finding
from conformance.drift.rules import all_rules
from tests.drift.mutations import ALL, ALONG, Mutation
from tests.drift.running import edit, findings

#: Design choices that the mini-checkout does not make.
_ABSENT = {"W07", "B02", "B03", "B05", "B09"}


def test_clean_is_silent(clean: dict[str, Finding]) -> None:
    assert {rule: f.actual for rule, f in clean.items() if f.status == "drift"} == {}
    assert {rule for rule, f in clean.items() if f.status == "not-found"} == _ABSENT


def test_clean_has_evidence_on_both_sides(clean: dict[str, Finding]) -> None:
    for rule, finding in clean.items():
        if finding.status == "pass":
            assert finding.mpk, rule
            assert all(place.line > 0 and len(place.sha256) == 64 for place in [*finding.mpk, *finding.ref]), rule


def test_every_rule_has_a_fault() -> None:
    assert {mutation.rule for mutation in ALL} == {rule.id for rule in all_rules()}


@pytest.mark.parametrize("mutation", ALL, ids=lambda m: f"{m.rule}-{m.id}")
def test_caught(mutation: Mutation, mpk: Path, vllm: Path) -> None:
    edit(mpk, mutation.path, mutation.old, mutation.new, mutation.count)
    for along, path, old, new in ALONG:
        if along == mutation.id:
            edit(mpk, path, old, new)
    found = findings(mpk, vllm, mutation.probes, mutation.rule)[mutation.rule]
    assert found.status == "drift", f"{found.reason}: {found.actual}"
    assert found.differences
    assert found.mpk, "a drift without a place"
