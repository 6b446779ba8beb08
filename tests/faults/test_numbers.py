"""The audit's numbers, as the offsets and tails checks report them: DeepSeek-V4-Flash's intermediate size at TP3.

2048 channels, 704 a rank, in a kernel of 768. Hidden size and experts are thin: they only cost time.
"""

from __future__ import annotations

import json

import pytest

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.faults.catalogue import FAULTS
from conformance.faults.seams import FaultyLoader
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target

#: loader -> tensor -> (starts, ends, tails) on ranks 0, 1, 2
RIGHT_W13 = ((0, 704, 1408), (704, 1408, 2048), (64, 64, 128))
RIGHT_W2 = ((0, 352, 704), (352, 704, 1024), (32, 32, 64))
RIGHT_SCALE = ((0, 22, 44), (22, 44, 64), (2, 2, 4))
BLIND_W2 = ((0, 384, 768), (384, 768, 1024), (0, 0, 128))
BLIND_SCALE = ((0, 24, 48), (24, 48, 64), (0, 0, 8))
TABLE = {
    "": {"w13": RIGHT_W13, "w13_scale": RIGHT_W13, "w2": RIGHT_W2, "w2_scale": RIGHT_SCALE},
    "w2-unit-blind": {"w13": RIGHT_W13, "w13_scale": RIGHT_W13, "w2": BLIND_W2, "w2_scale": BLIND_SCALE},
    "half-fix": {"w13": RIGHT_W13, "w13_scale": RIGHT_W13, "w2": BLIND_W2, "w2_scale": RIGHT_SCALE},
    "w2-unit-blind-scales": {"w13": RIGHT_W13, "w13_scale": RIGHT_W13, "w2": RIGHT_W2, "w2_scale": BLIND_SCALE},
    "floor-division": {
        "w13": ((0, 682, 1364), (682, 1364, 2046), (86, 86, 86)),
        "w13_scale": ((0, 682, 1364), (682, 1364, 2046), (86, 86, 86)),
        "w2": ((0, 341, 682), (341, 682, 1023), (43, 43, 43)),
        "w2_scale": ((0, 21, 42), (21, 42, 63), (3, 3, 3)),
    },
}
#: What the summary must say of the formula that was used.
WORDS = {
    ("w2-unit-blind", "w2"): "stride 384 = padded 768 / 2; logical 704 / 2 = 352 was due",
    ("w2-unit-blind", "w2_scale"): "stride 24 = padded 768 / 32; logical 704 / 32 = 22 was due",
    ("half-fix", "w2"): "stride 384 = padded 768 / 2; logical 704 / 2 = 352 was due",
    ("w2-unit-blind-scales", "w2_scale"): "stride 24 = padded 768 / 32; logical 704 / 32 = 22 was due",
    ("floor-division", "w2"): "stride 341 = floor(1024 / 3); logical 704 / 2 = 352 was due",
    ("floor-division", "w2_scale"): "stride 21 = floor(64 / 3); logical 704 / 32 = 22 was due",
    ("floor-division", "w13"): "stride 682 = floor(2048 / 3); logical 704 = 704 was due",
    ("ranks-reversed", "w2"): "stride -352 = the ranks in reverse order; logical 704 / 2 = 352 was due",
}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    """(fault, claim) -> Evidence; each fault is planted and measured once."""
    folder = tmp_path_factory.mktemp("thin")
    config = geometry.load("deepseek-v4-flash").config
    (folder / "config.json").write_text(
        json.dumps(config | {"hidden_size": 256, "n_routed_experts": 2, "num_experts_per_tok": 2})
    )
    model = geometry.load(str(folder))
    target = Target(model, 3, "flashinfer_cutlass", "FLASHINFER_MLA_SPARSE_DSV4", (12, 0), (128,), (128,))
    stack = ReferenceStack(StackOptions(emulate={"intermediate": 128, "hidden": 128}))
    contexts: dict[str, Context] = {}

    def evidence(fault: str, claim: str):
        if fault not in contexts:
            loader = stack.loader()
            contexts[fault] = Context(
                target, stack.planner(), FaultyLoader(loader, FAULTS[fault].loader) if fault else loader
            )
        return catalogue.get(claim).function()(stack, contexts[fault])

    return evidence


