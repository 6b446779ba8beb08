"""What is due, straight from the checkpoint: no loader and no kernel layout comes between."""

from __future__ import annotations

import torch

from conformance.geometry import ELEMENTS_PER_BYTE, SCALE_GROUP, Geometry
from conformance.provenance.boxes import Span
from conformance.provenance.checkpoint import Checkpoint
from references import mxfp4
from references.moe import Experts, Packed
from references.moe_staged import PLAIN, Scheme, staged_activation
from references.nvfp4 import GlobalScales


def experts(checkpoint: Checkpoint, geometry: Geometry, own: Span, device: str) -> Experts:
    """A rank's slice of each expert, its channels counted from 0, for `references.moe`."""
    h = geometry.hidden_size

    def packed(expert: int, start: int, stop: int) -> Packed:
        def cut(unit: int) -> Span:
            return Span((own.start + start) // unit, (own.start + stop) // unit)

        def by_rows(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            codes, scales = getattr(checkpoint, name), getattr(checkpoint, f"{name}_scale")
            return (
                codes.block(expert, cut(1), Span(0, h // ELEMENTS_PER_BYTE), device),
                scales.block(expert, cut(1), Span(0, h // SCALE_GROUP), device),
            )

        w2 = checkpoint.w2.block(expert, Span(0, h), cut(ELEMENTS_PER_BYTE), device)
        w2_scale = checkpoint.w2_scale.block(expert, Span(0, h), cut(SCALE_GROUP), device)
        return Packed(*by_rows("w1"), *by_rows("w3"), w2, w2_scale)

    return packed


def w13(checkpoint: Checkpoint, name: str, expert: int, own: Span, hidden: int, device: str) -> torch.Tensor:
    """W1 or W3 of the rank's channels, decoded: (channels, H) FP64."""
    codes, scales = getattr(checkpoint, name), getattr(checkpoint, f"{name}_scale")
    return mxfp4.dequantize(
        codes.block(expert, own, Span(0, hidden // ELEMENTS_PER_BYTE), device),
        scales.block(expert, own, Span(0, hidden // SCALE_GROUP), device),
    )


def w2(checkpoint: Checkpoint, expert: int, channels: Span, hidden: int, device: str) -> torch.Tensor:
    """W2 of those channels, whole scale groups, decoded: (H, channels) FP64."""
    return mxfp4.dequantize(
        checkpoint.w2.block(
            expert,
            Span(0, hidden),
            Span(channels.start // ELEMENTS_PER_BYTE, channels.stop // ELEMENTS_PER_BYTE),
            device,
        ),
        checkpoint.w2_scale.block(
            expert, Span(0, hidden), Span(channels.start // SCALE_GROUP, channels.stop // SCALE_GROUP), device
        ),
    )


def lone_activation(gate: float, up: float, scheme: Scheme, limit: float | None, scales: GlobalScales = PLAIN) -> float:
    """The activation of one channel whose scale group is otherwise zero, as GEMM2 sees it."""
    lone = torch.zeros(2, SCALE_GROUP, dtype=torch.float64)
    lone[:, 0] = torch.tensor([gate, up])
    return float(staged_activation(lone[:1], lone[1:], scheme, limit, scales=scales)[0, 0])
