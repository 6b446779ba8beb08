"""pytest over the gate's own checks: the same functions, the same runner, the same verdict.

Activated by the clone's `conftest.py` (or `-p conformance.pytest_plugin`). The parts, in the order in which they act:

- `options`: what the command line asks for
- `collecting`: a `suitefile` gives `items` with their `marks`, in schedule order; what the caller left out on purpose
- `performer`: the one Runner of a process that runs claims; its results leave on reports (`telling`)
- `judging`: results become a `record`, a verdict over its `scope`, an exit code and a `summary`
- `local` joins these in one process; `distributed` joins them under xdist, where a `journal` survives a dead worker

A session that selects no claim and gives none of our options is none of our business: no verdict, no run folder,
pytest's own exit codes.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from conformance.pytest_plugin import marks, options
from conformance.pytest_plugin.collecting import Collecting
from conformance.pytest_plugin.items import PERFORMER

if TYPE_CHECKING:
    from conformance.pytest_plugin.performer import Performer


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """`-n` alone would mean `--dist load`, which scatters the claims of one stack."""
    if config.getoption("numprocesses", None) and config.option.dist == "no" and not config.option.distload:
        config.option.dist = "loadgroup"


def pytest_configure(config: pytest.Config) -> None:
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # copies and comparisons gain nothing from more
    marks.register(config)
    asked = config.stash[options.ASKED] = options.Asked(config)
    collecting = Collecting(config, asked)
    config.pluginmanager.register(collecting, "conformance-collecting")
    if not config.option.collectonly:
        _play(config, asked, collecting)


def _play(config: pytest.Config, asked: options.Asked, collecting: Collecting) -> None:
    """Register what this process does beyond collecting: run claims, judge them, or both."""
    if hasattr(config, "workerinput"):
        from conformance.pytest_plugin.distributed import Worker

        worker = Worker(config, asked, collecting)
        _perform(config, worker, worker.performer)
        return
    if asked.judging:
        asked.run  # noqa: B018  wrong options end the session before anything is collected
    from conformance.pytest_plugin.judging import Judging

    judging = Judging(config, asked)
    config.pluginmanager.register(judging, "conformance-judging")
    if config.getoption("dist", "no") != "no" and config.getoption("tx", []):
        from conformance.pytest_plugin.distributed import Controller

        config.pluginmanager.register(Controller(config, judging), "conformance-controller")
    else:
        from conformance.pytest_plugin.local import Local

        local = Local(config, asked, collecting, judging)
        _perform(config, local, local.performer)


def _perform(config: pytest.Config, side: object, performer: Performer) -> None:
    config.stash[PERFORMER] = performer
    config.pluginmanager.register(side, "conformance-side")
    config.pluginmanager.register(performer, "conformance-performer")
