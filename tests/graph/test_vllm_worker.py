"""vLLM's graphs without a GPU: the worker's code over memory of its own, graphs simulated, kernels ours.

What is shown is that buffers reach the graph and come back, canaries and the pool's other graphs included. That CUDA
captures vLLM's calls is for a GPU to show.
"""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import msgspec
import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.errors import NotSupported, StackCrashed, StackRefused
from conformance.faults import graph_steps
from conformance.faults.catalogue import FAULTS
from conformance.faults.graphs import FaultyGraphs
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.attention_protocol import AttendCall, Pages, Sparse
from conformance.stacks.graph_protocol import AttendRequest
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.stacks.reference_graphs import _Recorded
from conformance.stacks.vllm import graphs
from conformance.stacks.vllm.graphs import VllmAttentionGraphs, VllmCaptured, VllmLayerGraphs, VllmMoeGraphs
from conformance.stacks.vllm.worker import graphs as worker
from conformance.stacks.vllm.worker.problems import Refused
from conformance.target import Target
from suites.graph import test_replay
from suites.graph.bench import MoeGraphBench

TARGET = Target(geometry.load("deepseek-v4-tiny"), 3, "flashinfer_cutlass", None, None, (128,), (128,))
STACK = ReferenceStack(StackOptions(arithmetic="bf16", head_paddings=(16, 64)))
HIDDEN = TARGET.geometry.hidden_size
GROUPS = ("graph.moe", "graph.attention", "graph.layer")
CLAIMS = [c.id for c in catalogue.claims().values() if c.group in GROUPS]


class Graph(_Recorded):
    reset = _Recorded.close


class There:
    """Stands for graphs.There: each call gets copies of all memory that it names, and what was written comes back."""

    generation = 1

    def __init__(self, worker=None):
        pass

    def call(self, part, written=None, /, **plain):
        copies, lent = {}, {}
        for name, tensor in (written or {}).items():
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

    def close(self, part, number, generation):
        self.call(part, number=number)


def _attend(lent, scale, phase, window_tokens, compressed_tokens):
    def cache(name, tokens):
        return Sparse(Pages(lent[name], tokens), lent[f"{name}_slots"], lent[f"{name}_lengths"])

    caches = cache("window", window_tokens), cache("compressed", compressed_tokens)
    STACK.attention().attend(AttendCall(phase, lent["q"], lent["sinks"], scale, *caches), lent["out"])


class Experts:
    """Stands for VllmMoe and for the worker's module `moe`: each token's x, weighed and shifted by its routes."""

    def __init__(self):
        self.layers = {7: self}

    def capabilities(self):
        return STACK.moe().capabilities()

    def open(self, request):
        return SimpleNamespace(session=7, close=lambda: None)

    @staticmethod
    def apply(opened, x, ids, weights):
        return (x.float() * weights.sum(1, keepdim=True) + 2.0**-6 * ids.float().sum(1, keepdim=True)).bfloat16()


