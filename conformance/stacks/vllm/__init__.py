"""The `vllm` stack: any installed or checked-out vLLM, in its own process, driven without a GPU for plan and loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.stacks.protocols import StackOptions
    from conformance.stacks.vllm.stack import VllmStack


def open_stack(options: StackOptions) -> VllmStack:
    """Lazy: nothing is checked or started before the first question is asked."""
    from conformance.stacks.vllm.stack import VllmStack

    return VllmStack(options)
