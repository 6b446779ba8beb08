"""What one engine answered, as one safetensors file: numbers survive bit for bit, NaN too, and anyone can read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from conformance.errors import UsageError
from conformance.stacks.engine_protocol import Answer, Block, Likely


class About(msgspec.Struct, frozen=True):
    """What a record is of: two may be compared only if model and recipe are the same. `base`: the size whose answers
    were scored; a record is the base's own where that is `tp`. `backend`: of the routed experts, where one was asked
    for."""

    stack: str
    version: str
    model: str  #: digest of the checkpoint
    tp: int
    recipe: int
    base: int
    backend: str = ""


class Record(msgspec.Struct):
    """`solo`: prompts answered one at a time; `again`: the first two once more; `batch`: all at once. `forced`: the
    base's prompts and answers scored; `long`: the long prompt scored; `blocks`: what went into and out of each block
    of one prompt. `ended`: how the engine ended, if not well.
    """

    about: About
    solo: list[Answer]
    again: list[Answer]
    batch: list[Answer]
    forced: list[Likely]
    long: Likely | None
    blocks: dict[str, Block]
    notes: list[str]
    ended: str = ""

    def save(self, path: Path) -> None:
        tensors: dict[str, Any] = {}
        told: dict[str, Any] = {}
        for group in ("solo", "again", "batch"):
            answers: list[Answer] = getattr(self, group)
            told[group] = [(a.tokens, a.finish) for a in answers]
            for n, a in enumerate(answers):
                tensors |= _likely(f"{group}.{n}", a.likely)
        for n, likely in enumerate([*self.forced, *([self.long] if self.long else [])]):
            tensors |= _likely(f"forced.{n}" if n < len(self.forced) else "long", likely)
        for name, block in self.blocks.items():
            tensors |= {f"block.{name}.{side}": t.clone() for side, t in block._asdict().items()}
        text = {"about": msgspec.to_builtins(self.about), "answers": told, "blocks": list(self.blocks)}
        text |= {"notes": self.notes, "ended": self.ended, "forced": len(self.forced)}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        save_file(tensors, partial, metadata={"conformance": json.dumps(text)})
        partial.replace(path)


def base_of(run: Path) -> Record:
    """The record of a run that others are compared with. Raises UsageError for a folder that holds none."""
    paths = sorted((run / "e2e").glob("*.safetensors"))
    if not paths:
        raise UsageError(f"{run}: no run of layer e2e (no e2e/*.safetensors in it)")
    found = [record for record in map(load, paths) if record.about.tp == record.about.base]
    if not found:
        raise UsageError(f"{run}: the record of the size that others were compared with is missing from e2e/")
    return found[0]


def load(path: Path) -> Record:
    """Raises UsageError for a file that is no record."""
    try:
        with safe_open(path, "pt") as file:
            told: dict[str, Any] = json.loads((file.metadata() or {})["conformance"])
        tensors = load_file(path)
        answers = {
            group: [Answer(t, f, _read(tensors, f"{group}.{n}")) for n, (t, f) in enumerate(list_)]
            for group, list_ in told["answers"].items()
        }
        return Record(
            msgspec.convert(told["about"], About),
            **answers,
            forced=[_read(tensors, f"forced.{n}") for n in range(told["forced"])],
            long=_read(tensors, "long") if "long.ids" in tensors else None,
            blocks={n: Block(tensors[f"block.{n}.x"], tensors[f"block.{n}.y"]) for n in told["blocks"]},
            notes=told["notes"],
            ended=told["ended"],
        )
    except Exception as error:
        raise UsageError(f"{path}: not a record of an engine's answers: {type(error).__name__}: {error}") from None


def _likely(name: str, likely: Likely) -> dict[str, Any]:
    return {f"{name}.ids": likely.ids.clone(), f"{name}.values": likely.values.clone()}


def _read(tensors: dict[str, Any], name: str) -> Likely:
    return Likely(tensors[f"{name}.ids"], tensors[f"{name}.values"])
