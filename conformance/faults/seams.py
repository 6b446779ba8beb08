"""The seams at which faults are planted: the plan's outcome, and each load of a routed expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from conformance import expected
from conformance.stacks.protocols import (
    SHARDS,
    ExpertsInfo,
    ExpertsLayer,
    ExpertsRequest,
    KernelChoice,
    KnownBackends,
    ParameterInfo,
    PlanBuilder,
    PlanOutcome,
    PlanRequest,
    ShardLoader,
)

if TYPE_CHECKING:
    import torch

    from conformance.stacks.shared import FilePart


class Load(NamedTuple):
    """One call of the loader, seen along the intermediate axis.

    `source` is the checkpoint tensor (rows, bytes), `whole` a copy of what the clean loader left in the destination,
    to be changed in place, and `part` its half for this shard (W2: all of it). `prefill` is what it held before.
    """

    request: ExpertsRequest
    parameter: str
    shard: str
    expert: int
    source: torch.Tensor
    whole: torch.Tensor
    part: torch.Tensor
    prefill: int

    @property
    def dim(self) -> int:
        return 0 if self.parameter.startswith("w13") else 1

    @property
    def unit(self) -> int:
        """Elements in a stored unit of the axis."""
        return expected.unit(self.parameter)

    @property
    def per_rank(self) -> int:
        """Stored units that a rank should get."""
        due = expected.axes(self.request.geometry, self.request.tp)["routed"].per_rank
        return due // self.unit

    @property
    def start(self) -> int:
        return self.per_rank * self.request.rank

    @property
    def size(self) -> int:
        """Stored units of the checkpoint that the rank should get: fewer on the last rank."""
        return max(0, min(self.per_rank, self.source.shape[self.dim] - self.start))

    @property
    def width(self) -> int:
        """Stored units of the destination."""
        return self.part.shape[self.dim]

    def cut(self, start: int, size: int, rest: int = 0) -> None:
        """Replace the destination by source[start : start + size], as far as there is any, and `rest` behind it."""
        size = max(0, min(size, self.width, self.source.shape[self.dim] - start))
        self.part.fill_(rest)
        if size:
            piece = self.source.narrow(self.dim, start, size)
            self.part[: piece.shape[0], : piece.shape[1]] = piece
            if self.dim == 0:
                self.part[:size, piece.shape[1] :] = 0
            else:
                self.part[piece.shape[0] :] = 0

    def tail(self) -> torch.Tensor:
        """The destination's padding behind the rank's slice."""
        return self.part.narrow(self.dim, self.size, self.width - self.size)


class Call(NamedTuple):
    """One call of the loader."""

    parameter: str
    shard: str
    expert: int


class LoaderFault(NamedTuple):
    """Each hook may be None. `rank` and `target` misdirect a call, `after` changes what it left behind.

    `ignores` tells of a call, given those before it, whether it is quietly not done; `beside` may do anything to the
    layer once a call is done. `wider`: elements by which every parameter seems to be built too wide, filled with zeros.
    """

    rank: Callable[[ExpertsRequest], int] | None = None
    target: Callable[[ExpertsRequest, Call], tuple[str, int]] | None = None  # -> (shard, expert), wrong
    after: Callable[[Load], None] | None = None
    ignores: Callable[[Call, list[Call], torch.Tensor], bool] | None = None
    beside: Callable[[ExpertsLayer, Call, list[Call]], None] | None = None
    uninitialised: bool = False
    wider: int = 0


class GuardFault(NamedTuple):
    """Each hook may be None: it changes an answer to a guard question, the kernel's choice, the schemes of layers."""

    answer: Callable[[PlanRequest, PlanOutcome], PlanOutcome] | None = None
    kernel: Callable[[KernelChoice], KernelChoice] | None = None
    schemes: Callable[[PlanRequest, dict[str, str]], dict[str, str]] | None = None


class FaultyPlanner:
    """`fault` changes the plan's outcome, `guard` the answers to the other questions."""

    def __init__(
        self,
        inner: PlanBuilder,
        fault: Callable[[PlanOutcome], PlanOutcome] | None = None,
        guard: GuardFault | None = None,
    ):
        self._inner, self._fault, self._guard = inner, fault, guard or GuardFault()

    def plan(self, request: PlanRequest) -> PlanOutcome:
        outcome = self._inner.plan(request)
        return self._fault(outcome) if self._fault else outcome

    def backends(self) -> KnownBackends:
        return self._inner.backends()

    def guards(self, requests: Sequence[PlanRequest]) -> list[PlanOutcome]:
        answers = self._inner.guards(requests)
        change = self._guard.answer
        return [change(*pair) for pair in zip(requests, answers, strict=True)] if change else answers

    def kernel(self, request: PlanRequest, widths: Sequence[int]) -> KernelChoice:
        choice = self._inner.kernel(request, widths)
        return self._guard.kernel(choice) if self._guard.kernel else choice

    def schemes(self, request: PlanRequest) -> dict[str, str]:
        found = self._inner.schemes(request)
        return self._guard.schemes(request, found) if self._guard.schemes else found


