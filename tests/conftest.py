"""Shared by the harness's own tests: how hard hypothesis searches, and one thread for torch.

`HYPOTHESIS_PROFILE=nightly` searches longer, from a new seed each time; the default finds the same examples every time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("quick", deadline=None, max_examples=40, derandomize=True, suppress_health_check=_QUIET)
settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
