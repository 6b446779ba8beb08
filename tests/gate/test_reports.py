"""What a run leaves behind, read back: nothing but a pass looks like one, and nothing that a stack says is markup."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from conformance import expected, geometry, report
from conformance.gate import folder
from conformance.gate.folder import RunFolder
from conformance.gate.verdict import judge
from conformance.result import Evidence, Finding, Status
from conformance.stacks.protocols import ParameterInfo, StackInfo
from tests.gate.fakes import FakeStack, claim, install, resolved, result

NASTY = '<script>alert(1)</script>"><img src=http://x.example/y onerror=z>&amp;'


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Judges results, writes the folder, returns (verdict, path)."""
    claims = [claim(f"plan.{status}") for status in Status]
    install(monkeypatch, claims, stacks={name: FakeStack(name) for name in ("fake", "reference")})
    monkeypatch.setattr(folder, "harness_commit", lambda: "c0ffee")

    def write(results, selection="some", stacks=(), **settings):
        run = resolved(**settings)
        made = RunFolder(run, tmp_path / "run", False)
        for each in results:
            made.record(each)
        for info in stacks or [StackInfo("fake", "fake", "1.0", identity={"loader.py": "abc"})]:
            made.saw_stack(info)
        verdict = judge(run, results, selection)
        report.write_all(made, verdict)
        made.close()
        return verdict, tmp_path / "run"

    return write


def _every(required: bool) -> list:
    found = Finding("rank 0", "zero", "checkpoint byte 352")
    evidence = {
        Status.PASS: Evidence(ok=True, summary="right"),
        Status.FAIL: Evidence(ok=False, summary="wrong", findings=[found]),
    }
    return [
        result(
            s,
            required,
            f"plan.{s}",
            reason="" if s is Status.PASS else f"why {s}",
            evidence=evidence.get(s),
            repeat="again",
        )
        for s in Status
    ]


def _cases(path) -> dict[str, list[str]]:
    root = ET.parse(path / "junit.xml").getroot()
    return {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}


REQUIRED = {
    "pass": [],
    "fail": ["failure"],
    "crash": ["error"],
    "error": ["error"],
    "timeout": ["error"],
    "blocked": ["error"],
    "not-run": ["error"],
    "not-supported": ["error"],
    "not-applicable": ["skipped"],
    "waived": ["skipped"],
}


@pytest.mark.parametrize("required", [True, False])
def test_junit(write, required):
    """What is required and not proved is an error: CI takes a skip for good news."""
    _, path = write(_every(required))
    due = REQUIRED | ({} if required else {status: ["skipped"] for status in ("blocked", "not-run", "not-supported")})
    assert _cases(path) == {f"plan.{status}": kind for status, kind in due.items()}


