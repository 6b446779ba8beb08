"""examples/cute_dsl_sm90_gemm without its GPU: it refuses in one line, it is never GO, and it compiles for SM90."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from conformance.errors import StackMissing, StackRefused
from conformance.stacks.protocols import StackOptions
from conformance.stacks.quant_protocol import Activations, QuantizedWeight

TREE = Path(__file__).parents[2]
EXAMPLE = TREE / "examples" / "cute_dsl_sm90_gemm"
#: Where CuTe DSL may be: here, or beside the vLLM that is tested.
PYTHON = sys.executable if find_spec("cutlass") else os.environ.get("CONFORMANCE_VLLM_PYTHON")


@pytest.fixture
def adapter(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    import cute_dsl_sm90_gemm.adapter

    return cute_dsl_sm90_gemm.adapter


@pytest.fixture
def libraries(adapter, monkeypatch):
    """CuTe DSL taken as installed."""
    monkeypatch.setattr(adapter, "find_spec", lambda name: object())
    return adapter


def test_opening_it_imports_nothing_heavy():
    code = (
        "import sys, cute_dsl_sm90_gemm.adapter as a; a.open_nvfp4(None); print({'torch', 'cutlass'} & {*sys.modules})"
    )
    path = os.pathsep.join([str(TREE), str(EXAMPLE / "src")])
    told = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    assert told.stdout.split() == [b"set()"], told.stderr.decode()


def test_without_cute_dsl_it_names_what_to_install(adapter, monkeypatch):
    monkeypatch.setattr(adapter, "find_spec", lambda name: None if name == "cutlass" else object())
    for ask in (lambda stack: stack.info(), lambda stack: stack.gemm()):
        with pytest.raises(
            StackMissing, match=r"^nvidia-cutlass-dsl is not installed in .*: pip install nvidia-cutlass-dsl$"
        ):
            ask(adapter.open_mxfp4(StackOptions()))


def test_without_a_gpu_there_is_no_gemm(libraries, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StackMissing, match="cute-sm90-nvfp4 needs an SM90 GPU"):
        libraries.open_nvfp4(StackOptions()).gemm()


@pytest.mark.parametrize("capability", [(8, 9), (10, 0), (12, 0)])
def test_another_gpu_is_refused(libraries, monkeypatch, capability):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Other")
    with pytest.raises(StackMissing, match=r"is for SM90 .*; this is a Other, SM{}{}".format(*capability)):
        libraries.open_nvfp4(StackOptions()).gemm()


def test_weights_and_calls_of_the_wrong_shape_are_refused(adapter):
    import torch

    gemm = adapter.CuteGemm(object(), "nvfp4")
    codes, scales, ones = (torch.zeros(2, 8, 16), torch.zeros(2, 8, 1), torch.ones(2))
    with pytest.raises(StackRefused, match=r"\(2, 8, 1\).*\(2, 8, 2\)"):  # a scale for 32 elements where 16 have one
        gemm.prepare(QuantizedWeight(codes.byte(), scales.byte(), ones))
    handle = adapter.Handle(codes, scales, ones, (2, 8, 32))
    x, rows = torch.zeros(3, 32), torch.zeros(2, dtype=torch.int32)
    for wrong in (
        (x[:, :16], rows, torch.zeros(3, 8)),
        (x, rows, torch.zeros(2, 8)),
        (x, rows[:1], torch.zeros(3, 8)),
    ):
        with pytest.raises(StackRefused, match="need x"):
            gemm.run(handle, Activations(wrong[0]), wrong[1], rows, wrong[2])


_COMPILE = """
import json, sys
import planted
from cute_dsl_sm90_gemm.kernel import GroupedGemm, compiled
kinds = [GroupedGemm, *(planted.FAULTS.values() if sys.argv[2] else ())]
print(json.dumps([compiled(kind(sys.argv[1])).__ptx__ for kind in kinds]))
"""


@pytest.mark.skipif(not PYTHON, reason="CuTe DSL is neither here nor where CONFORMANCE_VLLM_PYTHON points")
@pytest.mark.parametrize(("weights", "faults"), [("nvfp4", "with faults"), ("mxfp4", "")])
def test_it_compiles_for_sm90_and_every_fault_is_in_the_code(tmp_path, weights, faults):
    assert PYTHON
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(EXAMPLE / "src"), str(EXAMPLE / "tests")]),
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_KEEP": "ptx,cubin",
        "CUTE_DSL_DUMP_DIR": str(tmp_path),
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
    }
    call = [PYTHON, "-c", _COMPILE, weights, faults]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    code = [body(ptx) for ptx in json.loads(done.stdout.splitlines()[-1])]
    assert all(".target sm_90a" in ptx for ptx in code)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in code[0]
    assert ".local" not in code[0]  # no array fell out of the registers
    assert len({*code}) == len(code), "a fault compiles to the same code as another kernel"


def body(ptx: str) -> str:
    """Without the kernel's own name, which tells the class."""
    return "\n".join(line for line in ptx.splitlines() if "kernel_cutlass" not in line)
