"""Servers that are already up: judged against each other and against a run; wrong calls are one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conformance.e2e import limits, opening
from conformance.errors import StackCrashed, StackRefused, UsageError
from conformance.gate.gate import run_gate
from conformance.gate.settings import Settings, resolve
from conformance.gate.verdict import Word
from conformance.result import ClaimResult
from conformance.stacks.endpoint import look
from conformance.stacks.endpoint_engine import EndpointSession
from conformance.stacks.engine_protocol import EngineRequest
from conformance.stacks.reference_server import ReferenceServer
from references import make_checkpoint
from tests.e2e.servers import Saying, listening


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("endpoint") / "small"
    make_checkpoint.write(made, make_checkpoint.EVEN | opening.SMALL)
    return made


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An API does not say what it runs on: the reference stack's limits, as those of a CPU."""
    path = tmp_path_factory.mktemp("limits") / "limits.toml"
    path.write_text(limits._OWN.read_text().replace('device = "reference stack"', 'device = "CPU"'))
    return str(path)


def _serve(model: Path, tp: int, fault: dict[str, Any] | None = None, context: int = 512) -> ReferenceServer:
    return ReferenceServer(EngineRequest(str(model), tp, context=context, fault=fault))


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[tuple[ReferenceServer, ReferenceServer]]:
    servers = _serve(model, 2), _serve(model, 3)
    yield servers
    for server in servers:
        server.close()


def _gate(folder: Path, **settings: Any) -> tuple[Word, dict[str, ClaimResult], Path]:
    verdict, path = run_gate(resolve(Settings(profile="cpu", run_dir=str(folder / "run"), **settings)))
    return verdict.verdict, {r.id: r for r in verdict.claims}, path


def test_two_servers_agree_and_a_run_is_as_good_as_one(tmp_path, model, calibrated, two):
    given = {"model": str(model), "limits": calibrated}
    word, found, path = _gate(tmp_path / "two", endpoint=two[1].url, against=two[0].url, **given)
    assert word is Word.GO, {i: (r.status, r.reason) for i, r in found.items()}
    skipped = {i for i, r in found.items() if r.status == "not-applicable"}
    assert skipped == {
        *("e2e.reference.blocks", "e2e.schedule.chunked", "e2e.graph.parity"),
        *("e2e.mtp.acceptance", "e2e.mtp.parity"),
    }
    assert f"{two[0].url} against {two[1].url}" in found["e2e.parity.logprobs"].evidence.measured
    word, found, _ = _gate(tmp_path / "run", endpoint=two[1].url, against=str(path), **given)
    assert word is Word.GO, {i: (r.status, r.reason) for i, r in found.items()}
    (pair,) = found["e2e.parity.logprobs"].evidence.measured
    assert pair.startswith(f"a server of {path}")


def test_a_server_with_late_weights_is_no_go(tmp_path, model, calibrated, two):
    wrong = _serve(model, 3, {"kind": "w2", "layer": 1, "rank": 1})
    try:
        given = {"model": str(model), "limits": calibrated}
        word, found, _ = _gate(tmp_path, endpoint=wrong.url, against=two[0].url, **given)
    finally:
        wrong.close()
    assert word is Word.NO_GO
    assert found["e2e.parity.logprobs"].status == "fail" and found["e2e.reference.logprobs"].status == "fail"
    assert found["e2e.serving.answers"].status == "pass"
    assert "not localised: no block was looked into" in found["e2e.parity.logprobs"].reason


def test_one_server_alone_is_not_compared(tmp_path, model, calibrated, two):
    word, found, _ = _gate(tmp_path, endpoint=two[1].url, model=str(model), limits=calibrated)
    assert word is Word.INCOMPLETE
    assert {i for i, r in found.items() if r.status == "not-supported"} == {
        *("e2e.parity.logprobs", "e2e.parity.long", "e2e.parity.divergence")
    }


TOLD = {"top_logprobs": [{f"token_id:{n}": -3.0 for n in range(20)}]}


class Answering(Saying):
    """GET /v1/models with `models`, completions with `choice`."""

    models: ClassVar[Any] = {"data": [{"id": "m"}]}
    choice: ClassVar[Any] = {"token_ids": [1], "logprobs": TOLD, "prompt_logprobs": [None, {}]}
    status = 200

    def do_GET(self) -> None:
        self.say(200 if self.path == "/v1/models" else 404, json.dumps(self.models).encode())

    def do_POST(self) -> None:
        self.read()
        told = {"choices": [self.choice]} if self.status == 200 else {"detail": "logprobs above the most"}
        self.say(self.status, json.dumps(told).encode())


