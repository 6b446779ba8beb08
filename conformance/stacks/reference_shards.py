"""One rank's weights of the reference stack's engine: equal pieces of the checkpoint, decoded; and faults."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from conformance.errors import StackRefused
from conformance.stacks.reference_numerics import scales, weights

_BLOCK = 128
_GROUP_BYTES = 16  #: of MXFP4 elements that share a scale


def read(folder: Path) -> dict[str, Tensor]:
    """The whole checkpoint: small ones alone are served."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


class Shards:
    """Raises StackRefused where a size does not divide an axis, or would cut an MXFP4 scale group."""

    def __init__(self, held: dict[str, Tensor], config: dict[str, Any], tp: int, rank: int, fault: dict[str, Any]):
        self._held, self._tp, self._rank, self._fault = held, tp, rank, fault
        self._kept: dict[Any, Any] = {}
        sizes = {"attention heads": config["num_attention_heads"], "output groups": config["o_groups"]}
        sizes |= {"rows of the vocabulary": config["vocab_size"]}
        sizes |= {"MXFP4 groups": config["moe_intermediate_size"] // 32}
        for what, size in sizes.items():
            if size % tp:
                raise StackRefused(f"{size} {what} are not divisible by tensor-parallel size {tp}")
        self._groups = config["o_groups"] // tp

    def has(self, name: str) -> bool:
        return name in self._held

    def table(self, name: str) -> Tensor:
        return self._held[name].long()

    def plain(self, name: str) -> Tensor:
        """Of no linear layer in FP8 or MXFP4: the same on every rank."""
        return self._once(name, lambda: self._held[name].float())

    def whole(self, name: str) -> Tensor:
        """An FP8 linear layer that every rank holds."""
        return self._once(name, lambda: self._fp8(name))

    @cached_property
    def embedding(self) -> Tensor:
        return self.plain("embed.weight").chunk(self._tp)[self._rank]

    @cached_property
    def head(self) -> Tensor:
        return self.plain("head.weight").chunk(self._tp)[self._rank]

    def wq_b(self, name: str) -> Tensor:
        return self.whole(f"{name}.wq_b").chunk(self._tp)[self._rank]

    def wo_a(self, name: str) -> Tensor:
        """(groups of this rank, o-LoRA, inputs of a group)."""
        return self.whole(f"{name}.wo_a").chunk(self._tp)[self._rank].unflatten(0, (self._groups, -1))

    def wo_b(self, name: str) -> Tensor:
        return self.whole(f"{name}.wo_b").chunk(self._tp, 1)[self._place(name)]

    def _place(self, name: str) -> int:
        """Whose part of a projection's inputs is taken: another plan gives the draft layer its neighbour's."""
        other = self._fault.get("kind") == "draft" and name.startswith("mtp.")
        return (self._rank + other) % self._tp

    def sink(self, name: str) -> Tensor:
        mine = self.plain(f"{name}.attn_sink").chunk(self._tp)[self._rank]
        lost = self._fault.get("kind") == "sink" and name.startswith(f"layers.{self._fault.get('layer', 0)}.")
        return torch.full_like(mine, -torch.inf) if lost else mine

    def shared(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        parts = [f"{name}.shared_experts.{part}" for part in ("w1", "w3", "w2")]
        raw = self._fault.get("kind") == "shared" and name.startswith(f"layers.{self._fault.get('layer', 0)}.")
        w1, w3, w2 = (self._held[f"{part}.weight"].float() if raw else self.whole(part) for part in parts)
        return tuple(w.chunk(self._tp, d)[self._rank] for w, d in ((w1, 0), (w3, 0), (w2, 1)))  # type: ignore[return-value]

    def routed(self, name: str, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        return self._once((name, expert), lambda: self._expert(name, expert))

    def _expert(self, name: str, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        made = []
        for part, dim in (("w1", 0), ("w3", 0), ("w2", 1)):
            prefix = f"{name}.experts.{expert}.{part}"
            pair = [self._held[f"{prefix}.{kind}"].view(torch.uint8) for kind in ("weight", "scale")]
            pair = [self._spoilt(t, name, expert, part, n) for n, t in enumerate(pair)]
            place = self._place(name) if part == "w2" else self._rank
            mine = [t.chunk(self._tp, dim)[place].contiguous() for t in pair]
            made.append(weights(*mine))
        return made[0], made[1], made[2]

    def _spoilt(self, stored: Tensor, name: str, expert: int, part: str, scale: int) -> Tensor:
        """As a faulty loader takes it from the checkpoint."""
        f = self._fault
        kind, parts = f.get("kind"), f.get("parts", ("packed", "scales"))
        here = name.startswith(f"layers.{f.get('layer', 0)}.") and self._rank == f.get("rank", 0)
        here &= f.get("expert", expert) in (None, expert)
        if not here or (("scales" if scale else "packed") not in parts):
            return stored
        if kind == "w2" and part == "w2":
            return stored.roll(-1 if scale else -_GROUP_BYTES, 1)
        if kind == "neighbour" and part == "w2":
            return stored.roll(-(stored.shape[1] // self._tp), 1)
        if kind == "w1" and part == "w1" and not scale:
            return stored.roll(-32, 0)
        if kind == "drop" and part == "w2":
            return torch.zeros_like(stored)
        return stored

    def _fp8(self, name: str) -> Tensor:
        stored, blocks = self._held[f"{name}.weight"].float(), scales(self._held[f"{name}.scale"].view(torch.uint8))
        for i in range(blocks.shape[0]):
            for j in range(blocks.shape[1]):
                stored[i * _BLOCK : (i + 1) * _BLOCK, j * _BLOCK : (j + 1) * _BLOCK] *= blocks[i, j]
        return stored

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]
