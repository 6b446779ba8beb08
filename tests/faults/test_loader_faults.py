"""Each loader fault against brute force: which bytes it leaves, tensor by tensor, and that it touches no other.

Tiny geometry at TP3: 256 channels, 96 a rank (96/96/64), in a kernel of 128; hidden 256, 4 experts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from conformance import geometry
from conformance.faults.catalogue import FAULTS
from conformance.faults.seams import FaultyLoader
from conformance.stacks.protocols import SHARDS, ExpertsRequest, StackOptions
from conformance.stacks.reference import ReferenceStack

MODEL = geometry.load("deepseek-v4-tiny")
UNIT = {"w13_weight": 1, "w13_weight_scale": 1, "w2_weight": 2, "w2_weight_scale": 32}
SHARE, KERNEL, EXPERTS, PREFILL = 96, 128, 4, 255


class Cut(NamedTuple):
    """Stored units [start, start + size) of the checkpoint, and the byte behind them."""

    start: int
    size: int
    rest: int = 0


def _right(parameter: str, rank: int) -> Cut:
    unit = UNIT[parameter]
    return Cut(SHARE * rank // unit, min(SHARE, 256 - SHARE * rank) // unit)


def _only(*parameters: str, cut):
    """A fault that cuts those parameters so, and leaves the others right."""
    return lambda parameter, rank, expert: cut(parameter, rank) if parameter in parameters else _right(parameter, rank)


def _blind(parameter: str, rank: int) -> Cut:
    width = KERNEL // UNIT[parameter]
    return Cut(width * rank, width)


def _floor(parameter: str, rank: int) -> Cut:
    step = 256 // UNIT[parameter] // 3
    return Cut(step * rank, step, PREFILL)


def _off_by_a_group(parameter: str, rank: int) -> Cut:
    start, size, _ = _right(parameter, rank)
    return Cut(start + 32 // UNIT[parameter], size)


W2 = ("w2_weight", "w2_weight_scale")
W13 = ("w13_weight", "w13_weight_scale")
#: fault -> what each parameter of a rank's expert is cut to
CUTS = {
    "w2-unit-blind": _only(*W2, cut=_blind),
    "half-fix": _only("w2_weight", cut=_blind),
    "padded-stride": _only(*SHARDS, cut=_blind),
    "gate-up-pairs-as-rows": _only(*W13, cut=lambda p, rank: _right(p, rank)._replace(start=SHARE * rank // 2)),
    "w2-unit-blind-scales": _only("w2_weight_scale", cut=_blind),
    "w2-unit-blind-bytes": _only("w2_weight", cut=lambda p, rank: Cut(SHARE * rank, SHARE)),
    "w2-size-not-cut": _only("w2_weight", cut=lambda p, rank: Cut(SHARE * rank // 2, KERNEL // 2)),
    "floor-division": _only(*SHARDS, cut=_floor),
    "stale-tail": _only(*SHARDS, cut=lambda p, rank: _right(p, rank)._replace(rest=PREFILL)),
    "tail-uninitialised": _only(*SHARDS, cut=lambda p, rank: _right(p, rank)._replace(rest=PREFILL)),
    "tail-garbage": _only(*SHARDS, cut=lambda p, rank: _right(p, rank)._replace(rest=0x7F)),
    "ranks-reversed": _only(*SHARDS, cut=lambda p, rank: _right(p, 2 - rank)),
    "rank-dropped": _only(*SHARDS, cut=lambda p, rank: Cut(0, 0) if rank == 2 else _right(p, rank)),
    "scales-off-by-one-group": _only("w2_weight_scale", cut=_off_by_a_group),
    "w2-off-by-one-group": _only(*W2, cut=_off_by_a_group),
    "one-expert-wrong": lambda p, rank, expert: (
        Cut(_right(p, rank).start + 1, _right(p, rank).size) if (p, expert) == ("w2_weight", 3) else _right(p, rank)
    ),
}


def _due(cut: Cut, parameter: str, sources: dict[str, np.ndarray]) -> np.ndarray:
    """One expert's bytes, half by half."""
    halves = []
    for shard in SHARDS[parameter]:
        source = sources[shard]
        if parameter.startswith("w13"):
            half = np.full((KERNEL, source.shape[1]), cut.rest)
            piece = source[cut.start : cut.start + min(cut.size, KERNEL)]
        else:
            half = np.full((source.shape[0], KERNEL // UNIT[parameter]), cut.rest)
            piece = source[:, cut.start : cut.start + min(cut.size, half.shape[1])]
        half[: piece.shape[0], : piece.shape[1]] = piece
        halves.append(half)
    return np.concatenate(halves)


def _load(fault: str, parameter: str, rank: int) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]], object]:
    """(what each expert's slot holds, the checkpoint tensors by expert and shard, the layer)."""
    loader = ReferenceStack(StackOptions(emulate={"intermediate": 128, "hidden": 128})).loader()
    if fault:
        loader = FaultyLoader(loader, FAULTS[fault].loader)
    layer = loader.open_experts(ExpertsRequest(MODEL, 3, rank, "flashinfer_cutlass", EXPERTS, (12, 0)))
    rng = torch.Generator().manual_seed(1)
    shape = MODEL.checkpoint_shape(parameter)
    layer.fill(parameter, PREFILL)
    sources: list[dict[str, np.ndarray]] = [{} for _ in range(EXPERTS)]
    for shard in SHARDS[parameter]:
        for expert in range(EXPERTS):
            source = torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)
            layer.load(parameter, shard, expert, source)
            sources[expert][shard] = source.numpy()
    return [layer.read(parameter, e).numpy().copy() for e in range(EXPERTS)], sources, layer


