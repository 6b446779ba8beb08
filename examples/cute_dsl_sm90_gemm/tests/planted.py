"""The kernel with one fault each, compiled into it: the gate must turn every one of them down.

Nothing of this is installed with the package: `test_gate.py` installs stacks of them in a folder of its own.
"""

from __future__ import annotations

import cutlass
from cute_dsl_sm90_gemm.adapter import CuteStack
from cute_dsl_sm90_gemm.kernel import GroupedGemm, e2m1
from cutlass import BFloat16


class BlockDoubled(GroupedGemm):
    """A scale is taken for twice the elements that it is for; those at the end are read by nobody."""

    def scale_of(self, scales, expert, n, k):
        return cutlass.Uint32(scales[expert, n, k // (2 * self.block)])


class BlockHalved(GroupedGemm):
    """A scale is taken for half of the elements that it is for, and the row's scales are gone through twice."""

    def scale_of(self, scales, expert, n, k):
        return cutlass.Uint32(scales[expert, n, (k // (self.block // 2)) % scales.shape[2]])


class ScaleMissing(GroupedGemm):
    def dequantised(self, code, scale):
        return BFloat16(e2m1(code))


class GlobalScaleMissing(GroupedGemm):
    def finished(self, total, global_scale):
        return BFloat16(total)


class GroupOffset(GroupedGemm):
    """A group is taken to begin where the one before it does; nobody computes the last one's rows."""

    def rows(self, offsets, sizes, expert):
        first = offsets[cutlass.max(expert - 1, 0)]
        return first, first + sizes[expert]


class ExpertStride(GroupedGemm):
    """The first expert's weights for all: a launch that has no stride between experts."""

    def weights_of(self, expert):
        return expert * 0


class NibblesSwapped(GroupedGemm):
    """The even element is taken from the high nibble."""

    def nibbles(self, pair):
        return pair >> 4, pair & 15


FAULTS = {
    "block-doubled": BlockDoubled,
    "block-halved": BlockHalved,
    "scale-missing": ScaleMissing,
    "global-scale-missing": GlobalScaleMissing,
    "group-offset": GroupOffset,
    "expert-stride": ExpertStride,
    "nibbles-swapped": NibblesSwapped,
}


class PlantedStack(CuteStack):
    def __init__(self, fault):
        super().__init__("nvfp4")
        self.name, self._fault = f"planted-{fault}", FAULTS[fault]

    def kernel(self):
        return self._fault("nvfp4")


def opener(fault):
    return lambda options: PlantedStack(fault)
