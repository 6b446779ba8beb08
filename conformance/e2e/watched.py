"""Asks a server while an eye is kept on it: one that has ended may leave children that hold its socket, and silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from conformance.errors import StackTimeout

Told = TypeVar("Told")

#: Seconds between looks, and for what a server that has ended had already sent.
_LOOK, _GRACE = 1.0, 3.0


def watched(ask: Callable[[], Told], ended: Callable[[], int | None]) -> Told:
    """What `ask` gives, or raises. Raises StackTimeout when `ended` gives an exit status and no answer follows."""
    told: list[Told] = []
    raised: list[BaseException] = []

    def asking() -> None:
        try:
            told.append(ask())
        except BaseException as error:
            raised.append(error)

    thread, started = threading.Thread(target=asking, daemon=True), time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK)
        if thread.is_alive() and ended() is not None:
            thread.join(_GRACE)
            if thread.is_alive():
                raise StackTimeout(f"no answer, {time.monotonic() - started:.0f} s after the first request")
    if raised:
        raise raised[0]
    return told[0]
