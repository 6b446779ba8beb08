"""Writes docs/quantisers.md from the run folders of `conformance gate --layers quant`, one a library.

python docs/quantiser_table.py RUN... > docs/quantisers.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_MARKS = {"pass": "yes", "fail": "**no**", "not-supported": "-", "error": "error", "crash": "crash", "not-run": "?"}
_HEAD = """# Quantisers of libraries, on a CPU

Made by `docs/quantiser_table.py` from runs of `conformance gate --layers quant --stack NAME`, one a library. `yes`:
right, by the rules that the library's adapter declares; **no**: wrong, and below is how; `-`: the library offers no
such thing. These are the libraries' paths in PyTorch and NumPy. Their GPU kernels are others, and have not been run.
"""
#: What a difference comes from, where its numbers do not say so.
_CAUSES = {
    (
        "compressed-tensors",
        "quant.nvfp4.interval",
    ): "scales of BF16 inputs are divided in BF16",
    ("compressed-tensors", "quant.nvfp4.saturation"): "the same",
    (
        "compressed-tensors",
        "quant.mxfp8.scale",
    ): "amax is rounded to E2M1's one bit of mantissa, for E4M3 too, which has "
    "three: scales twice as large as the rule `even` makes them, for amax from 1.75 to 1.94 times a power of two",
    ("torchao", "quant.nvfp4.zero"): "`per_tensor_amax_to_scale` of zeros is 0, and 0 / 0 makes codes of NaN",
    (
        "torchao",
        "quant.mxfp4.zero",
    ): "under a scale byte of 0, 2^-127, elements are divided by 2^-126: half their value",
    ("torchao", "quant.mxfp8.zero"): "the same",
    (
        "vllm",
        "quant.layout.unswizzle",
    ): "`convert_swizzled_to_linear` cuts by elements, not by blocks: padding stays in",
}


def _read(path: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (path / "evidence.jsonl").read_text().splitlines()]
    info = next(iter(json.loads((path / "manifest.json").read_text())["stacks"].values()))
    return {"name": f"{info['name']} {info['version']}", "info": info, "claims": {row["id"]: row for row in rows}}


def _runs(run: dict[str, Any]) -> str:
    """What ran, in the adapter's words."""
    measured = [row["evidence"] for row in run["claims"].values() if row.get("evidence")]
    words: str = next(e["method"].rpartition("; ")[0] for e in measured if "comparisons" in e["method"])
    return words


def main(paths: list[Path]) -> None:
    runs = [_read(path) for path in paths]
    ids = [i for i in runs[0]["claims"] if any(run["claims"][i]["status"] != "not-supported" for run in runs)]
    print(_HEAD)
    print("| claim |", " | ".join(run["name"] for run in runs), "|")
    print("|---|" + "---|" * len(runs))
    for i in ids:
        marks = (_MARKS.get(run["claims"][i]["status"], run["claims"][i]["status"]) for run in runs)
        print(f"| `{i.removeprefix('quant.')}` |", " | ".join(marks), "|")
    for run in runs:
        print(f"\n## {run['name']}\n\n{_runs(run)}.\n")
        for i in ids:
            row = run["claims"][i]
            evidence = row.get("evidence") or {}
            if row["status"] == "fail" and i.startswith("quant.standard."):
                print(f"- `{i}`: **{', '.join(evidence['measured'])}**")
                print(
                    *(f"  - {f['where']}: {f['got']}; {f['expected']} due" for f in evidence["findings"][:4]), sep="\n"
                )
            elif row["status"] not in ("pass", "not-supported"):
                cause = _CAUSES.get((run["info"]["name"], i))
                print(f"- `{i}`: {row['reason'].rstrip('; ')}" + (f" ({cause})" if cause else ""))
        choices = [note for i in ids for note in (run["claims"][i].get("evidence") or {}).get("notes", [])]
        print(*(f"- {note}" for note in choices if note.startswith("choice:")), sep="\n")


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
