"""Bad checkouts: each is a wrong call, or not-found with its reason; never a pass, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from conformance.drift import audit
from conformance.drift.context import BUILDER, CONVERT, DEMO, SCHEDULER, WRAPPERS, Context
from conformance.drift.finding import Finding, Rule
from conformance.drift.locate.tasks import GRAPH, REGISTER, RUNTIME_HEADER
from conformance.errors import UsageError
from tests.drift.running import edit, findings


def test_no_checkout(tmp_path: Path, mpk: Path, vllm: Path) -> None:
    with pytest.raises(UsageError, match=r"--mpk .* no MPK checkout"):
        audit.audit(vllm, vllm)
    with pytest.raises(UsageError, match=r"--reference .* no vLLM"):
        audit.audit(mpk, mpk)
    with pytest.raises(UsageError, match="no such folder"):
        audit.audit(tmp_path / "nothing", vllm)


@pytest.mark.parametrize(
    ("path", "rules"),
    [
        (DEMO, ["W01", "W04", "W05", "W06", "W08", "W09", "R01"]),
        (CONVERT, ["W08"]),
        (BUILDER, ["B01", "K06", "W07"]),
        (GRAPH, ["K01", "K02", "K03", "K06", "W01"]),
        (REGISTER, ["K03", "K11", "K12"]),
        (RUNTIME_HEADER, ["K01", "K09"]),
        (SCHEDULER, ["R01", "R05"]),
    ],
)
def test_missing_file(path: str, rules: list[str], mpk: Path, vllm: Path) -> None:
    (mpk / path).unlink()
    found = findings(mpk, vllm, "")
    for rule in rules:
        assert (found[rule].status, found[rule].reason) == ("not-found", "anchor-absent"), rule
        assert path.rsplit("/", 1)[-1] in found[rule].actual


@pytest.mark.parametrize("path", [DEMO, BUILDER, WRAPPERS])
@pytest.mark.parametrize(
    "text", ["def broken(:\n", "x = '\ud800'", "\0", "(" * 5000], ids=["syntax", "surrogate", "nul", "deep"]
)
def test_unparsed_python(path: str, text: str, mpk: Path, vllm: Path) -> None:
    (mpk / path).write_bytes(text.encode("utf-8", "surrogatepass"))
    report = audit.audit(mpk, vllm)
    assert report.exit_code == 3
    assert any(o.finding.reason == "unparsed" for o in report.outcomes)


def test_unparsed_cxx(mpk: Path, vllm: Path) -> None:
    (mpk / GRAPH).write_text("}}} this is no C++ ((( " * 200)
    found = findings(mpk, vllm, "", "K02")["K02"]
    assert (found.status, found.reason) == ("not-found", "unparsed")


def test_unclosed_kernel(mpk: Path, vllm: Path) -> None:
    path = "include/mirage/persistent_kernel/tasks/blackwell/mla_prefill_sm100.cuh"
    edit(mpk, path, "  if (q_block * PF_BM >= Q_LEN) {\n    return;\n  }\n}", "  if (q_block * PF_BM >= Q_LEN) {\n")
    found = findings(mpk, vllm, "", "K06")["K06"]
    assert (found.status, found.reason) == ("not-found", "unparsed")


def test_link_out_of_the_tree(tmp_path: Path, mpk: Path, vllm: Path) -> None:
    outside = tmp_path / "outside.py"
    (mpk / DEMO).rename(outside)
    (mpk / DEMO).symlink_to(outside)
    found = findings(mpk, vllm, "", "W05")["W05"]
    assert (found.status, found.reason) == ("not-found", "unparsed")
    assert "leads out of the checkout" in found.actual


def test_folder_linked_out_of_the_tree(tmp_path: Path, mpk: Path, vllm: Path) -> None:
    (mpk / "demo").rename(tmp_path / "demo")
    (mpk / "demo").symlink_to(tmp_path / "demo")
    assert findings(mpk, vllm, "", "W05")["W05"].status == "not-found"


def test_links_are_not_followed_to_run_either(tmp_path: Path, mpk: Path, vllm: Path) -> None:
    for path in (DEMO, "python/mirage/mpk/speculative.py"):
        outside = tmp_path / Path(path).name
        (mpk / path).rename(outside)
        (mpk / path).symlink_to(outside)
    found = audit.run_probes(Context(mpk, vllm))
    assert all("leads out of the checkout" in found[name] for name in ("weights", "trace"))


def test_no_regular_file(mpk: Path, vllm: Path) -> None:
    (mpk / DEMO).unlink()
    os.mkfifo(mpk / DEMO)
    found = findings(mpk, vllm, "", "W05")["W05"]
    assert (found.status, found.reason) == ("not-found", "unparsed")


def test_link_within_the_tree(mpk: Path, vllm: Path) -> None:
    (mpk / "moved").mkdir()
    (mpk / DEMO).rename(mpk / "moved/demo.py")
    (mpk / DEMO).symlink_to(mpk / "moved/demo.py")
    assert findings(mpk, vllm, "", "W05")["W05"].status == "pass"


@pytest.mark.parametrize(
    ("path", "old", "new", "rules"),
    [
        ("layers/attention/mla_attention.py", "W_UK, W_UV =", "A, B =", ["W05"]),
        ("models/deepseek_v2.py", "self.scaling", "self.scale", ["K11"]),
        ("models/deepseek_v2.py", "class DeepseekV2MLAAttention", "class Other", ["W06", "K11"]),
        ("layers/linear.py", "divide(", "share(", ["W06"]),
        ("models/deepseek_mtp.py", "mtp_start_layer_idx", "start", ["W04"]),
    ],
)
def test_another_reference(path: str, old: str, new: str, rules: list[str], mpk: Path, vllm: Path) -> None:
    edit(vllm, f"vllm/model_executor/{path}", old, new)
    for rule, finding in findings(mpk, vllm, "").items():
        if rule in rules:
            assert finding.status == "not-found", rule
            assert "vllm/model_executor" in finding.actual


def test_reference_decides(mpk: Path, vllm: Path) -> None:
    """What is expected comes from the reference: a vLLM that splits [v, nope] makes the right slice the wrong one."""
    edit(
        vllm,
        "vllm/model_executor/layers/attention/mla_attention.py",
        "W_UK, W_UV = kv_b_proj_weight.split([self.qk_nope_head_dim, self.v_head_dim]",
        "W_UV, W_UK = kv_b_proj_weight.split([self.v_head_dim, self.qk_nope_head_dim]",
    )
    edit(vllm, "vllm/model_executor/models/deepseek_v2.py", "self.qk_head_dim**-0.5", "self.qk_head_dim**-1")
    edit(vllm, "vllm/model_executor/models/deepseek_v2.py", "self.o_proj = Row", "self.o_proj = Column")
    found = findings(mpk, vllm, "")
    assert [found[rule].status for rule in ("W05", "K11", "W06")] == ["drift"] * 3


def test_ambiguous(mpk: Path, vllm: Path) -> None:
    edit(
        mpk, BUILDER, "self._use_prefill = mbt > 8", "self._use_prefill = mbt > 8\n        self._use_prefill = mbt > 9"
    )
    found = findings(mpk, vllm, "", "K06")["K06"]
    assert (found.status, found.reason) == ("not-found", "ambiguous")


def test_rule_that_raises(mpk: Path, vllm: Path) -> None:
    def check(context: Context) -> Finding:
        raise ZeroDivisionError("division by zero")

    told = audit.outcome(Rule("W99", "a broken rule", "crash", "", check), Context(mpk, vllm), False)
    assert (told.status, told.finding.reason, told.required) == ("not-found", "not-evaluated", True)
    assert "ZeroDivisionError: division by zero" in told.finding.actual


def test_whole_pillar_blind(mpk: Path, vllm: Path) -> None:
    report = audit.audit(mpk, vllm)
    for outcome in report.outcomes:
        if outcome.pillar == "runtime":
            outcome.required = False
            outcome.finding = msgspec.structs.replace(outcome.finding, status="not-found", reason="anchor-absent")
    assert audit.concluded(report).headline.endswith("not found: all of runtime")
    assert report.exit_code == 3


def test_checkout_changes_under_the_audit(mpk: Path, vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints = iter(["one", "another"])
    monkeypatch.setattr("conformance.drift.locate.checkout.Checkout.fingerprint", lambda _: next(prints))
    report = audit.audit(mpk, vllm)
    assert (report.exit_code, report.changed) == (3, True)
    assert "changed while it was audited" in report.headline
