"""The reports: deterministic JSON, a baseline that shows only what is new, a safe page, the command's exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from conformance.drift import audit
from conformance.drift.context import DEMO
from conformance.drift.html import page, placed, section
from tests.cli.calls import call
from tests.drift.running import edit

_GATE = "include/mirage/persistent_kernel/tasks/blackwell/mla_prefill_sm100.cuh"


def _drifting(mpk: Path) -> None:
    edit(mpk, DEMO, "by_head[:, nope_rows:, :]", "by_head[:, :v_dim, :]")


def _call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mpk: Path, vllm: Path, *more: str):
    return call(monkeypatch, capsys, "drift", "--mpk", str(mpk), "--reference", str(vllm), *more)


def test_deterministic(mpk: Path, vllm: Path) -> None:
    _drifting(mpk)
    assert msgspec.json.encode(audit.audit(mpk, vllm)) == msgspec.json.encode(audit.audit(mpk, vllm))


def test_rules_in_pillar_order(mpk: Path, vllm: Path) -> None:
    ids = [outcome.id for outcome in audit.audit(mpk, vllm).outcomes]
    assert ids == sorted(ids, key=lambda rule: ("WBKR".index(rule[0]), rule))
    assert len(ids) == len(set(ids)) == 44


def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, mpk: Path, vllm: Path
) -> None:
    good = _call(monkeypatch, capsys, mpk, vllm)
    assert (good.code, good.err) == (0, "")
    assert "NO DRIFT (scope: static, 16 rules need --execute)" in good.out
    _drifting(mpk)
    bad = _call(monkeypatch, capsys, mpk, vllm, "--json", "-")
    assert bad.code == 1
    told = json.loads(bad.out)  # nothing but JSON on standard output
    assert told["verdict"] == "DRIFT"
    assert "W_UV is taken from rows [0, v)" in bad.err
    (mpk / DEMO).unlink()
    blind = _call(monkeypatch, capsys, mpk, vllm)
    assert blind.code == 3
    assert "INCOMPLETE" in blind.out
    wrong = _call(monkeypatch, capsys, tmp_path, vllm)
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.count("\n") == 1


@pytest.mark.parametrize("words", [["--baseline", "no.json"], ["--html", "no/page.html"], ["--json", "no/such.json"]])
def test_wrong_calls(
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    mpk: Path,
    vllm: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = _call(monkeypatch, capsys, mpk, vllm, *words)
    assert (wrong.code, wrong.out) == (2, "")
    assert words[0] in wrong.err


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not json", "\xff"])
def test_baseline_that_is_none(
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    mpk: Path,
    vllm: Path,
) -> None:
    file = tmp_path / "base.json"
    file.write_bytes(text.encode("latin-1"))
    wrong = _call(monkeypatch, capsys, mpk, vllm, "--baseline", str(file))
    assert wrong.code == 2
    assert "no report of `drift --json`" in wrong.err


def test_baseline_shows_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, mpk: Path, vllm: Path
) -> None:
    base = tmp_path / "base.json"
    _drifting(mpk)
    assert _call(monkeypatch, capsys, mpk, vllm, "--json", str(base)).code == 1
    edit(mpk, DEMO, '"""The mini-checkout', '#\n#\n"""The mini-checkout')  # other line numbers
    same = _call(monkeypatch, capsys, mpk, vllm, "--baseline", str(base))
    assert same.code == 0
    assert "W05" not in same.out
    assert "nothing new" in same.out
    edit(mpk, _GATE, "Q_LEN < 9", "Q_LEN < 16")
    more = _call(monkeypatch, capsys, mpk, vllm, "--baseline", str(base))
    assert more.code == 1
    assert "new differences in 1 rule: K06" in more.out
    assert "W05" not in more.out


def test_baseline_within_one_rule(mpk: Path, vllm: Path, tmp_path: Path) -> None:
    """A rule that drifted before drifts anew where it finds another difference."""
    edit(mpk, _GATE, "Q_LEN < 9", "Q_LEN < 16")
    base = tmp_path / "base.json"
    base.write_bytes(msgspec.json.encode(audit.audit(mpk, vllm)))
    edit(mpk, _GATE, "Q_LEN < 16", "Q_LEN < 32")
    report = audit.against(audit.audit(mpk, vllm), base)
    new = {outcome.id: outcome.new for outcome in report.outcomes if outcome.new}
    assert new == {"K06": [f"TP{tp}: Q_LEN 9-31 has no kernel" for tp in (1, 2, 4, 8)]}


def test_baseline_does_not_hide_what_is_lost(mpk: Path, vllm: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    base.write_bytes(msgspec.json.encode(audit.audit(mpk, vllm)))
    (mpk / DEMO).unlink()
    report = audit.against(audit.audit(mpk, vllm), base)
    assert report.exit_code == 3
    assert any(outcome.new and outcome.id == "W05" for outcome in report.outcomes)


def test_deferred_drift_is_told_and_does_not_decide(mpk: Path, vllm: Path) -> None:
    edit(mpk, DEMO, r'(r"^lm_head\.weight$", 0)', r'(r"^lm_head\.weight$", None)')
    edit(mpk, "demo/deepseek_v3/models/convert.py", r'(r"^lm_head\.weight$", 0)', r'(r"^lm_head\.weight$", None)')
    report = audit.audit(mpk, vllm)
    assert report.exit_code == 0
    assert report.headline.endswith("deferred: W06")


def test_page(mpk: Path, vllm: Path, tmp_path: Path) -> None:
    edit(mpk, DEMO, "W_UV = by_head[:, nope_rows:, :]", "W_UV = by_head[:, :v_dim, :]  # <script>alert(1)</script>")
    report = audit.audit(mpk, vllm)
    html = page(report).decode()
    assert html.count('<section id="drift">') == section(report).count("<section") == 1
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "demo/deepseek_v3/demo.py:" in html
    assert "mla_attention.py:" in html
    assert "http" not in html


def test_a_gates_report_gets_one_section(mpk: Path, vllm: Path) -> None:
    """However often it is written; nothing else of the page changes, and an audit's own page is made anew."""
    report = audit.audit(mpk, vllm)
    gate = b"<html><body>\n<p>the gate's</p>\n</body>\n</html>\n"
    once = placed(report, gate)
    assert placed(report, once) == once
    assert once.count(b'<section id="drift">') == 1
    assert once.replace(section(report).rstrip("\n").encode() + b"\n", b"") == gate
    assert placed(report, b"") == placed(report, page(report)) == page(report)
