"""What a claim may need of a run, known before it starts: for each need, why a run lacks it (empty: it does not)."""

from __future__ import annotations

from collections.abc import Callable

from conformance import expected
from conformance.target import Target
from hardware_profiles.compiled import arch, families

#: Models that virtual TP is for. Source: TP3 audit, `Exact guards`.
VIRTUAL_TP_MODELS = ("deepseek_v4",)
#: Models of plain attention with biases, whose experts of a layer are one tensor each of blocks, scales and biases.
PLAIN_MODELS = ("gpt_oss",)
#: Hidden size of the largest model that is computed in full precision beside an engine.
LARGEST_REFERENCE = 1024


def _virtual_tp(t: Target) -> str:
    if expected.needs_virtual_tp(t.geometry, t.tp):
        return ""
    return f"TP{t.tp} divides {t.geometry.name}'s heads, groups and experts"


def _virtual_tp_model(t: Target) -> str:
    model = t.geometry.model_type
    return "" if model in VIRTUAL_TP_MODELS else f"virtual TP is not for {model}"


def _small_model(t: Target) -> str:
    if not t.model or t.geometry.hidden_size <= LARGEST_REFERENCE:
        return ""
    return (
        f"the reference implementation takes hidden sizes up to {LARGEST_REFERENCE}: judge a small checkpoint of the "
        "same layout beside this one"
    )


def _expert_parallel(t: Target) -> str:
    if t.expert_parallel or expected.needs_virtual_tp(t.geometry, t.tp, expert_parallel=True):
        return ""
    virtual = expected.needs_virtual_tp(t.geometry, t.tp)
    uncut = "expert parallelism cuts no expert" if virtual else "nothing needs virtual TP"
    return f"the profile lists no expert parallelism, and {uncut}"


def _attention_sources(t: Target) -> str:
    """Empty where the attention kernels are those that FlashInfer compiles from sources of sparse MLA."""
    known = families(arch(t.capability)) if t.capability else None
    if known is None or known.attention is None:
        return "attention kernels for this capability come as binaries, not as sources to compile"
    if t.attention != "FLASHINFER_MLA_SPARSE_DSV4":
        return f"{t.attention} attention is not FlashInfer's sparse MLA"
    return ""


def _padded_heads(t: Target) -> str:
    heads = expected.axes(t.geometry, t.tp).get("heads")
    if heads is None:
        return f"no padding of heads is known for {t.geometry.name}"
    if heads.original % heads.per_rank or (t.head_paddings and heads.per_rank not in t.head_paddings):
        return ""
    return f"{heads.per_rank} heads a rank, beside no virtual ones, and the profile's kernels pad none"


def _layout(t: Target) -> str:
    if t.layout == "as loaded":
        return f"the backend {t.backend} reads weights as they are loaded"
    return "" if t.layout else f"no recipe is known for the layout that the backend {t.backend} reads"


def _plain_attention(t: Target) -> str:
    if t.geometry.model_type in PLAIN_MODELS:
        return ""
    return f"{t.geometry.name} has other attention, and no expert biases"


def _experts_by_name(t: Target) -> str:
    if t.geometry.model_type not in PLAIN_MODELS:
        return ""
    return "one tensor holds all experts: loader.w13.* and loader.w2.* load it by name"


def _unless(has: object, reason: str) -> str:
    return "" if has else reason


_REASONS: dict[str, Callable[[Target], str]] = {
    "capability": lambda t: _unless(t.capability, "the profile has no CUDA capability"),
    "virtual-tp": _virtual_tp,
    "virtual-tp-model": _virtual_tp_model,
    "vetted": lambda t: _unless(t.vetted_here, "the profile vets no pair for virtual TP"),
    "drafting": lambda t: _unless(t.capability, "no stack drafts without CUDA (vLLM refuses MTP on CPUs)"),
    "output-scales": lambda t: _unless(
        t.output_scales, "the profile knows no layout of the output projection's scales"
    ),
    "draft": lambda t: _unless(t.geometry.draft_layers, f"{t.geometry.name} has no draft layers"),
    "quantised": lambda t: _unless(t.arithmetic == "mxfp8", "activations are not quantised before the product here"),
    "own-backend": lambda t: _unless(t.arithmetic, f"{t.backend} is not the profile's own MoE backend"),
    "layout": _layout,
    "plain-attention": _plain_attention,
    "experts-by-name": _experts_by_name,
    "small-model": _small_model,
    "choice": lambda t: t.choiceless,
    "own-engine": lambda t: _unless(not t.endpoint, "a server that is up shows no block, and keeps its modes"),
    "attention-sources": _attention_sources,
    "sm90-call": lambda t: _unless(t.backend != "flashinfer_cutedsl", "SM90 multiplies no NVFP4"),
    "tactics": lambda t: _unless(t.tactics, f"{t.backend} has no tactics that could be pinned"),
    "padded-heads": _padded_heads,
    "ranks": lambda t: _unless(t.tp > 1, "one rank"),
    "expert-parallel": _expert_parallel,
}


def lacks(target: Target, need: str) -> str:
    """Why a claim with this need does not apply; empty if it does. Raises KeyError for a need that nobody knows."""
    return _REASONS[need](target)
