"""Leases of GPUs: never two holders, all or none, first come first served, and gone with their process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from conformance.errors import AdapterError
from conformance.world import leases

FOUR = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "FOLDER", tmp_path / "gpus")


def test_three_and_one_share_four_and_a_fifth_waits():
    three, one = leases.take(FOUR, 3, 3, 1), leases.take(FOUR, 1, 4, 1)
    assert (three.devices, one.devices) == (("GPU-a", "GPU-b", "GPU-c"), ("GPU-d",))
    with pytest.raises(AdapterError, match=rf"no 1 GPUs free .*GPU-a was last taken by process {os.getpid()}"):
        leases.take(FOUR, 1, 1, 0.5)
    three.close()
    assert leases.take(FOUR, 1, 4, 1).devices == ("GPU-a", "GPU-b", "GPU-c")
    assert one.environment == {"CUDA_VISIBLE_DEVICES": "GPU-d"}


def test_a_failed_try_keeps_nothing():
    one = leases.take(FOUR, 1, 1, 1)
    with pytest.raises(AdapterError):
        leases.take(FOUR, 4, 4, 0.3)
    assert leases.take(FOUR, 3, 3, 1).devices == ("GPU-b", "GPU-c", "GPU-d")
    one.close()


def test_fewer_than_asked_for_are_all_that_there_are_and_none_is_none():
    assert leases.take(FOUR[:2], 3, 3, 1).devices == ("GPU-a", "GPU-b")
    assert leases.take([], 3, 3, 1).environment == {}


_HOLDER = """
import sys, time
from pathlib import Path
from conformance.world import leases
leases.FOLDER = Path(sys.argv[1])
lease = leases.take(sys.argv[3].split(","), int(sys.argv[2]), int(sys.argv[2]), 30)
print(time.monotonic(), *lease.devices, flush=True)
time.sleep(float(sys.argv[4]))
"""


def _holder(count: int, seconds: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _HOLDER, str(leases.FOLDER), str(count), ",".join(FOUR), str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_the_lock_goes_with_its_process():
    holder = _holder(4, 60)
    assert holder.stdout.readline().split()[1:] == FOUR
    with pytest.raises(AdapterError, match=f"process {holder.pid}"):
        leases.take(FOUR, 1, 1, 0.3)
    holder.kill()
    holder.wait()
    assert leases.take(FOUR, 4, 4, 5).devices == tuple(FOUR)


def test_who_needs_three_is_not_starved_by_those_who_need_one():
    """Held: one GPU each by two. One more wants three, then one wants one: it is served after."""
    first = leases.take(FOUR, 2, 2, 1)
    wide = _holder(3, 0.5)
    time.sleep(1.5)
    narrow = _holder(1, 0.1)
    time.sleep(1.0)
    first.close()
    wide_at, *wide_devices = wide.stdout.readline().split()
    narrow_at, *_ = narrow.stdout.readline().split()
    assert len(wide_devices) == 3
    assert float(wide_at) < float(narrow_at)
    assert wide.wait() == narrow.wait() == 0


@pytest.mark.parametrize(
    ("allowed", "chosen"),
    [
        ("", []),
        ("1,3", ["GPU-b", "GPU-d"]),
        ("GPU-c", ["GPU-c"]),
        ("0,-1,2", ["GPU-a"]),
        ("0,7", ["GPU-a"]),
        ("MIG-x", ["MIG-x"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(allowed, chosen):
    assert leases._chosen(allowed, FOUR) == chosen
