"""The reference stack's engine against the reference implementation; and the localiser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.e2e import blame, opening
from conformance.e2e.measured import Measured, Plan
from conformance.errors import StackRefused
from conformance.faults import selftest
from conformance.stacks.engine_protocol import EngineRequest
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference_engine import ReferenceEngine
from references import make_checkpoint
from references.v4_model import Model

EVERY_KIND: dict[str, Any] = make_checkpoint.EVEN | opening.SMALL
EVERY_KIND |= {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128], "num_hash_layers": 1, "index_topk": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "every-kind"
    make_checkpoint.write(made, EVERY_KIND)
    return made


@pytest.mark.parametrize("tp", [1, 3])
def test_blocks_agree_with_the_reference(folder, tp):
    """Past 128 tokens, so that a layer of ratio 128 has an entry, and with a learned router. The indexer has nothing to
    choose, or near-ties would decide."""
    tokens = torch.randint(2, 96, (140,), generator=torch.Generator().manual_seed(3))
    model = Model(folder)
    blocks = ReferenceEngine().open(EngineRequest(str(folder), tp)).trace(tokens.tolist())
    assert list(blocks) == [f"layers.{n}.{kind}" for n in range(3) for kind in ("attn", "ffn")]
    for module, block in blocks.items():
        due = model.block(module, block.x, tokens)
        assert float((block.y - due).norm() / due.norm()) < 0.006, module


@pytest.mark.parametrize(("tp", "words"), [(4, "attention heads"), (7, "attention heads")])
def test_a_size_that_does_not_divide_is_refused(folder, tp, words):
    with pytest.raises(StackRefused, match=words):
        ReferenceEngine().open(EngineRequest(str(folder), tp))


@pytest.mark.parametrize(
    ("fault", "module"),
    [
        ({"kind": "w2", "layer": 1, "rank": 1, "expert": 0, "parts": ["scales"]}, "layers.1.ffn"),
        ({"kind": "sink", "layer": 0}, "layers.0.attn"),
        ({"kind": "limit"}, "layers.0.ffn"),
    ],
)
def test_the_first_wrong_block_is_named(fault, module):
    small = opening.small()
    config = json.loads((small / "config.json").read_text())
    clean = Measured(Plan(small, config, (2, 3), "reference", "reference stack"), ReferenceEngine, "1")
    plan = Plan(
        *(small, config, (2, 3), "reference", "reference stack"),
        faults={3: fault},
        clean=clean,
        parts=frozenset({"blocks"}),
    )
    (found,) = blame.first(Measured(plan, ReferenceEngine, "1"), (3,))
    assert (found.engine, found.module) == ("TP3", module)
    assert found.error > found.limit


@pytest.mark.parametrize("fault", ["engine-w2-scales-late", "engine-draft-plan", "serving-crowded"])
def test_a_fault_is_caught_alone(fault):
    """Without the answers, records and servers that other faults of a self-test need."""
    report = selftest.run("reference", StackOptions(), [fault], None)
    assert [planted.outcome for planted in report.faults] == ["caught"] and not report.clean
