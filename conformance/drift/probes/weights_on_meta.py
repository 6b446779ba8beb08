"""A DeepSeek-V3 state dict that exists by shape only, and a torch mode that remembers which weights a tensor holds."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.drift import geometry as g

FP8 = torch.float8_e4m3fn
#: Weights that a converted checkpoint holds in FP8 with a `_scale_inv` beside them.
_QUANTIZED = r"(q_a_proj|kv_a_proj_with_mqa|o_proj|gate_up_proj|gate_proj|up_proj|down_proj|experts\.w13|experts\.w2)"


def shape_of(key: str, ranks: int) -> tuple[int, ...] | None:
    """The shape of one rank's weight, as the MPK builder expects it; None for a key that there is not."""
    heads, dense, moe = g.HEADS // ranks, g.INTERMEDIATE // ranks, g.MOE_INTERMEDIATE // ranks
    shapes = {
        r"q_a_proj\.weight": (g.Q_LORA_RANK, g.HIDDEN),
        r"q_a_layernorm\.weight": (g.Q_LORA_RANK,),
        r"q_b_proj\.weight": (heads * g.ABSORBED_HEAD_DIM, g.Q_LORA_RANK),
        r"q_b_nope\.weight": (heads * g.KV_LORA_RANK, g.Q_LORA_RANK),
        r"q_b_pe\.weight": (heads * g.QK_ROPE_HEAD_DIM, g.Q_LORA_RANK),
        r"kv_b_[kv]\.weight": (heads * g.V_HEAD_DIM, g.KV_LORA_RANK),
        r"kv_a_proj_with_mqa\.weight": (g.ABSORBED_HEAD_DIM, g.HIDDEN),
        r"kv_a_layernorm\.weight": (g.KV_LORA_RANK,),
        r"o_proj\.weight": (g.HIDDEN, heads * g.KV_LORA_RANK),
        r"o_proj_original\.weight": (g.HIDDEN, heads * g.V_HEAD_DIM),
        r"mlp\.gate_up_proj\.weight": (2 * dense, g.HIDDEN),
        r"mlp\.down_proj\.weight": (g.HIDDEN, dense),
        r"mlp\.gate\.weight": (g.EXPERTS, g.HIDDEN),
        r"mlp\.gate\.e_score_correction_bias": (g.EXPERTS,),
        r"experts\.w13\.weight": (g.EXPERTS, 2 * moe, g.HIDDEN),
        r"experts\.w2\.weight": (g.EXPERTS, g.HIDDEN, moe),
        r"shared_experts\.(gate|up)_proj\.weight": (moe, g.HIDDEN),
        r"shared_experts\.down_proj\.weight": (g.HIDDEN, moe),
        r"(input|post_attention)_layernorm\.weight": (g.HIDDEN,),
        r"(embed_tokens|lm_head|shared_head\.head)\.weight": (g.VOCAB, g.HIDDEN),
        r"eh_proj\.weight": (g.HIDDEN, 2 * g.HIDDEN),
        r"(enorm|hnorm|norm)\.weight": (g.HIDDEN,),
    }
    for pattern, shape in shapes.items():
        if re.search(rf"(^|\.){pattern}$", key):
            return shape
    return None


class Weights(dict[str, torch.Tensor]):
    """Weights by key, made when asked for, on meta; each remembers its key (`origin_keys`)."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks

    def _made(self, key: str) -> torch.Tensor | None:
        base = key.removesuffix("_scale_inv")
        shape, fp8 = shape_of(base, self.ranks), bool(re.search(_QUANTIZED + r"\.weight$", base))
        if shape is None or (base != key and not fp8):
            return None
        if base != key:
            shape = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
        dtype = torch.float32 if base != key or "bias" in key else FP8 if fp8 else torch.bfloat16
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        tensor.origin_keys = {base}  # type: ignore[attr-defined]
        return tensor

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (isinstance(key, str) and self._made(key) is not None)

    def __missing__(self, key: str) -> torch.Tensor:
        made = self._made(key)
        if made is None:
            raise KeyError(f"no weight {key!r} in a converted DeepSeek-V3 checkpoint")
        self[key] = made
        return made

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - dict.get would not make it


class Remembering(TorchFunctionMode):
    """Puts everything on meta, and hands `origin_keys` on to whatever is computed from a weight."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _on_gpu(kwargs.get("device")):
            kwargs["device"] = "meta"
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return args[0]
        keys = {key for value in _tensors((args, kwargs)) for key in getattr(value, "origin_keys", ())}
        result = function(*args, **kwargs)
        if name == "__getitem__" and len(keys) == 1:
            keys = {_sliced(next(iter(keys)), args[0], args[1])}
        if name == "__setitem__" or (name.endswith("_") and not name.startswith("__")):
            args[0].origin_keys = keys
        for value in _tensors(result):
            if keys:
                value.origin_keys = keys  # type: ignore[attr-defined]
        return result


def _on_gpu(device: Any) -> bool:
    return device is not None and str(device).startswith("cuda")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for inner in value.values() for t in _tensors(inner)]
    if isinstance(value, list | tuple):
        return [t for inner in value for t in _tensors(inner)]
    return []


def _sliced(key: str, tensor: torch.Tensor, index: Any) -> str:
    """`key[0:4, 8:16]` for a part taken by slices; the key alone for anything else, or for the part of a part."""
    parts = index if isinstance(index, tuple) else (index,)
    if "[" in key or not all(isinstance(part, slice) for part in parts):
        return key
    ranges = [range(*part.indices(size)) for part, size in zip(parts, tensor.shape, strict=False)]
    return f"{key}[{', '.join(f'{r.start}:{r.stop}' for r in ranges)}]"
