"""The kernel itself on an SM90 GPU: what no adapter hands it (gaps, strides, far experts), and faults compiled into it.

The answers are the harness's (`references/`): codes are looked up in tables there, and computed from their bits here.
"""

from functools import cache

import planted
import pytest
import torch
from cute_dsl_sm90_gemm.kernel import GroupedGemm, compiled
from problems import Problem, random_problem, weight_values

FORMATS = ("nvfp4", "mxfp4")
#: Empty groups first, between and last; one row; a tile, one more and one less; two tiles.
SIZES = [0, 1, 64, 0, 0, 65, 63, 128, 0]


@cache
def launcher(format: str, kind: type[GroupedGemm] = GroupedGemm):
    return compiled(kind(format))


def result(launch, problem: Problem) -> torch.Tensor:
    """On a CPU, FP64. Rows of nobody come poisoned with NaN."""
    out = torch.full((len(problem.x), problem.weights.codes.shape[1]), torch.nan, dtype=torch.bfloat16, device="cuda")
    launch(problem.x.cuda(), *(t.cuda() for t in (*problem.weights, problem.offsets, problem.sizes)), out)
    return out.double().cpu()


def is_right(out: torch.Tensor, format: str, problem: Problem) -> bool:
    exact, radius = problem.exact(format)
    nobodys = exact.isnan()
    return bool((out.isnan() == nobodys).all() and ((out - exact).abs() <= radius)[~nobodys].all())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("columns", "depth"), [(8, 32), (64, 64), (136, 96), (65, 480), (200, 7168)])
def test_it_is_right_and_writes_the_rows_of_its_groups_alone(format, columns, depth):
    problem = random_problem(format, SIZES, columns, depth, gap=3)
    assert is_right(result(launcher(format), problem), format, problem)


@pytest.mark.parametrize("fault", planted.FAULTS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_fault_compiled_into_it_is_seen(format, fault):
    problem = random_problem(format, SIZES, 136, 96)
    assert not is_right(result(launcher(format, planted.FAULTS[fault]), problem), format, problem)


@pytest.mark.parametrize("format", FORMATS)
def test_one_compilation_serves_small_and_large_in_any_order(format):
    launch = launcher(format)
    for columns, depth in ((8, 32), (264, 512), (8, 32)):
        problem = random_problem(format, [5, 0, 70], columns, depth)
        assert is_right(result(launch, problem), format, problem)


def test_rows_experts_and_columns_may_lie_apart():
    problem = random_problem("nvfp4", SIZES, 40, 64)
    right = result(launcher("nvfp4"), problem)

    def apart(t):
        """Every axis but the last with a stride of its own, in memory full of NaN (bytes: 0x7F)."""
        wide = torch.full([n + 3 for n in t.shape], 0x7F if t.dtype == torch.uint8 else torch.nan, dtype=t.dtype)
        wide[tuple(slice(1, n + 1) for n in t.shape)] = t
        return wide.cuda()[tuple(slice(1, n + 1) for n in t.shape)]

    out = apart(torch.full((len(problem.x), 40), torch.nan, dtype=torch.bfloat16))
    tensors = (apart(problem.x), apart(problem.weights.codes), apart(problem.weights.scales))
    vectors = (t.cuda() for t in (problem.weights.global_scales, problem.offsets, problem.sizes))
    launcher("nvfp4")(*tensors, *vectors, out)
    assert torch.equal(out.double().cpu().nan_to_num(-1.0), right.nan_to_num(-1.0))


def test_experts_beyond_two_gigabytes():
    experts, columns, depth = 3, 4096, 1 << 19  # 1 GiB of codes each
    codes = torch.zeros(experts, columns, depth // 2, dtype=torch.uint8, device="cuda")
    scales = torch.full((experts, columns, depth // 16), 0x38, dtype=torch.uint8, device="cuda")  # 1.0
    codes[2, :, -1] = 0x20  # the last element: 1.0
    x = torch.zeros(2, depth, dtype=torch.bfloat16)
    x[1, -1] = 3.0
    out = torch.full((2, columns), torch.nan, dtype=torch.bfloat16, device="cuda")
    ones, rows = torch.ones(experts, device="cuda"), torch.tensor([0, 0, 0], dtype=torch.int32, device="cuda")
    launcher("nvfp4")(x.cuda(), codes, scales, ones, rows, rows.new_tensor([0, 0, 2]), out)
    assert torch.equal(out.cpu(), torch.tensor([[0.0], [3.0]]).expand(2, columns).bfloat16())


@pytest.mark.parametrize("format", FORMATS)
def test_a_nan_scale_stays_in_its_group_and_column(format):
    problem = random_problem(format, SIZES, 70, 96)
    problem.weights.scales[5, 7, 1] = 0x7F if format == "nvfp4" else 0xFF
    out, first = result(launcher(format), problem), int(problem.offsets[5])
    hit = torch.zeros_like(out, dtype=torch.bool)
    hit[first : first + 65, 7] = True
    assert torch.equal(out.isnan(), hit)


@pytest.mark.parametrize(("format", "last"), [("nvfp4", 0x7E), ("mxfp4", 0xFC)])
def test_every_scale_byte_by_one_hot_rows(format, last):
    """Rows of x are 1 at one element: out is the weight itself, which BF16 holds, 2^-128 too. Beyond `last` are NaN and
    what is too large for BF16."""
    problem = random_problem(format, [128], last + 1, 128)
    problem.weights.scales[0] = torch.arange(last + 1)[:, None]
    problem.weights.global_scales.fill_(1.0)
    out = result(launcher(format), problem._replace(x=torch.eye(128).bfloat16()))
    wrong = (out != weight_values(format, problem.weights)[0].T).any(0)
    assert not wrong.any(), f"scale bytes {wrong.nonzero().flatten().tolist()}"
