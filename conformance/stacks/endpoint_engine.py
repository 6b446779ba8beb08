"""Layer `e2e` on servers that are up: tokens and log-probabilities over their completions API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from conformance.e2e.answers import likely
from conformance.e2e.client import Client, likeliest
from conformance.errors import NotSupported, StackCrashed, StackRefused, StackTimeout, UsageError
from conformance.stacks.endpoint import JUDGED, Server
from conformance.stacks.engine_protocol import Answer, Block, Drafts, EngineRequest, Likely


class EndpointEngine:
    """See engine_protocol.Engine. A request's `tp` is the server's number."""

    kinds: tuple[str, ...] = ()

    def __init__(self, servers: Sequence[Server]):
        self._servers = servers

    def open(self, request: EngineRequest) -> EndpointSession:
        """Raises UsageError for a server whose context is shorter than the prompts."""
        server = self._server(request)
        if 0 < server.context < request.context:
            raise UsageError(
                f"{server.option} {server.url}: its context is {server.context}, {request.context} was due: start it "
                f"with --max-model-len {request.context}"
            )
        return EndpointSession(server)

    def serve(self, request: EngineRequest) -> Up:
        server = self._server(request)
        return Up(server.url, server.model, server.context)

    def _server(self, request: EngineRequest) -> Server:
        default = EngineRequest(request.model, request.tp)
        if (request.chunk, request.prefix_cache) != (default.chunk, default.prefix_cache):
            raise NotSupported("a server that is up keeps the schedule that it was started with")
        return self._servers[-1] if request.tp == JUDGED else self._servers[0]


class Up(NamedTuple):
    """See engine_protocol.Served: not ours to end."""

    url: str
    model: str
    context: int

    def ended(self) -> int | None:
        return None  # its process is not ours to see

    def close(self) -> str:
        return ""


class EndpointSession:
    """See engine_protocol.EngineSession."""

    def __init__(self, server: Server):
        self._client = Client(server.url, server.model)
        self.notes = [f"{server.url}: {server.model}, {server.version}, already up"]

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, top: int) -> list[Answer]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self._answer(prompt, tokens, top), prompts))

    def _answer(self, prompt: Sequence[int], tokens: int, top: int) -> Answer:
        choice = self._choice(prompt, tokens, {"logprobs": top})
        told = (choice.get("logprobs") or {}).get("top_logprobs") or []
        steps = [_numbered(step) for step in told]
        return Answer(list(choice.get("token_ids") or []), str(choice.get("finish_reason")), likely(steps, top))

    def score(self, sequence: Sequence[int], top: int) -> Likely:
        told = self._choice(sequence, 1, {"prompt_logprobs": top}).get("prompt_logprobs") or []
        rows = [{key: (value or {}).get("logprob") for key, value in row.items()} for row in told[1:]]
        steps = [_numbered(row) for row in rows]
        if len(steps) != len(sequence) - 1:
            raise StackRefused(f"{len(steps)} of a prompt's {len(sequence) - 1} positions come with log-probabilities")
        return likely(steps, top)

    def trace(self, sequence: Sequence[int]) -> dict[str, Block]:
        """An API shows no block."""
        return {}

    def drafts(self) -> Drafts:
        """A server that is up drafts or does not: nothing to compare."""
        return Drafts(0, ())

    def close(self) -> str:
        return ""

    def _choice(self, prompt: Sequence[int], tokens: int, asked: dict[str, Any]) -> dict[str, Any]:
        """Raises StackRefused with the server's words, StackTimeout, StackCrashed where it is gone."""
        status, choice, words = self._client.choice(prompt, tokens, asked)
        if status == 0:
            raise (StackTimeout if "timed out" in words else StackCrashed)(f"no answer any more: {words}")
        if status != 200:
            raise StackRefused(f"a prompt of {len(prompt)} tokens is answered with {status}: {words}")
        return choice


def _numbered(step: Mapping[str, Any] | None) -> dict[int, float]:
    """Raises NotSupported for tokens that are told as text, which two may share."""
    try:
        return likeliest(step)
    except ValueError:
        raise NotSupported("the server names tokens by their text alone (no return_tokens_as_token_ids)") from None
