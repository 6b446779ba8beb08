"""`conformance fuzz`: the references against laws, a stack's loader against the references, at any geometry."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli import options
from conformance.errors import UsageError, nearest, short

_MOST_EXAMPLES = 1_000_000


def fuzz(
    stack: Annotated[str, typer.Option(help="Stack whose loader is judged.")] = "reference",
    profile: Annotated[str, typer.Option(help="dev (under 30 s, the same examples each time) or nightly.")] = "dev",
    examples: Annotated[int | None, typer.Option(help="Draw this many, however long it takes.")] = None,
    tp: Annotated[str | None, typer.Option(help="Only this tensor-parallel size; default: 1 to 16.")] = None,
    backend: Annotated[str | None, typer.Option(help="MoE backends, comma-separated; default: cpu.")] = None,
    vllm_python: options.VllmPython = None,
    vllm_source: options.VllmSource = None,
    json: options.Json = None,
) -> None:
    """Search for the smallest geometry that the stack's routed-expert loader gets wrong.

    Exit code 0 HOLDS, 1 BROKEN, 2 the call is wrong, 3 INCOMPLETE. Not part of a gate's verdict.
    """
    import hardware_profiles
    from conformance.fuzz import run as engine
    from conformance.fuzz import words
    from conformance.fuzz.search import PROFILES, Profile
    from conformance.stacks import registry
    from conformance.stacks.protocols import StackOptions

    options.check_json(json)
    if stack not in registry.names():
        raise nearest(stack, registry.names(), "stack")
    if profile not in PROFILES:
        raise nearest(profile, PROFILES, "fuzz profile")
    if examples is not None and not 1 <= examples <= _MOST_EXAMPLES:
        raise UsageError(f"--examples is {examples}; 1 to {_MOST_EXAMPLES} was due")
    known = hardware_profiles.backends()
    backends = tuple(word.strip() for word in (backend or "cpu").split(","))
    for name in backends:
        if name not in known:
            raise nearest(name, known, "backend")
    chosen = PROFILES[profile]
    if examples is not None:
        chosen = Profile(examples, None, chosen.repeatable)
    report = engine.run(
        engine.Asked(
            stack,
            StackOptions(python=vllm_python, source=vllm_source),
            chosen,
            _sizes(tp),
            backends,
        )
    )
    for line in words.lines(report):
        typer.echo(line, err=str(json) == "-")
    options.write_json(json, report)
    raise typer.Exit(engine.EXIT[report.verdict])


def _sizes(text: str | None) -> range:
    if text is None:
        return range(1, 17)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:3]) <= 64 or len(text) > 2:
        raise UsageError(f"--tp is {short(text)}; a whole number from 1 to 64 was due")
    return range(int(text), int(text) + 1)
