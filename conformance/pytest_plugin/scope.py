"""Which claims a session is judged by: the must-pass list, never what happened to be collected."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pytest

from conformance.gate import schedule

if TYPE_CHECKING:
    from conformance.catalogue import Claim
    from conformance.pytest_plugin.options import Asked


def judged(asked: Asked, left_out: Collection[str]) -> tuple[list[Claim], str]:
    """The claims, and the words of a partial scope (`4 chosen claims`); without words the scope is the run's own.

    A selection is a -k, a -m that is more than a profile, or anything else that left claims out on purpose. A profile's
    own -m leaves out what the profile does not ask for, and is none. Claims for which this version has no check can be
    due in a full scope only.
    """
    planned = schedule.planned(asked.run)
    if asked.marked_profile and not set(left_out) & set(asked.run.required):
        planned, left_out = [claim for claim in planned if claim.id not in left_out], ()
    if not asked.narrowing and not left_out:
        return planned, ""
    chosen = [claim for claim in planned if claim.check and claim.id not in left_out]
    return chosen, f"{len(chosen)} chosen claim{'' if len(chosen) == 1 else 's'}"


def refuse_selection(asked: Asked, kept: Collection[str]) -> None:
    """Raises pytest.UsageError under a release policy, unless everything runs that has a check."""
    run = asked.run
    if not run.policy.release:
        return
    due = [claim for claim in schedule.planned(run) if not asked.marked_profile or claim.id in run.required]
    if asked.narrowing or any(claim.check and claim.id not in kept for claim in due):
        raise pytest.UsageError(f"policy {run.settings.policy} refuses a selection: it judges the whole scope")
