"""`conformance map w2_weight --tp 3`: where each rank's bytes come from, as table and drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options
from conformance.errors import StackError, UsageError, nearest


def map_command(
    parameter: Annotated[str, typer.Argument(help="w13_weight, w13_weight_scale, w2_weight or w2_weight_scale.")],
    profile: options.Profile = None,
    emulate: options.Emulate = None,
    stack: options.Stack = None,
    geometry: options.Geometry = "deepseek-v4-flash",
    tp: options.Tp = "3",
    backend: options.Backend = None,
    vllm_python: options.VllmPython = None,
    vllm_source: options.VllmSource = None,
    force_shard: options.ForceShard = False,
    repair: options.Repair = "",
    svg: Annotated[Path | None, typer.Option(help="Write the drawing to this SVG file.")] = None,
    json: options.Json = None,
) -> None:
    """Number every byte of one expert's checkpoint tensor, load it on every rank, and show where each byte went.

    Exit code 0: shown; 2: the call is wrong; 3: the stack cannot be driven.
    """
    from rich.console import Console

    from conformance.gate.settings import Settings, resolve
    from conformance.provenance.survey import survey
    from conformance.report import drawing, table
    from conformance.stacks import registry
    from conformance.stacks.protocols import SHARDS

    if parameter not in SHARDS:
        raise nearest(parameter, SHARDS, "parameter")
    run = resolve(
        Settings(
            profile=profile,
            emulate=emulate,
            stack=stack,
            geometry=geometry,
            tp=tp,
            backend=backend,
            vllm_python=vllm_python,
            vllm_source=vllm_source,
            force_shard=force_shard,
            repair=repair,
        )
    )
    try:
        under_test = registry.open_stack(run.stacks["loader"], run.stack_options)
        try:
            found, due = survey(under_test.loader(), run.target, parameter)
        finally:
            under_test.close()
    except StackError as error:
        typer.echo(f"conformance: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(3) from None
    console = Console(highlight=False, stderr=str(json) == "-")
    for drawn in table.tables(found):
        console.print(drawn)
    for line in drawing.text(found, due):
        console.print(line)
    if svg:
        try:
            svg.write_text(drawing.svg(found, due))
        except OSError as error:
            raise UsageError(f"--svg {svg}: not writable: {error.strerror}") from None
    options.write_json(json, found)
