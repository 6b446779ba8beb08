"""NVFP4's global scales that checks give a kernel: static ones, as a checkpoint would hold them.

None is a power of two, so that one which is inverted, doubled or left out shows. Those of random values hold a large
prime: then no element and no block scale lies halfway between two codes, and a kernel's approximate reciprocals have
nothing to decide.
"""

from __future__ import annotations

import math

import torch

from references import nvfp4
from references.nvfp4 import GlobalScales

_PRIME = 17881
#: Random inputs are clipped beyond 46: their standard deviation is 0.5, on small geometries 2.
_INPUT = _PRIME * 2.0**-20
#: Gates and ups of random batches have a standard deviation of 7.
_LARGEST_UP = 48.0


def random(limit: float | None) -> GlobalScales:
    return GlobalScales(_INPUT, above(min(limit or _LARGEST_UP, _LARGEST_UP) ** 2))


def probe(activation: float, token: float = 1.0) -> GlobalScales:
    """For tokens of `token` and 0, which stay exact (6 * 16 / 96 = 1), and activations' own global scale."""
    return GlobalScales(float32(token / 96), activation)


def reaching(largest: float) -> float:
    """`largest` is the largest code, 448 times 6, and stays exact."""
    return float32(largest / nvfp4.LARGEST)


def above(largest: float) -> float:
    """Reaches to `largest` and further, to twice it at most."""
    return _PRIME * 2.0 ** math.ceil(math.log2(largest / nvfp4.LARGEST / _PRIME))


def float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))
