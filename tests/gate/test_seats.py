"""The GPUs that a run holds: one, or one a rank for claims that run all ranks at once; never some while it waits."""

from __future__ import annotations

import pytest

from conformance import catalogue
from conformance.gate.seats import Seats
from conformance.gate.settings import Settings, resolve
from conformance.world import leases

FOUR = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
ONE, ALL = catalogue.get("moe.tp3.reference"), catalogue.get("moe.world.sum")


class _Stack:
    closed = 0

    def close(self):
        self.closed += 1
        free = leases.take(FOUR, 1, 1, 0)
        assert free.devices != ("GPU-a",), "its GPU was given back while it ran"
        free.close()


@pytest.fixture
def seats(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "FOLDER", tmp_path / "gpus")
    monkeypatch.setattr(leases, "visible", lambda: FOUR)

    def made(greedy, profile="sm90", **more):
        return Seats(resolve(Settings(profile=profile, stack="flashinfer", layers="moe", tp="3", **more)), greedy)

    return made


def test_one_gpu_until_a_claim_needs_one_a_rank(seats):
    held, stack = seats(greedy=False), _Stack()
    held.suit(ONE, [stack])
    assert held.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-a"}
    assert not stack.closed
    held.suit(ALL, [stack])
    assert held.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}
    assert stack.closed == 1
    held.suit(ONE, [stack])
    assert stack.closed == 1, "what suffices is kept"
    held.close()
    assert len(leases.take(FOUR, 4, 4, 0).devices) == 4


@pytest.mark.parametrize("wide", [ALL, catalogue.get("e2e.answers")])
def test_all_ranks_and_engines_get_a_gpu_a_rank(wide, seats):
    held = seats(greedy=False)
    held.suit(wide, [])
    assert held.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}


def test_a_run_alone_takes_what_its_widest_claim_needs_at_once(seats):
    held = seats(greedy=True)
    held.suit(ONE, [])
    assert held.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}


def test_greed_takes_no_more_than_is_free(seats):
    other = leases.take(FOUR, 2, 2, 0)
    held = seats(greedy=True)
    held.suit(ONE, [])
    assert held.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-d"}
    other.close()


def test_nothing_is_held_without_a_gpu_or_for_a_cpu(seats, monkeypatch):
    held = seats(greedy=True, profile="cpu")
    held.suit(ONE, [])
    assert held.environment() == {}
    monkeypatch.setattr(leases, "visible", list)
    held = seats(greedy=True)
    held.suit(ALL, [])
    assert held.environment() == {}


def test_fewer_gpus_than_ranks_are_one_for_ranks_in_turn(seats, monkeypatch):
    monkeypatch.setattr(leases, "visible", lambda: FOUR[:2])
    held = seats(greedy=True)
    held.suit(ALL, [])
    assert held.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-a"}
