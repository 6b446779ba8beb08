"""What a user waits for: `pytest --collect-only` against a bare pytest with the same plugins, and `conformance --help`.

    python benchmarks/startup.py

The bare run collects as many plain functions from one file. Best of several alternating runs. Exit code 1 beyond
1.2 times, or 0.5 s for the help.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_TIMES, MOST_HELP = 1.2, 0.5
ROUNDS = 7


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder)
        (bare / "pytest.ini").write_text("[pytest]\n")
        (bare / "test_bare.py").write_text("".join(f"def test_{n}(): pass\n" for n in range(_collected())))
        ours, theirs = [], []
        for _ in range(ROUNDS):
            theirs.append(_seconds([sys.executable, "-m", "pytest", "--collect-only", "-q"], bare))
            ours.append(_seconds([sys.executable, "-m", "pytest", "--collect-only", "-q", "suites"], ROOT))
    helped = min(_seconds([sys.executable, "-m", "conformance", "--help"], ROOT) for _ in range(ROUNDS))
    ratio = min(ours) / min(theirs)
    print(
        f"collect the suites {min(ours):.2f} s, bare pytest {min(theirs):.2f} s, "
        f"ratio {ratio:.2f} (at most {MOST_TIMES})"
    )
    print(f"conformance --help {helped:.2f} s (at most {MOST_HELP})")
    return int(ratio > MOST_TIMES or helped > MOST_HELP)


def _collected() -> int:
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "suites"], cwd=ROOT, capture_output=True, text=True
    )
    return sum("::" in line for line in out.stdout.splitlines())


def _seconds(command: list[str], folder: Path) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    took = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{' '.join(command)} exited {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return took


if __name__ == "__main__":
    sys.exit(main())
