"""Runs the probes: each in its own process and session, with a time limit, a scrubbed environment, its own folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import conformance

_ROOT = Path(conformance.__file__).parent.parent
_ENTRY = (
    "import sys; sys.path.insert(0, sys.argv[1]); from conformance.drift.probes.run import main; main(*sys.argv[2:])"
)
#: Seconds that a probe may take (measured on two cores: weights 4, trace 20).
LIMITS = {"weights": 60, "trace": 100}


def run_probe(name: str, request: dict[str, Any], seconds: int | None = None) -> Any:
    """What the probe found, or one line (str) that says why there is nothing."""
    limit = seconds or LIMITS[name]
    with tempfile.TemporaryDirectory(prefix="conformance-drift-") as folder:
        home = Path(folder)
        request_path, result_path = home / "request.json", home / "result.json"
        request_path.write_text(json.dumps({**request, "seconds": limit}))
        arguments = [sys.executable, "-I", "-B", "-c", _ENTRY, str(_ROOT), name, str(request_path), str(result_path)]
        ended = run_limited(arguments, home, limit)
        if ended is None:
            return f"did not end in {limit} s and was ended"
        if not result_path.exists():
            return f"ended with {ended} and no result"
        try:
            answer = json.loads(result_path.read_text())
        except ValueError:
            return "left a result that is no JSON"
        return answer["value"] if "value" in answer else str(answer.get("error", "left no value"))


def run_limited(arguments: list[str], home: Path, seconds: float, output: Path | None = None) -> int | None:
    """The exit status of a command run in `home`, nothing of our environment passed on; None if its time ran out.
    Its whole process group is ended in any case."""
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with output.open("wb") if output else open(os.devnull, "wb") as sink:  # noqa: PTH123
        process = subprocess.Popen(
            arguments,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
