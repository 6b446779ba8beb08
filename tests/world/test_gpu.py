"""Several GPUs, one process each, NCCL and FlashInfer's kernel: what CPUs with gloo cannot show."""

from __future__ import annotations

import time

import msgspec
import pytest
import torch

from conformance import geometry
from conformance.errors import StackCrashed, StackTimeout
from conformance.provenance import loaded
from conformance.stacks.protocols import StackOptions
from conformance.target import Target
from conformance.world.processes import Processes
from conformance.world.rank import Setup
from tests.stacks.test_process import gone

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs or more; {GPUS} found")
FLASH = geometry.load("deepseek-v4-flash")
LIMIT = 20.0


def _setup(tp: int) -> bytes:
    target = Target(FLASH, tp, "flashinfer_cutlass", None, (9, 0), (128,), (128,))
    return msgspec.json.encode(Setup(target, "flashinfer", StackOptions(), loaded.due(target)))


@pytest.mark.parametrize("tp", [tp for tp in (2, 3, 4) if tp <= GPUS])
def test_a_graph_of_moe_and_all_reduce_replays_what_eager_computes(tp, record_property):
    processes = Processes(tp, "nccl", 120.0, 120.0)
    try:
        found = processes.each("suites.graph.ranks:replayed", _setup(tp), {"replays": 100})
        record_property(f"tp{tp}", str([one["sizes"] for one in found]))
        assert [one["sizes"] for one in found] == [dict.fromkeys((1, 8, 16, 64), 0)] * tp
        assert [one["findings"] for one in found] == [[]] * tp
        pids, start = processes.pids, time.monotonic()
    finally:
        processes.close()
    assert time.monotonic() - start < 15, "the group did not end in order"
    assert gone(pids)


@pytest.mark.parametrize(("how", "error"), [("exit", StackCrashed), ("segfault", StackCrashed), ("hang", StackTimeout)])
def test_one_rank_fails_in_the_all_reduce(how, error):
    tp = min(GPUS, 3)
    processes = Processes(tp, "nccl", LIMIT, 120.0)
    try:
        setup = _setup(tp)
        assert processes.each("tests.world.functions:whoami", setup, {}) == [[rank, tp, rank] for rank in range(tp)]
        pids, start = processes.pids, time.monotonic()
        with pytest.raises(error, match=f"rank 1 of {tp}"):
            processes.each("tests.world.functions:misbehave", setup, {"rank": 1, "how": how})
        assert time.monotonic() - start < LIMIT + 15
        assert gone(pids)
        assert processes.each("tests.world.functions:total", setup, {"add": 1})[0][1] == tp * (tp + 1) / 2
    finally:
        processes.close()
