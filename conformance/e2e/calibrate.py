"""Writes limits from records of clean engines: every pair of sizes, batched against alone, each against full precision.

    python -m conformance.e2e.calibrate MODEL_DIR RECORDS [MODEL_DIR RECORDS ...] --device CPU --for DIR

RECORDS is the folder `e2e` of a gate's run on a stack whose loader claims pass; the values are measured, not chosen.
`--for`: checkpoints that the limits hold for as well (a twin whose only difference is a limit that does not bite).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path

import torch

from conformance.e2e import distance, limits
from conformance.e2e.prompts import RECIPE, prompts
from conformance.e2e.record import Record, load
from conformance.errors import UsageError
from references.v4_model import Model


class Largest:
    """The largest clean values so far, by what they are of."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, float]] = {}

    def add(self, what: str, **values: float) -> None:
        known = self.values.setdefault(what, {})
        for name, value in values.items():
            known[name] = max(known.get(name, 0.0), value)

    def pool_gaps(self, *kinds: str) -> None:
        """Partings are rare, and all of them are ties that rounding decides: one largest gap for all kinds of pairs."""
        most = max(self.values.get(what, {}).get("gap", 0.0) for what in kinds)
        for what in kinds:
            self.add(what, gap=most)

    def spread(self, what: str, spread: distance.Spread, gaps: list[float] | None = None) -> None:
        self.add(what, p99=spread.p99, max=spread.max)
        if gaps is not None:
            self.add(what, gap=max(gaps, default=0.0))


def add_model(found: Largest, folder: Path, records: list[Record]) -> list[str]:
    """One checkpoint's records; the pairs that were compared, in words."""
    model, pairs = Model(folder), []
    known = prompts(json.loads((folder / "config.json").read_text()), 3072)
    sequences = [p + a.tokens for p, a in zip(known.short, records[0].solo, strict=True)]
    truth = [model.log_probabilities(torch.tensor(s)) for s in sequences]
    for a, b in itertools.combinations(records, 2):
        gaps = [p.gap for p in distance.partings(a.solo, b.solo)]
        scored = [distance.between(x, y) for x, y in zip(a.forced, b.forced, strict=True)]
        found.spread("parity", distance.spread(scored), gaps)
        if a.long and b.long:
            found.spread("long", distance.spread([distance.between(a.long, b.long)]))
        pairs.append(f"{folder.name}: TP{a.about.tp} against TP{b.about.tp}")
    for record in records:
        scored = [distance.exactly(x, y) for x, y in zip(record.forced, truth, strict=True)]
        found.spread("reference", distance.spread(scored))
        gaps = [p.gap for p in distance.partings(record.solo, record.batch)]
        pieces = [
            distance.between(*distance.until_parted(a, b)) for a, b in zip(record.solo, record.batch, strict=True)
        ]
        found.spread("schedule", distance.spread(pieces), gaps)
        for module, block in record.blocks.items():
            due = model.block(module, block.x, torch.tensor(known.traced))
            error = float((block.y.to(due.dtype) - due).norm() / due.norm())
            found.add("blocks", **{module.rpartition(".")[2]: error})
        pairs.append(f"{folder.name}: TP{record.about.tp} batched against alone, and against full precision")
    return pairs


def text(found: Largest, about: list[Record], device: str, models: list[str], pairs: list[str]) -> str:
    """One `[[limits]]` of TOML. Raises UsageError where a record is not finite: that stack is not clean."""
    if any(value != value for values in found.values.values() for value in values.values()):
        raise UsageError("a clean record holds NaN: nothing can be calibrated on it")
    first = about[0].about
    found.pool_gaps("parity", "schedule")
    lines = ["[[limits]]", f'stack = "{first.stack}"', f'version = "{first.version}"', f'device = "{device}"']
    lines += [
        f"recipe = {RECIPE}",
        f"models = {json.dumps(models, indent=4)}",
        f"pairs = {json.dumps(pairs, indent=4)}",
    ]
    for what, values in found.values.items():
        inner = ", ".join(f"{name} = {value:.4f}" for name, value in values.items())
        lines.append(f"{what} = {{ {inner} }}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibrate limits of layer e2e on clean records.")
    parser.add_argument("folders", nargs="+", type=Path, help="MODEL_DIR RECORDS, as often as you like")
    parser.add_argument("--device", required=True)
    parser.add_argument("--for", dest="twins", action="append", type=Path, default=[])
    given = parser.parse_args()
    found, every, pairs = Largest(), [], []
    try:
        for folder, kept in zip(given.folders[::2], given.folders[1::2], strict=True):
            records = [load(path) for path in sorted(kept.glob("tp*.safetensors"))]
            if not records or any(r.about.model != limits.digest(folder) for r in records):
                raise UsageError(f"{kept}: no records, or of another checkpoint than {folder}")
            pairs += add_model(found, folder, records)
            every += records
        models = list(dict.fromkeys([r.about.model for r in every] + [limits.digest(twin) for twin in given.twins]))
        print(text(found, every, given.device, models, pairs))
    except UsageError as error:
        sys.exit(f"calibrate: {error}")


if __name__ == "__main__":
    main()
