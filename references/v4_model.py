"""DeepSeek-V4 on one device, in plain PyTorch and full precision: what every tensor-parallel size must agree with.

Activations and keys are never quantised. Held against transformers' `DeepseekV4ForCausalLM` in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from references import routing
from references.swiglu import swiglu
from references.v4_attention import attention
from references.v4_hyper import enter, head, leave, rms_norm
from references.v4_weights import Weights


class Step(NamedTuple):
    """One block of one layer, as computed: `module` is `layers.0.attn` or `layers.0.ffn`; x, y (S, H)."""

    module: str
    x: torch.Tensor
    y: torch.Tensor


class Model:
    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32):
        self.w = Weights(folder, dtype)
        self.config = self.w.config

    @torch.no_grad()
    def log_probabilities(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (S,) -> (S, vocabulary): row i is about token i + 1."""
        return self.read(self.streams(tokens))

    @torch.no_grad()
    def streams(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (S,) -> (S, n, H): the residual streams after the last layer."""
        *_, (_, last) = self._blocks(tokens, self._embedded(tokens))
        return last

    @torch.no_grad()
    def read(self, streams: torch.Tensor, prefix: str = "") -> torch.Tensor:
        """Streams (S, n, H) -> log-probabilities (S, vocabulary); `prefix`: whose norm and collapse (`mtp.0.`)."""
        w, eps = self.w, self.config["rms_norm_eps"]
        fn, scale, base = (w(f"{prefix}hc_head_{name}") for name in ("fn", "scale", "base"))
        x = head(streams, fn, scale, base, eps, self.config["hc_eps"])
        return torch.log_softmax(rms_norm(x, w(f"{prefix}norm"), eps) @ w("head").T, -1)

    @torch.no_grad()
    def steps(self, tokens: torch.Tensor) -> Iterator[Step]:
        """What goes into and out of each block, in order."""
        for step, _ in self._blocks(tokens, self._embedded(tokens)):
            yield step

    @torch.no_grad()
    def block(self, module: str, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """One block alone on a given normed input x (S, H): `layers.2.attn`, `layers.2.ffn`, `mtp.0.attn`."""
        where, number, kind = module.split(".")
        x = x.to(self.w.dtype)
        if kind == "attn":
            before = self.config["num_hidden_layers"] if where == "mtp" else 0
            return attention(self.w, module, self.config["compress_ratios"][before + int(number)], x)
        return self._ffn(module, x, tokens)

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.w("embed")[tokens][:, None].repeat(1, self.config["hc_mult"], 1)

    def _blocks(self, tokens: torch.Tensor, streams: torch.Tensor) -> Iterator[tuple[Step, torch.Tensor]]:
        for layer in range(self.config["num_hidden_layers"]):
            for step, after in self.layer(f"layers.{layer}", tokens, streams):
                yield step, after
            streams = after

    @torch.no_grad()
    def layer(self, layer: str, tokens: torch.Tensor, streams: torch.Tensor) -> Iterator[tuple[Step, torch.Tensor]]:
        """Each block of `layers.2` or `mtp.0`, and the streams (S, n, H) after it."""
        w, c = self.w, self.config
        for kind in ("attn", "ffn"):
            name = f"{layer}.hc_{kind}"
            parameters = w(f"{name}_fn"), w(f"{name}_scale"), w(f"{name}_base")
            mixed = enter(streams, *parameters, c["rms_norm_eps"], c["hc_eps"], c["hc_sinkhorn_iters"])
            x = rms_norm(mixed.x, w(f"{layer}.{kind}_norm"), c["rms_norm_eps"])
            y = self.block(f"{layer}.{kind}", x, tokens)
            streams = leave(y, streams, mixed)
            yield Step(f"{layer}.{kind}", x, y), streams

    def _ffn(self, module: str, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Routed experts by token id or by learned scores, and the shared expert."""
        w, c = self.w, self.config
        logits = x @ w(f"{module}.gate").T
        rest = {"normalize": c["norm_topk_prob"], "scale": c["routed_scaling_factor"]}
        if f"{module}.gate.tid2eid" in w:
            routed = routing.hashed(logits, tokens, w(f"{module}.gate.tid2eid"), "sqrtsoftplus", **rest)
        else:
            routed = routing.top_k(logits, c["num_experts_per_tok"], "sqrtsoftplus", w(f"{module}.gate.bias"), **rest)
        y = self._expert(f"{module}.shared_experts", x) if c.get("n_shared_experts") else torch.zeros_like(x)
        for expert in routed.ids.unique().tolist():
            token, slot = torch.where(routed.ids == expert)
            out = self._expert(f"{module}.experts.{expert}", x[token])
            y.index_add_(0, token, out * routed.weights[token, slot, None])
        return y

    def _expert(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """The limit clamps shared experts as it clamps routed ones."""
        w1, w2, w3 = (self.w(f"{name}.{part}") for part in ("w1", "w2", "w3"))
        return swiglu(x @ w1.T, x @ w3.T, self.config.get("swiglu_limit")) @ w2.T
