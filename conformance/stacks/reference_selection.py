"""The reference stack's selection: it runs its one kernel on any device, in the arithmetic of that device."""

from __future__ import annotations

from conformance.stacks.selection_protocol import UNASKED, Choice, SelectionRequest

_KERNEL, _OTHER = "flashinfer_cutlass", "b12x"


class ReferenceSelection:
    def choices(self, request: SelectionRequest) -> list[Choice]:
        return [
            Choice(capability, asked, f"{kernel}, emulated", kernel, "mxfp8" if capability[0] > 9 else "bf16")
            for capability in request.capabilities
            for asked, kernel in ((UNASKED, _KERNEL), (_KERNEL, _KERNEL), (_OTHER, _OTHER))
        ]
