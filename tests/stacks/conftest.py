"""The real vLLM that CONFORMANCE_VLLM_PYTHON names (and a checkout, CONFORMANCE_VLLM_SOURCE), one a module of tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from conformance.stacks.protocols import StackInfo, StackOptions
from conformance.stacks.vllm import open_stack
from conformance.stacks.vllm.stack import VllmStack

#: The audited commit: https://github.com/mlow/vllm, object 45c1582e9.
AUDITED = "45c1582e9"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmStack]:
    options = StackOptions(
        python=os.environ.get("CONFORMANCE_VLLM_PYTHON"),
        source=os.environ.get("CONFORMANCE_VLLM_SOURCE") or None,
        work_dir=str(tmp_path_factory.mktemp("run")),
    )
    opened = open_stack(options)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def info(stack: VllmStack) -> StackInfo:
    return stack.info()


@pytest.fixture
def audited(info: StackInfo) -> None:
    if not info.identity.get("commit", "").startswith(AUDITED):
        pytest.skip(f"the numbers are those of commit {AUDITED}")


@pytest.fixture
def stock(info: StackInfo) -> None:
    if "virtual-tp" in info.capabilities:
        pytest.skip("the numbers are those of a vLLM without virtual TP")
