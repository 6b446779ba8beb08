"""FlashInfer's CUDA kernel that interleaves SM90's weights, compiled for the host from its own source.

Its threads share nothing and wait for nothing, so that they may run one after the other: the launch becomes loops, and
CUDA's words become empty or plain structs. A kernel that shared memory or synchronised would not compile here.
"""

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from .problems import Unsupported
from .start import module

_SOURCE = "data/csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/moe_gemm_mixed_utils.cu"
_FUNCTION = "tensorrt_llm::kernels::cutlass_kernels::interleave_fp4_weights_for_sm90_mixed_gemm"
_SECONDS = 120
_RUNTIME = """
#pragma once
#define __global__
#define __device__
#define __forceinline__ inline
using cudaStream_t = void*;
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 gridDim, blockDim, blockIdx, threadIdx;
template <class Kernel, class... Arguments>
void conformance_launch(Kernel kernel, dim3 grid, dim3 block, int, cudaStream_t, Arguments... arguments) {
  gridDim = grid;
  blockDim = block;
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
        for (threadIdx.z = 0; threadIdx.z < block.z; ++threadIdx.z)
          for (threadIdx.y = 0; threadIdx.y < block.y; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x) kernel(arguments...);
}
"""
_ENTRY = """
extern "C" void conformance_interleave(unsigned char* from, unsigned char* to, int rows, int columns) {
  %s(from, to, rows, columns, nullptr);
}
"""
_LAUNCH = re.compile(r"(\w+)\s*<<<(.*?)>>>\s*\(", re.S)


def interleave(weight, quant_type="fp4"):
    """As FlashInfer's binding: uint8 (experts, n, k / 2) -> the same shape, expert by expert."""
    import torch

    if quant_type != "fp4":
        raise Unsupported(f"only the fp4 interleave runs on the host, and {quant_type} was asked for")
    experts, rows, cols = weight.shape
    if rows % 16 or 2 * cols % 64:
        raise ValueError(f"weights of {rows} rows, {2 * cols} columns: multiples of 16 and 64 are due (the binding's)")
    function, given = _compiled(), weight.contiguous()
    made = torch.empty_like(given)
    for expert in range(experts):
        addresses = (ctypes.c_void_p(one[expert].data_ptr()) for one in (given, made))
        function(*addresses, rows, 2 * cols)
    return made


@functools.cache
def _compiled():
    """Raises Unsupported with what is lacking."""
    lacking = "FlashInfer's interleave for SM90 is a CUDA kernel, and this process has no GPU"
    flashinfer = module("flashinfer")
    source = Path(flashinfer.__path__[0]) / _SOURCE if flashinfer else None
    if source is None or not source.is_file():
        raise Unsupported(
            f"{lacking}; to compile it for the host takes its source, {_SOURCE}: install all of FlashInfer"
        )
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise Unsupported(f"{lacking}; to compile it for the host takes g++: install gcc with its C++ compiler")
    with tempfile.TemporaryDirectory(prefix="conformance-host-") as folder:
        place = Path(folder)
        (place / "cuda_runtime.h").write_text(_RUNTIME)
        text = _LAUNCH.sub(r"conformance_launch(\1, \2, ", source.read_text())
        (place / "kernel.cpp").write_text(text + _ENTRY % _FUNCTION)
        command = [compiler, "-O2", "-std=c++17", "-shared", "-fPIC", "-I", folder, "-I", str(source.parent)]
        command += ["-o", str(place / "kernel.so"), str(place / "kernel.cpp")]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unsupported(f"{lacking}; {compiler} did not compile it for the host: {error}") from error
        if run.returncode:
            told = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr[:200])
            raise Unsupported(f"{lacking}; its source does not compile for the host: {told[:300]}")
        function = ctypes.CDLL(str(place / "kernel.so")).conformance_interleave
    function.restype = None
    return function
