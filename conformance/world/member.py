"""One rank, as the rank functions of suites see it: `function(member, **arguments)` runs once on each rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance.errors import NotSupported

if TYPE_CHECKING:
    import torch

    from conformance.context import Context
    from conformance.stacks.protocols import Stack


class Reduction(NamedTuple):
    """One all-reduce on one rank. `inner` is the real one: it sums over ranks, in place."""

    inner: Callable[[torch.Tensor], None]
    rank: int
    size: int
    tensor: torch.Tensor


#: A planted fault at the all-reduce.
ReduceFault = Callable[[Reduction], None]


class Member:
    """`context` is that of one rank alone. `together`: all ranks are running, each in a process of its own."""

    def __init__(self, rank: int, size: int, stack: Stack, context: Context, folder: Path | None = None):
        self.rank, self.size, self.stack, self.context = rank, size, stack, context
        self.fault: ReduceFault | None = None
        self._stage_file = folder / STAGE if folder else None
        self._stages = 0

    @property
    def together(self) -> bool:
        return self._stage_file is not None

    def stage(self, words: str) -> None:
        """Note how far this rank has come: where some rank hangs, it is the one that came least far."""
        if self._stage_file is not None:
            self._stages += 1
            new = self._stage_file.with_name(f"{STAGE}.new")
            new.write_text(f"{self._stages} {words}")
            new.replace(self._stage_file)

    def all_reduce(self, tensor: torch.Tensor, words: str) -> None:
        """Sum over all ranks, in place and in the tensor's own type. Raises NotSupported where ranks run in turn."""
        if not self.together:
            raise NotSupported("ranks that run in turn cannot all-reduce")
        if self.fault is None:
            self._sum(tensor, words)
        else:
            self.fault(Reduction(lambda t: self._sum(t, words), self.rank, self.size, tensor))
        self.stage(f"what follows {words}")

    def _sum(self, tensor: torch.Tensor, words: str) -> None:
        import torch.distributed

        self.stage(words)
        torch.distributed.all_reduce(tensor)


STAGE = "stage"


def stage_of(folder: Path) -> tuple[int, str]:
    """(count, words) that a rank noted last; (0, ...) if it has come nowhere."""
    try:
        count, _, words = (folder / STAGE).read_text().partition(" ")
        return int(count), words
    except (OSError, ValueError):
        return 0, "its start"


def here() -> Path:
    """The private folder of the rank process that this is."""
    return Path(os.getcwd())  # noqa: PTH109
