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
#: vLLM of a rank or an engine core that is gone; of a rank with its exit status, minus the signal that ended it.
_DIED = re.compile(r"(?:Worker|Engine core) proc \S+ died unexpectedly(?: \(exit code: (-?\d+)\))?")
#: What the dead leave if they ended by themselves.
_LAST_WORDS = ("Fatal Python error", "Traceback (most recent call last)")
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
            return port
        time.sleep(_POLL)
    raise RuntimeError(f"the server was not healthy within {seconds:g} s; start it alone to see why")


def ended():
    """The exit status of a process of the server's that died; -9 for one that left no words; then the server's own."""
    log = (Path.cwd() / "server.log").read_text(errors="replace")
    died = _DIED.findall(log)
    if codes := [int(code) for code in died if code]:
        return codes[0]
    if died and not any(words in log for words in _LAST_WORDS):
        return -9
    return engine.RUNNING["server"].poll()


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
