"""The gate: schedule, run, record, judge. Knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from conformance import report
from conformance.catalogue import Claim
from conformance.errors import UsageError
from conformance.gate import schedule, waivers
from conformance.gate.folder import RunFolder, default_path
from conformance.gate.runner import Runner
from conformance.gate.settings import Resolved
from conformance.gate.verdict import Verdict, judge
from conformance.result import ClaimResult

Progress = Callable[[Claim, ClaimResult | None], None]


def run_gate(
    run: Resolved, selected: Collection[str] | None = None, progress: Progress = lambda claim, result: None
) -> tuple[Verdict, Path]:
    """Run every claim of the run and write the folder. `progress` is called before (None) and after each claim.

    Raises UsageError: run folder, resumed run that does not match, an interpreter or checkout that is none.
    """
    path = Path(run.settings.run_dir) if run.settings.run_dir else default_path(run)
    folder = RunFolder(run, path, run.settings.resume)
    runner = Runner(run, folder.record, folder.known, folder.saw_stack, folder=path)
    try:
        runner.recheck()
        results = []
        for claim in schedule.planned(run, selected):
            progress(claim, None)
            result = runner.run_claim(claim)
            results.append(result)
            progress(claim, result)
        selection = f"{len(results)} chosen claims" if selected is not None else ""
        verdict = judge(run, results, selection)
        report.write_all(folder, verdict)
        waivers.check_stale(results, run.waivers)
        return verdict, path
    except UsageError:
        folder.abandon()
        raise
    finally:
        runner.close()
        folder.close()
