"""One rank's whole model as loaded from a synthetic checkpoint: every parameter's map, and how its memory began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from conformance.errors import Blocked, NotSupported, StackRefused
from conformance.geometry import Geometry
from conformance.provenance.boxes import Box, ProvenanceMap, State
from conformance.stacks.model_protocol import Coded, FromFile, ModelInfo, ModelLoader, ModelRequest, WholeModel
from references import checkpoint, cuts, gpt_oss

if TYPE_CHECKING:
    import torch

    from conformance.provenance.compress import EqualRows
    from conformance.target import Target

#: Routed experts that are built: the expert dimension is measured whole by the claims of the routed experts.
EXPERTS = 2
#: A model is never built deeper than this.
_MOST_LAYERS = 10


class Tensors(msgspec.Struct, frozen=True):
    """A checkpoint: name -> (safetensors dtype, shape), name -> kind. `config` is that of the shortened model."""

    stored: dict[str, tuple[str, tuple[int, ...]]]
    kinds: dict[str, str]
    config: dict[str, Any]
    layers: int
    #: See Context.virtual.
    virtual: bool | None = None
    #: U8 tensors of more axes than are numbered, by shape: handed over beside, all zeros.
    beside: dict[str, tuple[int, ...]] = {}

    @property
    def plain(self) -> bool:
        """Of a model of plain attention, without scales beside its weights."""
        return bool(self.config.get("model_type") == gpt_oss.MODEL_TYPE)

    def place(self, kind: str) -> tuple[int, str] | None:
        """Along which axis that kind of tensor is cut, if it is."""
        return gpt_oss.place(kind) if self.plain else cuts.place(kind)

    def cut(self, name: str, tp: int, rank: int) -> cuts.Cut | None:
        if self.plain:
            return gpt_oss.cut(self.config, tp, rank, self.kinds[name])
        return cuts.cut(self.config, tp, rank, self.kinds[name], self.stored[name][0], self.virtual)


class ModelMaps(msgspec.Struct, frozen=True):
    """`initial`: parameter -> its memory right after construction; None where it is no runs of equal rows."""

    info: ModelInfo
    maps: dict[str, ProvenanceMap]
    initial: dict[str, Any]

    def placed(self) -> dict[str, list[tuple[str, Box]]]:
        """tensor -> every (parameter, box) that holds elements of it."""
        found: dict[str, list[tuple[str, Box]]] = {}
        for parameter, one in self.maps.items():
            for box in one.boxes:
                if box.origin:
                    found.setdefault(box.origin.shard, []).append((parameter, box))
        return found

    def began_as(self, parameter: str, box: Box) -> str:
        """`zero`, `-inf`, `uninitialised` or `initialised` (to something else): the memory under a box."""
        from conformance.provenance import codes

        known: EqualRows | None = self.initial[parameter]
        if known is None:
            return "initialised"
        dtype = self.info.parameters[parameter].dtype
        words = set()
        for index, start in enumerate(known.starts):
            stop = known.starts[index + 1] if index + 1 < len(known.starts) else box.rows.stop
            if start < box.rows.stop and stop > box.rows.start:
                words.add(_word(known.lines[index][box.cols.start : box.cols.stop], dtype, codes))
        return words.pop() if len(words) == 1 else "initialised"


def _word(elements: Any, dtype: str, codes: Any) -> str:
    import torch

    if not elements.any():
        return "zero"
    if dtype in ("bfloat16", "float16", "float32"):
        values = elements.contiguous().view(getattr(torch, dtype))
        if torch.isneginf(values).all():
            return "-inf"
        return "uninitialised" if values.isnan().any() else "initialised"
    if dtype == "float8_e4m3fn":
        nan = (elements & 0x7F) == 0x7F
    elif elements.dtype == torch.uint8:
        nan = elements == 0xFF if dtype != "int8" else elements == 0x7F
    else:
        nan = elements == torch.iinfo(elements.dtype).max
    return "uninitialised" if nan.any() else "initialised"


def tensors(geometry: Geometry, draft: bool = False, virtual: bool | None = None) -> Tensors:
    """The checkpoint of the geometry's model, cut to the layers that show every kind of layer, and to EXPERTS experts.

    Raises NotSupported where the layout of this model's checkpoint is not known.
    """
    if geometry.model_type == gpt_oss.MODEL_TYPE:
        return _plain(geometry)
    config = {**geometry.config, "n_routed_experts": EXPERTS, "num_experts_per_tok": 1}
    try:
        checkpoint.tensors(config, ())  # says what is wrong with the config, before anything is read off it
        depth = _depth(geometry.config)
        listed = checkpoint.tensors(config, range(depth), draft=draft)
    except ValueError as error:
        raise NotSupported(f"{geometry.name}: no layout of its checkpoint is known: {error}") from None
    chosen = {name: t for name, t in listed.items() if name.startswith("mtp.") == draft}
    if draft and not chosen:
        raise NotSupported(f"{geometry.name} has no draft layers (num_nextn_predict_layers)")
    return Tensors(
        {name: (t.dtype, t.shape) for name, t in chosen.items()},
        {name: t.kind for name, t in chosen.items()},
        config,
        depth,
        virtual,
    )


def _plain(geometry: Geometry) -> Tensors:
    """Of gpt-oss, whose layers hold the same tensors all: of its first two."""
    config = {**geometry.config, "num_local_experts": EXPERTS, "num_experts_per_tok": 1}
    return plain(config, min(2, geometry.layers))


def plain(config: dict[str, Any], layers: int) -> Tensors:
    """gpt-oss's checkpoint of so many layers."""
    listed = gpt_oss.tensors(config, range(layers))
    stored = {name: (t.dtype, t.shape) for name, t in listed.items()}
    kinds = {name: t.kind for name, t in listed.items()}
    return Tensors(stored, kinds, config, layers, beside=gpt_oss.blocks(config, range(layers)))


