"""One run of nvcc: what it made, what it said, how long and how much memory it took."""

import os
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from . import toolchain
from .problems import Missing, Unfit

SECONDS = 560.0
_ERROR = re.compile(r"(?:\): |:\d+: |^)(?:fatal )?error\b[^:\n]*: (.*)", re.M)


class Run(NamedTuple):
    """`said` is nvcc's output, `errors` the errors in it, a line each. Peak memory in MB."""

    code: int
    said: str
    errors: list[str]
    seconds: float
    megabytes: int


def run(arguments, folder):
    """Raises Unfit where nvcc was killed, took too long or failed for another reason than the source; Missing where its
    headers are not its own."""
    started = time.monotonic()
    command = [toolchain.nvcc(), *arguments, f"-I{toolchain.missing_headers(folder)}"]
    log = Path(folder) / "nvcc.log"
    with log.open("wb") as file:
        environment = os.environ | {"TMPDIR": str(folder)}
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        code, peak = _ended(process, started + SECONDS)
    said = log.read_text(errors="replace")
    errors = [" ".join(words.split())[:400] for words in _ERROR.findall(said)]
    if "died due to signal" in said or code < 0:
        raise Unfit(f"nvcc was killed (out of memory?): {' '.join(said.split())[-200:]}")
    if code and not errors:
        raise Unfit(f"nvcc exits {code} without an error in the source: {' '.join(said.split())[-300:]}")
    for error in errors:
        if "toolkit headers are incompatible" in error:
            told = "name a whole toolkit with CUDA_HOME, or install packages of one version"
            raise Missing(f"{command[0]} and the CUDA headers beside it are of different versions: {told}")
        if re.search(r"No such file or directory|cannot open source file", error):
            raise Unfit(f"a header is missing for nvcc: {error[:200]}")
    return Run(code, said, errors, round(time.monotonic() - started, 1), peak)


def _ended(process, deadline):
    """(exit code, MB of its largest process). `wait4` counts this child and those that it waited for, and no other."""
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_maxrss // 1024
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise Unfit(f"nvcc did not end in {SECONDS:g} s; the longest known unit takes under 120 s")
