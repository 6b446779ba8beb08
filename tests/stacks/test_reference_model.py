"""The reference stack's whole model against the independent table of the checkpoint, and what it refuses."""

from __future__ import annotations

import msgspec
import pytest

from conformance import geometry
from conformance.errors import StackRefused
from conformance.provenance import model_maps, model_trace
from conformance.provenance.model_trace import Pass
from conformance.stacks.model_protocol import ModelRequest
from conformance.stacks.reference_model import Layout, ReferenceModel
from suites.loader import mutated


def _request(name, tp=1, rank=0, draft=False, config=None):
    model = geometry.load(name)
    if config:
        model = geometry.parse({**model.config, **config}, name)
    layers = model_maps.tensors(model).layers
    return ModelRequest(model, tp, rank, "cpu", None, None, False, layers, model_maps.EXPERTS, draft)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("name", [n for n in geometry.embedded() if n.startswith("deepseek")])
def test_it_has_a_home_of_the_right_shape_for_every_tensor(name, draft):
    request = _request(name, draft=draft)
    due = model_maps.tensors(request.geometry, draft)
    homes = Layout(request, 32).homes
    assert {n: (h.dtype, h.shape) for n, h in homes.items()} == due.stored


def test_what_it_refuses_names_the_key():
    request = msgspec.structs.replace(_request("deepseek-v4-tiny"), geometry=mutated.small())
    model = ReferenceModel(request, 32)
    clean = model_trace.numbered(model_maps.tensors(mutated.small()).stored, Pass("row", 0))
    model.load(clean)
    for mutation in mutated.MUTATIONS.values():
        for index, one in enumerate(clean[:60]):
            wrong = mutation(clean, index)
            if wrong is None:
                continue
            with pytest.raises(StackRefused, match=one.name.split(".")[-2] if "." in one.name else one.name):
                model.load(wrong)
