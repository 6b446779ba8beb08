"""The quantiser under test, and what every check of it needs: what it offers, seeded inputs, memory that is
poisoned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.stacks.protocols import Stack
from conformance.stacks.quant_protocol import BLOCK, Format, Quantized
from references import codes, scale_layout


class Bench:
    """`needs`: what the check uses, by the names in QuantCapabilities.offers. Raises NotSupported without one of
    them, and where a GPU's profile is judged by what runs on a CPU."""

    def __init__(self, stack: Stack, context: Context, *needs: str):
        self.quantizer = context.quantizer
        on_the_gpu(stack, context, getattr(self.quantizer, "device", ""), f"the quantiser of {stack.name}")
        self.can = self.quantizer.capabilities()
        self.device = self.can.device
        self.seed = context.target.seed
        if lacking := [need for need in needs if need not in self.can.offers]:
            raise NotSupported(f"{stack.name} offers no {', '.join(lacking)} (it is: {self.can.runs})")
        on_the_gpu(stack, context, self.device, self.can.runs)

    def generator(self, salt: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + salt)

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [getattr(torch, name) for name in self.can.inputs]

    def to(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.device)

    def quantized(self, format: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        """On the CPU, its scales as rows and blocks."""
        with poisoned():
            q = self.quantizer.quantize(format, self.to(x), global_scale)
        return plain(q, x.shape[0], x.shape[1], BLOCK[format])


def plain(q: Quantized, rows: int, columns: int, block: int) -> Quantized:
    """On the CPU, scales as rows and blocks."""
    scales = q.scales.cpu()
    if q.layout == "128x4":
        scales = scale_layout.plain(scales.flatten(), rows, columns // block)
    return Quantized(q.codes.cpu(), scales, q.global_scale)


def on_the_gpu(stack: Stack, context: Context, device: str, runs: str) -> None:
    """Raises NotSupported where a profile of a GPU is judged and the code runs on a CPU: that is no evidence about
    it. (The reference stack judges no machine, and no more does a selftest.)"""
    judging = stack.name != "reference" and not context.target.planting
    if judging and context.target.capability and device == "cpu":
        raise NotSupported(f"{runs} runs on a CPU: no evidence about this profile's GPU; judge it with --profile cpu")


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that torch hands out uninitialised holds 0xFF bytes and NaNs."""
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # `torch.use_deterministic_algorithms` itself imports the compiler first: seconds.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield  # filling is torch's default then
    finally:
        torch._C._set_deterministic_algorithms(was[0], warn_only=was[1])


def every_bfloat16(nan: bool = False) -> torch.Tensor:
    """All bit patterns that are numbers or infinite, float32."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    return every if nan else every[~every.isnan()]


def around(values: torch.Tensor) -> torch.Tensor:
    """Each value with its float32 neighbours, and all of them negative too."""
    v = values.float()
    up, down = torch.nextafter(v, torch.full_like(v, torch.inf)), torch.nextafter(v, torch.zeros_like(v))
    some = torch.cat([v, up, down])
    return torch.cat([some, -some])


def middles(grid: torch.Tensor) -> torch.Tensor:
    return (grid[1:] + grid[:-1]) / 2


#: One block of 16 whose scale is its power of two: the largest element twice, every tie, every other element.
TIES = torch.tensor([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 0.5, 1, 1.5, 2, 3, 4, 0, 6])


def tie_blocks(powers: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """(n, 16) float32: TIES times 2^power, shuffled, with random signs; exact in BF16."""
    order = torch.rand(len(powers), 16, generator=generator).argsort(-1)
    sign = torch.randint(0, 2, (len(powers), 16), generator=generator) * 2 - 1
    return TIES[order] * sign * torch.exp2(powers.float())[:, None]


def mixed(rows: int, columns: int, block: int, spread: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Normal numbers, each block with a power of two of its own."""
    x = torch.randn(rows, columns, generator=generator).view(rows, -1, block)
    power = torch.randint(*spread, (rows, columns // block, 1), generator=generator)
    return (x * torch.exp2(power.float())).flatten(1)


def unpacked(format: Format, q: Quantized) -> torch.Tensor:
    """Codes one a byte, the even element in the low nibble."""
    return q.codes if format == "mxfp8" else codes.unpack(q.codes)
