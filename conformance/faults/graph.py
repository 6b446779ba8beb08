"""Faults of captured graphs: what is frozen, stale, leaking or clobbered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.faults import graph_steps
from conformance.faults.graphs import GraphFault, Replay
from conformance.stacks.graph_protocol import Buffers
from conformance.world.member import Reduction

if TYPE_CHECKING:
    import torch


def _frozen(name: str) -> GraphFault:
    """The graph reads a copy of that input, made at capture."""
    return GraphFault(bound=lambda buffers: buffers._replace(**{name: getattr(buffers, name).clone()}))


def _last_row_unbound(buffers: Buffers) -> Buffers:
    """The token count that capture saw is one too small (a batch of one keeps its row)."""
    count = max(1, len(buffers.x) - 1)
    return Buffers(*(buffer[:count] for buffer in buffers))


def _skipped(r: Replay) -> None:
    """Every other replay does nothing: what was in the output stays."""
    if r.number % 2 == 0:
        r.inner()


def _first_output(r: Replay) -> None:
    """Every replay answers with what the first one computed."""
    if r.number == 0:
        r.inner()
        r.kept["out"] = r.buffers.out.clone()
    r.buffers.out.copy_(r.kept["out"])


def _first_routes(r: Replay) -> None:
    """Tokens reach the experts of the first replay, whatever their routes say."""
    ids = r.buffers.ids.clone()
    r.buffers.ids.copy_(r.kept.setdefault("ids", ids))
    r.inner()
    r.buffers.ids.copy_(ids)


def _output_clobbered(r: Replay) -> None:
    """A graph's replay writes its first row over the output of the others in its pool."""
    r.inner()
    for other in r.others:
        other.out[:1].copy_(r.buffers.out[:1])


def _input_clobbered(r: Replay) -> None:
    """A graph's workspace lies over the tokens of the others in its pool."""
    r.inner()
    for other in r.others:
        other.x[-1].zero_()


def _reads_freed(r: Replay) -> None:
    """An intermediate lies in memory that was freed after capture: others have written there."""
    import torch

    r.inner()
    if r.disturbed:
        r.buffers.out[-1].fill_(torch.nan)


def _tactic_switched(r: Replay) -> None:
    """Every third replay runs another tactic: one output differs in its last bit."""
    r.inner()
    if r.number % 3 == 2:
        r.buffers.out[0, 0] *= 1 + 2.0**-7


def _behind_output(buffers: Buffers) -> None:
    """64 bytes behind the output."""
    _behind(buffers.out, 64).zero_()


def _behind(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The bytes that follow a tensor in its storage."""
    import torch

    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return whole[end : end + count]


def reduce_left_out(r: Reduction) -> None:
    """Eager calls are summed over ranks, the graph's are not. All ranks leave it out: none waits for another."""
    if not graph_steps.recording():
        r.inner(r.tensor)


def reduce_of_copy(r: Reduction) -> None:
    """Rank 2's graph sums a copy that nobody reads."""
    r.inner(r.tensor.clone() if r.rank == 2 and graph_steps.recording() else r.tensor)


def _zeroes_input(buffers: Buffers) -> None:
    """The weights are left zero."""
    buffers.weights.zero_()


rank1_frozen_x = _frozen("x")._replace(rank=1)
rank2_skipped = GraphFault(replay=_skipped, rank=2)
frozen_x = _frozen("x")
frozen_ids = _frozen("ids")
frozen_weights = _frozen("weights")
first_routes = GraphFault(replay=_first_routes)
count_baked = GraphFault(bound=_last_row_unbound)
skipped = GraphFault(replay=_skipped)
first_output = GraphFault(replay=_first_output)
number_read = GraphFault(step=graph_steps.number_read)
list_made = GraphFault(step=graph_steps.list_made)
new_tensor_made = GraphFault(step=graph_steps.new_tensor_made)
scale_baked = GraphFault(step=graph_steps.scale_baked)
table_in_capture = GraphFault(step=graph_steps.table_in_capture)
counted = GraphFault(step=graph_steps.counted)
list_mutated = GraphFault(step=graph_steps.list_mutated)
output_over_input = GraphFault(step=graph_steps.output_over_input)
rows_mixed = GraphFault(step=graph_steps.rows_mixed)
output_clobbered = GraphFault(replay=_output_clobbered)
input_clobbered = GraphFault(replay=_input_clobbered)
reads_freed = GraphFault(replay=_reads_freed)
takes_memory = GraphFault(takes=512)
tactic_switched = GraphFault(replay=_tactic_switched)
warm_up_behind = GraphFault(warmed=_behind_output)
warm_up_zeroes = GraphFault(warmed=_zeroes_input)
