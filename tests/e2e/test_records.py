"""Records survive the disk bit for bit, limits are refused when stale, prompts cross what they should."""

from __future__ import annotations

import json
import math

import pytest
import torch

from conformance.e2e import limits, opening
from conformance.e2e.measured import Measured, Plan
from conformance.e2e.prompts import RECIPE, prompts
from conformance.e2e.record import About, Record, load
from conformance.errors import NotSupported, UsageError
from conformance.stacks.engine_protocol import Answer, Block, Likely
from conformance.stacks.reference_engine import ReferenceEngine
from references import make_checkpoint

ABOUT = About("reference", "1", "model", 2, RECIPE, 2)


def _record() -> Record:
    likely = Likely(torch.tensor([[3, 5]], dtype=torch.int32), torch.tensor([[-0.25, math.nan]]))
    answer = Answer([3], "length", likely)
    block = Block(torch.ones(1, 2, dtype=torch.bfloat16), torch.zeros(1, 2, dtype=torch.bfloat16))
    return Record(ABOUT, [answer], [answer], [], [likely], None, {"layers.0.attn": block}, ["a note"], "signal 6")


def test_a_record_survives_the_disk(tmp_path):
    _record().save(tmp_path / "e2e" / "tp2.safetensors")
    found = load(tmp_path / "e2e" / "tp2.safetensors")
    assert (found.about, found.notes, found.ended, found.long) == (ABOUT, ["a note"], "signal 6", None)
    assert found.solo[0].tokens == [3] and found.solo[0].finish == "length"
    assert math.isnan(float(found.solo[0].likely.values[0, 1]))
    assert list(found.blocks) == ["layers.0.attn"] and found.blocks["layers.0.attn"].x.dtype is torch.bfloat16


def test_what_is_no_record_is_a_wrong_call(tmp_path):
    (tmp_path / "tp2.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="not a record of an engine's answers"):
        load(tmp_path / "tp2.safetensors")


def test_a_record_of_something_else_is_refused(tmp_path):
    """Another model, stack or recipe under the same name is never compared."""
    folder = opening.small()
    config = json.loads((folder / "config.json").read_text())
    _record().save(tmp_path / "tp2.safetensors")
    measured = Measured(Plan(folder, config, (2, 3), "reference", "reference stack", tmp_path), ReferenceEngine, "1")
    with pytest.raises(UsageError, match="name another --run-dir"):
        measured.record(2)


def test_limits_fit_one_checkpoint_device_and_recipe(tmp_path):
    folder = opening.small()
    digest = limits.digest(folder)
    assert limits.find(digest, "reference stack").stack == "reference"
    with pytest.raises(NotSupported, match="no limits for this checkpoint"):
        limits.find(digest, "CPU")
    with pytest.raises(NotSupported, match="no limits for this checkpoint"):
        limits.find("0" * 64, "reference stack")
    own = tmp_path / "limits.toml"
    shipped = (limits._OWN).read_text()
    own.write_text(shipped.replace(f"recipe = {RECIPE}", "recipe = 0"))
    with pytest.raises(NotSupported, match=f"recipe 0 are stale, {RECIPE} was due"):
        limits.find(digest, "reference stack", str(own))
    own.write_text(shipped.replace('version = "0.1.0"', 'version = "0.1.0"\nbackend = "marlin"'))
    assert "with marlin on" in limits.find(digest, "reference stack", str(own), "marlin").words
    with pytest.raises(NotSupported, match="on reference stack: calibrate"):
        limits.find(digest, "reference stack", str(own))
    with pytest.raises(NotSupported, match="on reference stack with --backend marlin: calibrate"):
        limits.find(digest, "reference stack", None, "marlin")
    own.write_text("limits = 3")
    with pytest.raises(UsageError, match="no limits"):
        limits.find(digest, "reference stack", str(own))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("p99 = 0.0917", "p99 = inf", "parity.p99 = inf: a measured difference"),
        ("p99 = 0.0917", "p99 = nan", "parity.p99 = nan: a measured difference"),
        ("max = 0.1340", "max = -1.0", "parity.max = -1.0: a measured difference"),
        ("attn = 0.0045", "attn = inf", "blocks.attn = inf: a measured difference"),
        ("attn = 0.0045, ", "", "blocks has no attn"),
    ],
)
def test_limits_that_nothing_measured_are_refused(tmp_path, old, new, told):
    own = tmp_path / "limits.toml"
    own.write_text(limits._OWN.read_text().replace(old, new, 1))
    with pytest.raises(UsageError, match=told):
        limits.find("0" * 64, "CPU", str(own))


@pytest.mark.parametrize("limit", [1.0, 10.0])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("preset", ["e2e", "learned"])
def test_the_limits_that_ship_are_those_of_checkpoints_that_can_be_made(tmp_path, preset, seed, limit):
    """The maker writes the same bytes everywhere: a change of it makes every limit stale, and this fails."""
    make_checkpoint.write(tmp_path / "made", make_checkpoint.PRESETS[preset] | {"swiglu_limit": limit}, seed=seed)
    found = limits.find(limits.digest(tmp_path / "made"), "CPU")
    assert (found.version, "learned" in found.note) == ("0.32.0", preset == "learned")


def test_prompts_cross_window_and_index():
    found = prompts(make_checkpoint.E2E, 3072)
    window, chosen = make_checkpoint.E2E["sliding_window"], make_checkpoint.E2E["index_topk"]
    lengths = [len(p) for p in found.short]
    assert lengths[0] < lengths[1] < window < lengths[2] < 2 * window < lengths[3] < 4 * window < lengths[4]
    assert len(found.long) // 4 > chosen and len(found.traced) > window
    assert found == prompts(make_checkpoint.E2E, 3072)
    assert prompts(make_checkpoint.E2E, 600).long == []
