"""The gate: GO for the kernel's own claims, NO-GO for each fault compiled into it, by the claims named here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PARTS = "elements scales activations groups global_scales tails dense shapes isolation bound"
CLAIMS = {f"quant.gemm.{part}" for part in PARTS.split()}
CAUGHT_BY = {
    "block-doubled": {"scales", "bound"},
    "block-halved": {"scales", "bound"},
    "scale-missing": {"scales", "bound"},
    "global-scale-missing": {"global_scales", "bound"},
    "group-offset": {"elements", "groups", "bound"},
    "expert-stride": {"elements", "groups", "bound"},
    "nibbles-swapped": {"elements", "bound"},
}


def gate(folder: Path, stack: str) -> tuple[int, dict[str, str]]:
    """(exit code, {claim: status})"""
    asked = [word for claim in sorted(CLAIMS) for word in ("--claim", claim)]
    call = [sys.executable, "-m", "conformance", "gate", "--profile", "sm90", "--stack", stack, *asked]
    call += ["--run-dir", str(folder / stack), "--json", str(folder / f"{stack}.json")]
    done = subprocess.run(call, capture_output=True, text=True, env=installed(folder), timeout=300)
    print(done.stdout, done.stderr)
    told = json.loads((folder / f"{stack}.json").read_text())
    return done.returncode, {claim["id"]: claim["status"] for claim in told["claims"] if claim["id"] in CLAIMS}


def installed(folder: Path) -> dict[str, str]:
    """An environment in which the planted stacks are installed, beside the package itself."""
    entries = ["[conformance.stacks]"]
    entries += [f"planted-{fault} = planted_stacks:{fault.replace('-', '_')}" for fault in CAUGHT_BY]
    info = folder / "planted_stacks-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-stacks\nVersion: 0\n")
    (info / "entry_points.txt").write_text("\n".join(entries))
    openers = [f"{fault.replace('-', '_')} = opener({fault!r})" for fault in CAUGHT_BY]
    (folder / "planted_stacks.py").write_text("\n".join(["from planted import opener", *openers, ""]))
    path = [str(folder), str(HERE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


@pytest.mark.parametrize("weights", ["nvfp4", "mxfp4"])
def test_the_kernel_passes_its_claims(tmp_path, weights):
    code, status = gate(tmp_path, f"cute-sm90-{weights}")
    assert set(status.values()) == {"pass"} and set(status) == CLAIMS
    assert code == 0


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_a_planted_fault_is_no_go(tmp_path, fault):
    code, status = gate(tmp_path, f"planted-{fault}")
    failed = {claim.removeprefix("quant.gemm.") for claim, word in status.items() if word == "fail"}
    assert code == 1 and failed >= CAUGHT_BY[fault]
