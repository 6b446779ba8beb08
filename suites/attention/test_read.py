"""Every E4M3 code, read back through the attention kernel: with one token to see, the output is that token's value."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.attention_protocol import AttendCall, Phase, Sparse
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_cache, attention_seen
from suites.attention import scene
from suites.attention.bench import Bench

_REQUESTS = 6
_NOPE, _LEAST, _MOST = attention_cache.NOPE, 110, 135  # scale bytes: 2^-17 .. 2^8


@claim("attention.read.codes")
def codes(stack: Stack, context: Context) -> Evidence:
    """All finite codes, subnormal ones and zeros among them, times powers of two, from either cache: exact in BF16."""
    bench = Bench(context, "attend")
    for ratio in (0, 4):
        for phase in bench.can.phases:
            call, stored, due = _call(bench, ratio, phase)
            out = bench.attend(call)[:, :1]
            bad = (out != due[:, None].to(out.dtype))[:, 0, :_NOPE]
            low = int((bad & ((stored & 0x7F) < 8)).sum())
            words = f"one token is all that is seen; {low} of {int(bad.sum())} are zeros or subnormal E4M3 codes"
            bench.compare(f"C{ratio}, {phase}", out + 0.0, due[:, None].to(out.dtype) + 0.0, words)
    return bench.evidence("every E4M3 code is read as what it is", "the token's own value, bit for bit")


def _call(bench: Bench, ratio: int, phase: Phase) -> tuple[AttendCall, torch.Tensor, torch.Tensor]:
    """(call, codes, values): queries of zero on requests of one token; with compression its entry holds the same."""
    asked = ((max(ratio, 1), 1),) * _REQUESTS
    one = scene.scene(bench.can, bench.context.target.seed, ratio, asked)
    rng = bench.rng(90)
    data = torch.zeros(_REQUESTS, attention_cache.DATA, dtype=torch.uint8)
    data[:, :_NOPE] = torch.randint(0, 256, (_REQUESTS, _NOPE), generator=rng)
    data[:, :256] = torch.arange(256)
    data[(data & 0x7F) == 0x7F] = 0
    data[:, _NOPE:] = torch.randn(_REQUESTS, 64, generator=rng).bfloat16().view(torch.uint8)
    scales = torch.randint(_LEAST, _MOST, (_REQUESTS, 8), generator=rng).to(torch.uint8)
    data, scales = data.to(bench.can.device), scales.to(bench.can.device)
    values = attention_cache.decode(data, scales)
    sparse = []
    for paged in filter(None, (one.window, one.compressed)):
        number = torch.zeros(_REQUESTS, 1, dtype=torch.long, device=data.device)
        slots = attention_seen.slots(number, one.requests, paged.table, paged.pages.tokens)
        if one.fp8:
            attention_cache.write(paged.pages.data, slots[:, 0], paged.pages.tokens, data, scales)
        else:
            attention_cache.put(paged.pages.data, slots[:, 0], paged.pages.tokens, values, False)
        wide = torch.nn.functional.pad(slots, (0, -1 % bench.can.aligned_slots), value=-1)
        ones = torch.ones(_REQUESTS, dtype=torch.int32, device=data.device)
        sparse.append(Sparse(paged.pages, wide.to(getattr(torch, bench.can.slots)), ones))
    q = torch.zeros(_REQUESTS, bench.padded, _NOPE + 64, dtype=torch.bfloat16, device=data.device)
    sinks = torch.full((bench.padded,), -torch.inf, device=data.device)
    call = AttendCall(phase, q, sinks, bench.scale, sparse[0], sparse[1] if ratio else None)
    return call, data[:, :_NOPE], values
