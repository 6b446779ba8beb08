"""pytest over the gate's own checks: the same functions, the same runner, the same verdict.

Activated by the clone's `conftest.py` (or `-p conformance.pytest_plugin`). The parts, in the order in which they act:

- `options`: what the command line asks for
- `collecting`: checks become `items` with their `marks`, in schedule order; what the caller left out on purpose
- `performer`: the one Runner of a process that runs claims; its results leave on reports (`telling`)
- `judging`: results become a `record`, a verdict over its `scope`, an exit code and a `summary`
- `local` joins these in one process; `distributed` joins them under xdist, where a `journal` survives a dead worker

A session that selects no claim and gives none of our options is none of our business: no verdict, no run folder,
pytest's own exit codes.
"""

from __future__ import annotations

import os
import sys

import pytest

from conformance.pytest_plugin import distributed, marks, options
from conformance.pytest_plugin.collecting import Collecting
from conformance.pytest_plugin.items import PERFORMER
from conformance.pytest_plugin.judging import Judging
from conformance.pytest_plugin.local import Local


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    distributed.group_claims(config)


def pytest_configure(config: pytest.Config) -> None:
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # copies and comparisons gain nothing from more
    marks.register(config)
    asked = config.stash[options.ASKED] = options.Asked(config)
    collecting = Collecting(config, asked)
    config.pluginmanager.register(collecting, "conformance-collecting")
    if hasattr(config, "workerinput"):
        worker = distributed.Worker(config, asked, collecting)
        config.stash[PERFORMER] = worker.performer
        _join(config, worker, worker.performer)
    elif not config.option.collectonly:
        if asked.judging:
            asked.run  # noqa: B018  wrong options end the session before anything is collected
        judging = Judging(config, asked)
        local = Local(config, asked, collecting, judging)
        config.stash[PERFORMER] = local.performer
        _join(config, local, local.performer, judging, distributed.Controller(config, judging))


def _join(config: pytest.Config, *parts: object) -> None:
    for part in parts:
        config.pluginmanager.register(part, f"conformance-{type(part).__name__.lower()}")
