"""The attention kernels under test and what every check does with them: a rank's heads, poison, canaries, findings."""

from __future__ import annotations

from typing import Any

import torch

from conformance import expected
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.attention_protocol import AttendCall, Part, Phase, Sparse
from suites.attention.scene import Scene

D = 512
_CANARY, _GAP = 0xA5, 512
_MOST = 12


class Bench:
    def __init__(self, context: Context, *parts: Part):
        self.context, self.kernel = context, context.attention
        self.can = self.kernel.capabilities()
        for part in parts:
            if part not in self.can.parts:
                raise NotSupported(f"the stack's attention offers no `{part}`; it has {', '.join(self.can.parts)}")
        axes = expected.axes(context.geometry, context.target.tp)
        #: Heads and groups of a rank, virtual ones included.
        self.heads, self.groups = axes["heads"].per_rank, axes["groups"].per_rank
        self.findings: list[Finding] = []
        self.compared = 0
        self._gaps: list[tuple[str, torch.Tensor]] = []

    @property
    def scale(self) -> float:
        return D**-0.5

    @property
    def padded(self) -> int:
        """Heads that the kernel takes for a rank's."""
        return self.kernel.padded(self.heads)

    def real(self, rank: int) -> int:
        """Heads of the checkpoint on a rank; the others are virtual."""
        return min(max(self.context.geometry.attention_heads - rank * self.heads, 0), self.heads)

    def rng(self, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.context.target.seed + number)

    def q(self, scene: Scene, rank: int) -> torch.Tensor:
        """(T, P, D) bfloat16: the model's heads are the same whatever the ranks; virtual and pad heads are zero."""
        q = torch.zeros(len(scene.positions), self.padded, D, dtype=torch.bfloat16, device=self.can.device)
        q[:, : self.real(rank)] = self.every_q(scene)[:, rank * self.heads :][:, : self.heads]
        return q

    def every_q(self, scene: Scene) -> torch.Tensor:
        """(T, the model's heads, D) bfloat16. Every fifth token's scores are 199 and -199: see `scene.COMMON`."""
        shape = len(scene.positions), self.context.geometry.attention_heads, D
        q = 2 * torch.randn(shape, generator=self.rng(1))
        q[2::5, :, -1] = 1128
        return q.bfloat16().to(self.can.device)

    def sinks(self, rank: int) -> torch.Tensor:
        """(P,) float32, no two alike; -inf behind the rank's real heads."""
        sinks = torch.full((self.padded,), -torch.inf, device=self.can.device)
        sinks[: self.real(rank)] = self.every_sink()[rank * self.heads :][: self.heads]
        return sinks

    def every_sink(self) -> torch.Tensor:
        """(the model's heads,) float32; -inf where the kernel takes none."""
        heads = self.context.geometry.attention_heads
        sinks = 1 + 2 * torch.randn(heads, generator=self.rng(2))
        return (sinks if self.can.sinks else torch.full((heads,), -torch.inf)).to(self.can.device)

    def call(self, scene: Scene, rank: int, phase: Phase) -> AttendCall:
        window, compressed = scene.sparse(self.can)
        return AttendCall(phase, self.q(scene, rank), self.sinks(rank), self.scale, window, compressed)

    @staticmethod
    def of_tokens(call: AttendCall, tokens: slice) -> AttendCall:
        """The same caches, and those queries alone."""

        def cut(part: Sparse) -> Sparse:
            return part._replace(slots=part.slots[tokens].contiguous(), lengths=part.lengths[tokens].contiguous())

        compressed = cut(call.compressed) if call.compressed is not None else None
        return call._replace(q=call.q[tokens].contiguous(), window=cut(call.window), compressed=compressed)

    def attend(self, call: AttendCall) -> torch.Tensor:
        """out (T, P, D) bfloat16, poisoned with NaN before."""
        out = self.guarded(call.q.shape, torch.bfloat16, "out")
        self.kernel.attend(call, out)
        return out

    def guarded(self, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> torch.Tensor:
        """Poisoned memory of that shape between canaries, which `spoilt` looks at."""
        size = torch.Size(shape).numel() * dtype.itemsize
        room = -(-size // _GAP) * _GAP
        flat = torch.full((room + 2 * _GAP,), _CANARY, dtype=torch.uint8, device=self.can.device)
        self._gaps += [(name, flat[:_GAP]), (name, flat[_GAP + size :])]
        return flat[_GAP : _GAP + size].view(dtype).view(shape).fill_(torch.nan)

    def spoilt(self) -> dict[str, int]:
        """Bytes written next to each kind of output so far."""
        found: dict[str, int] = {}
        for name, gap in self._gaps:
            found[name] = found.get(name, 0) + int((gap != _CANARY).sum())
        return found

    def find(self, where: str, expected: str, got: str, meaning: str, rank: int | None = None) -> None:
        self.findings.append(Finding(where, expected, got, meaning, rank=rank))

    def compare(
        self, where: str, got: torch.Tensor, want: torch.Tensor, meaning: str, rank: int | None = None, by: str = "head"
    ) -> None:
        """Bit for bit, (T, n, ...): the first place that differs is named by token and `by`."""
        bad = bits(got) != bits(want)
        self.compared += bad.numel()
        if bad.any():
            token, head = first(bad)[:2]
            value = got[token, head].flatten()[0] if got.dim() > 2 else got[token, head]
            name = f"rank {rank}, " if rank is not None else ""
            self.find(
                f"{name}{where}, token {token}, {by} {head}",
                "the same bits",
                f"{int(bad.sum())} of {bad.numel()} values differ (one is {float(value):g})",
                meaning,
                rank,
            )

    def within(
        self, where: str, got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor, rank: int | None = None
    ) -> float:
        """Largest err/bound; a NaN counts as infinitely off. Tensors (T, n, ...) or (T, n)."""
        tiny = torch.finfo(torch.float64).tiny
        ratio = ((got.double() - want).abs() / bound.clamp(min=tiny)).nan_to_num(nan=torch.inf)
        self.compared += ratio.numel()
        worst = float(ratio.max()) if ratio.numel() else 0.0
        if worst > 1:
            at = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
            name = f"rank {rank}, " if rank is not None else ""
            self.find(
                f"{name}{where}, at {list(at)}",
                f"{float(want[at]):g}, give or take {float(bound[at]):.3g}",
                f"{float(got[at]):g}",
                f"{worst:.3g} times the bound; {int((ratio > 1).sum())} of {ratio.numel()} are over it",
                rank,
            )
        return worst

    def evidence(
        self,
        right: str,
        due: str,
        measured: Any = None,
        bound: float | None = None,
        notes: list[str] | None = None,
        ranks: str = "in turn, in one process",
    ) -> Evidence:
        head = self.findings[0] if self.findings else None
        can = self.can
        return Evidence(
            ok=head is None and self.compared > 0,
            summary=right if head is None else f"{head.where}: {head.got}, {head.expected} due; {head.meaning}",
            expected=f"{self.compared} values: {due}",
            measured=measured,
            bound=bound,
            findings=self.findings[:_MOST],
            notes=[*(notes or []), *can.notes],
            method=f"{self.heads} heads a rank in {self.groups} groups, {self.padded} in the kernel, {can.kv} cache, "
            f"on {can.device_words}; ranks {ranks}",
            seed=self.context.target.seed,
        )


def bits(x: torch.Tensor) -> torch.Tensor:
    """For comparisons in which NaN equals itself and the sign of a zero counts."""
    if x.dtype == torch.uint8:
        return x
    return x.contiguous().view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


def first(bad: torch.Tensor) -> list[int]:
    """Where the first True is."""
    return [int(i) for i in bad.nonzero()[0]]


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative Frobenius norm of the error; 0 where there is nothing."""
    return float((got.double() - want).norm() / want.norm()) if want.numel() and float(want.norm()) else 0.0
