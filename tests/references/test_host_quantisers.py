"""MXFP8 bit for bit against quantisers that other people wrote, each run in its own interpreter.

CONFORMANCE_VLLM_PYTHON names an interpreter with vLLM (its torch quantiser). FlashInfer's host code is used where
its module `mxfp8_quantization_sm100` has been built, under FLASHINFER_WORKSPACE_BASE or the home folder: there a build
takes two to three minutes and no GPU (FLASHINFER_CUDA_ARCH_LIST=12.0a, then
`flashinfer.jit.fp8_quantization.gen_mxfp8_quantization_sm100_module().build()`; a libcuda.so.1 must be loadable).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from references import mxfp8

PYTHON = os.environ.get("CONFORMANCE_VLLM_PYTHON")
_WORKSPACE = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache" / "flashinfer"
BUILT = sorted(_WORKSPACE.glob("**/mxfp8_quantization_sm100.so"))
_VLLM = """
import sys, torch
from vllm.model_executor.layers.quantization.utils.mxfp8_utils import _mxfp8_e4m3_quantize_torch as quantize
x = torch.frombuffer(bytearray(open(sys.argv[1], "rb").read()), dtype=torch.float32).view(-1, 4096)
codes, scales = quantize(x)
open(sys.argv[2], "wb").write(codes.view(torch.uint8).numpy().tobytes() + scales.numpy().tobytes())
"""
_FLASHINFER = """
import sys, torch, tvm_ffi
x = torch.frombuffer(bytearray(open(sys.argv[1], "rb").read()), dtype=torch.float32).view(-1, 4096)
codes, scales = torch.empty(x.shape, dtype=torch.uint8), torch.zeros(x.numel() // 32, dtype=torch.uint8)
tvm_ffi.load_module(sys.argv[3]).mxfp8_quantize_host(x, codes, scales, 2)  # 2: scales in plain order
open(sys.argv[2], "wb").write(codes.numpy().tobytes() + scales.numpy().tobytes())
"""

pytestmark = pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")


def inputs() -> torch.Tensor:
    """(37, 4096): random rows of many sizes; row 4 under scale byte 0, row 5 zeros, row 6 with amax 1.75 * 2^n."""
    rng = torch.Generator().manual_seed(20261129)
    x = torch.randn(37, 4096, generator=rng) * torch.exp2(torch.randint(-40, 41, (37, 1), generator=rng).float())
    x[4] = 2.0**-120 * torch.randn(4096, generator=rng).clamp(-1, 1)
    x[5] = 0
    x[6] = torch.randn(4096, generator=rng).clamp(-1, 1)
    x[6, ::32] = 1.75
    return x


def theirs(code: str, x: torch.Tensor, folder: Path, *more: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes (37, 4096), scales (37, 128)), uint8."""
    assert PYTHON is not None
    (folder / "x").write_bytes(x.numpy().tobytes())
    command = [PYTHON, "-c", code, str(folder / "x"), str(folder / "q"), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"it does not run here: {done.stderr.strip().splitlines()[-1]}")
    read = torch.frombuffer(bytearray((folder / "q").read_bytes()), dtype=torch.uint8)
    return read[: x.numel()].view(x.shape), read[x.numel() :].view(len(x), -1)


@pytest.mark.skipif(not BUILT, reason="FlashInfer's module mxfp8_quantization_sm100 has not been built here")
def test_flashinfers_host_code(tmp_path):
    x = inputs()
    codes, scales = theirs(_FLASHINFER, x, tmp_path, str(BUILT[0]))
    ours = mxfp8.quantize(x)
    assert torch.equal(ours.scales, scales)
    assert torch.equal(ours.codes.view(torch.uint8), codes)


def test_vllms_torch_code(tmp_path):
    """Equal but for the row under scale byte 0, where it keeps values instead of zeros."""
    x = inputs()
    codes, scales = theirs(_VLLM, x, tmp_path)
    ours = mxfp8.quantize(x)
    assert torch.equal(ours.scales, scales)
    differ = (ours.codes.view(torch.uint8) != codes).any(1).nonzero().flatten().tolist()
    assert differ == [4]


def test_vllms_logarithm_takes_the_scale_below_just_over_a_power_of_two(tmp_path):
    """amax one step above 448 * 2^20: log2 in FP32 rounds the excess away, and the largest elements saturate."""
    x = torch.zeros(37, 4096)
    x[:, ::32] = torch.nextafter(torch.tensor(448.0 * 2**20), torch.tensor(torch.inf))
    _, scales = theirs(_VLLM, x, tmp_path)
    assert scales.unique().tolist() == [127 + 20]
    assert mxfp8.quantize(x).scales.unique().tolist() == [127 + 21]
