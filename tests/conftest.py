"""Shared by the harness's own tests: how hard hypothesis searches, and one thread for torch.

`HYPOTHESIS_PROFILE=nightly` searches longer, from a new seed each time; the default finds the same examples every time.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    # A GPU box that only judges (`pytest -m sm120`) needs no test tools; whoever asks for these tests is told.
    if any("tests" in argument for argument in sys.argv[1:]):
        raise
    collect_ignore_glob = ["*"]
else:
    _QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    settings.register_profile("quick", deadline=None, max_examples=40, derandomize=True, suppress_health_check=_QUIET)
    settings.register_profile(
        "nightly", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_QUIET
    )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
