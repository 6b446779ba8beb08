"""Routing of two tokens by hand."""

from __future__ import annotations

import math

import pytest
import torch

from references import routing

LOGITS = torch.tensor([[0.0, 1.0, 2.0, -1.0], [3.0, 0.0, 0.0, 1.0]], dtype=torch.float64)


def test_softmax():
    found = routing.top_k(LOGITS, 2, "softmax", normalize=False)
    total = sum(math.exp(x) for x in (0, 1, 2, -1))
    assert found.ids.tolist() == [[2, 1], [0, 3]]
    assert found.weights[0].tolist() == pytest.approx([math.exp(2) / total, math.exp(1) / total])


def test_sigmoid_with_a_bias_that_only_chooses():
    found = routing.top_k(LOGITS, 2, "sigmoid", torch.tensor([0.0, 0.0, 0.0, 10.0]), normalize=False, scale=2.5)
    assert found.ids.tolist() == [[3, 2], [3, 0]]
    assert found.weights[0].tolist() == pytest.approx([2.5 / (1 + math.e), 2.5 / (1 + math.exp(-2))])


def test_sqrtsoftplus_normalised_and_scaled():
    """DeepSeek-V4."""
    found = routing.top_k(LOGITS, 2, "sqrtsoftplus", scale=1.5)
    a, b = (math.sqrt(math.log1p(math.exp(x))) for x in (2.0, 1.0))
    assert found.weights[0].tolist() == pytest.approx([1.5 * a / (a + b), 1.5 * b / (a + b)])
    assert found.weights.sum(-1).tolist() == pytest.approx([1.5, 1.5])


def test_hashed():
    table = torch.tensor([[0, 1], [3, 2], [1, 3]])
    found = routing.hashed(LOGITS, torch.tensor([2, 1]), table, "sqrtsoftplus", normalize=False)
    assert found.ids.tolist() == [[1, 3], [3, 2]]
    due = [math.sqrt(math.log1p(math.exp(x))) for x in (1.0, -1.0)]
    assert found.weights[0].tolist() == pytest.approx(due)
    assert found.ids.dtype == torch.int32


def test_an_unknown_scoring():
    with pytest.raises(ValueError, match="'tanh'"):
        routing.scores(LOGITS, "tanh")
