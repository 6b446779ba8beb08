"""Every fault by id, with the claims that must fail when it is planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from conformance.faults import loader, plan
from conformance.faults.seams import LoaderFault
from conformance.stacks.protocols import PlanOutcome


class Fault(NamedTuple):
    """`seen_in` says where the bug was met, if it was. Exactly one of the seams is set.

    `rounded`: a fault only where the kernel is wider than a rank's share; elsewhere the wrong formula comes out right.
    """

    id: str
    what: str
    claims: tuple[str, ...]
    seen_in: str = ""
    plan: Callable[[PlanOutcome], PlanOutcome] | None = None
    loader: LoaderFault | None = None
    rounded: bool = False

    @property
    def layer(self) -> str:
        return "plan" if self.plan else "loader"


def _all(tensors: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"loader.{tensor}.{kind}" for tensor in tensors.split() for kind in kinds)


_EVERY = "w13 w13_scale w2 w2_scale"

_WRITTEN = (
    *(
        Fault(f"plan-{axis}", what, (f"plan.axes.{axis}",), plan=plan.wrong_axis(axis))
        for axis, what in (
            ("heads", "heads padded to tp without aligning a rank's share to 8"),
            ("groups", "a rank gets one output group more than its heads make"),
            ("routed", "routed intermediate size padded to tp without aligning a rank's share to 32"),
            ("shared", "shared-expert size padded to tp without aligning a rank's share to 128"),
            ("vocab", "vocabulary padded to tp only, not to a multiple of 64"),
        )
    ),
    Fault("plan-unpadded", "the KV head is padded too", ("plan.axes.unpadded",), plan=plan.padded_kv_head),
    Fault(
        "plan-refused",
        "the guard rejects the vetted pair",
        ("plan.accepted",),
        "vLLM 45c1582e9",
        plan=plan.refused,
    ),
    Fault(
        "plan-ignored",
        "no plan and no error, although padding is needed",
        ("plan.accepted",),
        "vLLM 45c1582e9 on 9.0 and 10.0",
        plan=plan.ignored,
    ),
    Fault(
        "w2-unit-blind",
        "W2 bytes and scales both strided by the padded kernel width",
        _all("w2 w2_scale", "offsets", "tails"),
        "vLLM 45c1582e9",
        loader=loader.unit_blind("w2_weight", "w2_weight_scale"),
        rounded=True,
    ),
    Fault(
        "half-fix",
        "W2 scales right, bytes strided by the padded kernel width",
        (*_all("w2", "offsets", "tails"), "loader.w2.alignment"),
        "vLLM 45c1582e9 with B12X scale metadata",
        loader=loader.unit_blind("w2_weight"),
        rounded=True,
    ),
    Fault(
        "w2-unit-blind-scales",
        "W2 bytes right, scales strided by the padded kernel width",
        (*_all("w2_scale", "offsets", "tails"), "loader.w2.alignment"),
        loader=loader.unit_blind("w2_weight_scale"),
        rounded=True,
    ),
    Fault(
        "w2-unit-blind-bytes",
        "W2 elements taken for bytes: stride and size twice what they should be",
        (*_all("w2", "offsets", "tails"), "loader.w2.alignment"),
        loader=loader.elements_as_bytes,
        rounded=True,
    ),
    Fault(
        "w2-size-not-cut",
        "W2 bytes start right, but the padded kernel width is copied: tails hold the next rank's data",
        _all("w2", "tails", "partition"),
        loader=loader.padded_size,
        rounded=True,
    ),
    Fault(
        "floor-division",
        "every tensor strided by floor(units / tp), tails never written",
        (*_all(_EVERY, "offsets", "tails", "partition"), "loader.w2.alignment", "loader.w13.alignment"),
        "vLLM 0.33.0 forced to TP3; merged fix vLLM #42595",
        loader=loader.floor_division,
    ),
    Fault(
        "stale-tail",
        "the padding is never written",
        _all(_EVERY, "tails"),
        "stock vLLM (harmless there only while parameters begin as zeros)",
        loader=loader.stale_tail,
    ),
    Fault(
        "tail-uninitialised",
        "the padding is neither written nor zero to begin with",
        _all(_EVERY, "tails"),
        "FlashInfer #2861, vLLM #38148",
        loader=loader.stale_tail._replace(uninitialised=True),
    ),
    Fault("tail-garbage", "the padding is filled with 0x7F", _all(_EVERY, "tails"), loader=loader.garbage_tail),
    Fault(
        "kernel-too-wide",
        "every parameter is built three scale groups wider than the kernel takes",
        ("loader.moe.width",),
        loader=loader.too_wide,
    ),
    Fault(
        "w1-w3-swapped",
        "W1 and W3 in each other's half",
        ("loader.w13.order",),
        "SGLang #32430",
        loader=loader.swapped,
    ),
    Fault(
        "halves-padded-together",
        "W3 follows W1's logical rows at once, instead of beginning in the second half",
        _all("w13 w13_scale", "offsets", "tails"),
        loader=loader.halves_together,
    ),
    Fault(
        "ranks-reversed",
        "rank r loads the slice of rank tp - 1 - r",
        _all(_EVERY, "offsets"),
        loader=loader.reversed_ranks,
    ),
    Fault(
        "rank-dropped",
        "the last rank loads nothing",
        _all(_EVERY, "offsets", "partition"),
        "vLLM #43865",
        loader=loader.dropped_rank,
    ),
    Fault(
        "scales-off-by-one-group",
        "W2 scales one group ahead of their weights",
        (*_all("w2_scale", "offsets", "partition"), "loader.w2.alignment"),
        loader=loader.off_by_groups("w2_weight_scale"),
    ),
    Fault(
        "w2-off-by-one-group",
        "W2 bytes and scales both one scale group ahead",
        _all("w2 w2_scale", "offsets", "partition"),
        loader=loader.off_by_groups("w2_weight", "w2_weight_scale"),
    ),
    Fault(
        "last-byte-lost",
        "the last byte of the last row of each rank's W2 slice is not loaded",
        _all("w2", "offsets", "partition"),
        loader=loader.last_byte_lost,
    ),
    Fault(
        "expert-shifted",
        "expert e lands in slot e + 1",
        ("loader.moe.experts",),
        "vLLM #35497 (stride)",
        loader=loader.shifted_experts,
    ),
    Fault(
        "one-expert-wrong",
        "only the last expert's W2 is cut one byte off",
        _all("w2", "offsets"),
        loader=loader.one_expert_wrong,
    ),
)

FAULTS: dict[str, Fault] = {fault.id: fault for fault in _WRITTEN}
assert len(FAULTS) == len(_WRITTEN), "two faults share an id"
