"""The simulated graph behaves as real ones do: memory is followed, what Python saw is not, and reading it is noted."""

from __future__ import annotations

import pytest
import torch

from conformance.stacks.graph_protocol import Buffers
from conformance.stacks.reference_graphs import _Recorded


def _captured(step, *tensors):
    graph = _Recorded()
    with graph:
        step(*tensors)
    return graph


def test_a_replay_follows_its_buffers():
    x, out = torch.arange(6.0).view(2, 3), torch.zeros(2)
    graph = _captured(lambda x, out: out.copy_((x * 2).t().sum(0)), x, out)
    for value in (1.0, -3.0):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [6 * value] * 2
    assert graph.incidents == ()


def test_work_in_place_and_through_views():
    x = torch.ones(2, 4)

    def step(x):
        left, right = x.chunk(2, dim=1)
        left += right
        x.view(-1)[0].mul_(10)

    graph = _captured(step, x)
    assert x.tolist() == [[20, 2, 1, 1], [2, 2, 1, 1]]
    x.fill_(2)
    graph.replay()
    assert x.tolist() == [[40, 4, 2, 2], [4, 4, 2, 2]]


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("_local_scalar_dense", lambda x, out: out.copy_(x * x[0].item())),
        ("_local_scalar_dense", lambda x, out: out.copy_(x if bool(x[0] > 0) else -x)),
        ("nonzero", lambda x, out: out.copy_(x).mul_(len(x.nonzero()))),
        ("bincount", lambda x, out: out.copy_(x.long().bincount(minlength=3)[:3])),
        ("lift_fresh", lambda x, out: out.copy_(x * torch.tensor([1.0, 2.0, 3.0]))),
    ],
)
def test_what_python_sees_is_noted(words, step):
    graph = _captured(step, torch.ones(3), torch.zeros(3))
    assert [incident for incident in graph.incidents if words in incident]


def test_what_python_saw_stays():
    """A number read at capture, a branch taken, a list's length: replays go on with them."""
    x, out, calls = torch.ones(3), torch.zeros(3), []

    def step(x, out):
        calls.append(1)
        out.copy_(x * (2.0 if x[0].item() > 0 else 3.0) + len(calls))

    graph = _captured(step, x, out)
    x.fill_(-1)
    graph.replay()
    assert out.tolist() == [-1.0] * 3  # eager would give -3 + 2


def test_buffers_in_their_order():
    """Checks unpack them into a kernel's arguments."""
    assert Buffers._fields == ("x", "ids", "weights", "out")
