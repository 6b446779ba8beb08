"""One process a rank: what comes back, who is blamed, that calls end within their limit and nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from conformance import geometry
from conformance.errors import AdapterError, StackCrashed, StackRefused, StackTimeout
from conformance.provenance import loaded
from conformance.stacks.protocols import StackOptions
from conformance.target import Target
from conformance.world.processes import Processes
from conformance.world.rank import Setup
from tests.stacks.test_process import gone

TINY = geometry.load("deepseek-v4-tiny")
TARGET = Target(TINY, 3, "flashinfer_cutlass", None, None, (128,), (128,))
SETUP = Setup(TARGET, "reference", StackOptions(), loaded.due(TARGET))
ENCODED = msgspec.json.encode(SETUP)
LIMIT = 8.0


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    found = Processes(3, "gloo", LIMIT, 60.0)
    yield found
    found.close()


def _each(processes: Processes, name: str, **arguments):
    return processes.each(f"tests.world.functions:{name}", ENCODED, arguments)


def _works(processes: Processes) -> bool:
    return _each(processes, "total", add=10) == [[0, 33.0], [1, 33.0], [2, 33.0]]


def test_they_sum_and_stay(processes):
    assert _works(processes)
    before = processes.pids
    assert len(set(before)) == 3
    assert _works(processes) and processes.pids == before


def test_each_knows_its_own_rank_alone(processes):
    assert _each(processes, "whoami") == [[rank, 3, rank] for rank in range(3)]


@pytest.mark.parametrize(
    ("rank", "how", "error", "words"),
    [
        (1, "exit", StackCrashed, "rank 1 of 3: .*exit 0.*all ranks were ended"),
        (2, "segfault", StackCrashed, "rank 2 of 3: .*SIGSEGV"),
        (0, "killed", AdapterError, "rank 0 of 3: .*SIGKILL.*killed from outside"),
        (2, "refuse", StackRefused, "rank 2 of 3: 704 is no multiple of 128"),
        (1, "raise", AdapterError, "rank 1 of 3: ValueError: two lines"),
        (2, "hang", StackTimeout, "rank 2 of 3 came no further than its own work, while others wait in the all-reduce"),
    ],
)
def test_one_rank_fails_in_the_all_reduce(processes, rank, how, error, words):
    """The call ends within its limit, the rank to blame is named, the others are ended, and the next call works."""
    assert _works(processes)
    pids, start = processes.pids, time.monotonic()
    with pytest.raises(error, match=words):
        _each(processes, "misbehave", rank=rank, how=how)
    assert time.monotonic() - start < LIMIT + 12
    assert gone(pids) and not processes.pids
    assert _works(processes)


def test_all_ranks_hang():
    processes = Processes(2, "gloo", 2.0, 60.0)
    with pytest.raises(StackTimeout, match="all ranks hang in a long sleep"):
        _each(processes, "everyone_hangs")
    assert not processes.pids


def test_closing_leaves_nothing_behind():
    processes = Processes(2, "gloo", LIMIT, 60.0)
    _each(processes, "whoami")
    pids = processes.pids
    processes.close()
    processes.close()
    assert gone(pids)


def test_a_group_that_cannot_be_made():
    processes = Processes(2, "nonsense", LIMIT, 60.0)
    with pytest.raises(AdapterError, match=r"rank . of 2: "):
        _each(processes, "whoami")
    assert not processes.pids
