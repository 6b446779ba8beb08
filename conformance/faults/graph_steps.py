"""Faults inside a captured call: each takes the call and gives the faulty one.

Torch alone, and nothing of ours: a stack that captures in a process of its own gets this file sent along. Buffers are
any NamedTuple of graph_protocol.
"""

from typing import Any


def number_read(step):
    """A factor is read off a tensor by Python."""

    def spoilt(buffers):
        step(buffers)
        buffers.out.mul_(1.0 if buffers.weights[0, 0].item() < 0.5 else 2.0)

    return spoilt


def list_made(step):
    """A tensor is made from a Python list on the way."""

    def spoilt(buffers):
        import torch

        step(buffers)
        buffers.out.mul_(torch.tensor([1.0], dtype=buffers.out.dtype).to(buffers.out.device))

    return spoilt


def new_tensor_made(step):
    """The same by `new_tensor`: it is made on the host all the same."""

    def spoilt(buffers):
        step(buffers)
        buffers.out.mul_(buffers.out.new_tensor([1.0]))

    return spoilt


def scale_baked(step):
    """A scale is a Python number: the graph keeps the one of the call before capture."""
    kept = [1.0]

    def spoilt(buffers):
        step(buffers)
        if not recording():
            kept[0] = float(buffers.x.float().nan_to_num().abs().max())
        buffers.out.mul_(1.0 + kept[0] / 64)

    return spoilt


def table_in_capture(step):
    """A table that later calls look up is filled where it is first used: warm-up goes another way, capture is first."""
    table = list[Any]()

    def spoilt(buffers):
        step(buffers)
        if not table and recording():
            table.append(buffers.out.new_ones(1))
        if table:
            buffers.out.mul_(table[0])

    return spoilt


def counted(step):
    """Experts are counted by an operation whose result's size depends on the data."""

    def spoilt(buffers):
        step(buffers)
        buffers.ids.flatten().clamp(min=0).bincount()

    return spoilt


def list_mutated(step):
    """A Python list grows with each call and decides what is done."""
    calls = list[int]()

    def spoilt(buffers):
        step(buffers)
        calls.append(1)
        buffers.out.mul_(1.0 + len(calls) % 2)

    return spoilt


def output_over_input(step):
    """x is used for the output's first stage: it does not survive the call."""

    def spoilt(buffers):
        step(buffers)
        buffers.x.copy_(buffers.out)

    return spoilt


def rows_mixed(step):
    """Every row takes a part of all rows, pad rows too: nothing of it where they are finite."""

    def spoilt(buffers):
        step(buffers)
        buffers.out.add_((buffers.x.float() * 0.0).sum().to(buffers.out.dtype))

    return spoilt


def length_read(step):
    """Python reads the longest length and cuts the tables at it."""

    def spoilt(buffers):
        longest = int(buffers.window_lengths.max())
        step(buffers._replace(window_slots=buffers.window_slots[:, : max(1, longest)].contiguous()))

    return spoilt


def tile_spread(step):
    """Rows of a tile share a maximum: a row that is NaN spoils all."""

    def spoilt(buffers):
        step(buffers)
        buffers.out.add_((buffers.q.float() * 0.0).sum().to(buffers.out.dtype))

    return spoilt


def stale_rows(step):
    """The last request's output goes a little into the first's, pad row or not."""

    def spoilt(buffers):
        step(buffers)
        if len(buffers.out) > 1:
            buffers.out[0].add_(buffers.q[-1] * 2.0**-4)

    return spoilt


def sinks_consumed(step):
    """Sinks are turned to base two in place."""

    def spoilt(buffers):
        step(buffers)
        buffers.sinks.mul_(1.4426950408889634)

    return spoilt


def recording():
    """Is this call being captured, by CUDA or by the simulation?"""
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode() is not None or (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    )
