"""The client against servers: ours, one that lies, and none."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from conformance.e2e import opening
from conformance.e2e.client import Client, turns
from conformance.e2e.measured import Measured, Plan
from conformance.errors import AdapterError, StackCrashed, StackTimeout
from conformance.stacks.engine_protocol import EngineRequest
from conformance.stacks.reference_server import ReferenceServer
from suites.e2e.test_serving import _wrong
from tests.e2e.servers import Saying, listening


class Liar(Saying):
    """200 to everything, with the class's body."""

    body = b""

    def do_POST(self) -> None:
        self.read()
        self.do_GET()

    def do_GET(self) -> None:
        self.say(200, self.body)


@pytest.fixture
def liar() -> Iterator[str]:
    with listening(Liar) as url:
        yield url


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"", "0, finish reason"),
        (b"{}", "0, finish reason"),
        (b"[1, 2]", "0, finish reason"),
        (b'{"choices": []}', "0, finish reason"),
        (b'{"choices": [{"token_ids": [1, 2], "finish_reason": "length"}]}', "0 of 0"),
        (
            json.dumps(
                {
                    "choices": [
                        {
                            "token_ids": [1, 2],
                            "finish_reason": "length",
                            "logprobs": {"token_logprobs": [float("nan"), None]},
                        }
                    ],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
                }
            ).encode(),
            "0 of 2",
        ),
    ],
)
def test_a_200_with_nothing_is_no_answer(monkeypatch, liar, body, got):
    monkeypatch.setattr(Liar, "body", body)
    reply = Client(liar, "m").complete([1, 2, 3], 2)
    assert any(told.startswith(got) for _, told in _wrong(reply, 3, 2)), _wrong(reply, 3, 2)


def test_no_server_is_no_status():
    reply = Client("http://127.0.0.1:9", "m").complete([1], 2)
    assert reply.status == 0 and "refused" in reply.error
    assert _wrong(reply, 1, 2)


def test_the_reference_server_answers_refuses_and_is_gone_when_closed():
    server = ReferenceServer(EngineRequest(str(opening.small()), 2, context=64))
    client = Client(server.url, server.model)
    told = client.everything([[5, 6, 7], [8, 9]], 2, loads=(2,), seconds=60.0, overlong=65)
    assert [_wrong(r, n, 2) for r, n in zip(told.alone, (3, 2), strict=True)] == [[], []]
    assert told.alone == told.again and told.loads == {2: told.alone * 2}
    assert {r.status for r in told.bad.values()} == {400, 404} and told.health == 200 and told.metrics
    server.close()
    assert client.complete([5], 1).status == 0


def test_a_load_that_takes_too_long_is_no_answer():
    server = ReferenceServer(EngineRequest(str(opening.small()), 2, context=64))
    try:
        with pytest.raises(StackTimeout, match="0 of 4 requests, 2 at a time, were sent within 0 s"):
            Client(server.url, server.model).everything([[5], [6]], 1, loads=(2,), seconds=0.0, overlong=65)
    finally:
        server.close()


def test_a_server_that_keeps_silent_is_no_answer_and_no_fault(monkeypatch, liar):
    monkeypatch.setattr("conformance.e2e.client._SECONDS", 0.05)
    monkeypatch.setattr(Liar, "do_GET", lambda self: time.sleep(0.3))
    with pytest.raises(StackTimeout, match=r"no answer to a prompt of 2 tokens within 0.05 s"):
        Client(liar, "m").everything([[5, 6]], 1, loads=(2,), seconds=60.0, overlong=65)


@pytest.mark.parametrize(("code", "kind"), [(None, StackTimeout), (-9, AdapterError), (-11, StackCrashed)])
def test_a_silent_server_that_has_ended_crashed_unless_it_was_killed(monkeypatch, liar, code, kind):
    monkeypatch.setattr("conformance.e2e.client._SECONDS", 0.05)
    monkeypatch.setattr(Liar, "do_GET", lambda self: time.sleep(0.3))
    served = SimpleNamespace(url=liar, model="m", context=64, ended=lambda: code, close=lambda: "")
    folder = opening.small()
    plan = Plan(folder, json.loads((folder / "config.json").read_text()), (2, 3), "reference", "reference stack")
    measured = Measured(plan, lambda: SimpleNamespace(serve=lambda request: served), "0")
    with pytest.raises(kind, match="no answer to a prompt" if code is None else f"exit status {code}"):
        measured.served()


@pytest.mark.parametrize(("at_once", "numbers"), [(8, [0, 1, 2, 3, 4] * 2), (32, [*[0, 1, 2] * 10, 0, 1])])
def test_a_load_asks_every_prompt_twice_and_a_large_one_the_short_ones(at_once, numbers):
    assert turns(at_once, 5) == numbers
