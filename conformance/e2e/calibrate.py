"""Writes limits from records of clean engines: every pair of sizes, batched against alone, each against full precision.

    python -m conformance.e2e.calibrate MODEL_DIR RECORDS [MODEL_DIR RECORDS ...] --loader RUN --device CPU --for DIR

RECORDS is the folder `e2e` of a gate's run; the values are measured, not chosen. `--loader`: a run of layer `loader` at
each size above 1, of the same stack, in which all claims of the group that `e2e.parity` needs have passed.
`--for`: checkpoints that the limits hold for as well (a twin whose only difference is a limit that does not bite).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch

from conformance import catalogue
from conformance.e2e import distance, limits
from conformance.e2e.prompts import RECIPE, prompts
from conformance.e2e.record import Record, load
from conformance.errors import UsageError
from conformance.result import Status
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


def proved(runs: list[Path], about: list[Record]) -> list[str]:
    """What these runs prove of the loader, in words. Raises UsageError where that is not enough to call the records
    clean."""
    (group,) = catalogue.dependencies()["e2e.parity"]
    due = sum(claim.group == group for claim in catalogue.claims().values())
    stack, version = about[0].about.stack, about[0].about.version
    found: dict[int, str] = {}
    for run in runs:
        verdict, manifest = (_json(run / name) for name in ("verdict.json", "manifest.json"))
        passed = sum(c["group"] == group and c["status"] == Status.PASS for c in verdict["claims"])
        of = (manifest["stacks"].get(stack) or {}).get("version")
        if of != version or passed < due:
            raise UsageError(
                f"--loader {run}: {passed} of {due} claims of {group} pass, of {stack} {of}; all of them, of {stack} "
                f"{version}, were due before anything is called clean"
            )
        found[verdict["tp"]] = f"TP{verdict['tp']}: {passed} claims of {group} pass"
    lacking = sorted({r.about.tp for r in about if r.about.tp > 1} - set(found))
    if lacking:
        raise UsageError(f"no --loader RUN at TP{', TP'.join(map(str, lacking))}")
    return [found[tp] for tp in sorted(found)]


def _json(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"--loader {path.parent}: no run of a gate: {error}") from None
    return told


def text(
    found: Largest, about: list[Record], device: str, models: list[str], pairs: list[str], loader: list[str]
) -> str:
    """One `[[limits]]` of TOML. Raises UsageError where a record is not finite: that stack is not clean."""
    if any(value != value for values in found.values.values() for value in values.values()):
        raise UsageError("a clean record holds NaN: nothing can be calibrated on it")
    first = about[0].about
    found.pool_gaps("parity", "schedule")
    lines = ["[[limits]]", f'stack = "{first.stack}"', f'version = "{first.version}"', f'device = "{device}"']
    lines += [f'backend = "{first.backend}"'] if first.backend else []
    lines += [
        f"recipe = {RECIPE}",
        f"models = {json.dumps(models, indent=4)}",
        f"pairs = {json.dumps(pairs, indent=4)}",
        f"loader = {json.dumps(loader, indent=4)}",
    ]
    for what, values in found.values.items():
        inner = ", ".join(f"{name} = {value:.4f}" for name, value in values.items())
        lines.append(f"{what} = {{ {inner} }}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibrate limits of layer e2e on clean records.")
    parser.add_argument("folders", nargs="+", type=Path, help="MODEL_DIR RECORDS, as often as you like")
    parser.add_argument("--device", required=True)
    parser.add_argument("--loader", action="append", type=Path, default=[], help="RUN of layer loader, one a size")
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
        print(text(found, every, given.device, models, pairs, proved(given.loader, every)))
    except UsageError as error:
        sys.exit(f"calibrate: {error}")


if __name__ == "__main__":
    main()
