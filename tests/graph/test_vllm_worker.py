"""vLLM's attention graphs without a GPU: the worker's code over memory of its own, graphs simulated, kernel ours.

What is shown is that buffers reach the graph and come back, canaries and the pool's other graphs included. That CUDA
captures FlashMLA's call is for a GPU to show.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context, Target
from conformance.errors import NotSupported, StackCrashed, StackRefused
from conformance.faults.catalogue import FAULTS
from conformance.faults.graphs import FaultyGraphs
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.attention_protocol import AttendCall, Pages, Sparse
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.stacks.reference_graphs import _Recorded
from conformance.stacks.vllm.attention_graphs import VllmAttentionGraphs, VllmCaptured
from conformance.stacks.vllm.worker import attention_graphs as worker
from conformance.stacks.vllm.worker.problems import Refused

TARGET = Target(geometry.load("deepseek-v4-tiny"), 3, "flashinfer_cutlass", None, None, (128,), (128,))
STACK = ReferenceStack(StackOptions(arithmetic="bf16", head_paddings=(16, 64)))
CLAIMS = [c.id for c in catalogue.claims().values() if c.group == "graph.attention"]


class Graph(_Recorded):
    reset = _Recorded.close


class Kernel:
    """Stands for VllmAttention: each call gets copies of all memory that it names, and what was written comes back."""

    generation = 1

    def __init__(self, device="cuda"):
        self.capabilities = lambda: SimpleNamespace(device=device)
        self.attend = STACK.attention().attend

    def call(self, part, read, written, **plain):
        copies, lent = {}, {}
        for name, tensor in written.items():
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in copies:
                copies[storage.data_ptr()] = storage, storage.clone()
            view = torch.empty(0, dtype=tensor.dtype).set_(
                copies[storage.data_ptr()][1], tensor.storage_offset(), tensor.shape, tensor.stride()
            )
            lent[name] = view
        try:
            answer = worker.CALLS[part](lent, **plain)
        except Refused as refusal:
            raise StackRefused(str(refusal)) from refusal
        for mine, theirs in copies.values():
            mine.copy_(theirs)
        return answer

    def close_session(self, part, session, generation):
        worker.CALLS[f"close_{part}"](session)


def _attend(lent, scale, phase, window_tokens, compressed_tokens):
    def cache(name, tokens):
        return Sparse(Pages(lent[name], tokens), lent[f"{name}_slots"], lent[f"{name}_lengths"])

    caches = cache("window", window_tokens), cache("compressed", compressed_tokens)
    STACK.attention().attend(AttendCall(phase, lent["q"], lent["sinks"], scale, *caches), lent["out"])


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    """CUDA's part of it, simulated."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(worker, "_stream", lambda: stream)
    monkeypatch.setattr(worker, "flashmla", SimpleNamespace(attend=_attend, DEVICE="cpu"))
    monkeypatch.setattr(worker, "_DISTURBING_BYTES", 1 << 10)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool, stream: graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(VllmAttentionGraphs, "sizes", (1, 4))


def _judged(claim, fault=""):
    def opened():
        graphs = VllmAttentionGraphs(Kernel())
        return FaultyGraphs(graphs, FAULTS[fault].graph) if fault else graphs

    context = Context(TARGET, None, None, {"attention": STACK.attention, "attention_graph": opened})
    context.ranks = range(1, 2)
    return evaluate(catalogue.get(claim), STACK, context)


@pytest.mark.parametrize("claim", CLAIMS)
def test_silent(claim):
    assert _judged(claim)[:2] == (Status.PASS, "")
    assert not worker.graphs.held


@pytest.mark.parametrize(
    "fault", ["graph-attention-frozen-window-slots", "graph-attention-pages-left", "graph-attention-warm-up-behind"]
)
def test_faults_are_caught(fault):
    for claim in FAULTS[fault].claims:
        assert _judged(claim, fault)[0] is Status.FAIL


def test_what_a_replay_does_to_the_pools_other_graphs_is_seen(monkeypatch):
    def replay(self):
        _Recorded.replay(self)
        others = [one for one in worker.graphs.held.values() if one.graph is not self]
        for one in others:
            one.tensors["compressed"][0].zero_()

    monkeypatch.setattr(Graph, "replay", replay)
    status, _, evidence = _judged("graph.attention.pool")
    assert status is Status.FAIL and "changed" in {found.got for found in evidence.findings}


def test_bytes_beside_the_output_are_seen(monkeypatch):
    def replay(self):
        _Recorded.replay(self)
        for one in worker.graphs.held.values():
            worker._storage(one.tensors["out"])[-1] ^= 1

    monkeypatch.setattr(Graph, "replay", replay)
    status, _, evidence = _judged("graph.attention.canaries")
    assert status is Status.FAIL and "no byte outside" in evidence.findings[0].expected


def test_a_fault_in_the_captured_call_cannot_be_planted():
    status, reason, _ = _judged("graph.attention.capture", "graph-attention-length-read")
    assert status is Status.NOT_SUPPORTED and "vLLM's own process" in reason


def test_a_capture_that_fails_is_a_refusal(monkeypatch):
    def refused(*given, **named):
        raise RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    status, reason, _ = _judged("graph.attention.capture")
    assert status is Status.FAIL and "cannot be captured: RuntimeError: Cannot copy" in reason


def test_no_graphs_on_a_cpu():
    with pytest.raises(NotSupported, match="on the CPU"):
        VllmAttentionGraphs(Kernel("cpu"))


def test_a_worker_that_is_gone():
    kernel = Kernel()
    captured = VllmCaptured(kernel, 1, None, [])
    kernel.generation = 2
    with pytest.raises(StackCrashed, match="has ended"):
        captured.replay()