CASES = [(fault, tensor) for fault, tensors in TABLE.items() for tensor in tensors]


@pytest.mark.parametrize(("fault", "tensor"), CASES)
def test_offsets(evidence, fault, tensor):
    found = evidence(fault, f"loader.{tensor}.offsets")
    starts, ends, _ = TABLE[fault][tensor]
    right = TABLE[""][tensor]
    assert found.measured == {f"rank {r}": f"[{starts[r]}, {ends[r]})" for r in range(3)}
    assert found.expected == {f"rank {r}": f"[{right[0][r]}, {right[1][r]})" for r in range(3)}
    assert found.ok == (TABLE[fault][tensor] == right)
    assert "/".join(map(str, starts)) in found.summary


@pytest.mark.parametrize(("fault", "tensor"), CASES)
def test_tails(evidence, fault, tensor):
    found = evidence(fault, f"loader.{tensor}.tails")
    assert found.expected == {f"rank {r}": TABLE[""][tensor][2][r] for r in range(3)}
    assert found.measured == {f"rank {r}": TABLE[fault][tensor][2][r] for r in range(3)}
    assert found.ok == (TABLE[fault][tensor] == TABLE[""][tensor])


@pytest.mark.parametrize(("fault", "tensor"), WORDS)
def test_the_formula_is_guessed(evidence, fault, tensor):
    assert WORDS[fault, tensor] in evidence(fault, f"loader.{tensor}.offsets").summary


def test_a_right_loader_is_accused_of_no_formula(evidence):
    for tensor in TABLE[""]:
        assert "was due" not in evidence("", f"loader.{tensor}.offsets").summary


def test_a_finding_names_rank_expert_and_bytes(evidence):
    """Rank 1's first byte holds checkpoint byte 384; 352 was due: 32 bytes, 64 elements off."""
    findings = evidence("w2-unit-blind", "loader.w2.offsets").findings
    first = next(f for f in findings if f.rank == 1)
    assert first.where == "rank 1, expert 0, w2_weight row 0, byte 0"
    assert first.expected == "checkpoint byte w2[expert 0, row 0, byte 352]"
    assert first.got == "checkpoint byte w2[expert 0, row 0, byte 384]"
    assert "+32 bytes, +64 elements" in first.meaning
    tail = evidence("w2-unit-blind", "loader.w2.tails").findings[0]
    assert (tail.rank, tail.expected, tail.got) == (0, "zero", "checkpoint byte w2[expert 0, row 0, byte 352]")
    assert "[352, 384)" in tail.where


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("loader.w13.partition", "rows [2046, 2048) never loaded"),
        ("loader.w2.partition", "bytes [1023, 1024) never loaded"),
        ("loader.w2_scale.partition", "groups [63, 64) never loaded"),
    ],
)
def test_what_floor_division_loses(evidence, claim, words):
    """contracts.md: the last 2 elements, 1 byte and 1 group."""
    assert words in evidence("floor-division", claim).summary


def test_weights_and_scales_part_company(evidence):
    """Half fixed, rank 1: weights begin at element 768, scales at 704."""
    found = evidence("half-fix", "loader.w2.alignment")
    assert found.measured["rank 1"] == {"w2_weight": [768, 1536], "w2_weight_scale": [704, 1408]}
    assert evidence("w2-unit-blind", "loader.w2.alignment").ok, "both are wrong alike: offsets must say so, not this"


def test_untouched_tails_are_told_from_written_ones(evidence):
    stale, garbage = (evidence(fault, "loader.w2.tails").findings[0] for fault in ("stale-tail", "tail-uninitialised"))
    assert stale.got == "zero since construction, but not written"
    assert garbage.got == "uninitialised memory, never written"


def test_width(evidence):
    assert evidence("", "loader.moe.width").expected == [768]
    found = evidence("kernel-too-wide", "loader.moe.width")
    assert found.measured["rank 0"] == dict.fromkeys(
        ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"), 864
    )
