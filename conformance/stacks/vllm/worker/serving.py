"""vLLM's own OpenAI-compatible server, as a child of this worker: it ends with the worker's group."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from . import engine
from .problems import Refused

MODEL = "model"
#: vLLM of a rank that is gone, with its exit status: minus the signal, if one ended it.
_DIED = re.compile(r"Worker proc \S+ died unexpectedly \(exit code: (-?\d+)\)")
#: What processes leave in the log that end by themselves, and the status that it stands for.
_LAST_WORDS = {
    "Segfault encountered": -11,
    "Fatal Python error": -11,
    "terminate called": -6,
    "EngineCore encountered a fatal error": 1,
    "EngineCore failed": 1,
}
_POLL = 0.5
_LAST = 400


def serve(plugin, model, tp, settings, fault, seconds):
    """Start it on a free port of loopback, and wait until it is healthy: its port."""
    engine.prepare(plugin, settings, fault)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    named = {"model": model, "served-model-name": MODEL, "host": "127.0.0.1", "port": port}
    named |= {"tensor-parallel-size": tp, "distributed-executor-backend": "mp"}
    words = [word for key, value in (named | settings).items() for word in _words(key, value)]
    log = Path.cwd() / "server.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
    engine.RUNNING["server"] = child
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            last = " ".join(log.read_text(errors="replace")[-_LAST:].split())
            raise Refused(f"the server ended with {child.returncode} before it was healthy: {last}")
        if _healthy(port):
            engine.RUNNING["family"] = _family(child.pid)
            return port
        time.sleep(_POLL)
    raise RuntimeError(f"the server was not healthy within {seconds:g} s; start it alone to see why")


def ended():
    """The exit status of a process of the server's that died, then the server's own; -9 for one of whom nobody knows
    how it ended: it was killed before it could say a word."""
    log = (Path.cwd() / "server.log").read_text(errors="replace")
    if codes := _DIED.findall(log):
        return int(codes[0])
    if any(not _lives(pid) for pid in engine.RUNNING.get("family", ())):
        return next((status for words, status in _LAST_WORDS.items() if words in log), -9)
    return engine.RUNNING["server"].poll()


def _family(pid):
    """vLLM's own processes below that one (`VLLM::EngineCore`), as they call themselves; none where /proc is none."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += [int(child)] if _named(child) else []
            found += _family(child)
    return found


def _named(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"VLLM::")
    except OSError:
        return False


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _words(key, value):
    flag = f"--{key.replace('_', '-')}"
    if value is True:
        return [flag]
    if value is False:
        return [f"--no-{key.replace('_', '-')}"]
    return [flag, str(value)]


def _healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def stop():
    """Ask it to end; what stays ends with this worker."""
    child = engine.RUNNING.pop("server", None)
    if child is not None:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
