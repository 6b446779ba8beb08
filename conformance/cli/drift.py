"""`conformance drift --mpk CHECKOUT --reference VLLM`: does Mirage MPK's DeepSeek-V3 still compute what vLLM's does?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli import options
from conformance.errors import UsageError


def drift(
    mpk: Annotated[Path, typer.Option(help="Checkout of Mirage MPK; read, never written.")],
    reference: Annotated[Path, typer.Option(help="vLLM: a checkout, or an installed package's folder.")],
    execute: Annotated[
        bool, typer.Option("--execute", help="Also run audited code, in processes of its own, where text cannot tell.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="JSON of an earlier audit: only what is new is shown, and drifts.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the report to this HTML file; a gate's report.html gets it as a section.")
    ] = None,
    json: options.Json = None,
) -> None:
    """Audit weights, builder, kernel wiring and runtime of an MPK checkout against vLLM, with file:line on both sides.

    Exit code 0: no drift; 1: drift; 2: the call is wrong; 3: not everything could be evaluated.
    """
    options.check_json(json)
    if baseline is not None and not baseline.is_file():
        raise UsageError(f"--baseline {baseline}: no such file; the JSON of an earlier audit was due")
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise UsageError(f"--html {html}: not writable: a file in a folder that exists was due")
    try:
        from conformance.drift import audit, terminal
        from conformance.drift import html as pages
    except ModuleNotFoundError as error:
        raise UsageError(f"drift needs {error.name}: install the harness's dependencies (pip install -e .)") from None

    report = audit.audit(mpk, reference, execute)
    if baseline is not None:
        report = audit.against(report, baseline)
    terminal.show(report, to_stderr=str(json) == "-")
    if html is not None:
        try:
            html.write_bytes(pages.placed(report, html.read_bytes() if html.exists() else b""))
        except OSError as error:
            raise UsageError(f"--html {html}: not writable: {error.strerror}") from None
    options.write_json(json, report)
    raise typer.Exit(report.exit_code)