RANKS = pytest.mark.parametrize("rank", [0, 1, 2])
PARAMETERS = pytest.mark.parametrize("parameter", list(SHARDS))


@RANKS
@PARAMETERS
def test_the_clean_loader(parameter, rank):
    found, sources, _ = _load("", parameter, rank)
    for expert in range(EXPERTS):
        np.testing.assert_array_equal(found[expert], _due(_right(parameter, rank), parameter, sources[expert]))


@RANKS
@PARAMETERS
@pytest.mark.parametrize("fault", CUTS)
def test_wrong_cuts(fault, parameter, rank):
    found, sources, _ = _load(fault, parameter, rank)
    for expert in range(EXPERTS):
        due = _due(CUTS[fault](parameter, rank, expert), parameter, sources[expert])
        np.testing.assert_array_equal(found[expert], due)


@RANKS
@PARAMETERS
def test_last_byte_lost(parameter, rank):
    found, sources, _ = _load("last-byte-lost", parameter, rank)
    for expert in range(EXPERTS):
        due = _due(_right(parameter, rank), parameter, sources[expert])
        if parameter == "w2_weight":
            due[255, _right(parameter, rank).size - 1] = PREFILL
        np.testing.assert_array_equal(found[expert], due)


@RANKS
@PARAMETERS
def test_w1_w3_swapped(parameter, rank):
    found, sources, _ = _load("w1-w3-swapped", parameter, rank)
    for expert in range(EXPERTS):
        swapped = {{"w1": "w3", "w3": "w1"}.get(shard, shard): s for shard, s in sources[expert].items()}
        np.testing.assert_array_equal(found[expert], _due(_right(parameter, rank), parameter, swapped))


@RANKS
@PARAMETERS
def test_expert_shifted(parameter, rank):
    found, sources, _ = _load("expert-shifted", parameter, rank)
    for expert in range(EXPERTS):
        due = _due(_right(parameter, rank), parameter, sources[expert - 1])
        np.testing.assert_array_equal(found[expert], due)


@RANKS
@PARAMETERS
def test_halves_padded_together(parameter, rank):
    found, sources, _ = _load("halves-padded-together", parameter, rank)
    start, size, _ = _right(parameter, rank)
    for expert in range(EXPERTS):
        due = _due(_right(parameter, rank), parameter, sources[expert])
        if parameter.startswith("w13"):
            due[size:] = 0
            due[size : 2 * size] = sources[expert]["w3"][start : start + size]
        np.testing.assert_array_equal(found[expert], due)


@RANKS
@PARAMETERS
def test_kernel_too_wide(parameter, rank):
    """The same bytes, with 96 elements of zeros more behind each half; the layer says so of itself."""
    found, sources, layer = _load("kernel-too-wide", parameter, rank)
    wide = layer.info.parameters[parameter]
    assert layer.info.kernel_width == 224
    for expert in range(EXPERTS):
        due = _due(_right(parameter, rank), parameter, sources[expert])
        more = 96 // UNIT[parameter]
        if parameter.startswith("w13"):
            due = np.concatenate([np.pad(half, ((0, more), (0, 0))) for half in np.split(due, 2)])
        else:
            due = np.pad(due, ((0, 0), (0, more)))
        assert (wide.rows, wide.cols) == due.shape
        np.testing.assert_array_equal(found[expert], due)


def test_only_one_fault_changes_what_memory_begins_with():
    for name, fault in FAULTS.items():
        if fault.loader:
            _, _, layer = _load(name, "w2_weight", 0)
            assert bool(layer.initial("w2_weight", 0).any()) == (name == "tail-uninitialised"), name


TENSORS = {
    "w13": "w13_weight",
    "w13_scale": "w13_weight_scale",
    "w2": "w2_weight",
    "w2_scale": "w2_weight_scale",
}


@pytest.mark.parametrize("fault", [f.id for f in FAULTS.values() if f.loader and f.loader.after])
def test_what_changes_is_what_the_fault_names(fault):
    """Some tensor of every one that its claims name, and none that they do not."""
    named = {TENSORS[c.split(".")[1]] for c in FAULTS[fault].claims if c.split(".")[1] in TENSORS}
    if any(claim.endswith("alignment") for claim in FAULTS[fault].claims):  # names the weights, for their scales too
        named &= {TENSORS[c.split(".")[1]] for c in FAULTS[fault].claims if not c.endswith("alignment")}
    changed = set()
    for parameter in SHARDS:
        for rank in range(3):
            clean, wrong = (_load(name, parameter, rank)[0] for name in ("", fault))
            if any((a != b).any() for a, b in zip(clean, wrong, strict=True)):
                changed.add(parameter)
    assert changed == named