@pytest.fixture
def answering() -> Iterator[str]:
    with listening(Answering) as url:
        yield url


def test_a_server_that_gives_what_is_needed_is_taken(answering):
    assert look("--endpoint", answering).model == "m"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models": "hello"}, "not an OpenAI-compatible server"),
        ({"models": {"data": []}}, "not an OpenAI-compatible server"),
        ({"choice": {"token_ids": [1], "logprobs": TOLD}}, "without prompt_logprobs"),
        (
            {"choice": {"token_ids": [1], "logprobs": {"top_logprobs": [{"token_id:1": 0.0}]}, "prompt_logprobs": [1]}},
            "gives 1 of the 20 likeliest",
        ),
        ({"choice": {"text": "x"}}, "without token_ids and without logprobs and without prompt_logprobs"),
        ({"status": 400}, r"answered with 400 \(logprobs above the most\)"),
    ],
)
def test_what_is_no_such_server_is_a_wrong_call(monkeypatch, answering, changes, words):
    for name, value in changes.items():
        monkeypatch.setattr(Answering, name, value)
    with pytest.raises(UsageError, match=words) as raised:
        look("--endpoint", answering)
    assert "\n" not in str(raised.value)


def test_nobody_there_another_model_and_a_short_context_are_wrong_calls(tmp_path, model, answering, two):
    with pytest.raises(UsageError, match="unreachable"):
        look("--against", "http://127.0.0.1:9")
    given = {"model": str(model), "endpoint": two[1].url}
    with pytest.raises(UsageError, match="serves another model, 'm', than"):
        _gate(tmp_path / "a", against=answering, **given)
    short = _serve(model, 2, context=64)
    try:
        with pytest.raises(UsageError, match="its context is 64"):
            _gate(tmp_path / "b", against=short.url, **given)
    finally:
        short.close()


def test_a_run_of_another_checkpoint_is_a_wrong_call(tmp_path, model, two):
    run, _ = tmp_path / "run", (tmp_path / "run" / "e2e").mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    given = {"endpoint": two[1].url, "against": str(run), "model": str(model)}
    with pytest.raises(UsageError, match="no run of layer e2e"):
        _gate(tmp_path / "a", **given)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("which server is judged", {"against": "http://a"}),
        ("the root URL of a server was due", {"endpoint": "localhost:8000", "model": "m"}),
        ("the root URL of a server was due", {"endpoint": "http://a:x", "model": "m"}),
        ("or the folder of a run, was due", {"endpoint": "http://a", "against": "nowhere", "model": "m"}),
        ("compared with itself", {"endpoint": "http://a", "against": "http://a/", "model": "m"}),
        ("leave --stack", {"endpoint": "http://a", "stack": "vllm", "model": "m"}),
        ("in layer e2e alone", {"endpoint": "http://a", "layers": "moe", "model": "m"}),
        ("needs --model DIR", {"endpoint": "http://a"}),
        ("leave --emulate", {"endpoint": "http://a", "model": "m", "emulate": "sm120"}),
    ],
)
def test_wrong_calls(words, settings):
    with pytest.raises(UsageError, match=words):
        resolve(Settings(**settings))


def test_a_server_that_scores_half_a_prompt_is_refused(monkeypatch, answering):
    server = look("--endpoint", answering)
    monkeypatch.setattr(Answering, "choice", {"token_ids": [1], "prompt_logprobs": [None, {"1": {"logprob": -1.0}}]})
    with pytest.raises(StackRefused, match="1 of a prompt's 3 positions"):
        EndpointSession(server).score([5, 6, 7, 8], 20)


def test_a_server_that_is_gone_has_crashed_and_null_is_not_a_number(monkeypatch, answering):
    server = look("--endpoint", answering)
    monkeypatch.setattr(Answering, "choice", {"prompt_logprobs": [None, {"7": {"logprob": None}}]})
    assert EndpointSession(server).score([5, 6], 1).values.isnan().all()
    gone = server._replace(url="http://127.0.0.1:9")
    with pytest.raises(StackCrashed, match="no answer any more"):
        EndpointSession(gone).score([5, 6], 1)
