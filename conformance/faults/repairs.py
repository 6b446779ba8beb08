"""Repairs: the reverse of a fault. Each mends one known defect at the seam, and the verdict says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from conformance import expected
from conformance.errors import nearest
from conformance.geometry import ELEMENTS_PER_BYTE, SCALE_GROUP, Geometry


class Repair(NamedTuple):
    """`seam` is where it is applied; `what` is what it changes, in words."""

    id: str
    seam: str
    what: str


REPAIRS = {
    "w2-units": Repair(
        "w2-units",
        "parameters",
        "declares packing 2, scale group 32 and the logical width on the W2 parameters before loading",
    ),
}


def attributes(chosen: Iterable[str], geometry: Geometry, tp: int) -> dict[str, dict[str, int]]:
    """Attributes that the chosen repairs declare, by parameter. Raises UsageError for an unknown repair.

    The attribute names are those that the audited loader (vLLM 45c1582e9) reads for B12X scales; declared on both
    W2 parameters, they make its generic path count elements instead of stored units.
    """
    declared: dict[str, dict[str, int]] = {}
    for name in chosen:
        if name not in REPAIRS:
            raise nearest(name, REPAIRS, "repair")
        logical = expected.axes(geometry, tp)["routed"].per_rank
        declared = {
            parameter: {"b12x_mxfp4_w2_scale_group_size": unit, "b12x_mxfp4_w2_logical_k": logical}
            for parameter, unit in (("w2_weight", ELEMENTS_PER_BYTE), ("w2_weight_scale", SCALE_GROUP))
        }
    return declared
