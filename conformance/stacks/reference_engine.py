"""The reference stack's engine: small checkpoints on a CPU, every size in this process. It judges the harness alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from conformance.errors import NotSupported
from conformance.stacks.engine_protocol import Answer, Block, Drafts, EngineRequest, Likely
from conformance.stacks.reference_forward import Forward, watched
from conformance.stacks.reference_shards import Shards, read

if TYPE_CHECKING:
    from conformance.stacks.reference_server import ReferenceServer

#: Faults that this engine can plant in itself.
KINDS = (
    *("w2", "neighbour", "w1", "silent", "sink", "nan", "nan-layer", "drop", "shared", "limit", "indexer"),
    *("one-token", "unsteady", "batch", "cache", "chunk", "graph-row"),
    *("draft", "undrafted", "unverified", "frozen"),
)
_LARGEST = 1 << 28


class ReferenceEngine:
    """See engine_protocol.Engine."""

    kinds = KINDS

    def open(self, request: EngineRequest) -> ReferenceSession:
        return ReferenceSession(request)

    def serve(self, request: EngineRequest) -> ReferenceServer:
        from conformance.stacks.reference_server import ReferenceServer

        return ReferenceServer(request)


class ReferenceSession:
    """See engine_protocol.EngineSession. Keeps no keys: each step computes anew all tokens up to its own last one. The
    prefix cache knows what follows a whole prompt, and no less."""

    def __init__(self, request: EngineRequest):
        folder, fault = Path(request.model), request.fault or {}
        if sum(f.stat().st_size for f in folder.glob("*.safetensors")) > _LARGEST:
            raise NotSupported("the reference stack's engine serves small checkpoints alone (up to 256 MiB)")
        config, held = json.loads((folder / "config.json").read_text()), read(folder)
        shards = [Shards(held, config, request.tp, rank, fault) for rank in range(request.tp)]
        self._forward = Forward(config, shards, fault)
        self._kind, self._cached, self._calls = fault.get("kind"), request.prefix_cache, 0
        self._chunk, self._draft, self._graph = request.chunk, request.draft, request.graph
        self._verified: list[int] = []
        self._asked: list[list[int]] = []
        self._after: dict[tuple[int, ...], torch.Tensor] = {}
        self.notes = [f"{request.tp} ranks in one process, BF16 between blocks", *([f"FAULT {fault}"] if fault else [])]

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, top: int) -> list[Answer]:
        answers = []
        for number, prompt in enumerate(prompts):
            known = list(prompt)
            if number and (self._kind == "batch" or (self._kind == "graph-row" and self._graph)):
                known[:2] = prompts[number - 1][:2]
            if self._kind == "cache" and self._cached and self._asked:
                known[:4] = self._asked[-1][:4]
            self._asked.append(list(prompt))
            answers.append(self._drafted(known, tokens, top) if self._draft else self._answer(known, tokens, top))
        return answers

    def _prompt(self, known: list[int]) -> tuple[torch.Tensor, list[int]]:
        """(What follows the prompt (1, vocabulary); the tokens of each step: none where the cache knows.)"""
        if self._cached and tuple(known) in self._after:
            return self._after[tuple(known)], []
        ends = [*range(self._chunk, len(known), self._chunk), len(known)]
        for end in ends:
            row = self._log_probabilities(known[self._first(end, len(ends)) : end])[-1:]
        self._after[tuple(known)] = row
        return row, [end - start for start, end in zip([0, *ends], ends, strict=False)]

    def _first(self, end: int, steps: int) -> int:
        """The first token that a step sees: 0, unless chunks forget the ones before."""
        return (end - 1) // self._chunk * self._chunk if self._kind == "chunk" and steps > 1 else 0

    def _answer(self, known: list[int], tokens: int, top: int) -> Answer:
        made: list[int] = []
        steps = []
        row, taken = self._prompt(known)
        cached = 0 if taken else len(known)
        for _ in range(tokens):
            if made:
                said = made[:1] * len(made) if self._graph and self._kind == "frozen" else made
                row = self._log_probabilities([*known, *said])[-1:]
                taken.append(1)
            if self._kind == "one-token":
                row = row.roll(-int(row.argmax()), 1)
            steps.append(_likely(row, top))
            made.append(int(steps[-1].ids[0, 0]))
        return Answer(made, "length", _joined(steps), cached, taken)

    def _drafted(self, known: list[int], tokens: int, top: int) -> Answer:
        """As many draft tokens as the target would have said itself, and one of its own, a step."""
        rows = [self._prompt(known)[0]]
        made = [int(rows[0].argmax())]
        while len(made) < tokens:
            so_far = [*known, *made]
            drafts = [] if self._kind == "undrafted" else self._forward.drafts(so_far, self._draft)
            after = self._log_probabilities([*so_far, *drafts])[len(so_far) - 1 :]
            own = after.argmax(1).tolist()
            right = next((n for n, (d, t) in enumerate(zip(drafts, own, strict=False)) if d != t), len(drafts))
            right = max(right, 1) if self._kind == "unverified" else right
            made += [*drafts[:right], own[right]]
            rows.append(after[: right + 1])
            self._verified += [right] if drafts else []
        return Answer(made[:tokens], "length", _likely(torch.cat(rows)[:tokens], top))

    def drafts(self) -> Drafts:
        counts = (sum(right > n for right in self._verified) for n in range(self._draft))
        return Drafts(len(self._verified), tuple(counts))

    def score(self, sequence: Sequence[int], top: int) -> Likely:
        return _likely(self._log_probabilities(sequence)[:-1], top)

    def trace(self, sequence: Sequence[int]) -> dict[str, Block]:
        return watched(self._forward, torch.tensor(sequence))

    def close(self) -> str:
        return ""

    def _log_probabilities(self, sequence: Sequence[int]) -> torch.Tensor:
        logits = self._forward.logits(torch.tensor(sequence))
        self._calls += 1
        if self._kind == "nan":
            logits = torch.full_like(logits, torch.nan)
        if self._kind == "unsteady" and self._calls % 3 == 0:
            logits = logits * (1 + 2.0**-20)
        return logits - torch.logsumexp(logits, 1, keepdim=True)


def _joined(steps: Sequence[Likely]) -> Likely:
    return Likely(torch.cat([s.ids for s in steps]), torch.cat([s.values for s in steps]))


def _likely(rows: torch.Tensor, top: int) -> Likely:
    values, ids = rows.topk(top, 1)
    return Likely(ids.int(), values.float())
