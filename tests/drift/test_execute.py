"""--execute: audited code runs in a process of its own, with a limit, without our environment, and writes nowhere."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from conformance.drift import audit
from conformance.drift.context import BUILDER, CONVERT, DEMO, SCHEDULER, Context
from conformance.drift.execute import run_limited, run_probe
from conformance.drift.scheduler import run_scheduler, violations
from tests.drift.running import edit

_ONE = [{"ranks": 1, "rank": 0, "tokens": 8, "requests": 1, "sequence": 256, "drafts": 0}]


def _trace(mpk: Path, seconds: int | None = None) -> object:
    return run_probe("trace", {"root": str(mpk), "configurations": _ONE}, seconds)


def test_whole_audit(mpk: Path, vllm: Path) -> None:
    """In processes, as a user runs it: everything evaluated, nothing written, no bytecode left behind."""
    before = sorted(mpk.rglob("*"))
    report = audit.audit(mpk, vllm, execute=True)
    assert report.headline == "NO DRIFT: 39 rules pass"
    assert (report.exit_code, report.changed, report.scope) == (0, False, "everything")
    assert sorted(mpk.rglob("*")) == before


def test_static_audit_says_what_it_left_out(mpk: Path, vllm: Path) -> None:
    report = audit.audit(mpk, vllm)
    assert report.headline.startswith("NO DRIFT (scope: static, 16 rules need --execute)")
    assert report.exit_code == 0
    left = [o for o in report.outcomes if o.method != "text"]
    assert {(o.status, o.required) for o in left} == {("not-found", False)}
    assert {o.id for o in left if "needs --execute" not in o.finding.actual} == {"B05"}  # a design that is not made


def test_hanging_builder(mpk: Path) -> None:
    edit(mpk, BUILDER, "        super().__init__(mpk)", "        while True:\n            pass")
    started = time.monotonic()
    assert _trace(mpk, 8) == "did not end in 8 s and was ended"
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(0)", "SystemExit"),
        ("open(__file__, 'a').write('#')", "the audit is read-only: writing"),
        ("import os; os.remove(__file__)", "the audit is read-only: os.remove"),
        ("import os; os.mkdir(os.path.dirname(__file__) + '/new')", "the audit is read-only: os.mkdir"),
        ("import subprocess; subprocess.run(['true'])", "audited code may not do this: subprocess.Popen"),
        ("import os; os.system('true')", "audited code may not do this: os.system"),
        ("import socket; socket.socket().connect(('127.0.0.1', 9))", "audited code may not do this: socket"),
    ],
)
def test_builder_that_does_more_than_build(code: str, words: str, mpk: Path) -> None:
    edit(mpk, BUILDER, "        super().__init__(mpk)", f"        {code}")
    before = Context(mpk, mpk).mpk.fingerprint()
    result = _trace(mpk)
    assert words in (result if isinstance(result, str) else json.dumps(result))
    assert Context(mpk, mpk).mpk.fingerprint() == before


def test_builder_that_kills_its_process(mpk: Path) -> None:
    edit(mpk, BUILDER, "        super().__init__(mpk)", "        import os; os._exit(7)")
    assert _trace(mpk) == "ended with 7 and no result"


def test_bad_weight_code_is_told_by_line(mpk: Path) -> None:
    edit(mpk, DEMO, "nope_rows = mp[", "nope_rows = missing[")
    result = run_probe("weights", {"root": str(mpk), "demo": DEMO, "convert": CONVERT})
    assert {r["error"] for r in result["absorbed"]} == {"NameError: name 'missing' is not defined"}
    context = Context(mpk, mpk)
    context.probes["weights"] = result
    rule = next(rule for rule in audit.all_rules() if rule.id == "W02")
    assert audit.outcome(rule, context, True).finding.reason in {"not-evaluated", "anchor-absent"}


def test_environment_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    code = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
    assert run_limited([sys.executable, "-I", "-c", code], tmp_path, 20, tmp_path / "out") == 0
    environment, folder = json.loads((tmp_path / "out").read_text())
    assert "hush" not in str(environment)
    assert environment["HOME"] == environment["TMPDIR"] == folder == str(tmp_path)


def test_children_end_with_it(tmp_path: Path) -> None:
    """A process that a probe leaves behind is ended with its group."""
    mark = tmp_path / "late"
    command = f"(sleep 2; touch {mark}) & sleep 60"
    assert run_limited(["/bin/sh", "-c", command], tmp_path, 0.5) is None
    time.sleep(2.5)
    assert not mark.exists()


def test_scheduler_that_does_not_compile_or_end(mpk: Path) -> None:
    edit(mpk, SCHEDULER, "int head = *config.page_queue_head,", "int head = nonsense,")
    assert "does not compile for the CPU" in str(run_scheduler(Context(mpk, mpk)))


def test_scheduler_that_never_ends(mpk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.drift.scheduler._RUN_SECONDS", 1)
    edit(mpk, SCHEDULER, "  int active = 0,", "  for (volatile int i = 0; i < 1;) {\n  }\n  int active = 0,")
    assert run_scheduler(Context(mpk, mpk)) == "prepare_next_batch did not end in 1 s"


def test_scheduler_without_a_compiler(mpk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run_scheduler(Context(mpk, mpk)) == "no C++ compiler here (g++ or clang++)"


_GOOD = {
    "request": [0, -1], "step": [4, 0], "qo": [0, 4, 4], "kv": [0, 1, 1], "pages": [3, 0, 0, 0], "last": [8, 0],
    "queue": [0, 1, 2, 3], "head": 0, "tail": 3, "more": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"last": [0, 0]}, ["pages and last-page length do not add up to the tokens seen"]),
        ({"qo": [0, 4, 2]}, ["index pointers decrease", "an empty slot holds tokens or pages"]),
        ({"pages": [1, 0, 0, 0]}, ["used and free pages are not all pages"]),
        ({"tail": 2}, ["used and free pages are not all pages"]),
        ({"qo": [0, 9, 9], "step": [-1, 0]}, ["more tokens than max-num-batched-tokens"]),
    ],
)
def test_what_a_batch_may_break(change: dict[str, object], words: list[str]) -> None:
    assert violations({**_GOOD, **change}, {"page": 8, "pages": 4, "tokens": 8}) == words
