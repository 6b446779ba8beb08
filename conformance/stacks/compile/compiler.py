"""The real compiler: FlashInfer's and Triton's toolchains, in a worker of the stack's interpreter, one a target."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec

from conformance.stacks import interpreter
from conformance.stacks.compile.protocol import CompileResult, CompileUnit
from conformance.stacks.process import Worker, WorkerSpec, sources

_WORKER = Path(__file__).with_name("worker")
#: Seconds that one unit may take: the longest known, one nvcc unit beside other work, takes 106.
_SECONDS = 600.0
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TRITON_CACHE_DIR": "{folder}/cache/triton",
    "FLASHINFER_DISABLE_VERSION_CHECK": "1",
    "TMPDIR": "{folder}",
}


class ToolchainCompiler:
    """See protocol.Compiler. `python` as given by `--vllm-python`, None for the interpreter that runs us."""

    def __init__(self, python: str | None, work_dir: str | None = None, start_timeout: float = 300.0):
        self._python = python
        self._work_dir = work_dir
        self._start_timeout = start_timeout
        self._workers: dict[str, Worker] = {}
        self._known: dict[CompileUnit, CompileResult] = {}

    def compile(self, unit: CompileUnit) -> CompileResult:
        """Each unit once; what is handed out is the caller's own."""
        if unit not in self._known:
            worker = self._worker(unit.arch)
            fields = worker.call("compile_unit", folder=str(worker.folder), **msgspec.to_builtins(unit))
            self._known[unit] = msgspec.convert(fields, CompileResult)
        return copy.deepcopy(self._known[unit])

    def _worker(self, arch: str) -> Worker:
        if arch not in self._workers:
            self._workers[arch] = Worker(
                WorkerSpec(
                    name="compile",
                    python=interpreter.resolve(self._python, "--vllm-python"),
                    modules=sources(_WORKER),
                    entry="api",
                    path=interpreter.search_path([]),
                    environment=_ENVIRONMENT,
                    work_dir=self._work_dir,
                    call_timeout=_SECONDS,
                    start_timeout=self._start_timeout,
                )
            )
        return self._workers[arch]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
