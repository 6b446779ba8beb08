"""`conformance selftest`: plant every fault and see that a claim which names it fails."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli import options


def selftest(
    stack: Annotated[str, typer.Option(help="Stack to plant the faults in.")] = "reference",
    fault: Annotated[list[str] | None, typer.Option("--fault", help="Only this fault (repeatable).")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Only faults of these layers; e2e of a real stack runs when named.")
    ] = None,
    backend: options.Backend = None,
    vllm_python: options.VllmPython = None,
    vllm_source: options.VllmSource = None,
    python: options.Python = None,
    json: options.Json = None,
) -> None:
    """Plant each fault, run its layer, and print which claim catches it.

    Exit code 0: all caught and the clean stack silent; 1: a fault lives, or the clean reference alarms;
    3: a fault could not be planted, or its claims cannot be judged here.
    """
    from conformance.faults import selftest as engine
    from conformance.report.matrix import print_matrix
    from conformance.stacks.protocols import StackOptions

    options.check_json(json)
    reached = StackOptions(python=vllm_python, source=vllm_source, library_python=python)
    report = engine.run(stack, reached, fault or [], backend, layers)
    print_matrix(report, to_stderr=str(json) == "-")
    options.write_json(json, report)
    raise typer.Exit(report.exit_code)
