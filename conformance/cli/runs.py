"""Commands about runs that are over: report, diff, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options
from conformance.errors import UsageError, one_line

Run = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]
#: As many characters of a value as a line bears.
_MOST = 100


def report(
    run: Run, out: Annotated[Path | None, typer.Option(help="File to write; default: RUN/report.html.")] = None
) -> None:
    """Make a run's report.html again from its manifest and verdict (a section that `drift --html` put there goes)."""
    from conformance.gate import recorded
    from conformance.report import html

    known = recorded.read(run)
    page = html.render(known.manifest, known.final)
    target = out or run / "report.html"
    try:
        target.write_bytes(page)
    except OSError as error:
        raise UsageError(f"{target}: not writable: {error.strerror}") from None
    typer.echo(f"{known.final.headline}: {target}")


def diff(
    before: Annotated[Path, typer.Argument(help="Folder of the earlier run.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="Folder of the later run.", show_default=False)],
    json: options.Json = None,
) -> None:
    """Claims whose status or measured values differ between two runs, and who was judged in each.

    Exit code 0: none; 1: some.
    """
    from conformance.gate import recorded

    options.check_json(json)
    found = recorded.differences(recorded.read(before), recorded.read(after))
    for one in found if str(json) != "-" else []:
        typer.echo(f"{one.what:<32} {one.kind:<8} {_short(one.before)} -> {_short(one.after)}")
    if not found and str(json) != "-":
        typer.echo("no claim differs")
    options.write_json(json, found)
    raise typer.Exit(int(bool(found)))


def verify(run: Run, json: options.Json = None) -> None:
    """Check a run's files against each other: verdict by the evidence and must-pass list, attestation by all hashes.

    Nothing is signed: this finds what was changed or lost, not who changed it. Exit code 0: all agrees; 1: something
    does not; 3: the verdict could not be made again here.
    """
    from conformance.gate import recorded

    options.check_json(json)
    known = recorded.read(run)
    checked = recorded.verify(known)
    if str(json) != "-":
        for line in checked.wrong:
            typer.echo(f"wrong    {one_line(line)}")
        for line in checked.unknown:
            typer.echo(f"unknown  {one_line(line)}")
        agreed = "does not agree" if checked.wrong else "agrees" if not checked.unknown else "agrees as far as checked"
        typer.echo(f"the record {agreed}: {len(known.results)} claims, {known.final.headline}")
    options.write_json(json, {"wrong": checked.wrong, "unknown": checked.unknown, "headline": known.final.headline})
    raise typer.Exit(1 if checked.wrong else 3 if checked.unknown else 0)


def _short(value: object) -> str:
    text = one_line(str(value))
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."
