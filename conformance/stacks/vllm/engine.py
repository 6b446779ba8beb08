"""Layer `e2e`: vLLM's own engine, one a worker. Each engine has a worker of its own, which ends with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from conformance.errors import StackError, one_line
from conformance.stacks import interpreter
from conformance.stacks.engine_protocol import Answer, Block, Drafts, EngineRequest, Likely
from conformance.stacks.process import Worker, WorkerSpec, sources
from conformance.stacks.protocols import StackOptions

_HERE = Path(__file__).parent
#: Faults that the plug-in can plant (`plugin/faults.py`).
KINDS = ("w2", "neighbour", "w1", "silent", "sink", "nan", "drop", "one-token", "unsteady", "batch", "cache")
_START_SECONDS = 600.0
#: Of the checkpoint that layer e2e makes: 27 blocks of 256 tokens.
_KV_BYTES = 256 << 20
#: A server keeps its metrics.
_NOT_SERVED = ("disable_log_stats",)
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default pins threads by node, and fails at TP2 on one node
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core in the worker itself: one process less, one import less
    "VLLM_CACHE_ROOT": "{folder}/cache/vllm",
    "VLLM_CONFIG_ROOT": "{folder}/cache/vllm-config",
    "VLLM_NO_USAGE_STATS": "1",
    "TMPDIR": "{folder}",  # sockets and rendezvous files go with the worker
}
#: Without a GPU nothing is worth compiling: 20 s a process, for index and counting helpers.
_ON_CPU = {"TORCHDYNAMO_DISABLE": "1"}
#: DeepGEMM compiles what is called, when it is; vLLM's warm-up compiles all that might be, for minutes.
_ON_GPU = {"VLLM_DEEP_GEMM_WARMUP": "skip", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
#: What vLLM compiles, tunes and finds out about a GPU, kept for the next engine: most of a start. vLLM tells its own
#: versions, sources and settings apart there. An engine with a planted fault neither reads nor leaves any of it.
_KEPT = {"VLLM_CACHE_ROOT": os.environ.get("VLLM_CACHE_ROOT") or str(Path.home() / ".cache/tp-conformance/vllm")}
#: Of the GPU's memory, what must be free. vLLM's default asks for nearly all, as a server would; the KV cache here is
#: `_KV_BYTES`, and weights take what they take.
_FREE = 0.3


class VllmEngine:
    """See engine_protocol.Engine."""

    kinds = KINDS

    def __init__(self, options: StackOptions, make_room: Callable[[], None] = lambda: None):
        """`make_room` is called before an engine is started."""
        self._options, self._make_room = options, make_room

    def open(self, request: EngineRequest) -> VllmSession:
        return VllmSession(self._worker(request), request)

    def serve(self, request: EngineRequest) -> VllmServer:
        return VllmServer(self._worker(request), request)

    def _worker(self, request: EngineRequest) -> Worker:
        self._make_room()
        on_gpu = _ON_GPU | ({} if request.fault else _KEPT)
        o = self._options
        python = interpreter.resolve(o.python, "--vllm-python")
        source = interpreter.checkout(o.source, "vllm", "--vllm-source")
        return Worker(
            WorkerSpec(
                name="vllm_engine",
                python=python,
                modules=sources(_HERE / "worker"),
                entry="engine",
                path=interpreter.search_path([source] if source else []),
                environment=_ENVIRONMENT | (on_gpu if torch.cuda.is_available() else _ON_CPU),
                work_dir=o.work_dir,
                call_timeout=o.call_timeout,
                start_timeout=o.start_timeout,
            )
        )


class VllmServer:
    """See engine_protocol.Served: `vllm serve`'s own entry point, in processes of its own."""

    model = "model"

    def __init__(self, worker: Worker, request: EngineRequest):
        self._worker, self.context = worker, request.context
        settings = {key: value for key, value in _settings(request).items() if key not in _NOT_SERVED}
        try:
            port = worker.call(
                "serve",
                timeout=_START_SECONDS + 30,
                plugin=sources(_HERE / "plugin"),
                model=str(Path(request.model).absolute()),
                tp=request.tp,
                settings=settings,
                fault=request.fault,
                seconds=_START_SECONDS,
            )
        except BaseException:
            worker.close()
            raise
        self.url = f"http://127.0.0.1:{port}"

    def ended(self) -> int | None:
        code: int | None = self._worker.call("serving_ended")
        return code

    def close(self) -> str:
        try:
            if self._worker.alive:
                self._worker.call("stop", timeout=60.0)
        except StackError as error:
            return one_line(error)
        finally:
            self._worker.close()
        return ""


class VllmSession:
    """See engine_protocol.EngineSession."""

    def __init__(self, worker: Worker, request: EngineRequest):
        self._worker = worker
        try:
            told = worker.call(
                "open_engine",
                timeout=_START_SECONDS,
                plugin=sources(_HERE / "plugin"),
                model=str(Path(request.model).absolute()),
                tp=request.tp,
                settings=_settings(request),
                fault=request.fault,
            )
        except BaseException:
            worker.close()
            raise
        self.notes = [f"vllm {told['version']}", *(f"patched: {patch}" for patch in told["patches"])]

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, top: int) -> list[Answer]:
        told = self._worker.call("generate", prompts=[list(p) for p in prompts], tokens=tokens, top=top)
        return [
            Answer(list(ids), finish, _likely(likely, top), cached, list(steps))
            for ids, finish, likely, cached, steps in told
        ]

    def score(self, sequence: Sequence[int], top: int) -> Likely:
        return _likely(self._worker.call("score", sequence=list(sequence), top=top), top)

    def trace(self, sequence: Sequence[int]) -> dict[str, Block]:
        told = self._worker.call("trace", sequence=list(sequence))
        folder = Path(told["folder"])
        self.notes += [f"routed experts: {told['experts']}"] if told["experts"] else []
        found = {path.stem: load_file(path) for path in folder.glob("*.safetensors")}
        return {name: Block(found[name]["x"], found[name]["y"]) for name in sorted(found, key=_order)}

    def drafts(self) -> Drafts:
        """By vLLM's own metrics."""
        steps, accepted = self._worker.call("drafts")
        return Drafts(steps, tuple(accepted))

    def close(self) -> str:
        """vLLM aborts now and then when it ends, after everything was answered: noted, and nothing more."""
        try:
            if self._worker.alive:
                self._worker.call("close_engine", timeout=60.0)
        except StackError as error:
            return one_line(error)
        finally:
            self._worker.close()
        return ""


def _settings(request: EngineRequest) -> dict[str, Any]:
    return {
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "enforce_eager": not request.graph,
        "max_model_len": request.context,
        "max_num_seqs": request.sequences,
        "max_num_batched_tokens": request.chunk,
        "enable_chunked_prefill": True,
        "kv_cache_memory_bytes": _KV_BYTES,
        "enable_prefix_caching": request.prefix_cache,
        "max_logprobs": 20,
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": not request.draft,  # they count what was accepted
        "seed": 0,
        **({"moe_backend": request.backend} if request.backend else {}),
        **({"gpu_memory_utilization": _FREE} if torch.cuda.is_available() else {}),
        **({"speculative_config": {"method": "mtp", "num_speculative_tokens": request.draft}} if request.draft else {}),
    }


def _likely(told: Any, top: int) -> Likely:
    ids, values = told
    return Likely(
        torch.frombuffer(bytearray(ids), dtype=torch.int32).view(-1, top),
        torch.frombuffer(bytearray(values), dtype=torch.float32).view(-1, top),
    )


def _order(name: str) -> tuple[int, str]:
    return int(name.split(".")[1]), name
