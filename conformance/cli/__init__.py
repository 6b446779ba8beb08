"""The command `conformance`. Exit codes: 0 good, 1 NO-GO or a fault not caught, 2 the call is wrong, 3 INCOMPLETE."""

from __future__ import annotations

import errno
import os
import sys
import traceback

import typer

from conformance import __version__
from conformance.cli import drift, fuzz, gate, inspect, map, runs, selftest
from conformance.errors import StackError, UsageError, one_line

#: Base of every complaint about arguments; newer typer brings its own click along.
_CallError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="conformance",
    help="Decides, with evidence, whether an LLM inference stack may go live at an awkward tensor-parallel size.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("gate")(gate.gate)
app.command("selftest")(selftest.selftest)
app.command("fuzz")(fuzz.fuzz)
app.command("map")(map.map_command)
app.command("drift")(drift.drift)
app.command()(runs.report)
app.command()(runs.diff)
app.command()(runs.verify)
for command in (inspect.explain, inspect.claims, inspect.profiles, inspect.stacks, inspect.doctor):
    app.command()(command)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise UsageError("no command given; `conformance --help` lists them")


def main() -> None:
    """Entry point: wrong calls end with one line and exit code 2. Whatever else goes wrong proves nothing about a
    stack: it ends with 3, never with Python's own 1, which would read as NO-GO."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # copies and comparisons gain nothing from more
    command = typer.main.get_command(app)
    try:  # not command.main(): that turns a closed pipe into exit code 1 and swallows Ctrl-C
        with command.make_context("conformance", sys.argv[1:]) as context:
            command.invoke(context)
        sys.exit(0)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except (UsageError, _CallError) as error:
        words = getattr(error, "format_message", error.__str__)()
        print(f"conformance: {one_line(words)}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("conformance: interrupted; --resume goes on with the run", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at its end
        sys.exit(3)
    except StackError as error:
        print(f"conformance: {one_line(error)}", file=sys.stderr)
        sys.exit(3)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" ({error.filename})" if error.filename else ""
            print(f"conformance: no space left{where}: free some, then --resume goes on with the run", file=sys.stderr)
            sys.exit(3)
        traceback.print_exc()
        print(f"conformance: the harness itself failed: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
        sys.exit(3)
