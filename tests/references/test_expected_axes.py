"""The due plans of the embedded models: which axes they have, and what each is padded to."""

from __future__ import annotations

import pytest

from conformance import expected, geometry
from conformance.stacks.protocols import Axis

#: (original, padded, per rank), by hand from contracts.md and the formulas it states.
PLANS = {
    ("deepseek-v4-flash", 3): {
        "heads": (64, 72, 24),
        "groups": (8, 9, 3),
        "routed": (2048, 2112, 704),
        "shared": (2048, 2304, 768),
        "vocab": (129280, 129408, 43136),
    },
    ("deepseek-v4-pro", 3): {
        "heads": (128, 144, 48),
        "groups": (16, 18, 6),
        "routed": (3072, 3072, 1024),
        "shared": (3072, 3072, 1024),
        "vocab": (129280, 129408, 43136),
    },
    ("deepseek-v4.1-flash", 4): {
        "heads": (64, 64, 16),
        "groups": (8, 8, 2),
        "routed": (2304, 2304, 576),
        "shared": (2304, 2560, 640),
        "vocab": (129280, 129280, 32320),
    },
    ("gpt-oss-120b", 3): {"routed": (2880, 2880, 960), "vocab": (201088, 201216, 67072)},
    ("gpt-oss-120b", 4): {"routed": (2880, 2944, 736), "vocab": (201088, 201088, 50272)},
    ("deepseek-v4-tiny", 3): {
        "heads": (16, 24, 8),
        "groups": (2, 3, 1),
        "routed": (256, 288, 96),
        "shared": (256, 384, 128),
        "vocab": (640, 768, 256),
    },
}

PADDING = {
    ("deepseek-v4-flash", 3): {"heads", "groups", "routed", "shared", "vocab"},
    ("deepseek-v4-flash", 1): set(),
    ("deepseek-v4-flash", 2): set(),
    ("deepseek-v4-flash", 8): set(),
    ("deepseek-v4-pro", 3): {"heads", "groups", "vocab"},
    ("deepseek-v4.1-flash", 4): {"shared"},
    ("gpt-oss-120b", 2): set(),
    ("gpt-oss-120b", 3): {"vocab"},
}


@pytest.mark.parametrize(("model", "tp"), PLANS)
def test_plan(model, tp):
    due = {name: Axis(*sizes) for name, sizes in PLANS[model, tp].items()}
    assert expected.axes(geometry.load(model), tp) == due


@pytest.mark.parametrize(("model", "tp"), PADDING)
def test_what_needs_padding(model, tp):
    assert set(expected.needs_padding(geometry.load(model), tp)) == PADDING[model, tp]
