"""`python -m tests.gate.dying CLAIM gate ...`: the real command, in which that claim's check kills the process."""

from __future__ import annotations

import os
import signal
import sys

from conformance import catalogue
from conformance.cli import main


def _killed(stack: object, context: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    deadly = sys.argv.pop(1)
    real = catalogue.Claim.function
    catalogue.Claim.function = lambda claim: _killed if claim.id == deadly else real(claim)  # type: ignore[method-assign]
    main()
