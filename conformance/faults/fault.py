"""What a fault is: an id, the seam that it is planted at, and the claims that must fail then."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from conformance.faults.attention_seam import AttentionFault
from conformance.faults.engines import EngineFault
from conformance.faults.files import FilesFault
from conformance.faults.graphs import GraphFault
from conformance.faults.kernel import MoeFault
from conformance.faults.models import ModelFault
from conformance.faults.ops import OpFault
from conformance.faults.prepare import PrepareFault
from conformance.faults.quant_calls import QuantCallFault
from conformance.faults.quant_seam import QuantFault
from conformance.faults.seams import GuardFault, LoaderFault
from conformance.stacks.protocols import PlanOutcome
from conformance.stacks.selection_protocol import Choice
from conformance.world.member import ReduceFault


def under(group: str) -> Callable[..., tuple[str, ...]]:
    """Names -> the claims of that layer or group: `under("moe")("sum")` is `("moe.sum",)`."""
    return lambda *names: tuple(f"{group}.{name}" for name in names)


class Fault(NamedTuple):
    """`seen_in` says where the bug was met, if it was. Exactly one of the seams is set.

    `backend`: the only MoE backend whose arithmetic has it (empty: any); emulated for it on the reference stack.
    `rounded`: a fault only where the kernel is wider than a rank's share; elsewhere the wrong formula comes out right.
    """

    id: str
    what: str
    claims: tuple[str, ...]
    seen_in: str = ""
    plan: Callable[[PlanOutcome], PlanOutcome] | None = None
    guard: GuardFault | None = None
    loader: LoaderFault | None = None
    model: ModelFault | None = None
    moe: MoeFault | None = None
    reduce: ReduceFault | None = None
    graph: GraphFault | None = None
    op: OpFault | None = None
    files: FilesFault | None = None
    prepare: PrepareFault | None = None
    selection: Callable[[Choice], Choice] | None = None
    quant: QuantFault | None = None
    quant_call: QuantCallFault | None = None
    attention: AttentionFault | None = None
    engine: EngineFault | None = None
    rounded: bool = False
    #: Whose arithmetic and layout it is planted under, and in which model, where it is not the self-test's own.
    profile: str = ""
    backend: str = ""
    geometry: str = ""

    @property
    def layer(self) -> str:
        """Of the claims that must catch it."""
        return self.claims[0].partition(".")[0]