def test_junit_counts_and_words(write):
    verdict, path = write(_every(True))
    root = ET.parse(path / "junit.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("10", "1", "6", "2")
    assert verdict.headline in root.get("name")
    (failure,) = root.iter("failure")
    assert failure.get("message") == "fail: why fail"
    assert failure.text == "rank 0: checkpoint byte 352; zero was due\nagain"


def test_junit_of_what_xml_has_no_letters_for(write):
    evidence = Evidence(ok=False, summary="s", findings=[Finding("\x00", "\x1b[31m", "\ufffe", "\x08")])
    _, path = write(
        [result(Status.FAIL, name="plan.fail", reason="\x1b[0m\x01", evidence=evidence)], selection="-k \x1b"
    )
    (failure,) = ET.parse(path / "junit.xml").getroot().iter("failure")
    assert failure.get("message") == "fail: \\x1b[0m\\x01"
    assert failure.text.startswith("\\x00: ")


@pytest.mark.parametrize(
    ("status", "more", "due"),
    [
        ("pass", {"selection": ""}, "PASSED"),
        ("pass", {"selection": "", "policy": "release"}, "PASSED"),
        ("waived", {"selection": ""}, "WARNED"),
        ("pass", {"selection": "one"}, "WARNED"),
        ("pass", {"selection": "", "layers": "plan"}, "WARNED"),
        ("pass", {"selection": "", "force_shard": True}, "WARNED"),
        ("pass", {"selection": "", "repair": "w2-units"}, "WARNED"),
        ("pass", {"selection": "", "stack": "reference"}, "WARNED"),
        *((s, {"selection": ""}, "FAILED") for s in REQUIRED if s not in ("pass", "waived")),
    ],
)
def test_attestation_result(monkeypatch, write, status, more, due):
    install(monkeypatch, [claim("plan.a"), claim("loader.b", check="")], stacks={"fake": None, "reference": None})
    _, path = write([result(Status(status)), result(Status.NOT_APPLICABLE, name="loader.b")], **more)
    assert json.loads((path / "attestation.json").read_bytes())["predicate"]["result"] == due


def test_attestation(write):
    _, path = write(_every(True))
    told = json.loads((path / "attestation.json").read_bytes())
    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    evidence, stack = told["subject"]
    assert evidence["name"] == "evidence.jsonl"
    assert evidence["digest"]["sha256"] == hashlib.sha256((path / "evidence.jsonl").read_bytes()).hexdigest()
    assert stack["name"] == "stack:fake@1.0" and len(stack["digest"]["sha256"]) == 64
    predicate = told["predicate"]
    manifest = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    assert {"name": "manifest.json", "digest": {"sha256": manifest}} in predicate["configuration"]
    assert predicate["passedTests"] == ["plan.pass"]
    assert predicate["failedTests"] == ["plan.fail", "plan.crash"]
    assert predicate["warnedTests"] == ["plan.waived"]


def test_another_stack_has_another_digest(write, tmp_path):
    digests = set()
    for number, identity in enumerate(({"a.py": "1"}, {"a.py": "2"}, {"b.py": "1"})):
        _, path = write([result(Status.PASS)], stacks=[StackInfo("fake", "fake", "1.0", identity=identity)])
        digests.add(json.loads((path / "attestation.json").read_bytes())["subject"][1]["digest"]["sha256"])
        path.rename(tmp_path / f"run{number}")
    assert len(digests) == 3


class _Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.classes: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.classes.setdefault(tag, []).append(dict(attrs).get("class", ""))

    def handle_data(self, data):
        self.text += data


def _page(path) -> _Page:
    return _Page((path / "report.html").read_text())


def test_html_escapes_whatever_it_is_told(write):
    evidence = Evidence(
        ok=False,
        summary=f"summary {NASTY}",
        expected={f"expected {NASTY}": 1},
        measured=[f"measured {NASTY}"],
        findings=[Finding(*(f"{word} {NASTY}" for word in ("where", "due", "got", "meaning")))],
        notes=[f"note {NASTY}"],
        method=f"method {NASTY}",
    )
    results = [
        result(Status.FAIL, name="plan.fail", reason="r", evidence=evidence, repeat=f"repeat {NASTY}"),
        result(Status.ERROR, name="plan.error", reason=f"reason {NASTY}"),
    ]
    info = StackInfo(
        "fake", "fake", f"version {NASTY}", f"python {NASTY}", {f"file {NASTY}": "1"}, notes=[f"told {NASTY}"]
    )
    _, path = write(results, selection=f"selection {NASTY}", stacks=[info])
    page = _page(path)
    allowed = [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "p",
        "span",
        "table",
        "tr",
        "th",
        "td",
        "code",
        "details",
        "summary",
        "br",
    ]
    assert page.tags <= set(allowed)
    assert not [a for a in page.attributes if a[0] in ("src", "href") or a[0].startswith("on")]
    for word in ("summary", "where", "due", "got", "meaning", "note", "method", "repeat", "reason", "selection"):
        assert f"{word} {NASTY}" in page.text
    for word in ("version", "python", "file", "told"):
        assert f"{word} {NASTY}" in page.text
    for word in ("expected", "measured"):
        assert f"{word} {json.dumps(NASTY)[1:-1]}" in page.text


def _mapped(ok: bool) -> Evidence:
    model = geometry.load("deepseek-v4-tiny")
    info = ParameterInfo(256, 64, "uint8")
    maps = [expected.experts_map(model, 3, rank, "w2_weight", info, 4) for rank in range(3)]
    return Evidence(ok=ok, summary="mapped", maps=maps, due_maps=maps)


def test_html_is_self_contained(write):
    _, path = write([*_every(True), result(Status.PASS, name="plan.map", evidence=_mapped(True))])
    text = (path / "report.html").read_text()
    page = _Page(text)
    assert "svg" in page.tags and "rect" in page.tags
    assert not page.tags & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "audio",
        "video",
        "use",
        "image",
    }
    assert not [
        name
        for name, _ in page.attributes
        if name in ("src", "href", "srcset", "data", "xlink:href", "style", "action")
    ]
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not any(word in text for word in ("@import", "url(", "javascript:"))
    assert [value for _, value in page.attributes if value and "://" in value] in ([], ["http://www.w3.org/2000/svg"])


@pytest.mark.parametrize("status", REQUIRED)
def test_html_colours(write, status):
    """Only a pass has the pass's class, and only a GO without waivers has GO's."""
    verdict, path = write([result(Status(status), name=f"plan.{status}")])
    page = _page(path)
    assert page.classes["td"][0:2] == ["", status]
    (heading,) = page.classes["h1"]
    assert (heading == "GO") == (verdict.verdict == "GO")
    assert verdict.headline in page.text
    assert ("pass" in page.classes["td"]) == (status == "pass")


def test_every_claim_is_in_every_report(write):
    verdict, path = write(_every(True))
    ids = [f"plan.{status}" for status in Status]
    assert list(_cases(path)) == ids
    assert [c["id"] for c in json.loads((path / "verdict.json").read_bytes())["claims"]] == ids
    assert all(name in _page(path).text for name in ids)
    assert json.loads((path / "verdict.json").read_bytes())["headline"] == verdict.headline
