"""What an all-reduce made of the ranks' parts: a sum that their type has, alike on all ranks and each time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from conformance.result import Finding
from references import allreduce


def joined(
    what: str, parts: list[torch.Tensor], totals: list[torch.Tensor], unsteady: Sequence[int] = ()
) -> list[Finding]:
    """What is wrong with the all-reduce itself, whatever its parts (tokens, H) are. `totals`: as each rank has them;
    `unsteady`: ranks on which a second all-reduce of the same parts gave other bits."""
    findings = [
        Finding(f"rank {rank}, {what}", "the same bits each time", "other bits the second time", rank=rank)
        for rank in unsteady
    ]
    for rank, total in enumerate(totals):
        wrong = ~_allowed(total, parts)
        if not bool(wrong.any()):
            continue
        token, column = (int(n) for n in wrong.nonzero()[0])
        values = [f"{float(part[token, column]):g}" for part in parts]
        findings.append(
            Finding(
                where=f"rank {rank}, the all-reduce of {what}, token {token}, output {column}",
                expected=f"{' + '.join(values)}, rounded to BF16 at each addition",
                got=f"{float(total[token, column]):g}",
                meaning=_looks_like(total, parts) or f"{int(wrong.sum())} of {wrong.numel()} sums are none of BF16's",
                rank=rank,
            )
        )
    apart = [rank for rank, total in enumerate(totals) if not torch.equal(total, totals[0])]
    if apart and not findings:
        findings.append(Finding(f"rank {apart[0]}, {what}", "the bits of rank 0", "other bits", rank=apart[0]))
    return findings


def _allowed(total: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """Which elements are a sum that additions in the outputs' own type may give."""
    if len(parts) > allreduce.MOST or total.dtype != torch.bfloat16:
        off = (total.double() - allreduce.exact(parts)).abs()
        return off <= allreduce.room(parts)
    return torch.stack([total == one for one in allreduce.possible(parts)]).any(0)


def _looks_like(total: torch.Tensor, parts: list[torch.Tensor]) -> str:
    """A rank that is missing, counted twice, or alone in it: in words."""
    for rank, part in enumerate(parts):
        others = parts[:rank] + parts[rank + 1 :]
        if torch.equal(total, part):
            return f"this is rank {rank}'s own part"
        if others and bool(_allowed(total, others).all()):
            return f"this is the sum without rank {rank}"
        if bool(_allowed(total, [*others, part * 2]).all()):
            return f"this is the sum with rank {rank} counted twice"
    return ""
