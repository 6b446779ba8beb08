"""Entry of the subprocess: `run(PROBE, REQUEST.json, RESULT.json)`. The result is a value, or {"error": one line}."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path


def main(probe: str, request_path: str, result_path: str) -> None:
    request = json.loads(Path(request_path).read_text())
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"] + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.dont_write_bytecode = True
    import torch

    from conformance.drift.probes import guard

    torch.set_num_threads(1)
    module = importlib.import_module(f"conformance.drift.probes.{probe}")
    guard.install(os.fspath(Path(result_path).parent))
    try:
        answer = {"value": module.probe(request)}
    except BaseException as error:  # audited code may raise anything, SystemExit among it
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({_place(error)})"}
    Path(result_path).write_text(json.dumps(answer))


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "no place"
