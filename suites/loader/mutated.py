"""A checkpoint with one thing wrong: is it refused, and does the refusal say which key it is about?

Run on the smallest model of the same kind at TP1: what a loader does about names does not depend on sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from conformance import geometry
from conformance.context import Context
from conformance.errors import Blocked, NotSupported, StackRefused
from conformance.needs import PLAIN_MODELS
from conformance.provenance import model_maps, model_trace
from conformance.provenance.model_maps import Tensors
from conformance.provenance.model_trace import Pass
from conformance.result import Evidence, Finding
from conformance.stacks.model_protocol import Coded, WholeModel
from references import checkpoint

SMALL = "deepseek-v4-tiny"
_MOST = 12


class Outcome(NamedTuple):
    """`refusal`: the stack's words; None where it loaded the checkpoint without one."""

    key: str
    kind: str
    refusal: str | None
    named: bool


def _removed(tensors: list[Coded], index: int) -> list[Coded] | None:
    return tensors[:index] + tensors[index + 1 :]


def _scale_missing(tensors: list[Coded], index: int) -> list[Coded] | None:
    return _removed(tensors, index) if tensors[index].name.endswith((".scale", "_scales")) else None


def _renamed(tensors: list[Coded], index: int) -> list[Coded] | None:
    """One letter more in the module's name: `attn.wq_bx.weight`."""
    parts = tensors[index].name.split(".")
    place = -2 if len(parts) > 1 and parts[-1] in ("weight", "scale", "bias") else -1
    parts[place] += "x"
    other = msgspec.structs.replace(tensors[index], name=".".join(parts))
    return [*tensors[:index], other, *tensors[index + 1 :]]


