"""Options that several commands share, and how they become Settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from conformance.errors import UsageError

Profile = Annotated[str | None, typer.Option(help="Hardware profile; default: the GPU found, else cpu.")]
Emulate = Annotated[
    str | None, typer.Option(help="Emulate a GPU profile on the reference stack; implies --profile cpu.")
]
Stack = Annotated[str | None, typer.Option(help="Stack under test, or LAYER=STACK,...; default: the profile's.")]
Geometry = Annotated[str, typer.Option(help="Embedded geometry, or the path of a config.json.")]
Tp = Annotated[str, typer.Option(help="Tensor-parallel size; with --layers e2e several, as in 2,3.")]
Backend = Annotated[str | None, typer.Option(help="MoE backend; default: the profile's.")]
Layers = Annotated[str | None, typer.Option(help="Comma-separated layers; makes the scope partial.")]
VllmPython = Annotated[str | None, typer.Option(help="Interpreter that holds the vLLM to test; default: this one.")]
VllmSource = Annotated[str | None, typer.Option(help="vLLM source checkout, put first on that interpreter's path.")]
Python = Annotated[
    str | None, typer.Option("--python", help="Interpreter that holds the library whose quantisers are judged.")
]
ForceShard = Annotated[bool, typer.Option("--force-shard", help="Go round the stack's refusal of the configuration.")]
Repair = Annotated[str, typer.Option(help="Mend known defects at the fault seam (w2-units); the verdict says so.")]
LoaderRun = Annotated[
    str | None, typer.Option("--loader-run", help="Run folder whose recorded loader maps feed the MoE kernel.")
]
Checkpoint = Annotated[
    str | None, typer.Option(help="Folder of a safetensors checkpoint: its config.json, names, types and shapes.")
]
CheckpointBytes = Annotated[
    bool, typer.Option("--checkpoint-bytes", help="Compare what is loaded with the bytes of --checkpoint's files.")
]
Model = Annotated[str | None, typer.Option(help="Folder of a checkpoint that engines serve end to end.")]
Limits = Annotated[str | None, typer.Option(help="File of limits calibrated for --model; default: those that ship.")]
Endpoint = Annotated[str | None, typer.Option(help="Root URL of a server that is up: judged in layer e2e.")]
Against = Annotated[
    str | None, typer.Option(help="What --endpoint is compared with: the URL of another server, or a run folder.")
]
Nightly = Annotated[
    bool,
    typer.Option(
        "--nightly",
        help="Larger and odder batches too (M = 0, 3, 129, 4096), and every size that is captured: minutes on a CPU.",
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", help="Write the result as JSON to this file (- for standard output).")
]


def check_json(target: Path | None) -> None:
    """Raises UsageError where `write_json` could not write, before a long run instead of after it."""
    if target is None or str(target) == "-":
        return
    folder = target.absolute().parent
    if target.is_dir() or not folder.is_dir() or not os.access(target if target.exists() else folder, os.W_OK):
        raise UsageError(f"--json {target}: not writable: a file in a folder that exists was due")


def write_json(target: Path | None, value: object) -> None:
    """Raises UsageError if the file cannot be written."""
    if target is None:
        return
    data = msgspec.json.format(msgspec.json.encode(value), indent=1)
    if str(target) == "-":
        typer.echo(data.decode())
        return
    try:
        target.write_bytes(data + b"\n")
    except OSError as error:
        raise UsageError(f"--json {target}: not writable: {error.strerror}") from None
