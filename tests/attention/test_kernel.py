"""The reference stack's attention against the references, and what a stack that lacks a part is told."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.errors import NotSupported, StackRefused
from conformance.stacks import reference_cache, reference_rope
from conformance.stacks.attention_protocol import AttentionCapabilities, Pages
from conformance.stacks.reference_attention import ReferenceAttention
from conformance.target import Target
from references import attention_cache, attention_rope

MODEL = geometry.load("deepseek-v4-tiny")
TARGET = Target(MODEL, 3, "cpu", None, None, (32,), (32,))
CLAIMS = [c for c in catalogue.claims().values() if c.layer == "attention" and c.check]


def _context(kernel: object, target: Target = TARGET) -> Context:
    return Context(target, None, None, {"attention": lambda: kernel})  # type: ignore[arg-type, return-value]


def test_e4m3_in_both_directions():
    codes = torch.arange(256, dtype=torch.uint8)
    due = codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(reference_cache.e4m3(codes).nan_to_num(nan=-1), due.nan_to_num(nan=-1))
    finite = ~due.isnan() & (due != 0)
    assert torch.equal(reference_cache.to_e4m3(due[finite]), codes[finite])
    between = torch.randn(4096, generator=torch.Generator().manual_seed(1)) * 50
    assert torch.equal(reference_cache.to_e4m3(between), between.to(torch.float8_e4m3fn).view(torch.uint8))


def test_two_ways_to_store_agree_byte_for_byte():
    values = torch.randn(64, 512, generator=torch.Generator().manual_seed(2)) * 3
    pages = Pages(torch.zeros(2, attention_cache.page_bytes(64), dtype=torch.uint8), 64)
    reference_cache.store(pages, torch.arange(64), values)
    data, scales = attention_cache.rows(pages.data, torch.arange(64), 64)
    due = attention_cache.encode(values)
    assert torch.equal(data, due[0]) and torch.equal(scales, due[1])


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_two_tables_agree(ratio):
    due = attention_rope.table(attention_rope.of_layer(MODEL.config, ratio), 100)
    assert (reference_rope.table(MODEL.config, ratio, 100) - due).abs().max() < 3e-5


def test_heads_that_no_kernel_takes_are_refused():
    kernel = ReferenceAttention((16, 32, 64, 128), "")
    assert [kernel.padded(n) for n in (1, 16, 24, 33, 128)] == [16, 16, 32, 64, 128]
    with pytest.raises(StackRefused, match="129 heads were asked for; the kernel takes 16, 32, 64, 128"):
        kernel.padded(129)


class _Lacking(ReferenceAttention):
    """Offers no part at all."""

    def capabilities(self) -> AttentionCapabilities:
        return msgspec.structs.replace(super().capabilities(), parts=())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_missing_part_is_not_supported_and_never_passes(claim):
    if claim.id in ("attention.heads.padded", "attention.output.loaded") or claim.group == "attention.compile":
        pytest.skip("needs no part")
    words = {"attention.call": "no `attention_calls`", "attention.hyper": "no `hyper"}.get(claim.group, "offers no `")
    with pytest.raises(NotSupported, match=words):
        claim.function()(SimpleNamespace(name="lacking"), _context(_Lacking((), "")))


def test_a_stack_without_attention():
    with pytest.raises(NotSupported, match="no `attention\\(\\)`"):
        _ = Context(TARGET, None, None).attention


@pytest.mark.parametrize("claim", ["attention.bound.c4", "attention.ranks.sum", "attention.output.bound"])
def test_bf16_without_padding_passes_too(claim):
    """The profile `cpu`: any head count, an output projection in BF16."""
    evidence = catalogue.get(claim).function()(None, _context(ReferenceAttention((), "")))
    assert evidence.ok, evidence.summary


class _NoSinks(ReferenceAttention):
    def capabilities(self) -> AttentionCapabilities:
        return msgspec.structs.replace(super().capabilities(), sinks=False, kv="bfloat16", parts=("attend",))


def test_a_kernel_without_sinks_is_judged_without_them():
    with pytest.raises(NotSupported, match="takes no sinks"):
        catalogue.get("attention.sink.weight").function()(None, _context(_NoSinks((), "")))
