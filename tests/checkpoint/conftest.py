"""One small checkpoint a session, in two files."""

from __future__ import annotations

import shutil

import pytest

from references import make_checkpoint


@pytest.fixture(scope="session")
def _made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "small-v4"
    make_checkpoint.write(path, make_checkpoint.UNEVEN, seed=7, files=2)
    return path


@pytest.fixture
def checkpoint(_made, tmp_path):
    """A copy of one's own, to spoil."""
    return shutil.copytree(_made, tmp_path / "small-v4")
