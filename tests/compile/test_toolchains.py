"""The real toolchains, as far as this interpreter holds them."""

from __future__ import annotations

import importlib.util
import os

import pytest

from conformance.errors import NotSupported, StackMissing
from conformance.stacks.compile.compiler import ToolchainCompiler
from conformance.stacks.compile.protocol import CompileUnit


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = ToolchainCompiler(None, str(tmp_path / "work"))
    yield made
    made.close()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")
def test_triton_compiles_without_a_gpu(compiler):
    result = compiler.compile(CompileUnit("triton", "kernel", "sm_120a", "mxfp8"))
    by_name = {kernel.name: kernel for kernel in result.kernels}
    assert not result.cached and result.toolchain["triton"]
    assert {kernel.target for kernel in result.kernels} == {"sm_120a"}
    assert all(op.startswith("QMMA.SF.") for op in by_name["e4m3 x e4m3"].sass)
    compiler.close()
    compiler._known.clear()
    assert compiler.compile(CompileUnit("triton", "kernel", "sm_120a", "mxfp8")).cached


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is not None, reason="FlashInfer is installed here")
@pytest.mark.parametrize("route", ["cutlass", "cute"])
def test_without_flashinfer(compiler, route):
    with pytest.raises(StackMissing, match="pip install"):
        compiler.compile(CompileUnit(route, "kernel", "sm_120a", "mxfp8"))


def test_a_target_that_no_module_is_for(compiler):
    with pytest.raises(NotSupported, match="sm_80a"):
        compiler.compile(CompileUnit("cutlass", "kernel", "sm_80a", "bf16"))


@pytest.mark.skipif(
    not os.environ.get("CONFORMANCE_VLLM_PYTHON"), reason="CONFORMANCE_VLLM_PYTHON names no interpreter"
)
def test_flashinfers_tiles(monkeypatch, tmp_path):
    """Twelve tiles on SM120, the largest without a byte to spare. Source: measured with nvcc 13.0.88."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = ToolchainCompiler(os.environ["CONFORMANCE_VLLM_PYTHON"], str(tmp_path / "work"))
    try:
        result = made.compile(CompileUnit("cutlass", "tiles", "sm_120a", "mxfp8"))
    except StackMissing as error:
        pytest.skip(str(error))
    finally:
        made.close()
    assert len(result.kernels) == 12 and max(kernel.shared for kernel in result.kernels) == 101376
