"""vLLM's hyper-connections as its layers call them: `layers/mhc.py`, by its CPU extension or its GPU kernels."""

import importlib

from .problems import Unsupported, refusals

_CPU = ("hc_pre_fused_cpu", "hc_post_fused_cpu", "hc_head_fused_cpu")
_POST = 2.0


def describe_hyper():
    """{"runs": words, "device": torch's name, "weights": what fn becomes}: on a GPU mixes are DeepGEMM's
    `tf32_hc_prenorm_gemm`, and its fn was seen rounded to the nearest (H200, 0.33.0). Raises Unsupported where this
    vLLM has none for its platform."""
    import torch

    kind = _kind()
    where = torch.cuda.get_device_name() if kind == "cuda" else "CPU"
    return {
        "runs": f"vLLM's MHCPreOp, MHCPostOp, HCHeadOp (forward_{kind}) on {where}",
        "device": kind,
        "weights": "tf32" if kind == "cuda" else "float32",
    }


def _kind():
    import torch
    from vllm.platforms import current_platform

    try:
        from vllm.model_executor.layers import mhc  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"this vLLM has no hyper-connections: {error}") from error
    if current_platform.is_cuda():
        return "cuda"
    lacking = [name for name in _CPU if not hasattr(torch.ops._C, name)]
    if lacking:
        raise Unsupported(f"this vLLM's CPU extension has no {', '.join(lacking)}")
    return "cpu"


def hyper(method, arguments):
    import torch
    from vllm.model_executor.layers import mhc

    packing = importlib.import_module(f"{__package__}.packing")
    kind = _kind()
    given = [one.to(kind) if isinstance(one, torch.Tensor) else one for one in packing.unpacked(arguments)]
    # None stands for `self`: these methods are functions of their arguments.
    pre, post, head = (getattr(getattr(mhc, name), f"forward_{kind}") for name in ("MHCPreOp", "MHCPostOp", "HCHeadOp"))
    with refusals(method):
        if method == "enter":
            streams, fn, scale, base, rms_eps, eps, rounds = given
            after, comb, x = pre(None, streams, fn, scale, base, rms_eps, eps, eps, _POST, rounds)
            return packing.packed([x, after.flatten(1), comb])
        if method == "leave":
            y, streams, after, comb = given
            return packing.packed(post(None, y, streams, after[..., None], comb))
        streams, fn, scale, base, rms_eps, eps, _ = given
        return packing.packed(head(None, streams, fn, scale, base, rms_eps, eps))
