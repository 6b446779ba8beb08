"""What a cubin holds, as cuobjdump reads it: target, registers, stack, matrix-multiply instructions."""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from . import toolchain
from .problems import Unfit

#: A product whose result goes to RZ is none: on SM90 it stands for a wait.
_SASS = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]*MMA[\w.]*)\s+(?!RZ,)", re.M)
_PTX = re.compile(r"^\s*(?:@!?%?\w+\s+)?((?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)[\w.:]*)", re.M)


def described(cubin, ptx=""):
    """Fields of a Compiled. Registers and stack are the most that any kernel in it takes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        sass, usage = _dump("-sass", file.name), _dump("-res-usage", file.name)
    target = re.search(r"code for (sm_\w+)", sass)
    held = re.findall(r"REG:(\d+) STACK:(\d+)", usage)
    if not target or not held:
        raise Unfit(f"cuobjdump shows no target or no resource usage: {sass[:80]!r}")
    return {
        "target": target[1],
        "registers": max(int(registers) for registers, _ in held),
        "stack": max(int(stack) for _, stack in held),
        "sass": dict(Counter(_SASS.findall(sass))),
        "ptx": dict(Counter(_PTX.findall(ptx))),
    }


def _dump(option, path):
    run = subprocess.run([toolchain.cuobjdump(), option, path], capture_output=True, text=True, check=False)
    if run.returncode:
        raise Unfit(f"cuobjdump {option} exits {run.returncode}: {run.stderr[:200]}")
    return run.stdout
