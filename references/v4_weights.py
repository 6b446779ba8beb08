"""A DeepSeek-V4 checkpoint as numbers: name -> float tensor, FP8 blocks and MXFP4 groups decoded.

Names are the checkpoint's own, less `.weight` and `.scale` where the two make one matrix: `layers.0.attn.wq_a`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from references import mxfp4
from references.checkpoint import BLOCK


class Weights:
    """Tensors of a folder, decoded when they are asked for, and kept."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32):
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.dtype = dtype
        self._files = {name: path for path in sorted(folder.glob("*.safetensors")) for name in _names(path)}
        self._kept: dict[str, torch.Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files or f"{name}.weight" in self._files

    def __call__(self, name: str) -> torch.Tensor:
        """Raises KeyError for a name that the checkpoint has not."""
        if name not in self._kept:
            self._kept[name] = self._decoded(name)
        return self._kept[name]

    def _decoded(self, name: str) -> torch.Tensor:
        if name in self._files:
            held = self._read(name)
            return held.to(self.dtype) if held.is_floating_point() else held
        weight = self._read(f"{name}.weight")
        if f"{name}.scale" not in self._files:
            return weight.to(self.dtype)
        scale = self._read(f"{name}.scale")
        if weight.dtype == torch.int8:
            return mxfp4.dequantize(weight.view(torch.uint8), scale.view(torch.uint8), self.dtype)
        return fp8_blocks(weight, scale, self.dtype)

    def _read(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], "pt") as file:
            found: torch.Tensor = file.get_tensor(name)
            return found


def fp8_blocks(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(N, K) E4M3 and a scale for every 128 x 128 block -> (N, K)."""
    rows, cols = weight.shape
    factor = scale.to(dtype).repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :cols]
    return weight.to(dtype) * factor


def _names(path: Path) -> Iterator[str]:
    with safe_open(path, "pt") as file:
        yield from file.keys()
