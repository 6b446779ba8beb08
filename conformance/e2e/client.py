"""Talks to an OpenAI-compatible server: completions by token ids, errors, health and metrics. Standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, NamedTuple

from conformance.errors import one_line, short

_SECONDS = 120.0


class Reply(NamedTuple):
    """What came back. `tokens`, `values` (log-probabilities, None where JSON had null), `finish`, `usage` of a 200;
    `error` is what the server says went wrong. Status 0: no HTTP answer at all, `error` says why."""

    status: int
    tokens: Sequence[int] = ()
    values: Sequence[float | None] = ()
    finish: str = ""
    usage: dict[str, Any] | None = None
    error: str = ""


class Told(NamedTuple):
    """Everything that was asked of one server. `bad`: what was wrong about a request -> the reply."""

    alone: list[Reply]
    again: list[Reply]
    together: list[Reply]
    bad: dict[str, Reply]
    health: int
    metrics: int  #: lines of it


class Client:
    def __init__(self, url: str, model: str):
        self._url, self._model = url.rstrip("/"), model

    def everything(
        self, prompts: Sequence[Sequence[int]], tokens: int, at_once: int, rounds: int, overlong: int
    ) -> Told:
        """Prompts alone, the first two again, then `rounds` times all of them, `at_once` at a time; `overlong`: more
        tokens than the server can take."""
        alone = [self.complete(p, tokens) for p in prompts]
        again = [self.complete(p, tokens) for p in prompts[:2]]
        with ThreadPoolExecutor(at_once) as pool:
            together = list(pool.map(lambda p: self.complete(p, tokens), list(prompts) * rounds))
        return Told(
            alone, again, together, self._bad(prompts[0], overlong), self._status("/health"), self._lines("/metrics")
        )

    def complete(self, prompt: Sequence[int], tokens: int, /, **changes: Any) -> Reply:
        status, body = self._completion(prompt, tokens, changes)
        try:
            told = json.loads(body)
            if status != 200:
                return Reply(status, error=str((told.get("error") or {}).get("message", ""))[:200])
            choice = told["choices"][0] if told.get("choices") else {}
            values = (choice.get("logprobs") or {}).get("token_logprobs") or []
            return Reply(
                status, choice.get("token_ids") or [], values, str(choice.get("finish_reason")), told.get("usage") or {}
            )
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
        asked = {"model": self._model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "logprobs": 1}
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
