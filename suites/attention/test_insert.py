"""What goes into the cache: FP8 codes, scales and rotated channels, byte by byte; and nothing else."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.attention_protocol import Pages
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_bound, attention_cache, attention_rope
from suites.attention.bench import Bench, D

_NOPE, _BLOCK = attention_cache.NOPE, attention_cache.BLOCK
_UNTOUCHED = 0xAB
_POSITIONS = 9000
#: Slots of the cache that is written to, past 2^15.
_SLOTS = 40_000
#: FP32 products and their sum: 2^-23 of |even| + |odd|, and as much again for fused orders.
_FP32 = 2.0**-22


class _Inserted:
    """kv (T, 512) put at random slots by the kernel; what the cache holds then."""

    def __init__(self, bench: Bench, kv: torch.Tensor, number: int):
        rng, can = bench.rng(number), bench.can
        self.fp8, tokens = can.kv == "fp8_ds_mla", can.window_tokens
        pages = -(-_SLOTS // tokens)
        self.positions = torch.randint(0, _POSITIONS, (len(kv),), generator=rng)
        slots = torch.randperm(pages * tokens, generator=rng)[: len(kv)]
        slots[torch.arange(3, len(kv), 11)] = -1
        angles = attention_rope.of_layer(bench.context.geometry.config, 4)
        self.table = attention_rope.table(angles, _POSITIONS).float()
        data = torch.full((pages, attention_cache.page_bytes(tokens, self.fp8)), _UNTOUCHED, dtype=torch.uint8)
        moved = [part.to(can.device) for part in (kv.bfloat16(), self.positions, self.table, data, slots)]
        self.kv, self.positions, self.table, self.data, self.slots = moved
        bench.kernel.insert(self.kv, self.positions, self.table, Pages(self.data, tokens), self.slots)
        self.tokens, self.kept = tokens, self.slots >= 0
        self.due = attention_rope.rotated(self.kv, self.positions, self.table)

    def rope(self) -> torch.Tensor:
        """(n, 64) FP64: the rotated channels of what was kept."""
        return attention_cache.read(self.data, self.slots[self.kept], self.tokens, self.fp8)[:, _NOPE:]


def _blocks(bench: Bench, number: int) -> torch.Tensor:
    """(150, 512) float32: blocks whose largest element is 448 2^n, and one BF16 step below and above it."""
    rng = bench.rng(number)
    kv = torch.randn(150, D, generator=rng)
    blocks = kv[:, :_NOPE].view(150, -1, _BLOCK)
    power = torch.randint(-13, 4, (150, 7), generator=rng)  # from the power below which small blocks begin
    top = 448.0 * torch.exp2(power.float()) * torch.tensor([1, 1 - 2.0**-8, 1 + 2.0**-7])[torch.arange(150) % 3, None]
    blocks *= (top / blocks.abs().amax(2))[..., None] * 0.99
    blocks[:, :, 5] = top * torch.where(power % 2 == 0, 1, -1)
    return kv


def _small(bench: Bench, number: int) -> torch.Tensor:
    """(83, 512) float32: blocks whose largest element is (nearly) nothing, and, from the least that an amax counts for
    to where one of 1e-4 as a scale ends, 448 2^n and one BF16 step below and above it."""
    kv = torch.randn(83, D, generator=bench.rng(number))
    blocks = kv[:, :_NOPE].view(83, 7, _BLOCK)
    amax = torch.tensor([0.0, 1e-8, 9e-5, 1e-4, 1.1e-4, 0.0272, 0.0274]).repeat(56, 1)
    power = torch.arange(-22, -13)
    steps = torch.tensor([1, 1 - 2.0**-8, 1 + 2.0**-7])
    between = (448.0 * torch.exp2(power.float()) * steps[:, None]).flatten()[:, None].repeat(1, 7)
    blocks *= (torch.cat((amax, between)) / blocks.abs().amax(2))[..., None]
    # The largest is what it is meant to be, however the others were rounded.
    blocks[56:] *= 0.99
    blocks[56:, :, 5] = between
    return kv


def _compare_scales(
    bench: Bench, put: _Inserted, what: str
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """(data, scales) that are due for what was kept, and those that are stored."""
    due = attention_cache.encode(put.due[put.kept], bench.can.small_blocks)
    got = attention_cache.rows(put.data, put.slots[put.kept], put.tokens)
    words = "a block's power of two is another"
    bench.compare(f"{what}, scales", got[1][:, :7], due[1][:, :7], words, None, "block")
    return due, got


def _compare_bytes(bench: Bench, put: _Inserted, what: str) -> None:
    if not put.fp8:
        got = attention_cache.read(put.data, put.slots[put.kept], put.tokens, False)[:, :_NOPE]
        bench.compare(
            what, got.float(), put.kv[put.kept, :_NOPE].float(), "stored BF16 is not what was given", None, "channel"
        )
        return
    due, (got_rows, got_scales) = _compare_scales(bench, put, what)
    same = (got_scales[:, :7] == due[1][:, :7]).repeat_interleave(_BLOCK, 1)
    codes, right = got_rows[:, :_NOPE], due[0][:, :_NOPE]
    # The sign of a zero is free.
    alike = torch.where((codes & 0x7F) == 0, codes & 0x7F, codes), torch.where((right & 0x7F) == 0, right & 0x7F, right)
    wrong = same & (alike[0] != alike[1])
    small = int((wrong & ((right & 0x7F) < 8)).sum())
    words = f"rounded otherwise; {small} of {int(wrong.sum())} where a subnormal E4M3 code (1..7) or 0 is due"
    bench.compare(f"{what}, codes", alike[0].where(same, 0), alike[1].where(same, 0), words, None, "channel")
    odd = got_scales[:, 7]
    bench.compared += len(odd)
    if ((odd != 0) & (odd != _UNTOUCHED)).any():
        bench.find(f"{what}, eighth scale byte", "0, or as it was", "another value", "it belongs to no block")


@claim("attention.insert.bytes")
def inserted(stack: Stack, context: Context) -> Evidence:
    """E4M3 codes and E8M0 scales of blocks of all magnitudes, and at powers of two; BF16 for what is rotated."""
    bench = Bench(context, "insert")
    put = _Inserted(bench, _blocks(bench, 11), 12)
    _compare_bytes(bench, put, "blocks of amax 448 x 2^n")
    due, size = put.due[put.kept][:, _NOPE:], attention_rope.turn_size(put.kv[put.kept])[:, _NOPE:]
    worst = bench.within("rotated channels", put.rope(), due, attention_bound.rounded_once(due, size, _FP32))
    return bench.evidence(
        "codes, scales and rotated channels are right",
        "bytes; BF16 next to the exact value",
        {"rotated, err/bound": worst},
    )


@claim("attention.insert.small")
def small(stack: Stack, context: Context) -> Evidence:
    """Blocks of (nearly) nothing: amax 0, 1e-8, 1e-4, on to 0.0273. Their scale has a least value, no block is NaN."""
    bench = Bench(context, "insert")
    _compare_bytes(bench, _Inserted(bench, _small(bench, 13), 14), "small blocks")
    rule = bench.can.small_blocks
    notes = (
        []
        if rule == "amax"
        else [
            "declared: max(amax / 448, 1e-4); CUDA's kernel takes max(amax, 1e-4) / 448: other bytes up to amax 0.0273"
        ]
    )
    return bench.evidence(
        "small blocks have the scale that is declared", f"bytes, least {rule}", {"rule": rule}, notes=notes
    )


@claim("attention.insert.scales")
def scaled(stack: Stack, context: Context) -> Evidence:
    """The scales alone, of blocks of all magnitudes: a kernel whose codes are wrong may have them right."""
    bench = Bench(context, "insert")
    for kv, what in ((_blocks(bench, 17), "blocks of amax 448 x 2^n"), (_small(bench, 18), "small blocks")):
        put = _Inserted(bench, kv, 19)
        (_compare_scales if put.fp8 else _compare_bytes)(bench, put, what)
    rule = bench.can.small_blocks
    return bench.evidence("scales follow from their blocks' amax", f"bytes, least {rule}", {"rule": rule})


@claim("attention.insert.only")
def only(stack: Stack, context: Context) -> Evidence:
    """Slot -1 stores nothing, and no byte changes but those of the slots that were given."""
    bench = Bench(context, "insert")
    put = _Inserted(bench, torch.randn(150, D, generator=bench.rng(15)), 16)
    untouched = torch.ones_like(put.data, dtype=torch.bool)
    flat = untouched.view(-1)
    slots = put.slots[put.kept]
    if put.fp8:
        page, data, scales = attention_cache.places(slots, put.tokens)
        start = page * put.data.shape[1]
        flat[((start + data)[:, None] + torch.arange(576, device=slots.device)).flatten()] = False
        flat[((start + scales)[:, None] + torch.arange(8, device=slots.device)).flatten()] = False
    else:
        untouched.view(-1, 1024)[slots] = False
    changed = untouched & (put.data != _UNTOUCHED)
    bench.compared += int(untouched.count_nonzero())  # `sum` makes eight bytes of each
    if changed.any():
        where = changed.nonzero()[0].tolist()
        bench.find(
            f"page {where[0]}, byte {where[1]}",
            "untouched",
            f"{int(changed.sum())} bytes changed",
            "nobody's token was stored there",
        )
    missing = (
        attention_cache.read(put.data, slots, put.tokens, put.fp8)[:, _NOPE:].bfloat16().view(torch.uint8) == _UNTOUCHED
    ).all(1)
    if missing.any():
        bench.find(
            f"slot {int(slots[missing][0])}",
            "a token",
            "untouched memory",
            f"{int(missing.sum())} tokens are not stored",
        )
    return bench.evidence(
        "given slots alone are written, -1 is not", "bytes", {"slots": len(slots), "-1": int((~put.kept).sum())}
    )
