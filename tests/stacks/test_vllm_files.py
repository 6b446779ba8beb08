"""Real files and any geometry on a real vLLM (CONFORMANCE_VLLM_PYTHON), at TP2 on this machine's CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from conformance.checkpoint import folder, routed
from conformance.context import Context
from conformance.faults.seams import FaultyLoader, LoaderFault
from conformance.fuzz.geometries import Case, Judge, first, target
from conformance.fuzz.search import Profile, search
from conformance.stacks.protocols import StackOptions
from conformance.stacks.vllm import open_stack
from conformance.stacks.vllm.stack import VllmStack
from references import make_checkpoint

PYTHON = os.environ.get("CONFORMANCE_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")
TP = 2


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmStack]:
    source = os.environ.get("CONFORMANCE_VLLM_SOURCE")
    opened = open_stack(StackOptions(python=PYTHON, source=source, work_dir=str(tmp_path_factory.mktemp("run"))))
    if "virtual-tp" in opened.info().capabilities:
        opened.close()
        pytest.skip("the numbers are those of a vLLM without virtual TP")
    yield opened
    opened.close()


def _verified(stack: VllmStack, path, intermediate: int, fault: LoaderFault | None = None) -> routed.Verified:
    config = make_checkpoint.UNEVEN | {"moe_intermediate_size": intermediate}
    make_checkpoint.write(path, config, files=2)
    files = folder.read(str(path))
    judged = target(Case(TP, intermediate // 32, "cpu"), None)
    judged = type(judged)(files.geometry, TP, "cpu", None, None, judged.intermediate_roundings, judged.hidden_roundings)
    loader = stack.loader() if fault is None else FaultyLoader(stack.loader(), fault)
    return routed.verify(Context(judged, stack.planner(), loader, files=files), most_wrong=10**6)


def test_the_files_bytes_are_loaded(stack, tmp_path):
    seen = _verified(stack, tmp_path / "even", 256)
    assert not seen.wrong and len(seen.names) == 96


def test_odd_scale_groups_are_not(stack, tmp_path):
    """96 channels are three scale groups: rank 1 begins 16 elements too early, in W1 with row 48 instead of 64."""
    seen = _verified(stack, tmp_path / "odd", 96)
    rank1 = next(w for w in seen.wrong if w.rank == 1 and w.parameter == "w13_weight")
    entry = folder.read(str(tmp_path / "odd")).entries[rank1.name]
    assert rank1.offset == entry.start + 64 * 128
    assert any(w.parameter == "w2_weight_scale" for w in seen.wrong)


def test_one_call_an_expert_sees_what_step_by_step_does(stack, tmp_path):
    """A layer behind a seam is loaded tensor by tensor and read parameter by parameter."""
    at_once = _verified(stack, tmp_path / "one", 96)
    assert at_once == _verified(stack, tmp_path / "two", 96, LoaderFault()) and at_once.wrong


def test_fuzzing_finds_odd_group_counts(stack):
    judge = Judge(lambda backend: stack, None)
    known = list(first(range(TP, TP + 1), ("cpu",)))
    found = search(_cases(), judge, Profile(10, None, True), known)
    assert found.smallest is not None and found.smallest.intermediate <= 96 and found.smallest.groups % 2
    broken = {case.intermediate: words for case, words in found.judged.items() if words}
    assert {96, 2080} <= broken.keys() and all(width // 32 % 2 for width in broken)
    assert "w2 groups [64, 65) never loaded" in broken[2080] and "w2 groups [2, 3) never loaded" in broken[96]
    assert {judge.statuses[Case(TP, width // 32, "cpu")] for width in (2048, 2304, 2880)} == {"right"}


def _cases():
    from hypothesis import strategies as st

    return st.builds(Case, st.just(TP), st.integers(1, 96), st.just("cpu"))
