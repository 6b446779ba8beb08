"""One process a rank, all asked at once. When one fails, all are ended, and the error names the rank to blame."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from conformance import errors
from conformance.stacks.running import Running
from conformance.world import leases, own
from conformance.world.member import stage_of

#: Seconds that the death of a rank may take to show, once another rank has lost it.
_GRACE = 6.0
#: Seconds for the group's orderly end; after that it is ended in disorder.
_LEAVE = 15.0


class _Outcome(NamedTuple):
    """What one rank's call came to. `lost`: the process died or hung, and did not report the error itself."""

    rank: int
    at: float
    value: Any = None
    error: Exception | None = None
    lost: bool = False


class Processes:
    """`size` ranks in one process group, started by the first call, and again after a failure.

    `backend` is torch.distributed's; with nccl each rank, and what its stack starts, sees one GPU alone. `call_timeout`
    (seconds) limits each call as a whole.
    """

    def __init__(self, size: int, backend: str, call_timeout: float, start_timeout: float):
        self.size, self.backend = size, backend
        self._call_timeout, self._start_timeout = call_timeout, start_timeout
        self._members: list[Running] = []
        self._pool: ThreadPoolExecutor | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    def each(self, function: str, setup: bytes, arguments: dict[str, Any], timeout: float | None = None) -> list[Any]:
        """What `function` (`module:name`) returns on each rank, in rank order; simple types and bytes.

        Raises the stack's error of the rank to blame, in words that name it; StackCrashed, StackTimeout. After any
        failure all ranks are ended: what they agreed on is gone.
        """
        self._start()
        given = {"function": function, "setup": setup, "arguments": arguments}
        limit = self._call_timeout if timeout is None else timeout
        return self._all(f"{function.partition(':')[2]}", lambda rank: self._asked(rank, "call", given, limit))

    def close(self) -> None:
        """Leave the group in order if all ranks are well, then end every process. May be called twice."""
        if self._members and self._pool:
            left = [self._pool.submit(self._asked, rank, "leave", {}, _LEAVE) for rank in range(len(self._members))]
            wait(left, timeout=_LEAVE + 1)
        self._end()

    def _start(self) -> None:
        if self._members:
            return
        self._pool = ThreadPoolExecutor(max_workers=2 * self.size)
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        store = str(Path(self._folder.name) / "store")
        futures = [self._pool.submit(self._one, rank) for rank in range(self.size)]
        try:
            self._members = [future.result() for future in futures]
        except BaseException:
            self._members = [f.result() for f in futures if not f.exception()]
            self._end()
            raise
        common = {"size": self.size, "backend": self.backend, "store": store}
        self._all(
            "joining the process group",
            lambda rank: self._asked(rank, "join", {"rank": rank, **common}, self._start_timeout),
        )

    def _one(self, rank: int) -> Running:
        gpus = leases.visible() if self.backend == "nccl" else []
        alone = {"CUDA_VISIBLE_DEVICES": gpus[rank]} if rank < len(gpus) else {}
        made = own.spec(f"rank{rank}", "conformance.world.rank", self._call_timeout, self._start_timeout, alone)
        return Running(made)

    def _asked(self, rank: int, name: str, arguments: dict[str, Any], timeout: float) -> _Outcome:
        try:
            kind, value = self._members[rank].ask(name, arguments, timeout)
        except errors.StackError as error:
            return _Outcome(rank, time.monotonic(), error=error, lost=True)
        if kind == "ok" and name == "call":
            kind, value = value
        if kind == "ok":
            return _Outcome(rank, time.monotonic(), value)
        return _Outcome(rank, time.monotonic(), error=errors.named(kind, str(value)))

    def _all(self, doing: str, asked: Callable[[int], _Outcome]) -> list[Any]:
        assert self._pool is not None
        try:
            futures = [self._pool.submit(asked, rank) for rank in range(self.size)]
            outcomes = self._gathered(futures)
            if all(outcome.error is None for outcome in outcomes):
                return [outcome.value for outcome in outcomes]
            raise self._blamed(doing, outcomes)
        except BaseException:
            self._end()
            raise

    def _gathered(self, futures: list[Future[_Outcome]]) -> list[_Outcome]:
        """Outcomes in rank order: all of them, or those that are there soon after the first failure."""
        waiting, failed = set(futures), False
        until = float("inf")
        while waiting and (left := until - time.monotonic()) > 0:
            done, waiting = wait(waiting, timeout=None if left == float("inf") else left, return_when=FIRST_COMPLETED)
            for outcome in (future.result() for future in done):
                if outcome.error is not None and not failed:
                    failed = True
                    # Who lost a peer reports before the peer's death is seen; any other error speaks for itself.
                    peer = outcome.lost or isinstance(outcome.error, errors.AdapterError)
                    until = time.monotonic() + (_GRACE if peer else 0.0)
                if outcome.lost and not isinstance(outcome.error, errors.StackTimeout):
                    until = min(until, time.monotonic())
        return [future.result() for future in futures if future.done()]

    def _blamed(self, doing: str, outcomes: list[_Outcome]) -> Exception:
        """The error of the rank to blame: one that died, else the first that failed, else the one that lags."""
        failed = sorted((o for o in outcomes if o.error is not None), key=lambda o: o.at)
        dead = [o for o in failed if o.lost and not isinstance(o.error, errors.StackTimeout)]
        told = [o for o in failed if not o.lost]
        if dead or told:
            one = (dead or told)[0]
            assert one.error is not None
            return type(one.error)(f"rank {one.rank} of {self.size}: {one.error}; all ranks were ended")
        return self._hung(doing, failed)

    def _hung(self, doing: str, failed: list[_Outcome]) -> errors.StackError:
        stages = {o.rank: stage_of(self._members[o.rank].folder) for o in failed}
        least = min(count for count, _ in stages.values())
        slow = [rank for rank, (count, _) in stages.items() if count == least]
        words = f"{doing}: {failed[0].error}"
        if len(slow) == len(stages):
            return errors.StackTimeout(f"all ranks hang in {stages[slow[0]][1]}; all were ended: {words}")
        ahead = next(stage for count, stage in stages.values() if count != least)
        who = " and ".join(f"rank {rank}" for rank in slow)
        return errors.StackTimeout(
            f"{who} of {self.size} came no further than {stages[slow[0]][1]}, while others wait in {ahead}; "
            f"all ranks were ended: {words}"
        )

    def _end(self) -> None:
        members, self._members = self._members, []
        pool, self._pool = self._pool, None
        if members:
            with ThreadPoolExecutor(max_workers=len(members)) as ending:
                list(ending.map(Running.end, members))
        if pool:
            pool.shutdown(wait=False, cancel_futures=True)
        if self._folder:
            with contextlib.suppress(OSError):
                self._folder.cleanup()
            self._folder = None
