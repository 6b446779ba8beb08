"""The stack's preparation, driven: parameters as the loader leaves them go in, what the kernel reads comes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch

from conformance import expected
from conformance.context import Context
from conformance.errors import NotSupported, UnfitShape
from conformance.provenance import positions, trace
from conformance.provenance.boxes import Box, ProvenanceMap, Span, merge_experts
from conformance.provenance.checkpoint import Checkpoint
from conformance.stacks.prepare_protocol import Prepared, PreparedLayer, PrepareRequest
from conformance.stacks.protocols import SHARDS, ParameterInfo
from references import plan, prepared, prepared_sm90
from references.prepared import Share
from suites.moe import coded

#: Experts that are converted at once: enough to see one expert's bytes in another.
AT_ONCE = 8
#: Experts that are traced byte by byte, at most.
_TRACED = 6


class Recipe(Protocol):
    """What a module of `references/` tells of one layout; inverses take one expert's bytes in memory order."""

    WEIGHT_VIEW: torch.dtype
    SCALE_VIEW: torch.dtype

    def prepare(self, share: Share, width: int, hidden: int) -> prepared.Prepared: ...

    def weights(self, flat: torch.Tensor, rows: int, cols: int) -> torch.Tensor: ...

    def plain(self, flat: torch.Tensor, rows: int, groups: int) -> torch.Tensor: ...

    def scale_shape(self, rows: int, groups: int) -> tuple[int, ...]: ...


#: (layout of a backend's kernels, what they multiply MXFP4 with) -> the recipe.
_RECIPES: dict[tuple[str, str], Recipe] = {("cutlass", "mxfp8"): prepared, ("cutlass", "bf16"): prepared_sm90}


class Traced(NamedTuple):
    """One rank: by parameter, the map of what the kernel reads at each (row, byte), and the one that is due."""

    seen: dict[str, ProvenanceMap]
    due: dict[str, ProvenanceMap]


def group(experts: int, most: int = AT_ONCE) -> int:
    """The largest number of experts up to `most` that divides all of them."""
    return next(n for n in range(min(most, experts), 0, -1) if experts % n == 0)


@contextmanager
def opened(context: Context, rank: int, experts: int) -> Iterator[PreparedLayer]:
    """The rank's layer. Raises NotSupported where no recipe is known for what the stack prepares."""
    t = context.target
    share = expected.axes(t.geometry, t.tp)["routed"].per_rank
    request = PrepareRequest(t.geometry, t.tp, rank, t.backend, t.capability, experts, share)
    layer = context.preparation.open(request)
    try:
        _require_recipe(context, layer, experts)
        yield layer
    finally:
        layer.close()


def _known(context: Context, layer: PreparedLayer) -> Recipe | None:
    """For the profile's arithmetic, which the layer's must be: a stack does not choose what it is held to."""
    t, scheme = context.target, layer.info.scheme
    return _RECIPES.get((t.layout, scheme)) if scheme == (t.arithmetic or scheme) else None


def recipe(context: Context, layer: PreparedLayer) -> Recipe:
    """What an opened layer is held to."""
    found = _known(context, layer)
    assert found is not None, "`opened` refuses layers without a recipe"
    return found


def _require_recipe(context: Context, layer: PreparedLayer, experts: int) -> None:
    """Raises NotSupported unless `references/` tells what this layer's kernel reads, in the stack's own words if the
    conversion cannot be run here at all; UnfitShape where the layer's parameters make no whole blocks."""
    found = _known(context, layer)
    if found is None:
        layer.convert({name: torch.zeros((experts, p.rows, p.cols), dtype=torch.uint8) for name, p in _shapes(layer)})
        scheme, due = layer.info.scheme, context.target.arithmetic
        held = f"; the profile multiplies with {due}" if due not in (None, scheme) else ""
        raise NotSupported(f"the harness has no recipe for the layout of {layer.info.kernel} ({scheme} x MXFP4){held}")
    for name, p in _shapes(layer):
        if name.endswith("_scale"):
            try:
                found.scale_shape(p.rows, p.cols)
            except ValueError as error:
                raise UnfitShape(f"{name} as built for {layer.info.kernel}: {error}") from None


def _shapes(layer: PreparedLayer) -> list[tuple[str, ParameterInfo]]:
    return [(name, layer.info.loaded[name]) for name in SHARDS]


