"""What rules read: both checkouts, their parsed sources and the tables made of them, each made once."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

from conformance.drift.finding import NotFound
from conformance.drift.flow import Flow
from conformance.drift.locate.checkout import Checkout
from conformance.drift.locate.cxx import CxxSource
from conformance.drift.locate.cxx_tree import CxxTree
from conformance.drift.locate.python import PythonSource
from conformance.drift.locate.tasks import (
    GRAPH,
    REGISTER,
    RUNTIME,
    RUNTIME_HEADER,
    Arm,
    Codegen,
    Setting,
    TaskTable,
    names_printed,
    settings,
)
from conformance.drift.locate.wrappers import Registration, layers_called, registrations
from conformance.drift.profile import Profile
from conformance.drift.reference import Reference

DEMO = "demo/deepseek_v3/demo.py"
CONVERT = "demo/deepseek_v3/models/convert.py"
BUILDER = "python/mirage/mpk/models/deepseek_v3/builder.py"
WRAPPERS = "python/mirage/mpk/persistent_kernel.py"
MULTIGPU = "python/mirage/mpk/multigpu.py"
SCHEDULER = "include/mirage/persistent_kernel/persistent_kernel.cuh"
TMA = "include/mirage/persistent_kernel/tma.cuh"
KERNELS = "include/mirage/persistent_kernel/tasks"
README = "demo/deepseek_v3/readme.md"


class Context:
    """`probes`: results of the subprocess by probe name; a missing one means that it was not run."""

    def __init__(self, mpk: Path, reference: Path) -> None:
        self.mpk = Checkout(mpk)
        self.reference = Reference(reference)
        self.probes: dict[str, Any] = {}
        self.prefill_cache: dict[int, bool] = {}

    @property
    def is_mpk(self) -> bool:
        return self.mpk.has(WRAPPERS) and (self.mpk.has(BUILDER) or self.mpk.has(DEMO))

    def probe(self, name: str) -> Any:
        """The result of a probe. Raises NotFound(not-evaluated) where it did not run, or ended without one."""
        if name not in self.probes:
            raise NotFound("not-evaluated", f"runs audited code ({name}): needs --execute")
        result = self.probes[name]
        if isinstance(result, str):
            raise NotFound("not-evaluated", f"{name}: {result}")
        return result

    def python(self, path: str) -> PythonSource:
        if path not in self._python:
            self._python[path] = PythonSource.of(self.mpk, path)
        return self._python[path]

    @cached_property
    def _python(self) -> dict[str, PythonSource]:
        return {}

    @property
    def demo(self) -> PythonSource:
        return self.python(DEMO)

    @property
    def convert(self) -> PythonSource:
        return self.python(CONVERT)

    @property
    def builder(self) -> PythonSource:
        return self.python(BUILDER)

    @property
    def wrapper_source(self) -> PythonSource:
        return self.python(WRAPPERS)

    @cached_property
    def profile(self) -> Profile:
        return Profile.of(self.tasks.arms, layers_called(self.builder))

    @cached_property
    def registrations(self) -> list[Registration]:
        found = registrations(self.wrapper_source)
        if self.mpk.has(MULTIGPU):
            found += registrations(self.python(MULTIGPU))
        if not found:
            raise NotFound("anchor-absent", f"{WRAPPERS}: no register_task call with a name that can be told")
        return found

    @cached_property
    def chain(self) -> list[Registration]:
        """Registrations that the DeepSeek-V3 builder can reach."""
        called = set(layers_called(self.builder))
        return [r for r in self.registrations if r.wrapper in called]

    @cached_property
    def tasks(self) -> TaskTable:
        return TaskTable(CxxTree.of(self.mpk, GRAPH), CxxTree.of(self.mpk, REGISTER))

    @cached_property
    def runtime(self) -> CxxTree:
        return CxxTree.of(self.mpk, RUNTIME)

    @cached_property
    def printed(self) -> set[str]:
        return names_printed(self.runtime)

    @cached_property
    def settings(self) -> dict[str, list[Setting]]:
        return settings(self.runtime)

    @cached_property
    def runtime_header(self) -> CxxSource:
        return CxxSource.of(self.mpk, RUNTIME_HEADER)

    @cached_property
    def enum(self) -> set[str]:
        """TASK_* of `enum TaskType`."""
        source = self.runtime_header
        found = re.search(r"\benum\s+(?:class\s+)?TaskType\b[^{;]*\{", source.text)
        if found is None:
            raise NotFound("anchor-absent", f"{source.path}: no enum TaskType")
        start, end = source.enclosed(found.end() - 1)
        return set(re.findall(r"\bTASK_\w+", source.text[start:end]))

    @cached_property
    def kernel_sources(self) -> list[CxxSource]:
        found = [CxxSource.of(self.mpk, path) for path in self.mpk.under(KERNELS, ".cuh")]
        if not found:
            raise NotFound("anchor-absent", f"{KERNELS}: no .cuh files")
        return found

    def kernel(self, name: str) -> CxxSource:
        """The one source that defines a device function of this last name. Blackwell goes before other families."""
        found = [source for source in self.kernel_sources if name in source.text and source.functions(name)]
        preferred = [source for source in found if "/blackwell/" in source.path] or found
        if not preferred:
            raise NotFound("anchor-absent", f"{KERNELS}: no definition of {name}")
        if len(preferred) > 1:
            paths = ", ".join(source.path.rsplit("/", 1)[-1] for source in preferred)
            raise NotFound("ambiguous", f"{KERNELS}: {name} is defined in {paths}")
        return preferred[0]

    def arms_of(self, wrapper: str) -> list[Arm]:
        """Dispatch arms of the task names that a wrapper registers."""
        names = [r.task for r in self.registrations if r.wrapper == wrapper]
        return [self.tasks.arms[name] for name in names if name in self.tasks.arms]

    def codegen(self, arm: Arm) -> Codegen:
        found = self.tasks.codegen(arm)
        if found is None:
            raise NotFound("anchor-absent", f"{REGISTER}: no one definition of {arm.register or 'a register function'}")
        return found

    @cached_property
    def flows(self) -> list[Flow | str]:
        """The traces as dataflow; a line of words for each that could not be made."""
        found: list[Flow | str] = []
        for trace in self.probe("trace"):
            label = f"TP{trace['ranks']}, {trace['tokens']} tokens, {trace['drafts']} drafts"
            found.append(f"{label}: {trace['error']}" if "error" in trace else Flow(trace, self.written))
        return found

    def written(self, task: str, count: int) -> set[int]:
        """Positions, of `count` tensors, that a task writes: its outputs, and inputs that are outputs in disguise."""
        arm = self.tasks.arms.get(task)
        if arm is None:
            return {count - 1}  # our stand-in for the all-reduce, and tasks that K01 reports
        written = set(range(arm.inputs, arm.inputs + arm.outputs))
        codegen = self.tasks.codegen(arm) if "mla_" in task else None
        return written | (codegen.written_inputs(arm.outputs > 0) if codegen else set())

    @cached_property
    def attention_arms(self) -> list[Arm]:
        """Dispatch arms of the chain's attention tasks (names with `mla_`), in name order."""
        names = sorted({r.task for r in self.chain if "mla_" in r.task})
        found = [self.tasks.arms[name] for name in names if name in self.tasks.arms]
        if not found:
            raise NotFound("anchor-absent", f"{GRAPH}: no dispatch arm for an MLA task that the builder uses")
        return found
