"""One whole V4-Flash MoE layer (256 experts, 3 ranks) on the reference stack, against copying its bytes once.

    python benchmarks/layer.py

Ratio: time of building, loading and comparing every byte of all ranks over the time of `Tensor.copy_` for the
same bytes, in one process; peak memory over the interpreter's own. Exit code 1 beyond 12 times or 1.5 GB.
"""

from __future__ import annotations

import resource
import sys
import time

import torch

from conformance.context import Context
from conformance.gate.settings import Settings, resolve
from conformance.provenance.boxes import differences
from conformance.stacks.protocols import SHARDS
from conformance.stacks.reference import open_stack

MOST_TIMES, MOST_BYTES = 12.0, 1.5e9


def main() -> int:
    torch.set_num_threads(1)
    run = resolve(Settings(emulate="sm120"))
    stack = open_stack(run.stack_options)
    context = Context(run.target, stack.planner(), stack.loader())
    before = _peak()
    started = time.perf_counter()
    loaded = [context.loaded(parameter, rank) for rank in context.ranks for parameter in SHARDS]
    gate = time.perf_counter() - started
    peak = _peak() - before
    assert not any(differences(one.due, one.seen) for one in loaded), "the reference stack is wrong"
    shapes = [one.seen.shape for one in loaded]
    total = sum(experts * rows * cols for experts, rows, cols in shapes)
    copy = _copy_seconds(shapes)
    print(
        f"{total / 1e9:.2f} GB: gate {gate:.2f} s, copy {copy:.2f} s, ratio {gate / copy:.1f} (at most {MOST_TIMES:g})"
    )
    print(f"peak memory over the interpreter's own: {peak / 1e9:.2f} GB (at most {MOST_BYTES / 1e9:g})")
    return int(gate / copy > MOST_TIMES or peak > MOST_BYTES)


def _copy_seconds(shapes: list[tuple[int, int, int]]) -> float:
    """Every parameter copied once with Tensor.copy_, into memory that is already there."""
    largest = max(e * r * c for e, r, c in shapes)
    source, target = torch.ones(largest, dtype=torch.uint8), torch.zeros(largest, dtype=torch.uint8)
    started = time.perf_counter()
    for experts, rows, cols in shapes:
        size = experts * rows * cols
        target[:size].copy_(source[:size])
    return time.perf_counter() - started


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


if __name__ == "__main__":
    sys.exit(main())