class Projection:
    """Stands for VllmAttention's output and for the worker's module `attention_layer`."""

    @staticmethod
    def project(session, o, positions):
        return (
            o[:, 0, :HIDDEN].repeat(1, -(-HIDDEN // o.shape[2]))[:, :HIDDEN]
            + (positions[:, None] * 2.0**-12).bfloat16()
        )


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    """CUDA's part of it, simulated."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(worker, "_stream", lambda: stream)
    monkeypatch.setattr(worker, "flashmla", SimpleNamespace(attend=_attend))
    monkeypatch.setattr(worker, "moe", Experts())
    monkeypatch.setattr(worker, "attention_layer", Projection())
    monkeypatch.setattr(worker, "_DEVICE", "cpu")
    monkeypatch.setitem(sys.modules, f"{worker.__package__}.graph_steps", graph_steps)
    monkeypatch.setattr(graphs, "There", There)
    real = torch.zeros
    monkeypatch.setattr(graphs.torch, "zeros", lambda *shape, device=None, **named: real(*shape, **named))
    monkeypatch.setattr(worker, "_DISTURBING_BYTES", 1 << 10)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool, stream: graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    for kind in (VllmAttentionGraphs, VllmMoeGraphs, VllmLayerGraphs):
        monkeypatch.setattr(kind, "sizes", (1, 4))


ATTENTION = SimpleNamespace(
    capabilities=lambda: SimpleNamespace(device="cuda", parts=("attend", "output"), notes=()),
    output=lambda request: SimpleNamespace(session=3, generation=1, close=lambda: None),
)
RUNNERS = {
    "attention_graph": lambda: VllmAttentionGraphs(None, ATTENTION),
    "graph": lambda: VllmMoeGraphs(None, Experts()),
    "layer_graph": lambda: VllmLayerGraphs(None, ATTENTION, Experts()),
}


def _judged(claim, fault="", nightly=False):
    runners = {n: (lambda r=r: FaultyGraphs(r(), FAULTS[fault].graph)) if fault else r for n, r in RUNNERS.items()}
    context = Context(
        msgspec.structs.replace(TARGET, nightly=nightly),
        None,
        None,
        {"attention": STACK.attention, "moe": STACK.moe, **runners},
    )
    context.ranks = range(1, 2)
    return evaluate(catalogue.get(claim), STACK, context)


@pytest.mark.parametrize("claim", CLAIMS)
def test_silent(claim):
    assert _judged(claim)[:2] == (Status.PASS, "")
    assert not worker.graphs.held and not worker.layers.held


@pytest.mark.parametrize("part", ["moe", "attention"])
def test_by_night_every_size_that_vllm_captures(monkeypatch, part):
    """A kernel that is wrong at one of the further sizes alone is seen then, and only then."""
    monkeypatch.setitem(worker.CALLS, "captured_sizes", lambda lent: [1, 2, 4, 8])
    claim = f"graph.{part}.capture"
    status, _, evidence = _judged(claim, nightly=True)
    assert status is Status.PASS and evidence.measured["sizes"] == [1, 2, 4, 8]
    assert _judged(f"graph.{part}.fresh", nightly=True)[:2] == (Status.PASS, "")
    monkeypatch.setattr(Graph, "replay", _wrong_at_eight)
    assert _judged(f"graph.{part}.fresh")[0] is Status.PASS
    assert _judged(f"graph.{part}.fresh", nightly=True)[0] is Status.FAIL


def test_by_night_the_list_is_asked_for_once_and_what_it_adds_is_replayed_least(monkeypatch):
    asked = []
    monkeypatch.setitem(worker.CALLS, "captured_sizes", lambda lent: asked.append(1) or [1, 2, 4, 8])
    context = Context(msgspec.structs.replace(TARGET, nightly=True), None, None, {"moe": STACK.moe, **RUNNERS})
    first, second = MoeGraphBench(context), MoeGraphBench(context)
    assert first.sizes == second.sizes == (1, 2, 4, 8) and asked == [1]
    assert [test_replay._replays(second, 1, tokens) for tokens in second.sizes] == [10, 4, 10, 4]


def _wrong_at_eight(graph):
    _Recorded.replay(graph)
    for one in worker.graphs.held.values():
        if one.graph is graph and len(one.tensors["out"]) == 8:
            one.tensors["out"][7] += 1


@pytest.mark.parametrize(
    "fault",
    [
        "graph-frozen-routes",
        "graph-list-mutated",
        "graph-number-read",
        "graph-pad-rows-leak",
        "graph-attention-frozen-window-slots",
        "graph-attention-length-read",
        "graph-attention-pages-left",
        "graph-attention-sinks-consumed",
        "graph-attention-warm-up-behind",
        "graph-layer-frozen-positions",
    ],
)
def test_faults_are_caught(fault):
    """Those inside the captured call are planted over there, by name."""
    for claim in FAULTS[fault].claims:
        if not claim.endswith(".capture"):  # incidents are the simulation's: CUDA refuses
            assert _judged(claim, fault)[0] is Status.FAIL, claim


def test_what_a_replay_does_to_the_pools_other_graphs_is_seen(monkeypatch):
    def replay(self):
        _Recorded.replay(self)
        others = [one for one in worker.graphs.held.values() if one.graph is not self]
        for one in others:
            one.tensors["entries"][0].zero_()

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


def test_what_the_worker_does_not_know_cannot_be_put_into_the_call():
    layer = RUNNERS["attention_graph"]().open(AttendRequest(0, 1.0, 64, 64))
    with pytest.raises(NotSupported, match="vLLM's own process"):
        layer.change(lambda step: step)


def test_a_capture_that_fails_is_a_refusal(monkeypatch):
    def refused(*given, **named):
        raise RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    status, reason, _ = _judged("graph.attention.capture")
    assert status is Status.FAIL and "cannot be captured: RuntimeError: Cannot copy" in reason


def test_no_graphs_on_a_cpu():
    on_cpu = SimpleNamespace(capabilities=lambda: SimpleNamespace(device="cpu"))
    with pytest.raises(NotSupported, match="on the CPU"):
        VllmAttentionGraphs(None, on_cpu)


def test_a_layer_needs_the_projection():
    bare = SimpleNamespace(
        capabilities=lambda: SimpleNamespace(device="cuda", parts=("attend",), notes=("no output projection: none",))
    )
    with pytest.raises(NotSupported, match="no output projection"):
        VllmLayerGraphs(None, bare, Experts())


def test_a_worker_that_is_gone():
    there = There()
    captured = VllmCaptured(there, 1, None, [])
    there.generation = 2
    with pytest.raises(StackCrashed, match="has ended"):
        captured.replay()
