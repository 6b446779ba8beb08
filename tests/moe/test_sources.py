"""Where the kernel's weights come from: an earlier run, this run's loader layer, its loader alone, or nobody's."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from conformance import catalogue, geometry
from conformance.errors import NotSupported, UsageError
from conformance.gate.gate import run_gate
from conformance.gate.runner import Runner, repeat_command
from conformance.gate.settings import Settings, resolve
from conformance.result import Status


def _settings(**more) -> Settings:
    return Settings(profile="cpu", geometry="deepseek-v4-tiny", backend="flashinfer_cutlass", **more)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "loader"
    run_gate(resolve(_settings(layers="loader", run_dir=str(path))))
    return path


def _tails(run_settings: Settings, *claims: str):
    runner = Runner(resolve(run_settings), lambda result: None)
    try:
        return [runner.run_claim(catalogue.get(name)) for name in (*claims, "moe.tails.zero")][-1]
    finally:
        runner.close()


LOADER = [c.id for c in catalogue.claims().values() if c.layer == "loader"]


@pytest.mark.parametrize(
    ("layers", "claims", "words"),
    [
        ("moe", (), "the reference's right map: no loader was measured"),
        ("loader,moe", (), "the loader of stack reference, measured in this run"),
        ("loader,moe", tuple(LOADER), "the loader of stack reference, measured in this run"),
    ],
)
def test_this_run(layers, claims, words):
    found = _tails(_settings(layers=layers), *claims)
    assert found.status is Status.PASS
    assert words in found.evidence.method


def test_an_earlier_run(earlier):
    found = _tails(_settings(layers="moe", loader_run=str(earlier)))
    assert found.status is Status.PASS
    assert f"measured in run {earlier.name}" in found.evidence.method
    assert f"--loader-run {earlier}" in repeat_command(resolve(_settings(loader_run=str(earlier))), found.id)


def test_what_an_earlier_run_saw_is_what_the_kernel_is_given(earlier, tmp_path):
    """A tail that was written with checkpoint bytes in that run is found as bytes in this one."""
    lines = [json.loads(line) for line in (earlier / "evidence.jsonl").read_text().splitlines()]
    for line in lines:
        if line["id"] == "loader.w2.offsets":
            for box in line["evidence"]["maps"][0]["boxes"]:
                if box["state"] == "zero":
                    box.update(state="source", origin=["w2", 0, 0, 48])
    (tmp_path / "evidence.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = _tails(_settings(layers="moe", loader_run=str(tmp_path)))
    assert found.status is Status.FAIL
    assert found.evidence.findings[0].where == "rank 0, expert 0, w2_weight row 0, byte 48"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loader_run": "/nowhere"}, "/nowhere: no readable evidence.jsonl"),
        ({"tp": "2"}, "maps of 3 ranks, --tp is 2"),
        ({"geometry": "gpt-oss-120b"}, "are not those of gpt-oss-120b"),
    ],
)
def test_a_run_that_does_not_fit(earlier, settings, words):
    given = {"layers": "moe", "loader_run": str(earlier)} | settings
    base = msgspec.structs.asdict(_settings()) | given
    with pytest.raises(UsageError, match=words):
        _tails(Settings(**base))


def test_a_run_without_maps(tmp_path):
    (tmp_path / "evidence.jsonl").write_text("")
    with pytest.raises(UsageError, match="no maps of all four parameters"):
        _tails(_settings(layers="moe", loader_run=str(tmp_path)))


def test_a_stack_without_a_kernel():
    from conformance.context import Context
    from conformance.target import Target

    target = Target(geometry.load("deepseek-v4-tiny"), 3, "cpu", None, None, (32,), (32,))
    with pytest.raises(NotSupported, match="offers no MoE kernel"):
        _ = Context(target, None, None).moe
