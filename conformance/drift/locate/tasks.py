"""The task table: what graph.cc dispatches, what task_register.cc generates for it, what runtime.cc sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tree_sitter import Node

from conformance.drift.finding import Evidence
from conformance.drift.locate.cxx_tree import CxxTree, Emitted, walk

GRAPH = "src/kernel/graph.cc"
REGISTER = "src/kernel/task_register.cc"
REGISTER_HEADER = "include/mirage/kernel/task_register.h"
RUNTIME = "src/kernel/runtime.cc"
RUNTIME_HEADER = "include/mirage/persistent_kernel/runtime_header.h"
METADATA = ("request_id", "kv_idx", "merge_task_offset", "expert_offset", "task_offset")
_POINTER = re.compile(r"task_desc->(input|output)_(?:tma_desc_)?ptrs\[(\d+)\]")
_CALL = re.compile(r"\bkernel::([\w:]+?)(?:<|\()")


class Arm(NamedTuple):
    """One `name == "..."` branch of Graph::register_task."""

    name: str
    register: str  #: register_*_task, or "" where the arm calls none
    arguments: tuple[str, ...]  #: as written, such as ("customized->bgraph", "params", "true")
    inputs: int
    outputs: int
    task: str  #: TASK_...
    evidence: Evidence


class Codegen(NamedTuple):
    """What one arm makes task_register.cc emit."""

    lines: list[Emitted]
    evidence: Evidence

    @property
    def text(self) -> str:
        return "\n".join(line.filled for line in self.lines)

    @property
    def unfilled(self) -> str:
        """The same with `$` where an argument goes."""
        return "\n".join(line.text for line in self.lines)

    def highest(self, kind: str) -> int:
        """The highest index used of `input` or `output` pointers; -1 for none."""
        return max((int(i) for side, i in _POINTER.findall(self.text) if side == kind), default=-1)

    def metadata(self) -> set[str]:
        return set(re.findall(r"task_metadata\.(\w+)", self.text))

    def kernels(self) -> list[str]:
        """Qualified names of the device functions called, without the leading `kernel::`."""
        return list(dict.fromkeys(_CALL.findall(self.text)))

    def written_inputs(self, cast_only: bool = False) -> set[int]:
        """Inputs handed over as pointers to non-const: outputs that the wrapper attached as inputs. A pointer handed
        over without a cast counts too, unless `cast_only`."""
        flat = " ".join(self.text.split())
        read = {int(i) for i in re.findall(r"static_cast<\s*const [^>]*>\(\s*task_desc->input_ptrs\[(\d+)\]", flat)}
        used = (
            r"static_cast<[^>]*>\(\s*task_desc->input_ptrs\[(\d+)\]" if cast_only else r"task_desc->input_ptrs\[(\d+)\]"
        )
        return {int(i) for i in re.findall(used, flat)} - read


class Setting(NamedTuple):
    """runtime.cc sets `task_metadata.FIELD = bid.AXIS` for the tasks that the arm's condition names."""

    field: str
    value: str
    evidence: Evidence


class TaskTable:
    def __init__(self, graph: CxxTree, register: CxxTree) -> None:
        self.graph = graph
        self.register = register
        self.arms = {arm.name: arm for arm in self._find_arms()}
        self._definitions = register.functions()

    def _find_arms(self) -> Iterator[Arm]:
        function = self.graph.function("register_task")
        for node in walk(function):
            if node.type != "if_statement":
                continue
            names = re.findall(r'\bname\s*==\s*"([^"]+)"', self.graph.condition(node))
            body = node.child_by_field_name("consequence")
            if names and body is not None:
                yield from (self._arm(name, node, body) for name in names)

    def _arm(self, name: str, node: Node, body: Node) -> Arm:
        register = ""
        arguments: tuple[str, ...] = ()
        tuple_words: list[str] = []
        for call in walk(body):
            if call.type != "call_expression":
                continue
            called = self.graph.words(call.child_by_field_name("function"))
            listed = call.child_by_field_name("arguments")
            words = [self.graph.words(a) for a in (listed.named_children if listed else ()) if a.type != "comment"]
            if found := re.search(r"\bregister_\w+_task$", called):
                register, arguments = found[0], tuple(words)
            elif called.endswith("make_tuple"):
                tuple_words = words
        numbers = [int(word) if word.isdigit() else -1 for word in tuple_words[:2]] or [-1, -1]
        task = tuple_words[2] if len(tuple_words) > 2 else ""
        return Arm(name, register, arguments, numbers[0], numbers[-1], task, self.graph.evidence(node, name))

    def defined(self, arm: Arm) -> bool:
        return bool(self._definitions.get(arm.register))

    def codegen(self, arm: Arm) -> Codegen | None:
        """What the arm's register function emits, its boolean parameters known; None where it has no one definition."""
        found = self._definitions.get(arm.register, [])
        if len(found) != 1:
            return None
        known = {
            name: value == "true"
            for name, value in zip(self.register.parameters(found[0]), arm.arguments, strict=False)
            if value in {"true", "false"}
        }
        return Codegen(self.register.emitted(found[0], known), self.register.evidence(found[0], arm.register))


def names_printed(runtime: CxxTree) -> set[str]:
    """TASK_* that have a row in task_type_to_name."""
    rows = set()
    for node in walk(runtime.root):
        if node.type == "subscript_expression":
            words = "".join(runtime.words(node).split())
            if found := re.fullmatch(r"task_type_to_name\[(\w+)\]", words):
                rows.add(found[1])
    return rows


def settings(runtime: CxxTree) -> dict[str, list[Setting]]:
    """Per TASK_*: the metadata that an `if` naming it by `task_type == TASK_*` sets."""
    found: dict[str, list[Setting]] = {}
    for node in walk(runtime.root):
        if node.type != "if_statement":
            continue
        tasks = re.findall(r"\btask_type\s*==\s*(TASK_\w+)", runtime.condition(node))
        body = node.child_by_field_name("consequence")
        if not tasks or body is None:
            continue
        for assignment in (n for n in walk(body) if n.type == "assignment_expression"):
            left = runtime.words(assignment.child_by_field_name("left"))
            if field := re.search(r"task_metadata\.(\w+)$", left):
                value = " ".join(runtime.words(assignment.child_by_field_name("right")).split())
                setting = Setting(field[1], value, runtime.evidence(assignment, field[1]))
                for task in tasks:
                    found.setdefault(task, []).append(setting)
    return found
