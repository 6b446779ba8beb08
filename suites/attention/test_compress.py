"""Compressed entries as they are stored, of requests whose tokens come in odd chunks, in slots that are used again."""

from __future__ import annotations

from typing import NamedTuple

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
#: A score is rounded where its bias is added, and where it is turned into a power of two.
_SCORE = 2.0**-22
#: Calls, as (stream, tokens) in ascending order of request slots. Streams 0 and 2 have slot 0 one after the other,
#: stream 1 has slot 1: it comes alone too, at positions of its own, and in chunks that complete several entries.
_SLOTS = (0, 1, 0)
_CALLS: dict[int, tuple[tuple[tuple[int, int], ...], ...]] = {
    4: (
        ((0, 3), (1, 1)),
        ((0, 1), (1, 1)),
        ((1, 5),),
        ((0, 7), (1, 14)),
        ((1, 530),),
        ((0, 26), (1, 1)),
        ((2, 3), (1, 17)),
        ((2, 10),),
    ),
    128: (
        ((0, 3), (1, 125)),
        ((0, 1), (1, 3)),
        ((1, 1),),
        ((0, 131), (1, 127)),
        ((1, 400),),
        ((0, 7), (1, 10)),
        ((2, 125), (1, 5)),
        ((2, 4), (1, 1)),
    ),
}


class _Stream(NamedTuple):
    """One request from position 0: kv and gate (S, columns), and the slot of each entry (S // ratio,)."""

    kv: torch.Tensor
    gate: torch.Tensor
    slots: torch.Tensor


@claim("attention.compress.c4")
def c4(stack: Stack, context: Context) -> Evidence:
    """Overlapping: Ca of the window before, Cb of one's own; the first has no Ca; state is kept between chunks."""
    return _judged(context, 4)


@claim("attention.compress.c128")
def c128(stack: Stack, context: Context) -> Evidence:
    return _judged(context, 128)


def _judged(context: Context, ratio: int) -> Evidence:
    bench = Bench(context, "compressor")
    can, rng, calls = bench.can, bench.rng(30 + ratio), _CALLS[ratio]
    columns, tokens = 2 * D if ratio == 4 else D, can.c4_tokens if ratio == 4 else can.c128_tokens
    lengths = [sum(size for call in calls for of, size in call if of == number) for number in range(len(_SLOTS))]
    entries = [length // ratio for length in lengths]
    bias, norm = torch.randn(ratio, columns, generator=rng), 1 + 0.2 * torch.randn(D, generator=rng)
    table = attention_rope.table(attention_rope.of_layer(context.geometry.config, ratio), max(lengths)).float()
    fp8 = can.kv == "fp8_ds_mla"
    pages = 2 + sum(entries) // tokens
    data = torch.full((pages, attention_cache.page_bytes(tokens, fp8)), _UNTOUCHED, dtype=torch.uint8)
    places = torch.randperm(pages * tokens, generator=rng)[: sum(entries)].split(entries)
    bias, norm, table, data = (p.to(can.device) for p in (bias, norm, table, data))
    streams = [
        _Stream(*(part.to(can.device) for part in (*_tokens(length, columns, ratio, rng), at)))
        for length, at in zip(lengths, places, strict=True)
    ]
    compressor = bench.kernel.compressor(CompressorRequest(ratio, bias, norm, _EPS, table, len(set(_SLOTS))))
    done = [0] * len(streams)
    for call in calls:
        given = []
        for number, size in call:
            given.append(_given(streams[number], _SLOTS[number], done[number], size, ratio))
            done[number] += size
        kv, gate, positions, requests, slots = (torch.cat(part) for part in zip(*given, strict=True))
        compressor.run(kv, gate, positions, requests, Pages(data, tokens), slots)
    compressor.close()
    measured = {}
    for number, stream in enumerate(streams):
        due = attention_compress.entries(stream.kv, stream.gate, bias, norm, _EPS, table, ratio)
        got = attention_cache.read(data, stream.slots, tokens, fp8)
        noise = _noise(stream.kv, stream.gate, bias, norm, ratio)
        bound = _bound(due, noise, data, stream.slots, tokens, fp8)
        where = f"request {number} of {len(streams)}, (entry, channel)"
        measured[f"request {number}, err/bound"] = round(bench.within(where, got, due, bound), 4)
        if fp8:
            _scales(bench, number, due, noise, attention_cache.rows(data, stream.slots, tokens)[1])
    return bench.evidence(
        f"{', '.join(map(str, entries))} entries of {len(streams)} requests in {len(set(_SLOTS))} slots",
        "stored next to the exact value",
        measured,
        1.0,
    )


def _tokens(length: int, columns: int, ratio: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """kv and gate (length, columns). Gates of a channel lie around -160 .. 160, Ca's as Cb's: exponentials overflow, or
    vanish all, without their maximum. Tokens of some entries are zeros, then 2^-10 as large: eps decides there."""
    kv, gate = (torch.randn(length, columns, generator=rng) * spread for spread in (3.0, 2.0))
    gate += 80.0 * torch.randint(-2, 3, (D,), generator=rng).repeat(columns // D)
    kv[2 * ratio : 4 * ratio] = 0
    kv[4 * ratio : 6 * ratio] *= 2.0**-10
    return kv, gate


def _given(stream: _Stream, request: int, done: int, size: int, ratio: int) -> tuple[torch.Tensor, ...]:
    """kv, gate, positions, requests and slots of the stream's next tokens."""
    place = torch.arange(done, done + size, device=stream.kv.device)
    entry = (place // ratio).clamp(max=max(len(stream.slots) - 1, 0))
    slots = torch.where(place % ratio == ratio - 1, stream.slots[entry], -1)
    return stream.kv[place], stream.gate[place], place, torch.full_like(place, request).int(), slots


def _noise(kv: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, norm: torch.Tensor, ratio: int) -> torch.Tensor:
    """(entries, 512): how far FP32 may be off, and BF16 once: both in units of the sums' sizes."""
    pooled = attention_compress.pooled(kv, gate, bias, ratio)
    size = attention_compress.pooled(kv.abs(), gate, bias, ratio)
    largest = (gate.double().abs().amax() + bias.double().abs().amax()).item()
    factor = torch.rsqrt(pooled.square().mean(1, keepdim=True) + _EPS) * norm.double().abs()
    value, size = factor * pooled.abs(), factor * size
    turned = attention_rope.turn_size
    return (_FP32 + _SCORE * largest) * (size + turned(size)) + _BF16 * (value + turned(value))


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
