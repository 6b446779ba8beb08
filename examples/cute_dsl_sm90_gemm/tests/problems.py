"""Problems for the kernel, and their exact answers by the harness's references."""

from __future__ import annotations

from typing import NamedTuple

import torch

from conformance.stacks.quant_protocol import BLOCK, QuantizedWeight
from references import codes, grouped_gemm

DECODE_SCALE = {"nvfp4": codes.decode_e4m3, "mxfp4": codes.decode_e8m0}
#: Scale bytes that are drawn: every finite one of E4M3, 0 and subnormals too; E8M0's within 2^+-10.
SCALES = {"nvfp4": (0x00, 0x7E), "mxfp4": (117, 137)}


class Problem(NamedTuple):
    weights: QuantizedWeight
    x: torch.Tensor  # (T, K) bfloat16
    offsets: torch.Tensor  # (E,) int32
    sizes: torch.Tensor

    def exact(self, format: str) -> grouped_gemm.Bounded:
        values, depth = weight_values(format, self.weights), self.x.shape[1]
        return grouped_gemm.grouped(
            self.x.double(), values, self.offsets.tolist(), self.sizes.tolist(), accumulation=accumulation(depth)
        )


def accumulation(depth: int) -> float:
    """`mma.sync` truncates its sums: less than a unit of FP32, 2^-23 of the sum so far, for every 16 elements of K."""
    return depth / 16 * 2.0**-23


def weight_values(format: str, w: QuantizedWeight) -> torch.Tensor:
    """(E, N, K) FP64."""
    scale = DECODE_SCALE[format](w.scales).repeat_interleave(BLOCK[format], -1)
    return codes.decode_e2m1(codes.unpack(w.codes)) * scale * w.global_scales.double()[:, None, None]


def random_weights(format: str, experts: int, columns: int, depth: int, seed: int = 0) -> QuantizedWeight:
    """Every expert has a global scale of its own, no power of two."""
    g = torch.Generator().manual_seed(seed)
    low, high = SCALES[format]
    return QuantizedWeight(
        torch.randint(0, 256, (experts, columns, depth // 2), generator=g, dtype=torch.uint8),
        torch.randint(low, high + 1, (experts, columns, depth // BLOCK[format]), generator=g, dtype=torch.uint8),
        torch.rand(experts, generator=g) + 0.5,
    )


def random_problem(format: str, sizes: list[int], columns: int, depth: int, gap: int = 0, seed: int = 0) -> Problem:
    """Groups one after the other, with `gap` rows of nobody before each."""
    g = torch.Generator().manual_seed(seed)
    offsets, row = [], 0
    for size in sizes:
        offsets.append(row + gap)
        row += gap + size
    return Problem(
        random_weights(format, len(sizes), columns, depth, seed),
        torch.randn(row, depth, generator=g).bfloat16(),
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor(sizes, dtype=torch.int32),
    )
