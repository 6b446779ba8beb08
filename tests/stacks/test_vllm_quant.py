"""vLLM's quantisers in the worker that it has anyway, and that worker's modules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.stacks import libraries
from conformance.stacks.process import sources
from conformance.stacks.vllm import stack as vllm_stack
from conformance.stacks.vllm.stack import VllmStack

PYTHON = os.environ.get("CONFORMANCE_VLLM_PYTHON")


@pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")
def test_e2m1_codes_decode_through_the_worker(stack: VllmStack) -> None:
    import torch

    values = stack.quantizer().decode("e2m1", torch.arange(16, dtype=torch.uint8))
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert values.flatten().tolist() == [*magnitudes, *(-value for value in magnitudes)]


def test_no_module_of_the_worker_stands_for_another(tmp_path: Path) -> None:
    own, lent = Path(vllm_stack.__file__).parent / "worker", Path(libraries.__file__).parent / "worker"
    assert {"packing", "tensors"} <= set(sources(lent, own))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.py").write_text("")
    with pytest.raises(ValueError, match="two modules of a worker are called one"):
        sources(tmp_path / "a", tmp_path / "b")
