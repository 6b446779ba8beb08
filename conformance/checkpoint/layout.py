"""What the files are due to hold, by `references/checkpoint.py`, and where they differ."""

from __future__ import annotations

from pathlib import Path

from conformance.checkpoint import header
from conformance.checkpoint.folder import Files
from conformance.errors import NotSupported, UsageError
from references import checkpoint
from references.checkpoint import Tensor

_MODEL = "deepseek_v4"
_TENSORS_OF_AN_EXPERT = 6


def check(files: Files) -> None:
    """Raises UsageError, naming config.json and the key, where a DeepSeek-V4 config has no such layout."""
    if files.geometry.model_type != _MODEL:
        return
    where = Path(files.folder) / "config.json"
    drafts = files.geometry.config.get("num_nextn_predict_layers")
    blocks = files.geometry.layers + (drafts if isinstance(drafts, int) else 0)
    most = header.MOST_NAMES // _TENSORS_OF_AN_EXPERT
    if blocks * files.geometry.experts > most:
        got = f"{blocks} layers of {files.geometry.experts}"
        raise UsageError(f"{where}: n_routed_experts: {got}; at most {most} in all were due")
    try:
        checkpoint.tensors(files.geometry.config)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def due(files: Files) -> dict[str, Tensor]:
    """Raises NotSupported for a model whose layout is not known here."""
    if files.geometry.model_type != _MODEL:
        raise NotSupported(f"the checkpoint layout of {files.geometry.model_type!r} is not known, only {_MODEL}'s")
    return checkpoint.tensors(files.geometry.config)
