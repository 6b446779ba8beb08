"""The quant layer's references against torch's own casts, worked examples, and each other's inverses."""

from __future__ import annotations

import pytest
import torch

from conformance.stacks import reference_quant
from references import codes, interleave, moe_nvfp4, moe_staged, mx, mxfp4, nvfp4, prepared, scale_layout

_BYTES = torch.arange(256, dtype=torch.uint8)


def test_e2m1_values_are_the_table_of_mxfp4():
    assert codes.decode_e2m1(_BYTES[:16]).tolist() == list(mxfp4.E2M1)


@pytest.mark.parametrize(
    ("ties", "due"),
    [("even", [0, 2, 2, 4, 4, 6, 6]), ("away", [1, 2, 3, 4, 5, 6, 7]), ("first", [0, 1, 2, 3, 4, 5, 6])],
)
def test_e2m1_ties(ties, due):
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert codes.encode_e2m1(x, ties).tolist() == due
    assert codes.encode_e2m1(-x, ties).tolist() == [8 + code for code in due]


def test_e2m1_saturates_but_not_by_distances():
    x = torch.tensor([6.0, 7.0, 1e30, torch.inf, -torch.inf])
    assert codes.encode_e2m1(x).tolist() == [7, 7, 7, 7, 15]
    assert codes.encode_e2m1(x, "first").tolist() == [7, 7, 0, 0, 8]


def test_e4m3_is_torchs():
    theirs = _BYTES.view(torch.float8_e4m3fn).double()
    torch.testing.assert_close(codes.decode_e4m3(_BYTES), theirs, rtol=0, atol=0, equal_nan=True)
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    x = x[~x.isnan()]
    assert torch.equal(codes.encode_e4m3(x), x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


def test_e8m0_is_torchs():
    theirs = _BYTES.view(torch.float8_e8m0fnu).double()
    torch.testing.assert_close(codes.decode_e8m0(_BYTES), theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("rule", "due"),
    [
        ("floor", [125, 125, 126, 127, 127]),
        ("rceil", [125, 126, 126, 127, 128]),
        ("even", [125, 126, 126, 127, 128]),
        ("trunc", [124, 125, 125, 127, 127]),
        ("ceil", [125, 126, 127, 128, 128]),
    ],
)
def test_mx_rules(rule, due):
    """amax 1, 1.75, 2.7, 6, 7, as the libraries that use each rule were seen to do it."""
    assert mx.scale_bytes(torch.tensor([1, 1.75, 2.7, 6, 7]), "mxfp4", rule).tolist() == due


def test_nothing_is_cut_by_rceil_and_trunc_cuts_everything():
    amax = torch.rand(1000, dtype=torch.float64) * 100 + 1e-3
    for format, (largest, _) in mx.ELEMENTS.items():
        ratio = {
            r: amax / torch.exp2(mx.scale_bytes(amax, format, r).double() - 127) / largest for r in ("rceil", "trunc")
        }
        assert ratio["rceil"].max() <= 1 and ratio["trunc"].min() >= 1


def test_nvfp4_underflows_at_half_of_the_smallest_scale():
    """2^-10 is a tie, and even; the seeds' own threshold, 2^-9, would flush what is due to be 2^-9."""
    s = torch.tensor([2.0**-10, 2.0**-10 * 1.001, 2.0**-9 * 0.999, 2.0**-9], dtype=torch.float64)
    assert nvfp4.scale_bytes(s).tolist() == [0, 1, 1, 1]
    assert nvfp4.scale_bytes(s, floor=8).tolist() == [8, 8, 8, 8]
    assert nvfp4.scale_bytes(s, underflow=0x20).tolist() == [0x20, 1, 1, 1]
    assert nvfp4.scale_bytes(torch.zeros(1), zero=0x38).tolist() == [0x38]


def test_nvfp4_needs_the_rounded_scale():
    x = torch.full((1, 16), 1.0)
    q = nvfp4.quantize(x, 1.0)
    assert float(codes.decode_e4m3(q.scales)) == 0.171875  # 1 / 6 = 0.16667
    assert nvfp4.dequantize(q, 1.0).unique().tolist() == [0.171875 * 6]


@pytest.mark.parametrize("row, column, due", [(1, 0, 16), (32, 0, 4), (0, 1, 1), (128, 0, 1024), (0, 4, 512)])
def test_scale_tiles(row, column, due):
    assert int(scale_layout.offset(torch.tensor(row), torch.tensor(column), 8)) == due


def test_scale_tiles_are_those_of_prepared_weights():
    assert torch.equal(prepared.offsets(384, 24), scale_layout.offset(torch.arange(384)[:, None], torch.arange(24), 24))


def test_groups_and_experts_are_flat_only_in_multiples_of_128():
    a, b = (torch.randint(1, 255, (n, 8), dtype=torch.uint8) for n in (128, 256))
    assert torch.equal(scale_layout.grouped([a, b])[0], scale_layout.swizzled(torch.cat([a, b])))
    assert len(scale_layout.grouped([a[:5], b[:130]])[0]) > len(scale_layout.swizzled(torch.cat([a[:5], b[:130]])))


def test_interleaving_by_half_is_undone_by_half():
    """Why no test through both can see it."""
    order = interleave.order(24, 4)
    assert torch.arange(48)[order][order.argsort()].tolist() == list(range(48))
    assert interleave.order(16, 8)[:20].tolist() == [*range(8), *range(16, 24), *range(8, 12)]


@pytest.mark.parametrize("name", ["encode_e2m1", "encode_e4m3"])
def test_the_reference_stack_has_other_formulas_and_the_same_codes(name):
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    x = x[~x.isnan()]
    assert torch.equal(getattr(reference_quant, name)(x), getattr(codes, name)(x))


def test_nvfp4_experts():
    """Values that both quantisations keep: h = silu(32) = 32 with a 48 beside it, as NVFP4's largest element."""
    hidden, channels = 32, 16
    w1, w3, w2 = (
        torch.zeros(channels, hidden).double(),
        torch.zeros(channels, hidden).double(),
        torch.eye(hidden).double(),
    )
    w1[:, 0] = 32.0 / 6
    w3[:, 0] = torch.tensor([1.5 if n % 2 else 1.0 for n in range(channels)]) / 6
    expert = moe_nvfp4.Expert(w1, w3, w2[:, :channels] * 2)
    x = torch.zeros(2, hidden).double()
    x[:, 0] = 6
    y = moe_nvfp4.moe(x, torch.tensor([[0, -1], [0, 0]]), torch.tensor([[1.0, 7.0], [0.5, 0.25]]), [expert], 1.0, 1.0)
    even, odd = 64.0, 96.0
    assert y[0, :4].tolist() == [even, odd, even, odd]
    assert y[1, :2].tolist() == [even * 0.75, odd * 0.75]
    assert not y[:, channels:].any()


def test_nvfp4_experts_are_quantised_twice():
    x = torch.randn(8, 64, dtype=torch.float64)
    seen = nvfp4.rounded(x, nvfp4.own_global_scale(x))
    assert 0.02 < float((seen - x).norm() / x.norm()) < 0.2
    gate = torch.randn(8, 64, dtype=torch.float64)
    expert = moe_nvfp4.Expert(torch.eye(64).double(), torch.eye(64).double(), torch.eye(64).double())
    h = moe_nvfp4.activation(gate, expert, 1 / 128, 1.0)
    plain = moe_staged.staged_activation(gate, gate, "bf16", 1.0)
    assert not torch.equal(h, plain) and torch.allclose(h, plain, atol=0.2)
