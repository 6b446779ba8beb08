"""How the harness reaches the kernel: a stack of one layer, `quant`, that has a grouped GEMM and nothing else."""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from conformance.errors import StackMissing, StackRefused
from conformance.stacks.protocols import StackInfo
from conformance.stacks.quant_protocol import BLOCK, Activations, GemmCapabilities, QuantizedWeight

if TYPE_CHECKING:
    import torch

    from conformance.stacks.protocols import StackOptions
    from cute_dsl_sm90_gemm.kernel import GroupedGemm

Weights = Literal["nvfp4", "mxfp4"]
_LIBRARIES = {"torch": "torch", "cutlass": "nvidia-cutlass-dsl", "tvm_ffi": "apache-tvm-ffi"}
_CAPABILITY = (9, 0)
#: `mma.sync` truncates its sums: less than a unit of FP32, 2^-23 of the sum so far, for every 16 elements of K. For K
#: up to 1024, the longest that is asked for, that is 64 * 2^-23. On an H200 2^-18.9 was seen (tests/test_sums.py).
_ACCUMULATION = 2.0**-17


def open_nvfp4(options: StackOptions) -> CuteStack:
    return CuteStack("nvfp4")


def open_mxfp4(options: StackOptions) -> CuteStack:
    return CuteStack("mxfp4")


class CuteStack:
    def __init__(self, weights: Weights):
        self.name, self._weights = f"cute-sm90-{weights}", weights

    def info(self) -> StackInfo:
        """Raises StackMissing without CuTe DSL."""
        _look_for_libraries()
        kernel = Path(__file__).with_name("kernel.py").read_bytes()
        return StackInfo(
            name=self.name,
            subject=self.name,
            version=version("cute-dsl-sm90-gemm"),
            python=sys.executable,
            identity={library: version(library) for library in _LIBRARIES.values()}
            | {"kernel.py": hashlib.sha256(kernel).hexdigest(), "gpu": _gpu() or "none"},
            capabilities=["quant (grouped GEMM)"],
        )

    def gemm(self) -> CuteGemm:
        """Raises StackMissing without a GPU that runs SM90 code."""
        import torch

        _look_for_libraries()
        if not torch.cuda.is_available():
            raise StackMissing(f"{self.name} needs an SM90 GPU (H100, H200), and torch sees none here")
        if (found := torch.cuda.get_device_capability()) != _CAPABILITY:
            raise StackMissing(f"{self.name} is for SM90 (H100, H200); this is a {_gpu()}, SM{found[0]}{found[1]}")
        return CuteGemm(self.kernel(), self._weights)

    def kernel(self) -> GroupedGemm:
        from cute_dsl_sm90_gemm.kernel import GroupedGemm

        return GroupedGemm(self._weights)

    def close(self) -> None:
        pass


class Handle(NamedTuple):
    """The weights as the kernel reads them; `shape` is (E, N, K)."""

    codes: torch.Tensor
    scales: torch.Tensor
    global_scales: torch.Tensor
    shape: tuple[int, int, int]


class CuteGemm:
    """`gemm`: what is compiled, once, at the first `prepare`."""

    def __init__(self, gemm: GroupedGemm, weights: Weights):
        self._gemm, self._weights = gemm, weights
        self._launch: Any = None

    def capabilities(self) -> GemmCapabilities:
        return GemmCapabilities(
            weights=self._weights,
            activations="bf16",
            runs="cute_dsl_sm90_gemm.kernel.GroupedGemm: dequantised to BF16, mma.sync m16n8k16, FP32 sums",
            device="cuda",
            accumulation=_ACCUMULATION,
            steps=(1, BLOCK[self._weights]),
        )

    def prepare(self, weights: QuantizedWeight) -> Handle:
        import torch

        experts, columns, half = weights.codes.shape
        blocks = 2 * half // BLOCK[self._weights]
        due = (experts, columns, blocks), (experts,)
        if (got := (tuple(weights.scales.shape), tuple(weights.global_scales.shape))) != due:
            raise StackRefused(f"scales and global scales are {got[0]} and {got[1]}; {due[0]} and {due[1]} are due")
        if self._launch is None:
            from cute_dsl_sm90_gemm.kernel import compiled

            self._launch = compiled(self._gemm)
        kept = (tensor.clone(memory_format=torch.contiguous_format) for tensor in weights)
        return Handle(*kept, (experts, columns, 2 * half))

    def run(
        self, handle: Handle, a: Activations, offsets: torch.Tensor, sizes: torch.Tensor, out: torch.Tensor
    ) -> None:
        experts, columns, depth = handle.shape
        if a.x.shape[1] != depth or tuple(out.shape) != (len(a.x), columns) or len(offsets) != experts:
            raise StackRefused(
                f"x {tuple(a.x.shape)}, out {tuple(out.shape)}, {len(offsets)} groups; "
                f"weights {handle.shape} need x (T, {depth}), out (T, {columns}), {experts} groups"
            )
        if out.numel():
            self._launch(a.x, handle.codes, handle.scales, handle.global_scales, offsets, sizes, out)

    def close(self, handle: Handle) -> None:
        pass


def _look_for_libraries() -> None:
    for module, distribution in _LIBRARIES.items():
        if find_spec(module) is None:
            raise StackMissing(f"{distribution} is not installed in {sys.executable}: pip install {distribution}")


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""
