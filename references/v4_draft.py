"""DeepSeek-V4's draft layer (multi-token prediction), and how many of its tokens greedy verification accepts.

At position p the layer is given the target's streams of p and the embedding of token p + 1, and says what token p + 2
will be. It drafts on from its own streams and its own token. Its cache holds what the target's streams gave.
Source: DeepSeek-V3's report, section 2.2, with hyper-connections; vLLM's `deepseek_v4/nvidia/mtp.py`, which also
leaves the embedding out at position 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from references.v4_hyper import rms_norm
from references.v4_model import Model

_LAYER = "mtp.0"


class Drafted(NamedTuple):
    """Verification steps of one answer, and how many of them accepted at least one draft token, at least two, ..."""

    steps: int
    accepted: tuple[int, ...]


@torch.no_grad()
def draft(model: Model, tokens: torch.Tensor, streams: torch.Tensor, number: int) -> list[int]:
    """tokens (S + 1,), streams (S, n, H) of the first S: the `number` tokens that are drafted after the last."""
    found: list[int] = []
    for _ in range(number):
        after = _streams(model, tokens[1:], streams)
        found.append(int(model.read(after[-1:], f"{_LAYER}.").argmax()))
        tokens = torch.cat([tokens, tokens.new_tensor(found[-1:])])
        streams = torch.cat([streams, after[-1:]])
    return found


def accepted(model: Model, prompt: Sequence[int], answer: Sequence[int], tokens: int, number: int) -> Drafted:
    """Of drafting `number` tokens a step until `tokens` are answered. `answer`: the target's greedy one, with at least
    `number` tokens more, since the last step may go beyond."""
    whole = torch.tensor([*prompt, *answer])
    streams = model.streams(whole)
    done, counts, steps = 1, [0] * number, 0  # the first token comes with the prompt, undrafted
    while done < tokens:
        known = len(prompt) + done
        drafts = draft(model, whole[:known], streams[: known - 1], number)
        same = [d == t for d, t in zip(drafts, whole[known : known + number].tolist(), strict=True)]
        right = same.index(False) if False in same else number
        for position in range(right):
            counts[position] += 1
        done, steps = done + right + 1, steps + 1
    return Drafted(steps, tuple(counts))


def _streams(model: Model, tokens: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
    """tokens (S,), one later than streams (S, n, H) -> the draft layer's streams (S, n, H)."""
    w, eps = model.w, model.config["rms_norm_eps"]
    embedded = w("embed")[tokens].clone()
    embedded[0] = 0
    told = rms_norm(embedded, w(f"{_LAYER}.enorm"), eps) @ w(f"{_LAYER}.e_proj").T
    streams = rms_norm(streams, w(f"{_LAYER}.hnorm"), eps) @ w(f"{_LAYER}.h_proj").T + told[:, None]
    *_, (_, last) = model.layer(_LAYER, tokens, streams)
    return last
