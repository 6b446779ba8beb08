"""Checkpoints that probes are loaded from: each tensor a rule that makes any block of any expert's bytes.

Coordinates are the checkpoint's own: W1 and W3 (intermediate, hidden), W2 (hidden, intermediate), two elements a byte;
scales one byte per 32. A `Checkpoint` is a few numbers, so that it travels instead of gigabytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from conformance.provenance.boxes import Span

if TYPE_CHECKING:
    import torch

#: E2M1 codes and E8M0 bytes that probes use by name.
ONE = 0x2
ONE_SCALE = 127
_SEEDED_TENSORS = ("w1", "w1_scale", "w3", "w3_scale", "w2", "w2_scale")


class Rule(Protocol):
    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        """Bytes of that block: uint8 (rows, cols)."""


class Constant(msgspec.Struct, frozen=True):
    """The same byte everywhere: 0x22 is a pair of ones."""

    byte: int

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        import torch

        return torch.full((len(rows), len(cols)), self.byte, dtype=torch.uint8, device=device)


class Seeded(msgspec.Struct, frozen=True):
    """Pseudo-random bytes `lowest` + 0 .. `count` - 1, different for every tensor, expert, row and byte."""

    seed: int
    tensor: int
    lowest: int = 0
    count: int = 256

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        return self.blocks(Span(expert, expert + 1), rows, cols, device)[0]

    def blocks(self, experts: Span, rows: Span, cols: Span, device: str) -> torch.Tensor:
        from references import seeded

        e, r, c = ((span.start, span.stop) for span in (experts, rows, cols))
        made = seeded.blocks(self.seed, self.tensor, e, r, c, device)
        return made if self.count == 256 else made % self.count + self.lowest


class Diagonal(msgspec.Struct, frozen=True):
    """Row i holds `code` at element i, zero elsewhere: a rectangular identity."""

    code: int = ONE

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        import torch

        row = torch.arange(rows.start, rows.stop, device=device)[:, None]
        byte = torch.arange(cols.start, cols.stop, device=device)
        return ((row // 2 == byte) * (self.code << (row % 2 * 4))).to(torch.uint8)


class Column(msgspec.Struct, frozen=True):
    """Every row holds `code` at one element, zero elsewhere."""

    code: int = ONE
    column: int = 0

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        import torch

        byte = torch.arange(cols.start, cols.stop, device=device)
        value = (byte == self.column // 2) * (self.code << (self.column % 2 * 4))
        return value.to(torch.uint8).expand(len(rows), -1)


class Stripes(msgspec.Struct, frozen=True):
    """Expert e holds `code` in every element of the rows r with r % period == e, zero elsewhere."""

    period: int
    code: int = ONE

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        import torch

        row = torch.arange(rows.start, rows.stop, device=device)[:, None]
        mine = (row % self.period == expert % self.period) * (self.code * 0x11)
        return mine.to(torch.uint8).expand(-1, len(cols))


class Residues(msgspec.Struct, frozen=True):
    """Row i holds `code` at every element k with k % period == i % period, zero elsewhere."""

    period: int
    code: int = ONE

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        import torch

        row = torch.arange(rows.start, rows.stop, device=device)[:, None] % self.period
        element = torch.arange(2 * cols.start, 2 * cols.stop, device=device) % self.period
        even, odd = ((row == element) * self.code).view(len(rows), -1, 2).unbind(-1)
        return (even + 16 * odd).to(torch.uint8)


def blocks(rule: Rule, experts: Span, rows: Span, cols: Span, device: str) -> torch.Tensor:
    """That block of several experts: uint8 (experts, rows, cols). On a GPU one call costs less than one an expert."""
    import torch

    if isinstance(rule, Seeded):
        return rule.blocks(experts, rows, cols, device)
    if isinstance(rule, Constant | Diagonal | Column | Residues):  # alike in every expert
        return rule.block(experts.start, rows, cols, device).expand(len(experts), -1, -1)
    return torch.stack([rule.block(expert, rows, cols, device) for expert in range(experts.start, experts.stop)])


class Checkpoint(msgspec.Struct, frozen=True):
    """The routed experts of one layer. `rule("w13_weight_scale", "w1")` makes W1's scales."""

    w1: Rule
    w1_scale: Rule
    w3: Rule
    w3_scale: Rule
    w2: Rule
    w2_scale: Rule

    def rule(self, parameter: str, shard: str) -> Rule:
        chosen: Rule = getattr(self, shard + ("_scale" if parameter.endswith("_scale") else ""))
        return chosen


def seeded(seed: int, lowest_scale: int = ONE_SCALE - 6, scales: int = 4) -> Checkpoint:
    """Random codes, random scales out of `scales` neighbours: two places are never alike, whatever is swapped."""

    def rule(name: str) -> Rule:
        tensor = _SEEDED_TENSORS.index(name)
        return Seeded(seed, tensor, lowest_scale, scales) if name.endswith("_scale") else Seeded(seed, tensor)

    return Checkpoint(*(rule(name) for name in _SEEDED_TENSORS))
