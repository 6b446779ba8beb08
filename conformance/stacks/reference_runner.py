"""The reference stack's MoE runner: slots sorted by expert, one product a group, sums by index."""

from __future__ import annotations

from typing import NamedTuple

import torch

from conformance.errors import StackRefused
from conformance.stacks.quant_protocol import Quantized
from conformance.stacks.reference_moe import swiglu
from conformance.stacks.reference_quant import ReferenceQuantizer, dequantize
from conformance.stacks.runner_protocol import RunnerCapabilities, RunnerRequest, Stages

_MOST = 512


class _Layer(NamedTuple):
    gate: torch.Tensor  #: (E, I, H) float32, global scales included, as `up` and `down` (E, H, I)
    up: torch.Tensor
    down: torch.Tensor
    request: RunnerRequest


class ReferenceRunner:
    def capabilities(self) -> RunnerCapabilities:
        return RunnerCapabilities(
            "float32 matmul of decoded operands", frozenset(["stages", "count", "shared"]), tokens=_MOST
        )

    def prepare(self, request: RunnerRequest) -> _Layer:
        w13 = dequantize("nvfp4", request.w13.codes, request.w13.scales)
        gate, up = w13.chunk(2, dim=1)
        scales = request.w13.global_scales[:, :, None, None]
        down = dequantize("nvfp4", request.w2.codes, request.w2.scales) * request.w2.global_scales[:, None, None]
        return _Layer(gate * scales[:, 0], up * scales[:, 1], down, request)

    def run(self, handle: _Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(self.stages(handle, x, ids, weights).out)

    def stages(self, handle: _Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Stages:
        if len(x) > _MOST:
            raise StackRefused(f"{len(x)} tokens in one call; {_MOST} at most")
        r, held = handle.request, len(handle.gate)
        local = ids.long() - r.first
        token, slot = torch.where((local >= 0) & (local < held) & (ids < r.experts))
        expert = local[token, slot]
        order = torch.argsort(expert, stable=True)
        token, slot, expert = token[order], slot[order], expert[order]
        q = _quantised(x[token], r.input_scale)
        seen = _values(q)
        activation = seen.new_empty(len(token), handle.gate.shape[1])
        y = torch.empty(len(token), x.shape[1], dtype=torch.bfloat16)
        ends = torch.cumsum(torch.stack([(expert == e).sum() for e in range(held)]), 0).tolist()
        groups = list(zip([0, *ends], ends, strict=False))
        for e, (first, last) in enumerate(groups):
            rows = seen[first:last]
            activation[first:last] = swiglu(rows @ handle.gate[e].mT, rows @ handle.up[e].mT, r.limit, 1.0, 0.0)
        activation = activation.to(torch.bfloat16)
        again = _quantised(activation, r.activation_scale)
        for e, (first, last) in enumerate(groups):
            y[first:last] = (_values(again)[first:last] @ handle.down[e].mT).to(y.dtype)
        slots = torch.zeros(*ids.shape, x.shape[1])
        slots[token, slot] = y.float()
        given = torch.zeros_like(weights)
        given[token, slot] = weights[token, slot]
        out = (slots * given[..., None]).sum(1).to(torch.bfloat16)
        return Stages(token, slot, q, activation, again, y, out)

    def count(self, ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
        flat = ids.flatten().long()
        valid = (flat >= 0) & (flat < experts)
        counts = torch.zeros(experts + 1, dtype=torch.int64)
        counts.scatter_add_(0, torch.where(valid, flat, experts), torch.ones_like(flat))
        counts = counts[:experts]
        return counts, torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    def shared(self, handle: _Layer, x: torch.Tensor, out: torch.Tensor) -> None:
        r = handle.request
        seen = _values(_quantised(x, r.input_scale))
        activation = swiglu(seen @ handle.gate[0].mT, seen @ handle.up[0].mT, r.limit, 1.0, 0.0)
        again = _values(_quantised(activation.to(torch.bfloat16), r.activation_scale))
        out.copy_(again @ handle.down[0].mT)

    def close(self, handle: _Layer) -> None:
        pass


def _quantised(x: torch.Tensor, global_scale: float) -> Quantized:
    return ReferenceQuantizer().quantize("nvfp4", x, global_scale)


def _values(q: Quantized) -> torch.Tensor:
    return dequantize("nvfp4", q.codes, q.scales) * q.global_scale
