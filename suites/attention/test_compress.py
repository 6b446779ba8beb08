"""Compressed entries as they are stored, of two requests whose tokens come in odd chunks."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.attention_protocol import CompressorRequest, Pages
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_bound, attention_cache, attention_compress, attention_rope
from suites.attention.bench import Bench, D

_NOPE, _BLOCK = attention_cache.NOPE, attention_cache.BLOCK
_EPS, _UNTOUCHED = 1e-6, 0xAB
#: FP32: softmax over 128 places, a sum, a norm over 512, a rotation. Then BF16 once: vLLM 0.33.0 rounds an entry to it
#: before it is quantised (`fused_compress_quant_cache`).
_FP32, _BF16 = 2.0**-19, 2.0**-8
_CHUNKS = {4: (3, 1, 5, 7, 16, 1, 17, 26), 128: (3, 125, 1, 127, 5, 120)}


@claim("attention.compress.c4")
def c4(stack: Stack, context: Context) -> Evidence:
    """Overlapping: Ca of the window before, Cb of one's own; the first has no Ca; state is kept between chunks."""
    return _judged(context, 4)


@claim("attention.compress.c128")
def c128(stack: Stack, context: Context) -> Evidence:
    return _judged(context, 128)


def _judged(context: Context, ratio: int) -> Evidence:
    bench = Bench(context, "compressor")
    can, rng, chunks = bench.can, bench.rng(30 + ratio), _CHUNKS[ratio]
    length, columns = sum(chunks), 2 * D if ratio == 4 else D
    entries, tokens = length // ratio, can.c4_tokens if ratio == 4 else can.c128_tokens
    kv, gate = (torch.randn(2, length, columns, generator=rng) * spread for spread in (3.0, 2.0))
    bias, norm = torch.randn(ratio, columns, generator=rng), 1 + 0.2 * torch.randn(D, generator=rng)
    table = attention_rope.table(attention_rope.of_layer(context.geometry.config, ratio), length).float()
    fp8 = can.kv == "fp8_ds_mla"
    pages = 2 + 2 * entries // tokens
    data = torch.full((pages, attention_cache.page_bytes(tokens, fp8)), _UNTOUCHED, dtype=torch.uint8)
    at = torch.randperm(pages * tokens, generator=rng)[: 2 * entries].view(2, entries)
    kv, gate, bias, norm, table, data, at = (p.to(can.device) for p in (kv, gate, bias, norm, table, data, at))
    compressor = bench.kernel.compressor(CompressorRequest(ratio, bias, norm, _EPS, table, 2))
    done = 0
    for size in chunks:
        place = torch.arange(done, done + size, device=can.device)
        complete = place % ratio == ratio - 1
        slots = torch.where(complete, at[:, (place // ratio).clamp(max=entries - 1)], -1)
        compressor.run(
            kv[:, place].flatten(0, 1),
            gate[:, place].flatten(0, 1),
            place.repeat(2),
            torch.arange(2, device=can.device, dtype=torch.int32).repeat_interleave(size),
            Pages(data, tokens),
            slots.flatten(),
        )
        done += size
    compressor.close()
    measured = {}
    for request in range(2):
        due = attention_compress.entries(kv[request], gate[request], bias, norm, _EPS, table, ratio)
        got = attention_cache.read(data, at[request], tokens, fp8)
        noise = _noise(kv[request], gate[request], bias, norm, ratio)
        bound = _bound(due, noise, data, at[request], tokens, fp8)
        where = f"request {request}, (entry, channel)"
        measured[f"request {request}, err/bound"] = round(bench.within(where, got, due, bound), 4)
        if fp8:
            _scales(bench, request, due, noise, attention_cache.rows(data, at[request], tokens)[1])
    return bench.evidence(
        f"{entries} entries of each of 2 requests, in chunks of {', '.join(map(str, chunks))}",
        "stored next to the exact value",
        measured,
        1.0,
    )


def _noise(kv: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, norm: torch.Tensor, ratio: int) -> torch.Tensor:
    """(entries, 512): how far FP32 may be off, and BF16 once: both in units of the sums' sizes."""
    pooled = attention_compress.pooled(kv, gate, bias, ratio)
    size = attention_compress.pooled(kv.abs(), gate, bias, ratio)
    factor = torch.rsqrt(pooled.square().mean(1, keepdim=True) + _EPS) * norm.double().abs()
    value, size = factor * pooled.abs(), factor * size
    turned = attention_rope.turn_size
    return _FP32 * (size + turned(size)) + _BF16 * (value + turned(value))


def _bound(
    due: torch.Tensor, noise: torch.Tensor, data: torch.Tensor, slots: torch.Tensor, tokens: int, fp8: bool
) -> torch.Tensor:
    """Half a step of E4M3 at the scale that is stored, or of BF16."""
    half = attention_bound.rounded_once(due, noise, 1.0)
    if fp8:
        power = attention_cache.rows(data, slots, tokens)[1][:, :7].double() - 127
        step = 2.0**-9 * torch.exp2(power).repeat_interleave(_BLOCK, 1)
        reach = due[:, :_NOPE].abs() + noise[:, :_NOPE]
        half[:, :_NOPE] = torch.maximum(attention_bound.ulp(reach, bits=3), step) / 2 + noise[:, :_NOPE]
    return half


def _scales(bench: Bench, request: int, due: torch.Tensor, noise: torch.Tensor, stored: torch.Tensor) -> None:
    """A block's power of two is that of an amax within the noise."""
    blocks, slack = (part[:, :_NOPE].abs().unflatten(1, (-1, _BLOCK)) for part in (due, noise))
    low = attention_cache.exponents((blocks - slack).clamp(min=0).amax(2), bench.can.small_blocks) + 127
    high = attention_cache.exponents((blocks + slack).amax(2), bench.can.small_blocks) + 127
    got = stored[:, :7].double()
    bad = (got < low) | (got > high)
    bench.compared += bad.numel()
    if bad.any():
        entry, block = (int(i) for i in bad.nonzero()[0])
        bench.find(
            f"request {request}, entry {entry}, scale of block {block}",
            f"byte {int(low[entry, block])}..{int(high[entry, block])}",
            f"byte {int(got[entry, block])}",
            f"{int(bad.sum())} of {bad.numel()} scales are not the block's",
        )
