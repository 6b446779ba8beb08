"""The attention references against the plain formulas, and against each other."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from references import (
    attention,
    attention_bound,
    attention_cache,
    attention_compress,
    attention_index,
    attention_output,
    attention_rope,
    attention_seen,
)
from references.bound import deviations

RNG = torch.Generator().manual_seed(5)
YARN = {"factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RNG, dtype=torch.float64)


def test_attention_is_a_softmax_with_one_more_logit():
    q, v, sinks = _random(3, 2, 512), _random(3, 7, 512), torch.tensor([0.5, -torch.inf])
    valid = torch.tensor([[True] * 7, [True] * 3 + [False] * 4, [False] * 7])
    out, lse = attention.attend(q, lambda t: (v[t], valid[t]), sinks, 0.1, 7)
    for token in range(2):
        for head in range(2):
            logits = [0.1 * float(q[token, head] @ v[token, j]) for j in range(7) if valid[token, j]]
            total = sum(math.exp(x) for x in logits) + math.exp(sinks[head])
            due = sum(math.exp(x) / total * v[token, j] for j, x in enumerate(logits))
            assert torch.allclose(out[token, head], due, atol=1e-12)
            assert float(lse[token, head]) == pytest.approx(math.log(total))
    assert (out[2] == 0).all()


def test_parts_are_small_and_change_nothing(monkeypatch):
    q, v = _random(40, 3, 512), _random(40, 9, 512)
    seen, sinks = (lambda t: (v[t], torch.ones(len(v[t]), 9, dtype=torch.bool))), torch.zeros(3)
    whole = attention.attend(q, seen, sinks, 0.05, 9)[0]
    monkeypatch.setattr(attention, "_CHUNK_BYTES", 1)
    assert torch.allclose(attention.attend(q, seen, sinks, 0.05, 9)[0], whole, atol=1e-13)


def test_8192_tokens_stay_far_below_2_gb():
    """Window and all entries of ratio 128, in a process of its own whose peak memory is read."""
    code = """
