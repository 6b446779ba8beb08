"""Operands of a GEMM under test, and its call: whatever could be stale, dirty or shared is poisoned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.stacks.protocols import Stack
from conformance.stacks.quant_protocol import BLOCK, Activations, QuantizedWeight, SwigluCapabilities
from references import codes, grouped_gemm, mx, nvfp4
from references.grouped_gemm import Bounded
from suites.quant.bench import on_the_gpu

#: The byte of a scale of 1, and scale bytes that a product in BF16 still holds exactly.
ONE = {"nvfp4": 0x38, "mxfp4": 127, "mxfp8": 127}
SCALES = {"nvfp4": (0x08, 0x7E), "mxfp4": (107, 147), "mxfp8": (107, 147)}


class Matrix(NamedTuple):
    """(..., R, K): element codes one a byte, scale bytes (..., R, K / block); `format` may be `bf16`: plain
    values."""

    format: str
    codes: torch.Tensor
    scales: torch.Tensor | None

    @property
    def values(self) -> torch.Tensor:
        """FP64, without global scales."""
        if self.scales is None:
            return self.codes.double()
        if self.format == "nvfp4":
            flat = nvfp4.Nvfp4(self.codes.flatten(0, -2), self.scales.flatten(0, -2))
            return nvfp4.dequantize(flat, 1.0).view(self.codes.shape)
        flat_codes, flat_scales = self.codes.flatten(0, -2), self.scales.flatten(0, -2)
        return mx.dequantize(flat_codes, flat_scales, self.format).view(self.codes.shape)

    @property
    def stored(self) -> torch.Tensor:
        return codes.pack(self.codes) if self.format in ("nvfp4", "mxfp4") else self.codes


def of_values(values: torch.Tensor, format: str, scales: torch.Tensor | None = None) -> Matrix:
    """Values that elements of the format hold exactly, under scales of 1 or the scale bytes given."""
    if format == "bf16":
        return Matrix(format, values.bfloat16(), None)
    found = codes.encode_e4m3(values) if format == "mxfp8" else codes.encode_e2m1(values)
    if scales is None:
        shape = (*values.shape[:-1], values.shape[-1] // BLOCK[format])
        scales = torch.full(shape, ONE[format], dtype=torch.uint8)
    return Matrix(format, found, scales)


def random_scales(
    shape: tuple[int, ...], format: str, generator: torch.Generator, narrow: bool = False
) -> torch.Tensor:
    """`narrow`: from 1 / 8 to 1 alone."""
    low, high = ((0x20, 0x39) if format == "nvfp4" else (124, 128)) if narrow else SCALES[format]
    return torch.randint(low, high, shape, generator=generator).byte()


def random_elements(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """E2M1 values but for zero."""
    grid = torch.tensor([0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    return grid[torch.randint(0, len(grid), shape, generator=generator)]


class Groups(NamedTuple):
    """Where groups begin, how many rows each has, and how many rows there are in all, with some of nobody behind."""

    offsets: list[int]
    sizes: list[int]
    rows: int


class GemmBench:
    def __init__(self, stack: Stack, context: Context, kernel: Any = None):
        self.kernel: Any = kernel or context.gemm
        self.can: Any = self.kernel.capabilities()
        self.seed = context.target.seed
        self.kept = True
        self.width = 0  #: columns of the result of what was prepared last
        on_the_gpu(stack, context, self.can.device, self.can.runs)

    @property
    def block(self) -> int:
        """Elements of K that share a scale of the weights."""
        return BLOCK[self.can.weights]

    def generator(self, salt: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + salt)

    def shape(self, n: int, k: int) -> tuple[int, int]:
        """The nearest shape that is not smaller and that the kernel takes."""
        steps = self.can.steps[0], max(self.can.steps[1], 32)
        fit_n, fit_k = (-(-size // step) * step for size, step in zip((n, k), steps, strict=True))
        return fit_n, fit_k

    def groups(self, *sizes: int, spare: int = 3) -> Groups:
        if len(sizes) > self.can.experts:
            raise NotSupported(f"{len(sizes)} experts were asked for; the kernel takes {self.can.experts}")
        offsets, at = [], 0
        for size in sizes:
            at = -(-at // self.can.alignment) * self.can.alignment
            offsets.append(at)
            at += size
        rows = -(-(at + spare) // self.can.alignment) * self.can.alignment
        return Groups(offsets, list(sizes), rows)

    def spread(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        """Rows of all groups one after the other -> at their offsets, rows of nobody are 0."""
        whole = rows.new_zeros((groups.rows, rows.shape[1]))
        at = 0
        for offset, size in zip(groups.offsets, groups.sizes, strict=True):
            whole[offset : offset + size] = rows[at : at + size]
            at += size
        return whole

    def prepared(self, b: Matrix, global_scales: torch.Tensor | None = None) -> object:
        """Weights (E, N, K); what was given is overwritten, and so are the seeds of any later allocation."""
        experts, self.width = b.codes.shape[:2]
        assert b.scales is not None
        scales = torch.ones(experts) if global_scales is None else global_scales.clone()
        given = QuantizedWeight(*(t.to(self.can.device) for t in (b.stored.clone(), b.scales.clone(), scales)))
        handle = self.kernel.prepare(given)
        for tensor in given:
            tensor.fill_(0xFF if tensor.dtype == torch.uint8 else torch.nan)
        return handle

    def run(self, handle: object, a: Matrix, groups: Groups, global_scales: torch.Tensor | None = None) -> torch.Tensor:
        """a (rows, K) at the groups' offsets -> (rows, N), on the CPU."""
        width = self.width // 2 if isinstance(self.can, SwigluCapabilities) else self.width
        dtype = getattr(torch, self.can.output)
        out = torch.full((groups.rows, width), torch.nan, dtype=dtype, device=self.can.device)
        given = self.given(a, groups, global_scales)
        with self.untouched(given):
            self.call(handle, given, out)
        return out.cpu()

    @contextmanager
    def untouched(self, given: tuple[Any, ...]) -> Iterator[None]:
        """Operands must stay as they are: `kept` says whether they did."""
        tensors = [t for t in (*given[0], *given[1:]) if t is not None]
        before = [t.clone() for t in tensors]
        yield
        pairs = zip(tensors, before, strict=True)
        self.kept &= all(torch.equal(t.view(torch.uint8), old.view(torch.uint8)) for t, old in pairs)

    def given(self, a: Matrix, groups: Groups, global_scales: torch.Tensor | None = None) -> tuple[Any, ...]:
        """Activations, offsets and sizes on the device."""
        device = self.can.device
        one = torch.ones(len(groups.sizes)) if global_scales is None else global_scales
        quantised = a.scales is not None
        activations = Activations(
            a.stored.to(device),
            a.scales.to(device) if a.scales is not None else None,
            one.to(device) if quantised else None,
        )
        where = [torch.tensor(t, dtype=torch.int32, device=device) for t in (groups.offsets, groups.sizes)]
        return activations, *where

    def call(self, handle: object, operands: tuple[object, ...], out: torch.Tensor) -> None:
        self.kernel.run(handle, *operands, out)

    def once(
        self,
        a: Matrix,
        b: Matrix,
        groups: Groups,
        of_a: torch.Tensor | None = None,
        of_b: torch.Tensor | None = None,
    ) -> torch.Tensor:
        handle = self.prepared(b, of_b)
        try:
            return self.run(handle, a, groups, of_a)
        finally:
            self.kernel.close(handle)

    def due(
        self,
        a: Matrix,
        b: Matrix,
        groups: Groups,
        of_a: torch.Tensor | None = None,
        of_b: torch.Tensor | None = None,
    ) -> Bounded:
        left, right = a.values.clone(), b.values
        for expert, (offset, size) in enumerate(zip(groups.offsets, groups.sizes, strict=True)):
            left[offset : offset + size] *= 1.0 if of_a is None else of_a[expert].double()
        if of_b is not None:
            right = right * of_b.double()[:, None, None]
        return grouped_gemm.grouped(left, right, groups.offsets, groups.sizes, self.can.output, self.can.accumulation)

    def spread_matrix(self, a: Matrix, groups: Groups) -> Matrix:
        scales = None if a.scales is None else self.spread(a.scales, groups)
        return Matrix(a.format, self.spread(a.codes, groups), scales)
