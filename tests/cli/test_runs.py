"""`report`, `diff` and `verify` on run folders, whole and tampered with."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest

from conformance.gate import recorded
from conformance.report import attestation
from tests.cli.calls import call

_RUN = ("gate", "--emulate", "sm120", "--layers", "plan", "--geometry", "deepseek-v4-tiny", "--run-dir")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of the plan layer, never written to."""
    folder = tmp_path_factory.mktemp("runs") / "made"
    with pytest.MonkeyPatch.context() as patch:
        done = call(patch, _Silent(), *_RUN, str(folder))
    assert done.code == 0
    return folder


class _Silent:
    def readouterr(self):
        return "", ""


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def _change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_run_agrees_with_itself(conformance, run):
    done = conformance("verify", str(run))
    assert (done.code, done.err) == (0, "") and "the record agrees" in done.out
    told = json.loads(conformance("verify", str(run), "--json", "-").out)
    assert (told["wrong"], told["unknown"]) == ([], []) and told["headline"].startswith("GO (reference stack")


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("evidence.jsonl", '"status":"pass"', '"status":"fail"', "plan.accepted: pass, while evidence.jsonl has fail"),
        ("evidence.jsonl", '"measured":[', '"measured":[7,', "evidence.jsonl has other values"),
        ("evidence.jsonl", '"seconds":', '"seconds":1', "digest.sha256"),
        ("manifest.json", '"seed": ', '"seed": 1', "configuration[0].digest.sha256"),
        ("verdict.json", '"headline": "GO', '"headline": "GO!', "its evidence makes it GO (reference"),
        ("verdict.json", '"verdict": "GO"', '"verdict": "NO-GO"', "its evidence makes it GO (reference"),
        ("attestation.json", "WARNED", "PASSED", "predicate.result is PASSED; WARNED was due"),
    ],
)
def test_what_was_changed_is_told(conformance, run, file, old, new, words):
    _change(run / file, old, new)
    done = conformance("verify", str(run))
    assert done.code == 1 and words in done.out and "does not agree" in done.out


def test_a_forged_run_is_judged_by_the_must_pass_list(conformance, run):
    """Evidence, verdict and attestation agree with each other; a claim that was required is gone from all three."""
    evidence = run / "evidence.jsonl"
    evidence.write_text("".join(evidence.read_text().splitlines(keepends=True)[1:]))
    known = recorded.read(run)
    verdict = msgspec.structs.replace(known.final, claims=known.final.claims[1:])
    (run / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    (run / "attestation.json").write_bytes(attestation.render(known, verdict))
    done = conformance("verify", str(run))
    assert done.code == 1 and "its evidence makes it INCOMPLETE" in done.out


def test_what_cannot_be_checked_here_is_no_agreement(conformance, run):
    """A geometry that is elsewhere; the attestation follows the manifest."""
    _change(run / "manifest.json", '"geometry": "deepseek-v4-tiny"', '"geometry": "/nowhere/config.json"')
    known = recorded.read(run)
    (run / "attestation.json").write_bytes(attestation.render(known, known.final))
    done = conformance("verify", str(run))
    assert done.code == 3 and "must-pass list was not made again" in done.out


def test_a_lost_attestation(conformance, run):
    (run / "attestation.json").unlink()
    assert conformance("verify", str(run)).code == 1


def test_two_equal_runs(conformance, made, run):
    assert conformance("diff", str(made), str(run)) == (0, "no claim differs\n", "")


def test_what_differs_between_two_runs(conformance, made, run):
    known = recorded.read(run)
    first, second, *rest = known.final.claims
    evidence = msgspec.structs.replace(second.evidence, measured=[64, 66, 22])
    changed = [msgspec.structs.replace(first, status="fail"), msgspec.structs.replace(second, evidence=evidence)]
    verdict = msgspec.structs.replace(known.final, claims=changed + rest[:-1], tp=2)
    (run / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    found = json.loads(conformance("diff", str(made), str(run), "--json", "-").out)
    assert [(d["what"], d["kind"]) for d in found] == [
        ("tp", "run"),
        (first.id, "status"),
        (second.id, "measured"),
        (rest[-1].id, "status"),
    ]
    assert (found[1]["before"], found[1]["after"], found[3]["after"]) == ("pass", "fail", "not in it")
    done = conformance("diff", str(made), str(run))
    assert done.code == 1 and "-> [64, 66, 22]" in done.out


def test_a_report_is_made_again(conformance, run, tmp_path):
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    assert conformance("report", str(run)).code == 0
    assert (run / "report.html").read_bytes() == before
    assert conformance("report", str(run), "--out", str(tmp_path / "other.html")).code == 0
    assert (tmp_path / "other.html").read_bytes() == before


@pytest.mark.parametrize("command", [("report",), ("verify",), ("diff", "{run}")])
def test_wrong_calls(conformance, run, tmp_path, command):
    words = [word.format(run=run) for word in command]
    done = conformance(*words, str(tmp_path))
    assert done.code == 2 and "no run folder (no manifest.json)" in done.err and done.err.count("\n") == 1
    (run / "verdict.json").unlink()
    done = conformance(*words, str(run))
    assert done.code == 2 and "--resume" in done.err
