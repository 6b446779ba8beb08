"""The reference stack's own DeepSeek-V4: ranks, shards, partial sums in BF16. It shares nothing with `references/`.

Where those work on whole prompts with masks, this one goes token by token through what a token may see, turns channels
as complex numbers, and takes softmaxes with the sink as part of the denominator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.stacks.engine_protocol import Block
from conformance.stacks.reference_numerics import to_bf16
from conformance.stacks.reference_shards import Shards

#: Looks at a block's input and output; may replace the output.
Watch = Callable[[str, Tensor, Tensor], None]


class Forward:
    """`shards`: one a rank. `fault` is the engine's, for what is no matter of weights."""

    def __init__(self, config: dict[str, Any], shards: list[Shards], fault: dict[str, Any]):
        self.c, self.shards, self.fault = config, shards, fault
        self.one = shards[0]
        self._turns = {compressed: self._frequencies(compressed) for compressed in (False, True)}

    @torch.no_grad()
    def logits(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        """tokens (S,) -> (S, vocabulary)."""
        return self.read("", self.streams(tokens, watch))

    @torch.no_grad()
    def streams(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        """tokens (S,) -> the residual streams after the last layer (S, n, H)."""
        streams = torch.stack([self.embedded(tokens)] * self.c["hc_mult"], 1)
        for layer in range(self.c["num_hidden_layers"]):
            streams = self.layer(f"layers.{layer}", self.c["compress_ratios"][layer], tokens, streams, watch)
        return streams

    def embedded(self, tokens: Tensor) -> Tensor:
        return torch.cat([s.embedding for s in self.shards])[tokens]

    @torch.no_grad()
    def layer(self, where: str, ratio: int, tokens: Tensor, streams: Tensor, watch: Watch | None = None) -> Tensor:
        """Streams (S, n, H) after the attention and the experts of `layers.0`, or of `mtp.0`."""
        for kind in ("attn", "ffn"):
            give, take, stay = self._mixes(f"{where}.hc_{kind}", streams)
            x = torch.einsum("sn,snh->sh", give, streams)
            x = to_bf16(self._normed(x, self.one.plain(f"{where}.{kind}_norm.weight")))
            name = f"{where}.{kind}"
            y = self._attention(name, ratio, x) if kind == "attn" else self._experts(name, x, tokens)
            if self.fault.get("kind") == "nan-layer" and where == f"layers.{self.fault.get('layer', 0)}":
                y = torch.full_like(y, torch.nan)
            if watch:
                watch(name, x, y)
            streams = to_bf16(torch.einsum("sn,sh->snh", take, y) + torch.einsum("sij,sih->sjh", stay, streams))
        return streams

    @torch.no_grad()
    def read(self, prefix: str, streams: Tensor) -> Tensor:
        """Streams (S, n, H) -> logits (S, vocabulary), by the norm and the collapse of the target, or of `mtp.0.`."""
        plain = self.one.plain
        w = self._project(f"{prefix}hc_head", streams)
        share = 1 / (1 + torch.exp(-(w * plain(f"{prefix}hc_head_scale") + plain(f"{prefix}hc_head_base"))))
        x = torch.einsum("sn,snh->sh", share + self.c["hc_eps"], streams)
        x = to_bf16(self._normed(x, plain(f"{prefix}norm.weight")))
        return torch.cat([to_bf16(x @ s.head.T) for s in self.shards], 1)

    @torch.no_grad()
    def drafts(self, tokens: list[int], number: int) -> list[int]:
        """What the draft layer thinks will follow: at each position it sees what the target made of the token there,
        and the token after it."""
        one, streams = self.one, self.streams(torch.tensor(tokens[:-1]))
        made: list[int] = []
        while len(made) < number:
            after = torch.tensor([*tokens[1:], *made])
            words = self._normed(self.embedded(after), one.plain("mtp.0.enorm.weight"))
            words = to_bf16(words * (torch.arange(len(after)) > 0)[:, None]) @ one.whole("mtp.0.e_proj").mT
            seen = to_bf16(self._normed(streams, one.plain("mtp.0.hnorm.weight"))) @ one.whole("mtp.0.h_proj").mT
            ratio = self.c["compress_ratios"][self.c["num_hidden_layers"]]
            drafted = self.layer("mtp.0", ratio, after, to_bf16(seen + words[:, None]))
            made.append(int(self.read("mtp.0.", drafted[-1:]).argmax()))
            streams = torch.cat([streams, drafted[-1:]])
        return made

    def _summed(self, parts: list[Tensor]) -> Tensor:
        """The all-reduce: each rank's part as BF16, one after the other."""
        lost = self.fault.get("rank") if self.fault.get("kind") == "silent" else None
        total = torch.zeros_like(parts[0])
        for rank, part in enumerate(parts):
            if rank != lost:
                total = total + to_bf16(part)
        return to_bf16(total)

    def _normed(self, x: Tensor, weight: Tensor | float = 1.0) -> Tensor:
        power = torch.einsum("...d,...d->...", x, x) / x.shape[-1]
        return x / torch.sqrt(power + self.c["rms_norm_eps"])[..., None] * weight

    def _project(self, name: str, streams: Tensor) -> Tensor:
        return self._normed(streams.reshape(len(streams), -1)) @ self.one.plain(f"{name}_fn").mT

    def _mixes(self, name: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, eps = self.c["hc_mult"], self.c["hc_eps"]
        scale, base = self.one.plain(f"{name}_scale"), self.one.plain(f"{name}_base")
        w = self._project(name, streams) * scale.repeat_interleave(torch.tensor([n, n, n * n])) + base
        give = 1 / (1 + torch.exp(-w[:, :n])) + eps
        take = 2 / (1 + torch.exp(-w[:, n : 2 * n]))
        stay = w[:, 2 * n :].reshape(-1, n, n)
        stay = torch.exp(stay - stay.amax(2, keepdim=True))
        stay = stay / stay.sum(2, keepdim=True) + eps
        for turn in range(2 * self.c["hc_sinkhorn_iters"] - 1):
            stay = stay / (stay.sum(1 if turn % 2 == 0 else 2, keepdim=True) + eps)
        return give, take, stay

    # attention -----------------------------------------------------------------------------------------------------

    def _frequencies(self, compressed: bool) -> Tensor:
        """Radians a position of each pair of channels."""
        c = self.c
        pairs = c["qk_rope_head_dim"] // 2
        base = float(c["compress_rope_theta" if compressed else "rope_theta"])
        found = [base ** (-i / pairs) for i in range(pairs)]
        if compressed:
            yarn = c["rope_scaling"]
            trained = yarn["original_max_position_embeddings"]
            edge = [pairs * math.log(trained / (2 * math.pi * yarn[k]), base) for k in ("beta_fast", "beta_slow")]
            first, last = max(0, math.floor(edge[0])), min(2 * pairs - 1, math.ceil(edge[1]))
            for i in range(pairs):
                slowed = min(1.0, max(0.0, (i - first) / (last - first or 0.001)))
                found[i] *= 1 - slowed * (1 - 1 / yarn["factor"])
        return torch.tensor(found, dtype=torch.float64)

    def _turned(self, x: Tensor, positions: Tensor, compressed: bool, sign: int = 1) -> Tensor:
        """x (S, D) or (S, heads, D)."""
        wide = self.c["qk_rope_head_dim"]
        angle = positions.double()[:, None] * self._turns[compressed] * sign
        phase = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)
        pairs = torch.view_as_complex(x[..., -wide:].unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(pairs * (phase[:, None] if x.dim() == 3 else phase)).flatten(-2)
        return torch.cat([x[..., :-wide], turned], -1)

    def _attention(self, name: str, ratio: int, x: Tensor) -> Tensor:
        width = self.c["head_dim"]
        at = torch.arange(len(x))
        low = to_bf16(self._normed(x @ self.one.whole(f"{name}.wq_a").mT, self.one.plain(f"{name}.q_norm.weight")))
        own = self._normed(x @ self.one.whole(f"{name}.wkv").mT, self.one.plain(f"{name}.kv_norm.weight"))
        own = to_bf16(self._turned(own, at, ratio > 0))
        older = self._compressed(f"{name}.compressor", x, ratio, width) if ratio else own[:0]
        keys, there = self._keys(own, older, self._seen(name, x, low, ratio, len(older)))
        parts = []
        for shard in self.shards:
            q = (low @ shard.wq_b(name).mT).unflatten(1, (-1, width))
            q = to_bf16(self._turned(self._normed(q), at, ratio > 0))
            out = to_bf16(self._turned(self._attended(q, keys, there, shard.sink(name)), at, ratio > 0, -1))
            wo_a = shard.wo_a(name)
            mixed = torch.einsum("sgi,goi->sgo", out.reshape(len(x), len(wo_a), -1), wo_a)
            parts.append(to_bf16(mixed).flatten(1) @ shard.wo_b(name).mT)
        return self._summed(parts)

    def _keys(self, own: Tensor, older: Tensor, seen: list[list[int]]) -> tuple[Tensor, Tensor]:
        """For each token the keys that it sees, (S, K, D), and which of them are there, (S, K)."""
        window = self.c["sliding_window"]
        rows = [
            [*range(max(0, t + 1 - window), t + 1), *(len(own) + entry for entry in chosen)]
            for t, chosen in enumerate(seen)
        ]
        most = max(map(len, rows))
        index = torch.tensor([row + [0] * (most - len(row)) for row in rows])
        there = torch.arange(most) < torch.tensor([len(row) for row in rows])[:, None]
        return torch.cat([own, older])[index], there

    def _attended(self, q: Tensor, keys: Tensor, there: Tensor, sink: Tensor) -> Tensor:
        """q (S, heads, D): what each token makes of its keys, which are the values too; the sink takes its share."""
        score = torch.bmm(q, keys.mT) / math.sqrt(keys.shape[2])
        score[~there[:, None].expand_as(score)] = -torch.inf
        most = torch.maximum(score.amax(2), sink)[..., None]
        weight = torch.exp(score - most)
        return torch.bmm(weight, keys) / (weight.sum(2, keepdim=True) + torch.exp(sink[:, None] - most))

    def _seen(self, name: str, x: Tensor, low: Tensor, ratio: int, entries: int) -> list[list[int]]:
        """The compressed entries that each token sees: those that are complete, of ratio 4 the indexer's best."""
        ready = [(t + 1) // ratio if ratio else 0 for t in range(len(x))]
        most = self.c["index_topk"]
        if ratio != 4 or entries <= most:
            return [list(range(n)) for n in ready]
        heads, width = self.c["index_n_heads"], self.c["index_head_dim"]
        keys = self._compressed(f"{name}.indexer.compressor", x, 4, width)
        q = (low @ self.one.whole(f"{name}.indexer.wq_b").mT).unflatten(1, (heads, width))
        q = self._turned(q, torch.arange(len(x)), True)
        share = x @ self.one.plain(f"{name}.indexer.weights_proj.weight").mT / math.sqrt(heads * width)
        latest = self.fault.get("kind") == "indexer"
        found = []
        for t, n in enumerate(ready):
            value = share[t] @ torch.clamp(q[t] @ keys[:n].mT, min=0)
            order = range(n) if latest else value.argsort(descending=True).tolist()
            found.append(list(order)[-most:] if latest else list(order)[:most])
        return found

    def _compressed(self, name: str, x: Tensor, ratio: int, width: int) -> Tensor:
        """One entry for every `ratio` tokens."""
        entries = len(x) // ratio
        kv, gate = (x @ self.one.plain(f"{name}.{part}.weight").mT for part in ("wkv", "wgate"))
        ape = self.one.plain(f"{name}.ape")
        made = []
        for e in range(entries):
            first = e * ratio
            span = [(first + i, i, width if ratio == 4 else 0) for i in range(ratio)]
            if ratio == 4 and e:
                span = [(first - ratio + i, i, 0) for i in range(ratio)] + span
            values = torch.stack([kv[t, half : half + width] for t, _, half in span])
            logits = torch.stack([gate[t, half : half + width] + ape[i, half : half + width] for t, i, half in span])
            share = torch.exp(logits - logits.amax(0))
            made.append((values * share).sum(0) / share.sum(0))
        if not made:
            return x.new_zeros(0, width)
        entry = self._normed(torch.stack(made), self.one.plain(f"{name}.norm.weight"))
        return to_bf16(self._turned(entry, torch.arange(entries) * ratio, True))

    # experts -------------------------------------------------------------------------------------------------------

    def _experts(self, name: str, x: Tensor, tokens: Tensor) -> Tensor:
        c = self.c
        logit = x @ self.one.plain(f"{name}.gate.weight").mT
        score = torch.sqrt(torch.log1p(torch.exp(-logit.abs())) + logit.clamp(min=0))
        if self.one.has(f"{name}.gate.tid2eid"):
            chosen = self.one.table(f"{name}.gate.tid2eid")[tokens]
        else:
            bias = self.one.plain(f"{name}.gate.bias")
            chosen = (score + bias).argsort(1, descending=True)[:, : c["num_experts_per_tok"]]
        share = torch.take_along_dim(score, chosen, 1)
        share = share * c["routed_scaling_factor"] / share.sum(1, keepdim=True)
        parts = []
        for shard in self.shards:
            part = self._gated(x, *shard.shared(name))
            for expert in range(c["n_routed_experts"]):
                mine = (share * (chosen == expert)).sum(1)
                rows = mine.nonzero().flatten()
                if len(rows):
                    part[rows] += self._gated(x[rows], *shard.routed(name, expert), routed=True) * mine[rows, None]
            parts.append(part)
        return self._summed(parts)

    def _gated(self, x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, routed: bool = False) -> Tensor:
        gate, up, limit = x @ w1.mT, x @ w3.mT, self.c.get("swiglu_limit")
        if limit and not (routed and self.fault.get("kind") == "limit"):
            gate, up = torch.minimum(gate, torch.tensor(limit)), torch.clip(up, -limit, limit)
        return to_bf16(gate / (1 + torch.exp(-gate)) * up) @ w2.mT


def watched(forward: Forward, tokens: Tensor) -> dict[str, Block]:
    """What goes into and comes out of each block."""
    found: dict[str, Block] = {}
    forward.logits(tokens, lambda name, x, y: found.update({name: Block(x, y)}))
    return found
