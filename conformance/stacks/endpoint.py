"""Servers that are already up, seen through their OpenAI-compatible API alone. Nothing is started, nothing is ended.

`--endpoint` is judged, `--against` is what it is compared with. Built in, no plug-in: it is what `--endpoint` names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.e2e.client import Client
from conformance.errors import UsageError, one_line, short
from conformance.stacks import registry
from conformance.stacks.protocols import StackInfo, StackOptions

if TYPE_CHECKING:
    from conformance.stacks.endpoint_engine import EndpointEngine

#: Servers have numbers where engines have sizes: the one to compare with, and the one that is judged.
AGAINST, JUDGED = 0, 1
_TOP = 20
_PROBE = [5, 6, 7]


class Server(NamedTuple):
    """What a server says of itself. `root`: where its weights come from; `context`: 0 where it does not say."""

    option: str
    url: str
    model: str
    root: str
    context: int
    version: str


class EndpointStack:
    """See protocols.Stack. No planner, no loader: an API shows neither."""

    name = registry.ENDPOINT

    def __init__(self, options: StackOptions) -> None:
        self._options = options
        self._servers: list[Server] = []

    @property
    def servers(self) -> list[Server]:
        """The one to compare with, if it is up, and then the one that is judged. Raises UsageError as `look` does."""
        if not self._servers:
            o = self._options
            named = [("--against", o.against if registry.is_url(o.against) else ""), ("--endpoint", o.endpoint)]
            found = [look(option, url) for option, url in named if url]
            if len(found) == 2:
                _check_same(*found)
            self._servers = found
        return self._servers

    def info(self) -> StackInfo:
        versions = [f"{s.url} serves {s.model}, {s.version}" for s in self.servers]
        version = self.servers[-1].version
        return StackInfo(name=self.name, subject=self.name, version=version, capabilities=["e2e"], notes=versions)

    def engine(self) -> EndpointEngine:
        from conformance.stacks.endpoint_engine import EndpointEngine

        return EndpointEngine(self.servers)

    def close(self) -> None:
        """They go on."""


def open_stack(options: StackOptions) -> EndpointStack:
    return EndpointStack(options)


def look(option: str, url: str) -> Server:
    """Raises UsageError for a URL behind which no OpenAI-compatible server gives log-probabilities of prompts."""
    where = f"{option} {short(url)[1:-1]}"
    status, body = Client(url, "").ask("/v1/models")
    if status == 0:
        raise UsageError(f"{where}: unreachable ({_words(body)}); the root URL of a server that is up was due")
    try:
        listed = json.loads(body)["data"][0]
        model = str(listed["id"])
    except (ValueError, LookupError, TypeError):
        raise UsageError(
            f"{where}: not an OpenAI-compatible server: /v1/models answers {status} without a list of models; "
            "the root URL was due, without /v1"
        ) from None
    _check_log_probabilities(where, Client(url, model))
    return Server(option, url, model, str(listed.get("root") or model), int(listed.get("max_model_len") or 0), _is(url))


def _check_log_probabilities(where: str, client: Client) -> None:
    asked = {"logprobs": _TOP, "prompt_logprobs": _TOP}
    status, choice, words = client.choice(_PROBE, 1, asked)
    if status != 200:
        raise UsageError(
            f"{where}: a completion of token ids with the {_TOP} likeliest tokens is answered with {status} ({words}); "
            f"start it with --max-logprobs {_TOP} or more"
        )
    lacking = [key for key in ("token_ids", "logprobs", "prompt_logprobs") if not choice.get(key)]
    if lacking:
        raise UsageError(
            f"{where}: answers come without {' and without '.join(lacking)}; a server that gives log-probabilities of "
            "prompts too was due (vLLM does)"
        )

    given = len((choice["logprobs"].get("top_logprobs") or [{}])[0])
    if given < _TOP:
        raise UsageError(f"{where}: gives {given} of the {_TOP} likeliest tokens; start it with --max-logprobs {_TOP}")


def _is(url: str) -> str:
    status, body = Client(url, "").ask("/version")
    try:
        return f"version {json.loads(body)['version']}" if status == 200 else "version not told"
    except (ValueError, LookupError, TypeError):
        return "version not told"


def _check_same(against: Server, judged: Server) -> None:
    if against.model != judged.model and against.root != judged.root:
        raise UsageError(
            f"--against {against.url} serves another model, {short(against.model)}, than --endpoint {judged.url}, "
            f"{short(judged.model)}; if it is the same, give both the same --served-model-name"
        )


def _words(body: str) -> str:
    try:
        found: Any = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        found = body
    return one_line(found)[:120]
