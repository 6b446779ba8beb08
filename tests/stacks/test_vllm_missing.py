"""The `vllm` stack without a vLLM: lazy, and every wrong call or missing package is one line that says what to do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import geometry
from conformance.errors import StackMissing, UsageError
from conformance.stacks.protocols import ExpertsRequest, PlanRequest, StackOptions
from conformance.stacks.vllm import open_stack

without_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vllm is importable in this interpreter"
)


def test_opening_draws_in_neither_torch_nor_a_process() -> None:
    code = (
        "import sys\n"
        "from conformance.stacks.vllm import open_stack\n"
        "from conformance.stacks.protocols import StackOptions\n"
        "stack = open_stack(StackOptions(python='/nowhere'))\n"
        "stack.planner(), stack.loader(), stack.close()\n"
        "print([name for name in ('torch', 'vllm') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@without_vllm
def test_a_missing_vllm_names_the_interpreter_and_the_cure(tmp_path: Path) -> None:
    stack = open_stack(StackOptions(work_dir=str(tmp_path)))
    try:
        for ask in (stack.info, lambda: stack.planner().plan(_request())):
            with pytest.raises(StackMissing) as caught:
                ask()
            message = str(caught.value)
            assert message.startswith(f"vllm is not importable in {sys.executable}: ModuleNotFoundError: ")
            assert message.endswith("pip install vllm, or name another interpreter with --vllm-python")
            assert "\n" not in message
    finally:
        stack.close()


@without_vllm
def test_a_checkout_that_cannot_be_imported_is_missing_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "checkout" / "vllm").mkdir(parents=True)
    (tmp_path / "checkout" / "vllm" / "__init__.py").write_text("raise RuntimeError('built for another\\ntorch')\n")
    stack = open_stack(StackOptions(source=str(tmp_path / "checkout"), work_dir=str(tmp_path / "run")))
    try:
        for _ in range(2):
            with pytest.raises(StackMissing, match="RuntimeError: built for another torch; install it"):
                stack.info()
    finally:
        stack.close()


def test_wrong_paths_are_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--vllm-source .* holds no vllm/__init__"):
        open_stack(StackOptions(source=str(tmp_path))).info()
    with pytest.raises(UsageError, match="--vllm-python /nowhere: no such file"):
        open_stack(StackOptions(python="/nowhere")).loader().open_experts(_experts())


def _request() -> PlanRequest:
    return PlanRequest(geometry.load("deepseek-v4-flash"), 3, (12, 0), None, "flashinfer_cutlass")


def _experts() -> ExpertsRequest:
    return ExpertsRequest(geometry.load("deepseek-v4-flash"), 3, 0, "flashinfer_cutlass", 1, (12, 0))
