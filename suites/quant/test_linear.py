"""A linear layer that quantises its own input, black-box: inputs whose quantisation is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.stacks.quant_protocol import BLOCK, QuantizedWeight
from conformance.suite import claim
from references import grouped_gemm, nvfp4
from suites.quant.bench import TIES, on_the_gpu, tie_blocks
from suites.quant.exact import Exact
from suites.quant.judge import scale_rules
from suites.quant.operands import Matrix, of_values, random_elements, random_scales

#: A one-hot input that its own block's scale holds exactly: the largest E2M1 element, or a power of two.
_LOUD = {"nvfp4": 6.0, "mxfp4": 4.0, "mxfp8": 256.0, None: 1.0}


class Bench:
    def __init__(self, stack: Stack, context: Context):
        self.layer = context.linear
        self.can = self.layer.capabilities()
        self.seed = context.target.seed
        on_the_gpu(stack, context, self.can.device, self.can.runs)
        self.exact = Exact(self.can.runs, self.seed)
        self.loud = _LOUD[self.can.quantises]
        #: An input's global scale of 1, where one can be given.
        self.one = 1.0 if self.can.static and self.can.quantises == "nvfp4" else None

    def generator(self, salt: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + salt)

    def shape(self, n: int, k: int) -> tuple[int, int]:
        steps = self.can.steps[0], max(32, self.can.steps[1])
        fit_n, fit_k = (-(-size // step) * step for size, step in zip((n, k), steps, strict=True))
        return fit_n, fit_k

    def weights(self, n: int, k: int, salt: int = 0) -> Matrix:
        generator = self.generator(salt)
        some = random_scales((1, n, k // BLOCK[self.can.weights]), self.can.weights, generator)
        return of_values(random_elements((1, n, k), generator), self.can.weights, some)

    def run(
        self,
        w: Matrix,
        x: torch.Tensor,
        scales: tuple[float, ...] = (1.0,),
        split: int | None = None,
        bias: torch.Tensor | None = None,
        input_scale: float | None = None,
    ) -> torch.Tensor:
        """y on the CPU."""
        with self.opened(w, scales, split, bias, input_scale) as call:
            return call(x)

    @contextmanager
    def opened(
        self,
        w: Matrix,
        scales: tuple[float, ...] = (1.0,),
        split: int | None = None,
        bias: torch.Tensor | None = None,
        input_scale: float | None = None,
    ) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
        """What calls the layer: y on the CPU. All that is given to prepare it is overwritten then; inputs must stay."""
        assert w.scales is not None
        device = self.can.device
        given = QuantizedWeight(
            w.stored.clone().to(device), w.scales.clone().to(device), torch.tensor([scales]).squeeze(0).to(device)
        )
        if split is not None:
            given = given._replace(global_scales=given.global_scales[None])
        added = None if bias is None else bias.clone().to(device)
        handle = self.layer.prepare(given, split, added, input_scale)
        for tensor in (*given, *([] if added is None else [added])):
            tensor.fill_(0xFF if tensor.dtype == torch.uint8 else torch.nan)

        def call(x: torch.Tensor) -> torch.Tensor:
            there = x.to(device)
            before = there.clone().cpu()
            y: torch.Tensor = self.layer.run(handle, there).cpu()
            dtype = str(y.dtype).removeprefix("torch.")
            self.exact.true("type of y", dtype == self.can.output, self.can.output, dtype)
            self.exact.same("x afterwards", there, before)
            return y

        try:
            yield call
        finally:
            self.layer.close(handle)

    def evidence(self, right: str) -> Evidence:
        return self.exact.evidence(right, {"weights": self.can.weights, "quantises": self.can.quantises})

    def within(
        self, what: str, got: torch.Tensor, x: torch.Tensor, w: torch.Tensor, more: torch.Tensor | float
    ) -> None:
        """x (M, K) as quantised, w (N, K), FP64; `more` is added before the rounding."""
        due = grouped_gemm.matmul(x, w, self.can.output, self.can.accumulation)
        exact = due.exact + more
        radius = due.radius + grouped_gemm.ROUNDOFF[self.can.output] * torch.as_tensor(more).abs()
        self.exact.inside(what, got.double(), exact - radius, exact + radius)


def _one_hot(bench: Bench, k: int) -> torch.Tensor:
    return torch.eye(k).mul_(bench.loud).bfloat16()


@claim("quant.linear.weights")
def weights(stack: Stack, context: Context) -> Evidence:
    """One-hot inputs read every element and scale of the weights back, bit for bit."""
    bench = Bench(stack, context)
    for n, k in (bench.shape(136, 80), bench.shape(40, 192)):
        w = bench.weights(n, k)
        got = bench.run(w, _one_hot(bench, k), (2.0**-3,), input_scale=bench.one)
        bench.exact.same(f"N {n}, K {k}", got.double(), w.values[0].T * bench.loud * 2.0**-3)
    return bench.evidence("weights read back through layout and GEMM")


@claim("quant.linear.dual")
def dual(stack: Stack, context: Context) -> Evidence:
    """Two linears fused into one, each part of the rows with a global scale of its own, parts of unequal size: as two
    layers one after the other. Their ratio is a power of two, then none: a fold into block scales rounds again."""
    bench = Bench(stack, context)
    n, k = bench.shape(96, 64)
    split = n // 4 * 3 // 8 * 8
    w = bench.weights(n, k)
    x = _one_hot(bench, k)
    for first, second in ((2.0**-3, 2.0**2), (0.37, 0.0021)):
        scale = torch.tensor([first] * split + [second] * (n - split)).double()
        got = bench.run(w, x, (first, second), split, input_scale=bench.one)
        bench.within(f"global scales {first:g} and {second:g}", got, x.double(), w.values[0] * scale[:, None], 0.0)
    return bench.evidence("each part of the rows by its own global scale")


@claim("quant.linear.bias")
def bias(stack: Stack, context: Context) -> Evidence:
    """Added to the scaled result, once, in its own place; with two global scales, too."""
    bench = Bench(stack, context)
    n, k = bench.shape(40, 64)
    w = of_values(torch.ones(1, n, k), bench.can.weights)
    added = (torch.arange(n) % 13 - 6).bfloat16()
    x = _one_hot(bench, k)[: k // 2]
    got = bench.run(w, x, (2.0**-2,), bias=added, input_scale=bench.one)
    want = (bench.loud * 2.0**-2 + added.double()).repeat(len(x), 1)
    bench.exact.same("y", got.double(), want)
    first = n // 4 * 3 // 8 * 8
    got = bench.run(w, x, (2.0**-2, 2.0), first, added, bench.one)
    want[:, first:] += bench.loud * (2.0 - 2.0**-2)
    bench.exact.same("y of two parts", got.double(), want)
    return bench.evidence("bias is added after the scales")


@claim("quant.linear.shapes")
def shapes(stack: Stack, context: Context) -> Evidence:
    """Inputs with none, one and several leading axes, and with no rows; an input of another width is an error."""
    bench = Bench(stack, context)
    n, k = bench.shape(24, 64)
    w = bench.weights(n, k)
    rows = _one_hot(bench, k)[:6]
    want = w.values[0].T[:6] * bench.loud
    for shape in ((6,), (2, 3), (3, 1, 2)):
        got = bench.run(w, rows.view(*shape, k), input_scale=bench.one)
        bench.exact.same(f"x {(*shape, k)}", got.double(), want.view(*shape, n))
    bench.exact.same(f"x ({k},)", bench.run(w, rows[4], input_scale=bench.one).double(), want[4])
    empty = bench.run(w, rows[:0], input_scale=bench.one)
    bench.exact.true("x without rows", tuple(empty.shape) == (0, n), f"(0, {n})", str(tuple(empty.shape)))
    wide = torch.full((12, k + 32), torch.nan, dtype=rows.dtype)
    wide[::2, 16 : 16 + k] = rows
    got = bench.run(w, wide.to(bench.can.device)[::2, 16 : 16 + k], input_scale=bench.one)
    bench.exact.same("every other row of a larger matrix", got.double(), want)
    narrow = rows[:, : k - 32].contiguous()
    bench.exact.raises(f"x with {k - 32} features", lambda: bench.run(w, narrow), f"{k} were due")
    return bench.evidence("any leading axes, and no other width")


@claim("quant.linear.refusals")
def refusals(stack: Stack, context: Context) -> Evidence:
    """Weights that are none: a placeholder of one byte, elements that nobody quantised, scales of other blocks. What is
    prepared from them answers with numbers."""
    bench = Bench(stack, context)
    n, k = bench.shape(40, 64)
    w = bench.weights(n, k)
    assert w.scales is not None
    scales, one = w.scales, torch.ones(1)
    for name, given in {
        "weights of one byte": QuantizedWeight(torch.zeros(1, 1, 1, dtype=torch.uint8), scales, one),
        "weights in BF16": QuantizedWeight(torch.zeros(1, n, k, dtype=torch.bfloat16), scales, one),
        "half of the scales": QuantizedWeight(w.stored, scales[..., ::2].contiguous(), one),
        "scales of other rows": QuantizedWeight(w.stored, scales[:, :-8].contiguous(), one),
        "two global scales, and no split": QuantizedWeight(w.stored, scales, torch.ones(1, 2)),
    }.items():
        there = QuantizedWeight(*(t.to(bench.can.device) for t in given))
        bench.exact.raises(name, lambda t=there: bench.layer.prepare(t), "what is no weight is prepared")  # type: ignore[misc]
    return bench.evidence("what is no weight is refused")


@claim("quant.linear.static")
def static(stack: Stack, context: Context) -> Evidence:
    """A given input scale is used as given: an input 2^10 times too large saturates as the quantiser does, and is no
    NaN. An input scale that is none (0, negative, Inf, NaN) is an error."""
    bench = Bench(stack, context)
    n, k = bench.shape(40, 64)
    if not bench.can.static or bench.can.quantises != "nvfp4":
        bench.exact.true("no input scale is taken", True, "", "")
        bench.exact.notes.append("its input's scale follows from each input: nothing static to hold it to")
        return bench.evidence("no static input scale is taken")
    w = bench.weights(n, k)
    powers = torch.arange(-6, 9).repeat(8)[: 8 * (k // 16)]
    powers = torch.cat([powers, torch.full((8 * (k // 16) - len(powers),), 4)])
    x = tie_blocks(powers, bench.generator()).view(8, k).bfloat16()
    rules = scale_rules(bench.can.rules)
    for factor in (1.0, 2.0**10, 2.0**30):
        for scale in (1.0, 2.0**-4):
            given = (x.float() * factor * scale).bfloat16()
            seen = nvfp4.rounded_by(given, scale, rules)
            got = bench.run(w, given, input_scale=scale)
            bench.within(f"input times {factor:g}, input scale {scale:g}", got, seen, w.values[0], 0.0)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        bench.exact.raises(f"input scale {wrong}", lambda s=wrong: bench.run(w, x, input_scale=s), "no scale")  # type: ignore[misc]
    return bench.evidence("the input's scale is the one given; what is none is refused")


@claim("quant.linear.dynamic")
def dynamic(stack: Stack, context: Context) -> Evidence:
    """No input scale given: each input has its own, amax / 2688, whatever the layer saw before. Ties, so that each
    input's bytes are exact."""
    bench = Bench(stack, context)
    if not bench.can.dynamic or bench.can.quantises != "nvfp4":
        bench.exact.true("none is found", True, "", "")
        bench.exact.notes.append(
            "an input's own scale is not looked for here: callers bring one, or the format has none"
        )
        return bench.evidence("no input scale of the layer's own")
    n, k = bench.shape(40, 64)
    w = bench.weights(n, k)
    x = tie_blocks(torch.randint(-3, 4, (8 * k // 16,), generator=bench.generator()), bench.generator()).view(8, k)
    x[0, :16] = TIES * 448  # so that the global scale is 1
    with bench.opened(w, (0.37,)) as call:
        for power in (0, 10, -10, 0):
            given = (x * 2.0**power).bfloat16()
            seen = nvfp4.rounded_by(given, 2.0**power, scale_rules(bench.can.rules))
            bench.within(f"input times 2^{power}", call(given), seen, w.values[0] * 0.37, 0.0)
    return bench.evidence("each input by a scale of its own")


@claim("quant.linear.bound")
def bound(stack: Stack, context: Context) -> Evidence:
    """Dense inputs whose quantisation is exact, ties and all: every element within the bound of the sum and one
    rounding."""
    bench = Bench(stack, context)
    n, k = bench.shape(136, 256)
    w = bench.weights(n, k)
    powers = torch.randint(-3, 4, (24 * k // 16,), generator=bench.generator())
    x = tie_blocks(powers, bench.generator()).view(24, k).bfloat16()
    if bench.can.quantises == "nvfp4":
        x[0, :16] = (TIES * 448).bfloat16()  # so that its own global scale is 1, too
        scale = nvfp4.own_global_scale(x)
        seen = nvfp4.rounded_by(x, scale, scale_rules(bench.can.rules))
    else:
        seen = torch.randint(-1, 2, (24, k), generator=bench.generator()).double()
        x = seen.bfloat16()
    got = bench.run(w, x, (0.37,), input_scale=bench.one)
    bench.within("dense input", got, seen, w.values[0] * 0.37, 0.0)
    return bench.evidence("every element within the bound")
