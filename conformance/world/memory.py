"""What was freed goes back to the system before ranks are started and after each of their calls: three ranks and who
asks them share a machine, and glibc keeps what is freed between things that stay."""

from __future__ import annotations

import contextlib
import ctypes


def given_back() -> None:
    """Nothing where the C library has no `malloc_trim`."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
