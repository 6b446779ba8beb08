"""Small safetensors files made by hand, well-formed or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.geometry.test_bad_configs import GOOD


def header(entries: object) -> bytes:
    return json.dumps(entries).encode()


def packed(head: bytes, data: bytes = b"") -> bytes:
    return len(head).to_bytes(8, "little") + head + data


def simple(*names: str) -> dict[str, Any]:
    """Tensors of four bytes each, one behind the other."""
    return {name: {"dtype": "U8", "shape": [2, 2], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)}


def folder(
    path: Path, files: dict[str, dict[str, Any]] | None = None, index: object = None, config: object = GOOD
) -> Path:
    """A checkpoint folder: {file: header}, with as many bytes of data as the offsets say."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for name, entries in (files or {"model.safetensors": simple("a", "b")}).items():
        size = max((e["data_offsets"][1] for e in entries.values()), default=0)
        (path / name).write_bytes(packed(header(entries), bytes(size)))
    if index is not None:
        (path / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps(index))
    return path
