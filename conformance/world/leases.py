"""GPUs taken for the time of use, so that runs on one box, and workers of one run, share its GPUs without overlap.

One lock file a GPU, by its UUID; the lock goes with the process that holds it, however that ends. Who needs several
takes all of them at once or waits with none in hand, and whoever came first is served first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

from conformance.errors import AdapterError

#: Of all users of this box.
FOLDER = Path("/tmp/tp-conformance-gpus")
_POLL = 0.2


class Lease:
    """`devices`: UUIDs, in CUDA's order; none where the box has no GPU, and then nothing is held."""

    def __init__(self, locks: dict[str, int]):
        self._locks = locks
        self.devices = tuple(locks)

    @property
    def environment(self) -> dict[str, str]:
        """For a process that shall see these GPUs alone."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.devices)} if self.devices else {}

    def close(self) -> None:
        """May be called twice."""
        while self._locks:
            os.close(self._locks.popitem()[1])


def visible() -> list[str]:
    """UUIDs of the GPUs that this process may use; empty without one. Needs no CUDA context."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            count = pynvml.nvmlDeviceGetCount()
            found = [str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i))) for i in range(count)]
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no NVML, no driver, no GPU
        return []
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if allowed is None else _chosen(allowed, found)


def _chosen(allowed: str, found: list[str]) -> list[str]:
    """As CUDA reads CUDA_VISIBLE_DEVICES: indexes or starts of UUIDs, up to the first that names no GPU."""
    chosen = list[str]()
    for word in (part.strip() for part in allowed.split(",")):
        if word.isdigit() and int(word) < len(found):
            chosen.append(found[int(word)])
        elif named := [uuid for uuid in found if word and uuid.startswith(word)]:
            chosen.append(named[0])
        elif word.startswith("MIG-"):
            chosen.append(word)
        else:
            break
    return list(dict.fromkeys(chosen))


def take(devices: Sequence[str], least: int, most: int, limit: float) -> Lease:
    """`least` of these GPUs, and up to `most` if more are free. Waits up to `limit` seconds; fewer than `least` there
    are: all of them. Raises AdapterError when the time is over, with who holds them."""
    least, until = min(least, len(devices)), time.monotonic() + limit
    if not devices:
        return Lease({})
    FOLDER.mkdir(mode=0o1777, exist_ok=True)
    with contextlib.suppress(PermissionError):
        FOLDER.chmod(0o1777)
    queue = _waited("queue", until)
    if queue is None:
        raise AdapterError(f"no GPU within {limit:g} s: others wait in {FOLDER}; end them, or try again later")
    try:
        while True:
            locks = _free(devices, most)
            if len(locks) >= least:
                return Lease(locks)
            Lease(locks).close()
            if time.monotonic() >= until:
                raise AdapterError(f"no {least} GPUs free within {limit:g} s: {_holders(devices)}; end them, or wait")
            time.sleep(_POLL)
    finally:
        os.close(queue)


def _free(devices: Sequence[str], most: int) -> dict[str, int]:
    """Locks on the first `most` GPUs that nobody holds."""
    locks = dict[str, int]()
    for device in devices:
        if len(locks) < most and (lock := _try(device)) is not None:
            locks[device] = lock
    return locks


def _try(name: str) -> int | None:
    """An open, locked file that says whose it is; None where somebody else has it."""
    lock = os.open(FOLDER / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    with contextlib.suppress(PermissionError):
        os.fchmod(lock, 0o666)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _waited(name: str, until: float) -> int | None:
    while (lock := _try(name)) is None and time.monotonic() < until:
        time.sleep(_POLL)
    return lock


def _holders(devices: Sequence[str]) -> str:
    """`GPU-1234 is held by process 17`, for each."""
    held = list[str]()
    for device in devices:
        with contextlib.suppress(OSError):
            held.append(f"{device} was last taken by process {(FOLDER / f'{device}.lock').read_text()}")
    return ", ".join(held)
