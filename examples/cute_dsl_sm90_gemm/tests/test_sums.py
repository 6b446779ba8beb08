"""How exact FP32 sums in the kernel are: terms that cancel, so that what is left is the error."""

import pytest
import torch
from cute_dsl_sm90_gemm.kernel import GroupedGemm, compiled
from problems import accumulation, random_weights, weight_values


@pytest.mark.parametrize("depth", [128, 1024, 7168])
@pytest.mark.parametrize("signs", ["positive", "mixed"])
def test_errors_of_sums_stay_within_what_truncation_explains(depth, signs):
    """The second half of K repeats the first with x negated: the exact sum is 0, the sum of magnitudes S is not."""
    w, half = random_weights("nvfp4", 1, 256, depth), depth // 2
    w.codes[..., half // 2 :] = w.codes[..., : half // 2]
    w.scales[..., half // 16 :] = w.scales[..., : half // 16]
    x = torch.randn(64, depth, generator=torch.Generator().manual_seed(0)).bfloat16()
    if signs == "positive":
        w.codes.bitwise_and_(0x77)
        x = x.abs()
    x[:, half:] = -x[:, :half]
    w.global_scales.fill_(1.0)
    values = weight_values("nvfp4", w)[0]
    size = x.double().abs() @ values.abs().T
    assert bool(((x.double() @ values.T).abs() <= 2.0**-40 * size).all())
    out = torch.full((64, 256), torch.nan, dtype=torch.bfloat16, device="cuda")
    rows = torch.tensor([0, 64], dtype=torch.int32, device="cuda")
    compiled(GroupedGemm("nvfp4"))(x.cuda(), *(t.cuda() for t in w), rows[:1], rows[1:], out)
    worst = float((out.double().cpu().abs() / size).max())
    print(f"K {depth}, {signs}: largest error / S = {worst:.3g}, {worst / accumulation(depth):.3g} of the bound")
    assert 0 < worst <= accumulation(depth)  # 0 would mean that nothing was computed
