"""A worker of our own interpreter, with our own path: for what must not share a process with the harness."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from conformance.stacks.running import WorkerSpec


def spec(
    name: str, entry: str, call_timeout: float, start_timeout: float, environment: dict[str, str] | None = None
) -> WorkerSpec:
    """`entry`: a module of ours that holds CALLS (see `conformance.stacks.remote`). Times in seconds. `environment`:
    beside the harness's own."""
    path = dict.fromkeys(str(Path(folder or ".").absolute()) for folder in sys.path)
    return WorkerSpec(
        name=name,
        python=sys.executable,
        modules={"api": f"from {entry} import CALLS\n"},
        entry="api",
        path=os.pathsep.join(path),
        environment=environment or {},
        call_timeout=call_timeout,
        start_timeout=start_timeout,
    )
