"""W1 and W3 and their scales, read back one input column at a time through a W2 that is a rectangular identity.

W1: up is 1 (-1 for the token -e_k) and gates are 0 or of 128 and more, where SiLU is the identity or nothing: +e_k
shows the positive codes of column k, -e_k the negative ones. W3: the gate is 32, the output 32 times column k.
The limit is raised to 2^15, out of the way.

NVFP4 activations share a scale by sixteen: what is below 1 / 24 of the largest becomes 0 there. So a second pass lets
one row of each sixteen through alone, row i where k % 16 == i % 16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.geometry import SCALE_GROUP
from conformance.provenance.checkpoint import ONE_SCALE, Checkpoint, Constant, Diagonal, Residues, Rule, seeded
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import nvfp4
from references.finalize import bf16
from references.moe_staged import staged_activation
from suites.moe import due, scales
from suites.moe.bench import Bench
from suites.moe.exact import Exact

_LIMIT = 2.0**15
_GATE = 32.0
_LARGEST = 6 * 2.0**-3  # of seeded weights
_LOUD = 14  # the smallest element 0.5 * 2^-6 makes a gate of 128
_PAIR_OF_ONES = 0x22
#: On a CPU every n-th input column is probed (all positions within a scale group come up), and one end of each scale
#: group; elsewhere all columns, and both ends.
_STEP = 11


@claim("moe.exact.w1")
def w1(stack: Stack, context: Context) -> Evidence:
    c = seeded(context.target.seed)
    return _probe(context, "w1", partial(_gates, c.w1, c.w1_scale), "moe.exact.w1", "W1 reads back through the kernel")


@claim("moe.exact.w3")
def w3(stack: Stack, context: Context) -> Evidence:
    c = seeded(context.target.seed)
    return _probe(context, "w3", partial(_ups, c.w3, c.w3_scale), "moe.exact.w3", "W3 reads back through the kernel")


@claim("moe.exact.w13_scale")
def w13_scale(stack: Stack, context: Context) -> Evidence:
    """All codes are 1, so that only scales are seen: the first and the last column of each group."""
    c, ones = seeded(context.target.seed), Constant(_PAIR_OF_ONES)
    gates = _probe(context, "w1", partial(_gates, ones, c.w1_scale), "moe.exact.w13_scale", "", edges=True)
    ups = _probe(context, "w3", partial(_ups, ones, c.w3_scale), "moe.exact.w13_scale", "", edges=True)
    worse = gates if not gates.ok else ups
    worse.summary = worse.summary or "every scale of W1 and W3 reads back"
    worse.findings = (gates.findings + ups.findings)[:12]
    worse.measured = {"w1": gates.measured, "w3": ups.measured}
    return worse


def _gates(codes: Rule, scales: Rule, ups: Rule) -> Checkpoint:
    return Checkpoint(codes, scales, ups, Constant(ONE_SCALE - _LOUD), Diagonal(), Constant(ONE_SCALE))


def _ups(codes: Rule, scales: Rule, gates: Rule) -> Checkpoint:
    return Checkpoint(gates, Constant(ONE_SCALE + 5), codes, scales, Diagonal(), Constant(ONE_SCALE))


def _columns(bench: Bench, edges: bool) -> list[int]:
    hidden = range(bench.hidden)
    if edges:
        ends = [k for k in hidden if k % SCALE_GROUP in (0, SCALE_GROUP - 1)]
        return [k for k in ends if k // SCALE_GROUP % 2 == k % 2] if bench.can.experts else ends
    return list(hidden[::_STEP] if bench.can.experts else hidden)


def _probe(
    context: Context, name: str, made: Callable[[Rule], Checkpoint], claim_id: str, right: str, edges: bool = False
) -> Evidence:
    """`made`: the checkpoint, from what meets the rows that are read: ones, or one row of each sixteen."""
    bench = Bench(context)
    exact = Exact(bench, claim_id)
    g = context.geometry
    if g.intermediate > g.hidden_size:
        raise NotSupported(f"an intermediate size of {g.intermediate} has no room in {g.hidden_size} outputs")
    columns = _columns(bench, edges)
    values = [2.0**_LOUD, -(2.0**_LOUD)] if name == "w1" else [1.0]
    given = scales.probe(scales.above(_LARGEST * (values[0] if name == "w1" else _GATE)), values[0])
    at, tokens = torch.tensor(columns, device=bench.device), {value: bench.one_hot(columns, value) for value in values}
    rows = torch.arange(g.intermediate, device=bench.device)
    passes: dict[str, Rule] = {"": Constant(_PAIR_OF_ONES), ", alone in its block": Residues(nvfp4.BLOCK)}
    for words, rule in passes.items() if bench.can.scheme == "nvfp4" else [("", passes[""])]:
        checkpoint, where = made(rule), partial(_where, name, columns, words)
        for rank in context.ranks:
            own = bench.own(rank)
            seen = (rows[own.start : own.stop] % nvfp4.BLOCK == at[:, None] % nvfp4.BLOCK) | (not words)
            with bench.layer(rank, checkpoint, _LIMIT, global_scales=given) as layer:
                for expert in range(bench.experts):
                    whole = due.w13(checkpoint, name, expert, own, bench.hidden, bench.device)
                    read = whole.index_select(1, at).T
                    for value in values:
                        product = read * value
                        gate, up = (product, seen * value * 2.0**-_LOUD) if name == "w1" else (seen * _GATE, product)
                        activation = staged_activation(
                            gate.to(read), up.to(read), bench.can.scheme, _LIMIT, scales=given
                        )
                        got = bench.probe(layer, tokens[value], expert, slots=1)
                        want = torch.zeros_like(got)  # what is due is exact in BF16: the activation times 1
                        want[:, own.start : own.stop] = bf16(activation)
                        exact.compare(rank, expert, got, want, where)
    some = f"{len(columns)} of {bench.hidden} columns of {name.upper()}, all rows"
    return exact.evidence(right, context.target.seed, [some])


def _where(name: str, columns: list[int], words: str, token: int, row: int) -> str:
    return f"{name.upper()} row {row}, column {columns[token]}{words}"
