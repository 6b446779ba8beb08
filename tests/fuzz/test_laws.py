"""The references keep every law; each law notices a wrong formula, and says so at a small cut."""

from __future__ import annotations

import pytest
from hypothesis import given

from conformance.fuzz import laws
from conformance.fuzz.laws import Cut, broken
from conformance.fuzz.search import Profile, search
from references import plan, shards
from references.plan import Share
from references.shards import Shard

HARD = Profile(400, None, True)


@given(laws.cuts())
def test_the_references_keep_every_law(cut):
    assert broken(cut) == ""


def test_the_audits_numbers():
    assert broken(Cut(3, 2048, 32, 2, 32, 128)) == ""


def _spoiled(original, spoil):
    """`shards.shard` with its result, or its errors, spoiled."""

    def shard(total, per_rank, width, rank, unit):
        return spoil(original, total, per_rank, width, rank, unit)

    return shard


WRONG = {
    "partition": lambda f, t, p, w, r, u: f(t, p, w, r, u)._replace(stop=f(t, p, w, r, u).stop - (r == 1)),
    "weights with their scales": lambda f, t, p, w, r, u: (
        Shard(0 if r == 0 else t // u, t // u, w // u) if u >= 32 else f(t, p, w, r, u)
    ),
    "tails": lambda f, t, p, w, r, u: f(t, p, w, r, u)._replace(width=w // u + 1),
    "no boundary inside a group": lambda f, t, p, w, r, u: Shard(min(r * p, t) // u, min(r * p + p, t) // u, w // u),
}


@pytest.mark.parametrize("law", WRONG)
def test_a_wrong_shard_breaks_its_law(monkeypatch, law):
    monkeypatch.setattr(shards, "shard", _spoiled(shards.shard, WRONG[law]))
    found = search(laws.cuts(), broken, HARD)
    assert found.smallest is not None
    assert found.judged[found.smallest].startswith(law)
    assert found.smallest.tp <= 2 and found.smallest.total <= 2 * found.smallest.group


@pytest.mark.parametrize(
    ("law", "formula"),
    [
        ("alignment", lambda size, tp: Share(-(-size // tp), -(-size // tp) * tp)),
        ("smallest share", lambda size, tp: Share(size + -size % 32, (size + -size % 32) * tp)),
        ("smallest share", lambda size, tp: Share(size // tp // 32 * 32, size // tp // 32 * 32 * tp)),
    ],
)
def test_a_wrong_share_breaks_its_law(monkeypatch, law, formula):
    monkeypatch.setitem(laws._SHARES, plan.ROUTED_ALIGNMENT, formula)
    found = search(laws.cuts(), broken, HARD)
    assert found.smallest is not None and found.judged[found.smallest].startswith(law)
    assert found.smallest.alignment == 32 and found.smallest.tp in (2, 3)
