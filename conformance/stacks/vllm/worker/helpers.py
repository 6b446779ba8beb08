"""FlashInfer's helpers that post-load conversion calls: on a CPU, by its own host code where that has been built.

`block_scale_interleave` refuses CPU tensors, although its C++ has a host path. A built module is called directly; where
there is none, vLLM's own torch routine for the same layout stands in. SM90's weight interleave is a CUDA kernel, which
`host_kernel` compiles for the host; its scales are folded by torch.
"""

import contextlib
import importlib
import os
from pathlib import Path

from . import host_kernel
from .problems import Unsupported
from .start import module

_SWIZZLES = "vllm.model_executor.layers.quantization.utils.mxfp8_utils"
_SM90 = "interleave_moe_weights_for_sm90_mixed_gemm"
#: The user's own FlashInfer workspace; this process has another.
_WORKSPACE = "CONFORMANCE_FLASHINFER_WORKSPACE"
_found: list = []
_shapes_alone: list = []


def known(backend):
    """Has the harness a recipe for what this backend's kernel reads?"""
    return backend.startswith("FLASHINFER_CUTLASS_MXFP4")


def words(scheme):
    """Whose code rearranges, for kernels that multiply with `scheme`."""
    if scheme == "bf16":
        return "FlashInfer's own: its CUDA kernel compiled for the host (weights), its torch code (scales)"
    return _interleave()[1]


def _interleave():
    """(function of (rows, groups) or (experts, rows, groups) uint8 -> flat, whose code it is)."""
    if not _found:
        _found.append(_host_code() or _torch_code())
    return _found[0]


def _host_code():
    for path in _built():
        try:
            loaded = importlib.import_module("tvm_ffi").load_module(str(path))
            function = loaded.block_scale_interleave_sm100
        except Exception:
            continue
        return _calling(function), f"FlashInfer's own host code ({path.parent.name})"
    return None


def _built():
    """Built fp4_quantization modules of the installed FlashInfer: packaged ones, then the user's own cache."""
    flashinfer = module("flashinfer")
    packaged = module("flashinfer_jit_cache")
    roots = [Path(p) for p in packaged.__path__] if packaged else []
    if workspace := os.environ.get(_WORKSPACE):
        roots.append(Path(workspace) / ".cache" / "flashinfer" / getattr(flashinfer, "__version__", "unknown"))
    return [path for root in roots for path in sorted(root.glob("**/fp4_quantization_*/*.so"))]


def _calling(function):
    def interleave(scales, *, out=None):
        import torch

        *experts, rows, groups = scales.shape
        size = -(-rows // 128) * 128 * -(-groups // 4) * 4 * (experts[0] if experts else 1)
        made = torch.empty(size, dtype=scales.dtype) if out is None else out
        function(scales.contiguous(), made)
        return made

    return interleave


def _torch_code():
    found = module(_SWIZZLES)
    if found is None or not hasattr(found, "swizzle_mxfp8_scale"):
        raise Unsupported("no built FlashInfer module here, and this vLLM has no torch routine for the scale layout")

    def interleave(scales, *, out=None):
        import torch

        each = scales if scales.dim() == 3 else scales[None]
        rows, groups = each.shape[1:]
        made = torch.cat([found.swizzle_mxfp8_scale(one, rows, groups * 32) for one in each])
        return made if out is None else out.copy_(made)

    return interleave, f"vLLM's torch routine ({_SWIZZLES.rsplit('.', 1)[1]}.swizzle_mxfp8_scale)"


@contextlib.contextmanager
def on_cpu():
    """Inside, FlashInfer's interleave helpers take CPU tensors, or say that they cannot."""
    flashinfer, moe = module("flashinfer"), module("flashinfer.fused_moe")
    if flashinfer is None:
        raise Unsupported("flashinfer is not installed beside this vLLM: pip install flashinfer-python")

    def on_host(weight, *rest, **named):
        return weight if _shapes_alone else host_kernel.interleave(weight, *rest, **named)

    interleave = _interleave()[0]
    replaced = [(flashinfer, "block_scale_interleave", interleave), (moe, _SM90, on_host)]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced if hasattr(owner, name)]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


@contextlib.contextmanager
def shapes_alone():
    """Inside, what runs on a GPU alone gives its argument back: shape and dtype are right, bytes are not looked at."""
    _shapes_alone.append(True)
    try:
        yield
    finally:
        _shapes_alone.pop()
