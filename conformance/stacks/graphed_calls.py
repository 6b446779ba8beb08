"""A graph's buffers as the call that an attention kernel takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.stacks.attention_protocol import AttendCall, Pages, Sparse
from conformance.stacks.graph_protocol import AttendBuffers, AttendRequest

if TYPE_CHECKING:
    import torch


def attend_call(request: AttendRequest, b: AttendBuffers) -> tuple[AttendCall, torch.Tensor]:
    """(the call, where its output goes)."""
    window = Sparse(Pages(b.window, request.window_tokens), b.window_slots, b.window_lengths)
    entries = Sparse(Pages(b.entries, request.entries_tokens), b.entries_slots, b.entries_lengths)
    return AttendCall("decode", b.q, b.sinks, request.scale, window, entries), b.out