import torch
from references import attention, attention_cache, attention_seen
n = 8192
kv = torch.randn(n, 512)
pages = torch.zeros(n // 64, attention_cache.page_bytes(64), dtype=torch.uint8)
attention_cache.put(pages, torch.arange(n), 64, kv)
at = torch.arange(n)
numbers = torch.cat((attention_seen.window(at, 128), attention_seen.entries(at, 128, 64)), 1)
seen = lambda t: (attention_cache.read(pages, numbers[t], 64), numbers[t] >= 0)
attention.attend(torch.randn(n, 1, 512), seen, torch.zeros(1), 0.04, 192)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert int(done.stdout) < 2 << 20  # KiB; ru_maxrss would hold what the parent had when it forked


def test_the_bound_holds_bf16_weights_and_a_fault_breaks_it():
    q, v, sinks = _random(6, 4, 512).bfloat16(), _random(6, 160, 512).bfloat16().double(), _random(4)
    seen = lambda t: (v[t], torch.ones(len(v[t]), 160, dtype=torch.bool))  # noqa: E731
    right = attention_bound.attended(q, seen, sinks, 512**-0.5, 160, "bfloat16")
    scores = (q.float() @ v.float().mT) * 512**-0.5
    weights = torch.exp(scores - scores.amax(2, keepdim=True))
    total = weights.sum(2) + torch.exp(sinks - scores.amax(2))
    allowed = right.bound(deviations(right.value.numel(), 1e-6))

    def off(weights: torch.Tensor) -> float:
        out = (weights.bfloat16().float() @ v.float() / total[..., None]).bfloat16()
        return float(((out.double() - right.value).abs() / allowed).max())

    assert 0.1 < off(weights) < 1
    lost = weights.clone()
    lost[..., 77] = 0
    assert off(lost) > 1
    assert off(weights * 1.02) > 1


def test_cache_bytes():
    assert attention_cache.page_bytes(64) == 37440 and attention_cache.page_bytes(2) == 1728
    values = torch.zeros(1, 512)
    values[0, :3] = torch.tensor([448.0, 1.0, -(2.0**-9)])
    values[0, 64] = 448 * (1 + 2.0**-7)
    data, scales = attention_cache.encode(values)
    assert data[0, :3].tolist() == [0x7E, 0x38, 0x81]
    assert scales[0].tolist() == [127, 128, 105, 105, 105, 105, 105, 0]
    assert attention_cache.encode(values, "scale")[1][0].tolist() == [127, 128, 114, 114, 114, 114, 114, 0]
    assert (attention_cache.decode(data, scales)[0, :3] == values[0, :3]).all()


@pytest.mark.parametrize("fp8", [True, False])
def test_cache_round_trip_by_slot(fp8):
    pages = torch.full((4, attention_cache.page_bytes(8, fp8)), 0xAB, dtype=torch.uint8)
    values, slots = _random(5, 512).float(), torch.tensor([31, -1, 0, 9, 8])
    attention_cache.put(pages, slots, 8, values, fp8)
    got = attention_cache.read(pages, slots, 8, fp8)
    assert (got[1] == 0).all()
    kept = slots >= 0
    assert ((got - values.double()).abs()[kept] <= 2.0**-4 * values.abs()[kept] + 2.0**-9).all()


def test_rotation_and_back():
    table = attention_rope.table(attention_rope.frequencies(160000, YARN), 300)
    x, at = _random(5, 2, 512), torch.tensor([0, 1, 7, 299, 3])
    turned = attention_rope.rotated(x, at, table)
    assert (turned[..., :448] == x[..., :448]).all() and torch.allclose(turned[0], x[0])
    pair = turned[2, 1, 448:450]
    cos, sin = table[7, 0], table[7, 32]
    a, b = x[2, 1, 448], x[2, 1, 449]
    assert torch.allclose(pair, torch.stack((a * cos - b * sin, a * sin + b * cos)))
    assert torch.allclose(attention_rope.rotated(turned, at, table, inverse=True), x, atol=1e-12)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones():
    plain, slowed = attention_rope.frequencies(160000), attention_rope.frequencies(160000, YARN)
    assert (slowed[:10] == plain[:10]).all() and torch.allclose(slowed[-1], plain[-1] / 16)


def test_who_is_seen():
    at = torch.tensor([0, 126, 127, 128, 129])
    window = attention_seen.window(at, 128)
    assert (window >= 0).sum(1).tolist() == [1, 127, 128, 128, 128]
    assert window[:, 0].tolist() == [0, 0, 0, 1, 2]
    assert (attention_seen.entries(at, 128, 4) >= 0).sum(1).tolist() == [0, 0, 1, 1, 1]
    assert (attention_seen.entries(torch.tensor([2, 3, 6, 7]), 4, 9) >= 0).sum(1).tolist() == [0, 1, 1, 2]
    table = torch.tensor([[5, 2], [9, 1]])
    slots = attention_seen.slots(torch.tensor([[0, 63, 64, -1]]), torch.tensor([1]), table, 64)
    assert slots.tolist() == [[576, 639, 64, -1]]


def test_groups_are_projected_from_their_own_heads():
    table = attention_rope.table(attention_rope.frequencies(10000), 9)
    o, at = _random(3, 6, 512), torch.tensor([4, 8, 0])
    wo_a, wo_b = _random(3 * 5, 1024), _random(7, 15)
    back = attention_rope.rotated(o, at, table, inverse=True)
    due = torch.stack(
        [
            wo_b @ torch.cat([wo_a[5 * g : 5 * g + 5] @ back[t, 2 * g : 2 * g + 2].flatten() for g in range(3)])
            for t in range(3)
        ]
    )
    assert torch.allclose(attention_output.project(o, at, table, wo_a, wo_b, 3), due)


def test_entries_of_ratio_4_overlap():
    kv, gate, bias = _random(10, 16), torch.zeros(10, 16), torch.zeros(4, 16)
    pooled = attention_compress.pooled(kv, gate, bias, 4)
    assert pooled.shape == (2, 8)
    assert torch.allclose(pooled[0], kv[:4, 8:].mean(0))
    assert torch.allclose(pooled[1], torch.cat((kv[:4, :8], kv[4:8, 8:])).mean(0))
    plain = attention_compress.pooled(kv[:, :8], gate[:, :8], torch.zeros(5, 8), 5)
    assert torch.allclose(plain[1], kv[5:, :8].mean(0))


def test_ties_go_to_the_lowest_number():
    scored = torch.tensor([[3.0, 5.0, 3.0, 3.0], [1.0, -torch.inf, -torch.inf, -torch.inf]])
    assert attention_index.lowest(scored, 2).tolist() == [[0, 1], [0, -1]]
    assert attention_index.lowest(scored, 6).tolist() == [[0, 1, 2, 3, -1, -1], [0, -1, -1, -1, -1, -1]]
