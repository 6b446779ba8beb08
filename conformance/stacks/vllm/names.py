"""In which parameter vLLM holds each tensor of a DeepSeek-V4 or gpt-oss checkpoint, by the names of both.

Written down from the models' constructors, not taken from the mappers under test: a mapper that interchanges two
tensors of one shape is seen by nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "head.weight": "lm_head.weight",
    "norm.weight": "model.norm.weight",
    "model.embed_tokens.weight": "model.embedding.weight",
    "model.norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
#: Of a layer of gpt-oss; versions differ in how the routed experts' module is nested.
_GPT_OSS = (
    (re.compile(r"\.self_attn\.[qkv]_proj\."), (".attn.qkv_proj.",)),
    (re.compile(r"\.self_attn\."), (".attn.",)),
    (re.compile(r"\.gate_up_proj_bias$"), (".routed_experts.w13_bias", ".w13_bias")),
    (re.compile(r"\.down_proj_bias$"), (".routed_experts.w2_bias", ".w2_bias")),
)
#: Modules of a layer that vLLM fuses or calls otherwise.
_MODULES = (
    (re.compile(r"\battn\.(wq_a|wkv)\."), "attn.fused_wqa_wkv."),
    (re.compile(r"\bcompressor\.(wkv|wgate)\."), "compressor.fused_wkv_wgate."),
    (re.compile(r"\bshared_experts\.w[13]\."), "shared_experts.gate_up_proj."),
    (re.compile(r"\bshared_experts\.w2\."), "shared_experts.down_proj."),
    (re.compile(r"\bffn\.gate\.bias$"), "ffn.gate.e_score_correction_bias"),
)
_ROUTED = re.compile(r"ffn\.experts\.\d+\.w([123])\.(weight|scale)$")
#: What a draft layer has beside its decoder layer.
_DRAFT = ("enorm.", "hnorm.", "e_proj.", "h_proj.", "hc_head_")


def homes(tensors: Iterable[str], parameters: Iterable[str], layers: int) -> dict[str, str]:
    """tensor -> parameter, for those whose parameter is there. `layers`: of the target, which draft layers follow."""
    known = set(parameters)
    found = {}
    for name in tensors:
        for candidate in _candidates(name, layers):
            if candidate in known:
                found[name] = candidate
                break
    return found


def _candidates(name: str, layers: int) -> list[str]:
    if name in _TOP:
        return [_TOP[name]]
    if name.startswith("model.layers."):
        for pattern, others in _GPT_OSS:
            if pattern.search(name):
                return [pattern.sub(other, name) for other in others]
        return [name]
    top, _, rest = name.partition(".")
    if top == "layers":
        index, _, rest = rest.partition(".")
        return [f"model.layers.{index}.{inner}" for inner in _inner(rest)]
    if top == "mtp":
        index, _, rest = rest.partition(".")
        layer = f"model.layers.{layers + int(index)}"
        if rest == "norm.weight":
            return [f"{layer}.shared_head.norm.weight"]
        block = "" if rest.startswith(_DRAFT) else "mtp_block."
        return [f"{layer}.{block}{inner}" for inner in _inner(rest)]
    return [f"model.{name}"]


def _inner(rest: str) -> list[str]:
    """Of a layer; versions differ in how the routed experts' module is nested."""
    if match := _ROUTED.search(rest):
        parameter = ("w2" if match[1] == "2" else "w13") + ("_weight" if match[2] == "weight" else "_weight_scale")
        return [f"{rest[: match.start()]}ffn.experts.{nested}{parameter}" for nested in ("routed_experts.", "")]
    for pattern, other in _MODULES:
        rest = pattern.sub(other, rest)
    return [re.sub(r"\.scale$", ".weight_scale_inv", rest)]
