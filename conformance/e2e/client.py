"""Talks to an OpenAI-compatible server: completions by token ids, errors, health and metrics. Standard library."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, NamedTuple

from conformance.e2e.prompts import TOP
from conformance.errors import StackTimeout, one_line, short

_SECONDS = 120.0
#: Prompts that are sent by more clients than `_FEW` at a time: short ones, so that all fit into a server's cache.
_FEW, _SHORTEST = 8, 3


class Reply(NamedTuple):
    """What came back. `tokens`, `values` (log-probabilities, None where JSON had null), `steps` (token -> the same, of
    the likeliest at each step), `finish`, `usage` of a 200; `error` is what the server says went wrong. Status 0: no
    HTTP answer at all, `error` says why."""

    status: int
    tokens: Sequence[int] = ()
    values: Sequence[float | None] = ()
    finish: str = ""
    usage: dict[str, Any] | None = None
    error: str = ""
    steps: Sequence[Mapping[int, float]] = ()


class Told(NamedTuple):
    """Everything that was asked of one server. `loads`: requests at a time -> the replies, to `alone`'s prompts in
    turn, or to the first of them (see `turns`). `bad`: what was wrong about a request -> the reply."""

    alone: list[Reply]
    again: list[Reply]
    loads: dict[int, list[Reply]]
    bad: dict[str, Reply]
    health: int
    metrics: int  #: lines of it


def turns(at_once: int, prompts: int) -> list[int]:
    """The number of the prompt that each request of a load sends: as many requests as there are at a time, and at least
    each prompt twice."""
    some = prompts if at_once <= _FEW else min(_SHORTEST, prompts)
    return [n % some for n in range(max(at_once, 2 * prompts))]


def likeliest(step: Mapping[str, Any] | None) -> dict[int, float]:
    """`{"token_id:17": -0.5}` of one step as {17: -0.5}; JSON has no NaN: null is one. Raises ValueError for tokens
    that are told as text, which two may share."""
    return {int(key.rpartition(":")[2]): _number(value) for key, value in (step or {}).items()}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


class Client:
    def __init__(self, url: str, model: str):
        self._url, self._model = url.rstrip("/"), model

    def everything(
        self, prompts: Sequence[Sequence[int]], tokens: int, loads: Sequence[int], seconds: float, overlong: int
    ) -> Told:
        """Prompts alone, the first two again, and under each of `loads`; `overlong`: more tokens than the server can
        take. Raises StackTimeout where a load takes longer than `seconds`, or a request than the client waits."""
        alone = [self._in_time(p, tokens) for p in prompts]
        again = [self._in_time(p, tokens) for p in prompts[:2]]
        loaded = {at_once: self._loaded(prompts, tokens, at_once, seconds) for at_once in loads}
        return Told(
            alone, again, loaded, self._bad(prompts[0], overlong), self._status("/health"), self._lines("/metrics")
        )

    def _loaded(self, prompts: Sequence[Sequence[int]], tokens: int, at_once: int, seconds: float) -> list[Reply]:
        until = time.monotonic() + seconds
        numbers = turns(at_once, len(prompts))

        def complete(number: int) -> Reply | None:
            return self._in_time(prompts[number], tokens) if time.monotonic() < until else None

        with ThreadPoolExecutor(at_once) as pool:
            replies = list(pool.map(complete, numbers))
        answered = [reply for reply in replies if reply is not None]
        if len(answered) < len(numbers):
            raise StackTimeout(
                f"{len(answered)} of {len(numbers)} requests, {at_once} at a time, were sent within {seconds:g} s"
            )
        return answered

    def _in_time(self, prompt: Sequence[int], tokens: int) -> Reply:
        reply = self.complete(prompt, tokens)
        if reply.status == 0 and "timed out" in reply.error:
            raise StackTimeout(f"no answer to a prompt of {len(prompt)} tokens within {_SECONDS:g} s")
        return reply

    def complete(self, prompt: Sequence[int], tokens: int, /, **changes: Any) -> Reply:
        status, body = self._completion(prompt, tokens, changes)
        try:
            told = json.loads(body)
            if status != 200:
                return Reply(status, error=str((told.get("error") or {}).get("message", ""))[:200])
            choice = told["choices"][0] if told.get("choices") else {}
            values = (choice.get("logprobs") or {}).get("token_logprobs") or []
            steps = [likeliest(step) for step in (choice.get("logprobs") or {}).get("top_logprobs") or []]
            ids, finish = choice.get("token_ids") or [], str(choice.get("finish_reason"))
            return Reply(status, ids, values, finish, told.get("usage") or {}, steps=steps)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            return Reply(status, error=f"no completion in the body: {type(error).__name__}: {error}")

    def choice(self, prompt: Sequence[int], tokens: int, changes: Mapping[str, Any]) -> tuple[int, dict[str, Any], str]:
        """(status, the completion's only choice as it came, or empty; what went wrong)."""
        status, body = self._completion(prompt, tokens, changes)
        try:
            told = json.loads(body)
            return (status, dict(told["choices"][0]), "") if status == 200 else (status, {}, one_line(_said(told)))
        except (ValueError, LookupError, TypeError):
            return status, {}, f"no completion in the body {short(body)}"

    def _completion(self, prompt: Sequence[int], tokens: int, changes: Mapping[str, Any]) -> tuple[int, str]:
        """Greedy, exactly `tokens`."""
        asked = {"model": self._model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "logprobs": TOP}
        asked |= {"ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
        headers = {"Content-Type": "application/json"}
        body = json.dumps({**asked, **changes}).encode()
        return self._send(urllib.request.Request(self._url + "/v1/completions", body, headers))

    def _bad(self, prompt: Sequence[int], overlong: int) -> dict[str, Reply]:
        return {
            "an unknown model": self.complete(prompt, 4, model="there-is-no-such-model"),
            "a prompt longer than the context": self.complete([5] * overlong, 4),
            "a negative number of tokens": self.complete(prompt, -4),
            "a prompt that is no prompt": self.complete(prompt, 4, prompt={"no": "prompt"}),
        }

    def _status(self, path: str) -> int:
        return self.ask(path)[0]

    def _lines(self, path: str) -> int:
        status, body = self.ask(path)
        return len(body.splitlines()) if status == 200 else 0

    def ask(self, path: str) -> tuple[int, str]:
        """GET: (status, body); status 0 where there is no HTTP answer."""
        return self._send(urllib.request.Request(self._url + path))

    def _send(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return answer.status, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except (OSError, HTTPException) as error:
            return 0, json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}})


def _said(told: Any) -> str:
    """An error in words, wherever this server puts them."""
    error = told.get("error") or told.get("detail") or told.get("message") if isinstance(told, dict) else told
    return str(error.get("message", error) if isinstance(error, dict) else error)[:200]
