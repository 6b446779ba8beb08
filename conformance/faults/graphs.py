"""The seam of the graph layer: what is captured, which memory it is bound to, and what a replay does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.stacks.graph_protocol import Captured, GraphedLayer, GraphRunner, Step

if TYPE_CHECKING:
    import torch


class Replay(NamedTuple):
    """One replay. `inner` is the clean one, `number` counts the graph's replays from 0. `others`: buffers of the graphs
    that share its pool; `disturbed`: whether other work has used free memory since capture; `kept`: the graph's own
    notes, for later replays."""

    inner: Callable[[], None]
    buffers: Any
    number: int
    others: list[Any]
    disturbed: bool
    kept: dict[str, torch.Tensor]


class GraphFault(NamedTuple):
    """Each hook may be None. `step` changes the call that is captured and that eager makes; `bound` replaces the
    buffers that a graph is captured with; `warmed` is done after a warm-up, `replay` instead of a replay. `takes`:
    bytes of memory that each replay keeps. `rank`: the only one that is hit."""

    step: Callable[[Step], Step] | None = None
    bound: Callable[[Any], Any] | None = None
    warmed: Callable[[Any], None] | None = None
    replay: Callable[[Replay], None] | None = None
    takes: int = 0
    rank: int | None = None


class FaultyGraphs:
    def __init__(self, inner: GraphRunner, fault: GraphFault):
        self._inner, self._fault = inner, fault
        self.sizes, self.words = inner.sizes, inner.words

    def open(self, request: Any) -> GraphedLayer:
        layer = self._inner.open(request)
        if self._fault.rank not in (None, request.rank):
            return layer
        if self._fault.step:
            layer.change(self._fault.step)
        return _FaultyLayer(layer, self._fault)


class _FaultyLayer:
    def __init__(self, inner: GraphedLayer, fault: GraphFault):
        self._inner, self._fault = inner, fault
        self.kept = 0
        self.disturbed = False
        self._pools: dict[int, list[Any]] = {}

    def change(self, wrap: Callable[[Step], Step]) -> None:
        self._inner.change(wrap)

    def eager(self, buffers: Any) -> None:
        self._inner.eager(buffers)

    def warm_up(self, buffers: Any) -> None:
        self._inner.warm_up(buffers)
        if self._fault.warmed:
            self._fault.warmed(buffers)

    def pool(self) -> Any:
        return self._inner.pool()

    def capture(self, buffers: Any, pool: Any = None) -> Captured:
        bound = self._fault.bound(buffers) if self._fault.bound else buffers
        self.disturbed = False
        members = [] if pool is None else self._pools.setdefault(id(pool), [])
        graph = _FaultyGraph(self._inner.capture(bound, pool), self._fault, self, buffers, list(members))
        members.append(buffers)
        return graph

    def held(self) -> int:
        return self._inner.held() + self.kept

    def disturb(self) -> None:
        self._inner.disturb()
        self.disturbed = True

    def close(self) -> None:
        self._inner.close()


class _FaultyGraph:
    def __init__(self, inner: Captured, fault: GraphFault, layer: _FaultyLayer, buffers: Any, others: list[Any]):
        self._inner, self._fault, self._layer = inner, fault, layer
        self._buffers, self._others = buffers, others
        self._number = 0
        self._kept: dict[str, torch.Tensor] = {}
        self.incidents = inner.incidents

    def replay(self) -> None:
        self._layer.kept += self._fault.takes
        if self._fault.replay:
            known = self._buffers, self._number, self._others, self._layer.disturbed, self._kept
            self._fault.replay(Replay(self._inner.replay, *known))
        else:
            self._inner.replay()
        self._number += 1

    def close(self) -> None:
        self._inner.close()
