"""A trace read as dataflow: which layer reads and writes which tensor, and who wrote what it reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass
class Step:
    """One layer call of the builder."""

    index: int
    layer: str
    frames: list[tuple[str, int]]  #: (function, line) of the builder, innermost first
    arguments: dict[str, Any]
    tasks: list[str]
    grids: list[list[int]]
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    #: Per tensor read: index of the step that wrote it last, -1 for none.
    writer: dict[int, int] = field(default_factory=dict)

    @property
    def line(self) -> int:
        """Where the builder asks for the layer; of a helper such as _fp8_linear, where it is called."""
        for function, line in self.frames:
            if "linear" not in function:
                return line
        return self.frames[0][1] if self.frames else 1


class Flow:
    """One trace. `outputs(task name, number of tensors)` gives the positions that a task writes."""

    def __init__(self, trace: dict[str, Any], outputs: Callable[[str, int], set[int]]) -> None:
        self.ranks, self.rank, self.tokens = trace["ranks"], trace["rank"], trace["tokens"]
        self.sequence, self.drafts, self.requests = trace["sequence"], trace["drafts"], trace["requests"]
        self.tensors: dict[int, dict[str, Any]] = {int(key): value for key, value in trace["tensors"].items()}
        self.steps: list[Step] = []
        last: dict[int, int] = {}
        for index, entry in enumerate(trace["layers"]):
            tasks = entry["tasks"]
            step = Step(
                index,
                entry["layer"],
                [(function, line) for function, line in entry["where"]],
                entry["arguments"],
                [task["name"] for task in tasks],
                [task["grid"] for task in tasks],
            )
            for task in tasks:
                written = outputs(task["name"], len(task["tensors"]))
                for position, tensor in enumerate(task["tensors"]):
                    (step.writes if position in written else step.reads).append(tensor)
            if step.layer == "tensor_init_layer":  # fills its `input` in place; the other tensors only order it
                step.writes = [tensor for tensor in [self.given(step, "input")] if tensor is not None]
                step.reads = [tensor for tensor in step.reads if tensor not in step.writes]
            step.writer = {tensor: last.get(tensor, -1) for tensor in step.reads}
            last.update(dict.fromkeys(step.writes, index))
            self.steps.append(step)

    @property
    def label(self) -> str:
        return f"TP{self.ranks}, {self.tokens} tokens, {self.drafts} drafts"

    def name(self, tensor: int) -> str:
        """The tensor's name, layer numbers generalised: `layer_N_o_proj`."""
        return re.sub(r"layer_\d+_", "layer_N_", self.tensors[tensor]["name"])

    def keys(self, tensor: int) -> list[str]:
        """Checkpoint keys of an attached weight, less their layer: `self_attn.o_proj.weight`."""
        return [re.sub(r"^model\.layers\.\d+\.", "", key) for key in self.tensors[tensor]["keys"]]

    def weight_keys(self, step: Step) -> list[str]:
        return [key for tensor in step.reads for key in self.keys(tensor)]

    def uses(self, step: Step, name: str) -> bool:
        """Whether the step reads a weight whose key has `name` in it."""
        return any(name in key for key in self.weight_keys(step))

    def given(self, step: Step, *names: str) -> int | None:
        """The tensor given as the first of these arguments that is one."""
        for name in names:
            value = step.arguments.get(name)
            if isinstance(value, dict):
                return int(value["tensor"])
        return None

    def writer(self, step: Step, tensor: int) -> Step | None:
        index = step.writer.get(tensor, -1)
        return self.steps[index] if index >= 0 else None

    def with_layer(self, *patterns: str) -> Iterator[Step]:
        for step in self.steps:
            if any(re.search(pattern, step.layer) for pattern in patterns):
                yield step

    def drafting(self, step: Step) -> bool:
        """Whether a step belongs to the draft: it comes at or behind the first that reads enorm."""
        return step.index >= self._first_draft

    @cached_property
    def _first_draft(self) -> int:
        return next((s.index for s in self.steps if self.uses(s, "enorm")), len(self.steps))

    def attention(self) -> list[Step]:
        """Steps that run attention proper: prefill, decode or both."""
        return [s for s in self.with_layer(r"^mla_(prefill|mtp_decode|decode|unified)") if "reduce" not in s.layer]

    def reductions(self) -> list[Step]:
        """Steps that merge the partial results of split-KV decode."""
        return [s for s in self.with_layer(r"^mla_") if "reduce" in s.layer]
