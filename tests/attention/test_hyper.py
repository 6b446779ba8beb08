"""A stack that multiplies in TF32 is held to fn rounded to the nearest TF32, not to float32 or to bits cut off."""

from types import SimpleNamespace

import msgspec
import pytest
import torch

from conformance import catalogue
from conformance.context import Context
from conformance.stacks.reference_hyper import ReferenceHyper
from tests.attention.test_kernel import TARGET


def _rounded(fn: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(fn.double())
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent).float()


def _cut(fn: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(fn.double())
    return torch.ldexp((mantissa * 2**11).trunc() / 2**11, exponent).float()


def _plain(fn: torch.Tensor) -> torch.Tensor:
    return fn


class _Hyper(ReferenceHyper):
    def __init__(self, weights, makes):
        self.weights, self.makes = weights, makes

    def capabilities(self):
        return msgspec.structs.replace(super().capabilities(), weights=self.weights)

    def enter(self, streams, mixing):
        return super().enter(streams, mixing._replace(fn=self.makes(mixing.fn)))


@pytest.mark.parametrize(
    ("weights", "makes", "right"),
    [
        ("float32", _plain, True),
        ("tf32", _rounded, True),
        ("tf32", _plain, False),
        ("tf32", _cut, False),
        ("float32", _rounded, False),
    ],
)
def test_enter_is_held_to_what_fn_is_declared_to_become(weights, makes, right):
    context = Context(TARGET, None, None, {"hyper": lambda: _Hyper(weights, makes)})
    evidence = catalogue.get("attention.hyper.enter").function()(SimpleNamespace(name="reference"), context)
    assert evidence.ok is right, evidence.summary
