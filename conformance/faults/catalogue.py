"""Every fault by id, with the claims that must fail when it is planted."""

from __future__ import annotations

from conformance.faults.catalogues import attention, e2e, graph, loader, moe, plan, quant
from conformance.faults.fault import Fault

_EVERY = (*(one for layer in (plan, loader, moe, attention, graph, quant, e2e) for one in layer.FAULTS),)
FAULTS: dict[str, Fault] = {fault.id: fault for fault in _EVERY}
assert len(FAULTS) == len(_EVERY), "two faults share an id"