class FaultyLoader:
    def __init__(self, inner: ShardLoader, fault: LoaderFault):
        self._inner, self._fault = inner, fault

    def open_experts(self, request: ExpertsRequest) -> ExpertsLayer:
        asked = request
        if self._fault.rank:
            asked = msgspec.structs.replace(request, rank=self._fault.rank(request))
        return _FaultyExperts(self._inner.open_experts(asked), self._fault, request)


class _FaultyExperts:
    def __init__(self, inner: ExpertsLayer, fault: LoaderFault, request: ExpertsRequest):
        self._inner, self._fault, self._request = inner, fault, request
        self._prefill: dict[str, int] = {}
        self._calls: list[Call] = []
        self.info: ExpertsInfo = _widened(inner.info, fault.wider)

    def allocate(self, nbytes: int) -> torch.Tensor:
        return self._inner.allocate(nbytes)

    def share(self, part: FilePart) -> None:
        self._inner.share(part)

    def unshare(self, part: FilePart) -> None:
        self._inner.unshare(part)

    def initial(self, parameter: str, expert: int) -> torch.Tensor:
        data = self._wide(parameter, self._inner.initial(parameter, expert))
        return data.clone().fill_(255) if self._fault.uninitialised else data

    def fill(self, parameter: str, value: int) -> None:
        self._prefill[parameter] = value
        self._inner.fill(parameter, value)

    def load(self, parameter: str, shard: str, expert: int, source: torch.Tensor) -> None:
        call, before = Call(parameter, shard, expert), self._calls[:]
        self._calls.append(call)
        if self._fault.ignores and self._fault.ignores(call, before, source):
            return
        if self._fault.target:
            shard, expert = self._fault.target(self._request, call)
        self._inner.load(parameter, shard, expert, source)
        if self._fault.after:
            self._change(Call(parameter, shard, expert), source)
        if self._fault.beside:
            self._fault.beside(self._inner, call, before)

    def _change(self, call: Call, source: torch.Tensor) -> None:
        assert self._fault.after is not None
        whole = self._inner.read(call.parameter, call.expert).clone()
        names = SHARDS[call.parameter]
        part = whole.chunk(len(names), dim=0)[names.index(call.shard)]
        self._fault.after(Load(self._request, *call, source, whole, part, self._prefill.get(call.parameter, 0)))
        self._inner.write(call.parameter, call.expert, whole)

    def read(self, parameter: str, expert: int) -> torch.Tensor:
        return self._wide(parameter, self._inner.read(parameter, expert))

    def _wide(self, parameter: str, data: torch.Tensor) -> torch.Tensor:
        """Every half with the units of the axis that the layer does not have, as zeros."""
        if not self._fault.wider:
            return data
        more = self._fault.wider // expected.unit(parameter)
        halves = data.chunk(len(SHARDS[parameter]), dim=0)
        rows, cols = halves[0].shape
        shape = (rows + more, cols) if parameter.startswith("w13") else (rows, cols + more)
        wide = data.new_zeros((len(halves), *shape))
        for index, half in enumerate(halves):
            wide[index, :rows, :cols] = half
        return wide.flatten(0, 1)

    def write(self, parameter: str, expert: int, data: torch.Tensor) -> None:
        self._inner.write(parameter, expert, data)

    def close(self) -> None:
        self._inner.close()


def _widened(info: ExpertsInfo, elements: int) -> ExpertsInfo:
    """What the layer would say of itself if every parameter were that much wider."""
    if not elements:
        return info
    parameters = {
        name: ParameterInfo(p.rows + 2 * elements, p.cols, p.dtype)
        if name.startswith("w13")
        else ParameterInfo(p.rows, p.cols + elements // expected.unit(name), p.dtype)
        for name, p in info.parameters.items()
    }
    return msgspec.structs.replace(info, parameters=parameters, kernel_width=info.kernel_width + elements)