def _depth(config: dict[str, Any]) -> int:
    """The fewest first layers that hold every kind of layer which the model has."""
    total = config["num_hidden_layers"]
    kinds = [checkpoint.layer(config, index) for index in range(total)]
    for depth in range(1, min(total, _MOST_LAYERS) + 1):
        if set(kinds[:depth]) == set(kinds):
            return depth
    raise ValueError(f"its first {_MOST_LAYERS} layers do not hold every kind of layer")


def opened(
    loader: ModelLoader,
    target: Target,
    rank: int,
    tensors_: Tensors,
    draft: bool = False,
    model: Geometry | None = None,
    tp: int | None = None,
    experts: int = EXPERTS,
) -> WholeModel:
    """The rank's model that these tensors are of, `model` in the place of the target's own geometry.

    Raises Blocked where the stack refuses to build it.
    """
    request = ModelRequest(
        geometry=model or target.geometry,
        tp=tp or target.tp,
        rank=rank,
        backend=target.backend,
        capability=target.capability,
        attention=target.attention,
        force=target.force,
        layers=tensors_.layers,
        experts=experts,
        draft=draft,
        names=tuple(tensors_.stored),
    )
    try:
        model_ = loader.open_model(request)
        return _Beside(model_, tensors_.beside) if tensors_.beside else model_
    except StackRefused as refusal:
        which = f" ({model.name})" if model else ""
        raise Blocked(f"the stack refuses to build it{which}: {refusal}") from None


class _Beside:
    """A model that is handed more than what is numbered: a checkpoint without it would not be whole."""

    def __init__(self, inner: WholeModel, beside: dict[str, tuple[int, ...]]):
        self.info = inner.info
        self._inner = inner
        self._beside = [Coded(name, "U8", shape, 0, bytes(shape[0])) for name, shape in beside.items()]

    def fill(self, value: int) -> None:
        self._inner.fill(value)

    def load(self, tensors: list[Coded]) -> None:
        self._inner.load([*tensors, *self._beside])

    def load_files(self, tensors: list[FromFile]) -> None:
        self._inner.load_files(tensors)

    def read(self, parameter: str, first: int, last: int) -> torch.Tensor:
        return self._inner.read(parameter, first, last)

    def close(self) -> None:
        self._inner.close()


def measure(loader: ModelLoader, target: Target, rank: int, tensors_: Tensors, draft: bool) -> ModelMaps:
    """Build the rank's model, note how its memory began, and trace a checkpoint through it.

    Raises Blocked where the stack refuses to build it; StackRefused where it refuses to load it.
    """
    from conformance.provenance import model_trace

    model = opened(loader, target, rank, tensors_, draft)
    try:
        initial = {n: model_trace.compressed(model, n, s, by_columns=False) for n, s in model.info.parameters.items()}
        return ModelMaps(model.info, model_trace.trace(model, tensors_.stored, rank), initial)
    finally:
        model.close()


def untouched(maps: ModelMaps, parameter: str) -> bool:
    """Did nothing at all reach this parameter?"""
    return all(box.state is State.UNTOUCHED for box in maps.maps[parameter].boxes)