def loaded(
    context: Context, layer: PreparedLayer, rank: int, checkpoint: Checkpoint, experts: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Those experts as this run's loader leaves them, by recorded or due maps.

    Raises UnfitShape where the layer that converts them has parameters of another shape.
    """
    weights = context.given(rank, checkpoint, positions.PREFILL)
    for name, want in _shapes(layer):
        have = weights.info(name)
        if (have.rows, have.cols) != (want.rows, want.cols):
            raise UnfitShape(
                f"{name}: the loader leaves ({have.rows}, {have.cols}) bytes an expert, the layer that is converted "
                f"holds ({want.rows}, {want.cols})"
            )
    return {name: torch.cat([weights.read(name, e, e + 1) for e in experts]) for name in SHARDS}


def read(recipe: Recipe, name: str, prepared: Prepared, expert: int, info: ParameterInfo) -> torch.Tensor:
    """(rows, bytes) as the kernel looks them up. Raises UnfitShape where the memory is of another size."""
    flat = prepared.data[expert]
    if flat.numel() != info.rows * info.cols:
        raise UnfitShape(f"{name}: {flat.numel()} bytes an expert after conversion, {info.rows * info.cols} due")
    return (recipe.plain if name.endswith("_scale") else recipe.weights)(flat, info.rows, info.cols)


def traced(context: Context) -> list[Traced]:
    """By rank; measured once a run."""
    found: list[Traced] = context.once("postload maps", lambda: [_trace(context, rank) for rank in context.ranks])
    return found


def _trace(context: Context, rank: int) -> Traced:
    g, t = context.geometry, context.target
    experts = _to_trace(context, rank)
    places, numbers = coded.passes(g)
    bytes_of: dict[str, list[list[torch.Tensor]]] = {name: [] for name in SHARDS}
    tensors_of: dict[str, list[list[torch.Tensor]]] = {name: [] for name in SHARDS}
    with opened(context, rank, len(experts)) as layer:
        infos, how = layer.info.loaded, recipe(context, layer)
        for into, checkpoints in ((bytes_of, places), (tensors_of, numbers)):
            for checkpoint in checkpoints:
                done = layer.convert(loaded(context, layer, rank, checkpoint, experts))
                for name in SHARDS:
                    info = infos[name]
                    into[name].append([read(how, name, done[name], e, info).clone() for e in range(len(experts))])
    seen, due = {}, {}
    for name, shards in SHARDS.items():
        rows, cols = g.checkpoint_shape(name)
        boxes: list[Box] = []
        for index, expert in enumerate(experts):
            byte = positions.decode([one[index] for one in bytes_of[name]], rows * cols)
            tensor = positions.decode([one[index] for one in tensors_of[name]], len(shards) * g.experts)
            place = trace.combined(byte, tensor, rows * cols)
            boxes += trace.boxes_of(place, expert, shards, list(range(g.experts)), rows, cols)
        info = infos[name]
        method = f"digit passes through conversion, experts {', '.join(map(str, experts))}"
        shape = (g.experts, info.rows, info.cols)
        seen[name] = ProvenanceMap(name, rank, shape, merge_experts(boxes), method, traced=experts)
        try:
            due[name] = expected.prepared_map(g, t.tp, rank, name, info, g.experts).of_experts(experts)
        except ValueError as error:
            raise UnfitShape(f"{name} as built, ({info.rows}, {info.cols}) bytes: {error}") from None
    return Traced(seen, due)


def _to_trace(context: Context, rank: int) -> list[int]:
    """The first two experts, the last, and those that the loader's own maps have traced because they differ."""
    last = context.geometry.experts - 1
    wanted = {0, min(1, last), last}
    odd = {e for ranks in context.given_maps.maps.values() for e in ranks[rank].traced}
    return sorted({*wanted, *sorted(odd - wanted)[: _TRACED - len(wanted)]})


def share(context: Context, rank: int, expert: int, checkpoint: Checkpoint) -> Share:
    """The rank's part of one expert, straight from the checkpoint."""
    g = context.geometry
    per_rank = plan.routed_intermediate(g.intermediate, context.target.tp).per_rank
    start, stop = (min(n * per_rank, g.intermediate) for n in (rank, rank + 1))

    def block(tensor: str, parameter: str) -> torch.Tensor:
        rows, cols = g.checkpoint_shape(parameter)
        unit = expected.unit(parameter)
        by_rows = parameter.startswith("w13")
        cut = Span(start // unit, stop // unit)
        where = (cut, Span(0, cols)) if by_rows else (Span(0, rows), cut)
        found: torch.Tensor = getattr(checkpoint, tensor).block(expert, *where, "cpu")
        return found

    return Share(
        *(
            block(tensor, ("w2_weight" if tensor.startswith("w2") else "w13_weight") + tensor[2:])
            for tensor in coded.TENSORS
        )
    )


def words(context: Context, layer: PreparedLayer) -> str:
    """How this was measured."""
    return (
        f"{layer.info.kernel}, converted by the stack's own post-load step on {layer.info.device}; rearranged by "
        f"{layer.info.helpers}; parameters: {context.given_maps.origin}"
    )
