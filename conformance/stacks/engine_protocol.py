"""Layer `e2e`: a whole engine, asked for tokens and log-probabilities. A stack that has one offers it as `engine()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    import torch


class EngineRequest(msgspec.Struct, frozen=True):
    """`model`: a folder with config.json and safetensors. `chunk`: the most tokens of one step; prompts are cut to it.

    `draft`: tokens that the model's draft layer proposes at each step; 0: it is not used. `graph`: captured graphs
    instead of eager mode. `backend`: of the routed experts; empty: what the engine picks. `fault`: planted by the
    engine's own adapter, before anything is loaded.
    """

    model: str
    tp: int
    context: int = 3072
    chunk: int = 4096
    sequences: int = 8
    prefix_cache: bool = False
    draft: int = 0
    graph: bool = False
    backend: str = ""
    fault: dict[str, Any] | None = None


class Likely(NamedTuple):
    """The likeliest tokens of each step, best first: ids (S, top) int32, log-probabilities (S, top) float32."""

    ids: torch.Tensor
    values: torch.Tensor


class Answer(NamedTuple):
    """A greedy answer: its tokens, why it ended (`length`, `stop`), what was likely at each step; and where the engine
    says: how many of the prompt's tokens came from the prefix cache, and how many tokens each of its steps computed."""

    tokens: list[int]
    finish: str
    likely: Likely
    cached: int = 0
    steps: Sequence[int] = ()


class Drafts(NamedTuple):
    """Steps that verified draft tokens, and how many of them accepted at least one, at least two, ..."""

    steps: int
    accepted: tuple[int, ...]


class Block(NamedTuple):
    """What went into and came out of one block of one prompt, after any all-reduce: (S, H) each."""

    x: torch.Tensor
    y: torch.Tensor


class EngineSession(Protocol):
    """A running engine. Each call raises StackCrashed, StackTimeout, AdapterError."""

    notes: list[str]

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, top: int) -> list[Answer]:
        """Greedy, all prompts at once, exactly `tokens` each."""

    def score(self, sequence: Sequence[int], top: int) -> Likely:
        """Teacher-forced: row i is about token i + 1 of the sequence; S - 1 rows."""

    def trace(self, sequence: Sequence[int]) -> dict[str, Block]:
        """By module in the model's order (`layers.0.attn`, `layers.0.ffn`, ...); empty where nothing can be traced.
        From then on `notes` say which kernel the routed experts have, where the engine tells."""

    def drafts(self) -> Drafts:
        """Of all that it has answered so far."""

    def close(self) -> str:
        """How the engine ended, in words; empty if it ended well. What it answered before stays valid."""


class Served(Protocol):
    """A running OpenAI-compatible server, that takes prompts as token ids. `model`: its name there; `context`: the most
    tokens that it takes, 0 where it does not say."""

    url: str
    model: str
    context: int

    def ended(self) -> int | None:
        """The exit status of a server that has ended (minus a signal's number), None while it runs."""

    def close(self) -> str:
        """As EngineSession.close."""


class Engine(Protocol):
    #: Faults that it can plant in itself.
    kinds: tuple[str, ...]

    def open(self, request: EngineRequest) -> EngineSession:
        """Raises StackRefused with the stack's words, StackMissing, NotSupported (of drafts and of graphs too),
        StackCrashed, StackTimeout."""

    def serve(self, request: EngineRequest) -> Served:
        """The stack's own server. Raises as `open` does."""
