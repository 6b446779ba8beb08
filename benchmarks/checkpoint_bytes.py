"""`--checkpoint-bytes` on 2 GB of routed experts, against reading the same files with `safetensors` alone.

    python benchmarks/checkpoint_bytes.py [--tp 3] [--gigabytes 2] [--folder DIR] [--vllm-python PYTHON]

Ratio: time of loading every expert on every rank, reading it back and comparing it with the files, over the time of
`safe_open(...).get_tensor(...).clone()` for every tensor, in one process; medians of seven each, in turn. The loader is
the reference stack's, or a vLLM's in its worker (`--vllm-source` for a checkout; the worker is started before). Once
with the cache emptied before each round: that is reading, and what the limit of 3 is about (exit code 1 beyond it).
Once from files that the system has cached, for comparison: that is no more than copying, and loading by vLLM's own
loader alone, with nothing compared, takes 3.3 times as long (vLLM 0.33.0 at TP2, two cores).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors import safe_open

from conformance.checkpoint import routed
from conformance.context import Context
from conformance.gate.settings import Resolved, Settings, resolve
from conformance.stacks import registry
from references import make_checkpoint

MOST_TIMES = 3.0
_ROUNDS = 7
#: V4-Flash's routed experts (13.4 MB each) in one layer, and as little else as the layout allows.
_CONFIG = make_checkpoint.UNEVEN | {
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 1,
    "compress_ratios": [0],
    "num_nextn_predict_layers": 0,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", default="3")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", help="Where the files are, or are made if it is empty; default: a temporary one.")
    parser.add_argument("--vllm-python", help="The interpreter that holds vLLM; default: the reference stack.")
    parser.add_argument("--vllm-source", help="A checkout of vLLM that goes before it.")
    parser.add_argument("--backend", help="MoE backend; default: the profile's.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary)
        if not (folder / "config.json").exists():
            one = 3 * 4096 * 2048 * (1 / 2 + 1 / 32)
            experts = max(4, round(given.gigabytes * 1e9 / one))
            make_checkpoint.write(folder, _CONFIG | {"n_routed_experts": experts}, files=4)
        common = Settings(tp=given.tp, checkpoint=str(folder), checkpoint_bytes=True, backend=given.backend)
        return _measure(folder, resolve(_of_a_stack(common, given)))


def _of_a_stack(settings: Settings, given: argparse.Namespace) -> Settings:
    from msgspec.structs import replace

    if given.vllm_python is None:
        return replace(settings, emulate="sm120")
    vllm = {"vllm_python": given.vllm_python, "vllm_source": given.vllm_source}
    return replace(settings, profile="sm120", stack="vllm", **vllm)


def _measure(folder: Path, run: Resolved) -> int:
    stack = registry.open_stack(run.stacks["loader"], run.stack_options)
    stack.info()
    ratios = []
    for words, cold in (("cached", False), ("not cached", True)):
        ours, alone = [], []
        for _ in range(_ROUNDS):
            _prepare(folder, cold)
            started = time.perf_counter()
            total = _read(folder)
            alone.append((time.perf_counter() - started) / total)
            context = Context(run.target, stack.planner(), stack.loader(), files=run.files)
            _prepare(folder, cold)
            started = time.perf_counter()
            seen = routed.verify(context)
            ours.append((time.perf_counter() - started) / seen.nbytes)
            assert not seen.wrong, f"the stack is wrong: {seen.wrong[0]}"
        mine, theirs = statistics.median(ours), statistics.median(alone)
        ratios.append(mine / theirs)
        speeds = f"ours {1e-9 / mine:.2f} GB/s, safetensors alone {1e-9 / theirs:.2f} GB/s"
        print(f"{seen.nbytes / 1e9:.2f} of {total / 1e9:.2f} GB at TP{run.target.tp}, {words}: {speeds}, ", end="")
        print(f"ratio {ratios[-1]:.2f}" + (f" (at most {MOST_TIMES:g})" if cold else ""))
    stack.close()
    return int(ratios[-1] > MOST_TIMES)


def _prepare(folder: Path, cold: bool) -> None:
    """Drop the system's copy of the files, if that is asked for."""
    for path in folder.glob("*.safetensors") if cold else ():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(folder: Path) -> int:
    """Every tensor of every file into memory of its own; bytes."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                tensor = file.get_tensor(name).clone()
                total += tensor.numel() * tensor.element_size()
    return total


if __name__ == "__main__":
    sys.exit(main())
