"""The reference stack's own output projection: group after group, rounded as the profile's kernels round."""

from __future__ import annotations

import torch

from conformance.stacks import reference_cache, reference_rope
from conformance.stacks import reference_numerics as numerics
from conformance.stacks.attention_protocol import OutputRequest

_BLOCK = 128
_ROWS = 1024


class ReferenceOutput:
    """`e4m3`: the rotated output, and what wo_a makes of it, are stored in FP8 with a power of two for 128 channels.

    Weights are kept in BF16, exact down to 2^-126, and widened a piece at a time: FP32 of all is 100 MB a rank.
    """

    def __init__(self, request: OutputRequest, heads: int, e4m3: bool):
        self._request, self._heads, self._e4m3 = request, heads, e4m3
        self._a = _decoded(request.wo_a, request.wo_a_scale).chunk(request.groups, 0)
        self._b = _decoded(request.wo_b, request.wo_b_scale)

    def run(self, o: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> None:
        r = self._request
        own = o.narrow(1, 0, r.heads).float()
        back = self._stored(reference_rope.rotate(own, positions, r.table, back=True))
        each = [
            self._stored(heads.flatten(1) @ weight.float().T)
            for heads, weight in zip(back.chunk(r.groups, 1), self._a, strict=True)
        ]
        mixed = torch.hstack(each)
        for column, rows in zip(out.split(_ROWS, 1), self._b.split(_ROWS), strict=True):
            column.copy_(mixed @ rows.float().T)

    def _stored(self, x: torch.Tensor) -> torch.Tensor:
        x = numerics.to_bf16(x)
        if not self._e4m3:
            return x
        blocks = x.unflatten(-1, (-1, _BLOCK))
        power = reference_cache.power(blocks.abs().amax(-1, keepdim=True).clamp(min=1e-10))
        codes = reference_cache.to_e4m3(torch.ldexp(blocks, -power))
        return torch.ldexp(reference_cache.e4m3(codes), power).flatten(-2)

    def close(self) -> None:
        self._a, self._b = (), torch.empty(0)


def _decoded(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """E4M3 (n, m) with scales of 128 x 128 blocks -> bfloat16, one row of blocks at a time."""
    made = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    column = torch.arange(codes.shape[1], device=codes.device) // _BLOCK
    for out, part, factors in zip(made.split(_BLOCK), codes.split(_BLOCK), numerics.scales(scales), strict=True):
        out.copy_(reference_cache.e4m3(part) * factors[column])
    return made