def _doubled(tensors: list[Coded], index: int) -> list[Coded] | None:
    """The key a second time, at the end, with other contents."""
    one = tensors[index]
    size = len(one.codes)
    return [*tensors, msgspec.structs.replace(one, codes=one.codes[size // 2 :] + one.codes[: size // 2])]


def _transposed(tensors: list[Coded], index: int) -> list[Coded] | None:
    one = tensors[index]
    if len(one.shape) != 2 or one.shape[0] == one.shape[1]:
        return None
    other = msgspec.structs.replace(one, shape=one.shape[::-1], dim=1 - one.dim)
    return [*tensors[:index], other, *tensors[index + 1 :]]


MUTATIONS: dict[str, Callable[[list[Coded], int], list[Coded] | None]] = {
    "removed": _removed,
    "scale_missing": _scale_missing,
    "renamed": _renamed,
    "doubled": _doubled,
    "transposed": _transposed,
}
_MEANING = {
    "removed": "a model with that part missing is served",
    "scale_missing": "a weight without its scale is served",
    "renamed": "the key is dropped and the parameter left as it was",
    "doubled": "one of two different tensors wins by chance",
    "transposed": "a tensor of the wrong shape is taken",
}


#: gpt-oss's sizes in a few MB.
PLAIN = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
    "num_local_experts": 4,
}


def small(like: geometry.Geometry | None = None) -> geometry.Geometry:
    """The tiny model, its first layer with hash routing: every kind of tensor, in a few MB. Of a model of plain
    attention, `like` itself with two layers and small sizes."""
    if like is not None and like.model_type in PLAIN_MODELS:
        two = {"num_hidden_layers": 2, "layer_types": like.config.get("layer_types", [])[:2]}
        return geometry.parse(like.config | PLAIN | two, f"{like.name}, small")
    config = dict(geometry.load(SMALL).config)
    return geometry.parse(config | {"num_hash_layers": 1}, f"{SMALL}, one hash layer")


def outcomes(context: Context, mutation: str) -> list[Outcome]:
    """One outcome a kind of tensor. Raises Blocked where the clean checkpoint is refused, NotSupported for a model that
    is loaded by other code than the small one."""
    known, kind = small(context.geometry).model_type, context.geometry.model_type
    if kind != known:
        raise NotSupported(f"{context.geometry.name}: wrong checkpoints are made of {known}, not of {kind}")
    found: list[Outcome] = context.once(f"mutated {mutation}", lambda: list(_run(context, mutation)))
    return found


def _run(context: Context, mutation: str) -> Iterator[Outcome]:
    of = small(context.geometry)
    tensors = model_maps.tensors(of)
    numbered = msgspec.structs.replace(tensors, beside={})  # all of it is handed over here, less what is wrong with it
    model = model_maps.opened(context.model_loader, context.target, 0, numbered, model=of, tp=1)
    try:
        clean = model_trace.numbered(tensors.stored, Pass("row", 0)) + _beside(tensors)
        if words := _refusal(model, clean):
            raise Blocked(f"the stack refuses the clean checkpoint of the small model: {words}")
        kinds = {one.name: tensors.kinds.get(one.name) or checkpoint.kind(one.name) for one in clean}
        for index in _representatives(kinds):
            wrong = MUTATIONS[mutation](clean, index)
            if wrong is None:
                continue
            key = clean[index].name
            words = _refusal(model, wrong)
            known = [key, *filter(None, [model.info.homes.get(key)])]
            if mutation == "renamed":  # a stack may map the wrong name as it would have mapped the right one
                known += [_module(name) + "x" for name in known]
            yield Outcome(key, kinds[key], words, words is not None and _names(words, known))
    finally:
        model.close()


def _beside(tensors: Tensors) -> list[Coded]:
    """What is handed over beside: experts told apart by what they hold."""
    return [Coded(name, "U8", shape, 0, bytes(range(1, shape[0] + 1))) for name, shape in tensors.beside.items()]


def _representatives(kinds: dict[str, str]) -> list[int]:
    """The last tensor of each kind. `kinds`: of every tensor, in order."""
    last = {kind: index for index, kind in enumerate(kinds.values())}
    return sorted(last.values())


def _refusal(model: WholeModel, tensors: list[Coded]) -> str | None:
    try:
        model.load(tensors)
    except StackRefused as refusal:
        return str(refusal)
    return None


def _module(name: str) -> str:
    """`2.attn.wq_b` of `layers.2.attn.wq_b.scale`: a stack may map what is before it and behind it."""
    parts = name.split(".")
    if len(parts) > 1 and parts[-1].split("_")[0] in ("weight", "scale", "bias"):
        parts.pop()
    return ".".join(parts[-3:])


def _names(words: str, known: list[str]) -> bool:
    """Does the message hold the key, its module, or the parameter that it goes to?"""
    return any(name in words or _module(name) in words for name in known)


def evidence(context: Context, mutation: str) -> Evidence:
    found = outcomes(context, mutation)
    if not found:
        raise NotSupported(f"no tensor of {small(context.geometry).name} that is numbered can be {mutation}")
    silent = [o for o in found if o.refusal is None]
    findings = [
        Finding(f"{o.key} {mutation.replace('_', ' ')}", "an error", "loaded without one", _MEANING[mutation])
        for o in silent
    ]
    return Evidence(
        ok=not silent,
        summary=f"{mutation}: all {len(found)} kinds of tensor are refused"
        if not silent
        else f"{mutation}: {len(silent)} of {len(found)} kinds of tensor are loaded without an error, {silent[0].key}",
        expected=f"{len(found)} refusals",
        measured={"refused": len(found) - len(silent), "silent": [o.key for o in silent]},
        findings=findings[:_MOST],
        notes=[f"one tensor of each kind, on {small(context.geometry).name}, TP1"],
    )


def naming(context: Context) -> Evidence:
    """Of the refusals of every mutation, those that do not say which key they are about."""
    found = [(m, o) for m in MUTATIONS for o in outcomes(context, m) if o.refusal is not None]
    if not found:
        raise NotSupported("no wrong checkpoint is refused at all")
    nameless = [(m, o) for m, o in found if not o.named]
    findings = [
        Finding(f"{o.key} {m.replace('_', ' ')}", "an error that names it", str(o.refusal), "nobody can act on it")
        for m, o in nameless
    ]
    return Evidence(
        ok=not nameless,
        summary=f"all {len(found)} refusals name the key"
        if not nameless
        else f"{len(nameless)} of {len(found)} refusals do not name the key: {findings[0].where}: {findings[0].got}",
        expected="the key, or the parameter that it is loaded into, in the message",
        measured={"refusals": len(found), "without a name": [f"{o.key} {m}" for m, o in nameless]},
        findings=findings[:_MOST],
    )
