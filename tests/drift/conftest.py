"""A mini MPK checkout and a mini vLLM, fresh for each test; and what a clean audit of them finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.drift.finding import Finding
from tests.drift.mini.tree import write_mpk, write_vllm
from tests.drift.running import findings


@pytest.fixture
def mpk(tmp_path: Path) -> Path:
    return write_mpk(tmp_path / "mpk")


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    return write_vllm(tmp_path / "vllm")


@pytest.fixture(scope="package")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    home = tmp_path_factory.mktemp("clean")
    return findings(write_mpk(home / "mpk"), write_vllm(home / "vllm"))
