"""`conformance gate`: run the claims in order, then say GO, NO-GO or INCOMPLETE."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Annotated

import typer

from conformance.cli import options
from conformance.errors import UsageError

Claims = Annotated[
    list[str] | None,
    typer.Option(
        "--claim", help="Run only this claim, or those of a pattern (quant.nvfp4.*); repeatable; partial scope."
    ),
]
Then = Annotated[str | None, typer.Option(help="Command to run only after a full GO of a real stack.")]


def gate(
    profile: options.Profile = None,
    emulate: options.Emulate = None,
    stack: options.Stack = None,
    geometry: options.Geometry = "deepseek-v4-flash",
    tp: options.Tp = "3",
    backend: options.Backend = None,
    layers: options.Layers = None,
    policy: Annotated[str, typer.Option(help="full, audit or release.")] = "full",
    run_dir: Annotated[str | None, typer.Option(help="Run folder; default: runs/TIME-PROFILE-STACK.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the broken run in --run-dir.")] = False,
    vllm_python: options.VllmPython = None,
    vllm_source: options.VllmSource = None,
    python: options.Python = None,
    force_shard: options.ForceShard = False,
    repair: options.Repair = "",
    no_gate: Annotated[bool, typer.Option("--no-gate", help="Run blocked claims all the same.")] = False,
    waivers: Annotated[str | None, typer.Option(help="TOML file of waivers: claim, issue, reason, until.")] = None,
    loader_run: options.LoaderRun = None,
    checkpoint: options.Checkpoint = None,
    checkpoint_bytes: options.CheckpointBytes = False,
    model: options.Model = None,
    limits: options.Limits = None,
    endpoint: options.Endpoint = None,
    against: options.Against = None,
    nightly: options.Nightly = False,
    claim: Claims = None,
    then: Then = None,
    json: options.Json = None,
) -> None:
    """Run every claim that the profile asks for, in order, and give the verdict.

    Exit code 0 GO, 1 NO-GO, 2 the call is wrong, 3 INCOMPLETE.
    """
    from conformance.gate.gate import run_gate
    from conformance.gate.settings import Settings, resolve
    from conformance.gate.verdict import EXIT
    from conformance.report.terminal import Terminal

    if resume and not run_dir:
        raise UsageError("--resume needs --run-dir: which run shall go on?")
    options.check_json(json)
    launch = _command(then)
    settings = Settings(
        profile=profile,
        emulate=emulate,
        stack=stack,
        geometry=geometry,
        tp=tp,
        backend=backend,
        layers=layers,
        policy=policy,
        run_dir=run_dir,
        resume=resume,
        vllm_python=vllm_python,
        vllm_source=vllm_source,
        python=python,
        force_shard=force_shard,
        repair=repair,
        no_gate=no_gate,
        waivers=waivers,
        loader_run=loader_run,
        checkpoint=checkpoint,
        checkpoint_bytes=checkpoint_bytes,
        model=model,
        limits=limits,
        endpoint=endpoint,
        against=against,
        nightly=nightly,
    )
    run = resolve(settings)
    selected = _selected(claim, run.layers) if claim else None
    if selected is not None and run.policy.release:
        raise UsageError(f"policy {policy} refuses --claim: it judges the whole scope")
    terminal = Terminal(to_stderr=str(json) == "-")
    terminal.opening(run)
    verdict, path = run_gate(run, selected, terminal.progress)
    terminal.closing(verdict, path)
    options.write_json(json, verdict)
    code = EXIT[verdict.verdict]
    if launch:
        if not verdict.full_go:
            terminal.say(f"not launched: {verdict.headline} is no full GO of a real stack")
            raise typer.Exit(code or 3)
        code = subprocess.run(launch, check=False).returncode
    raise typer.Exit(code)


def _selected(claims: list[str], layers: tuple[str, ...]) -> set[str]:
    """Raises UsageError for a name or pattern that names no claim, or none of the layers that run."""
    from conformance import catalogue

    chosen = set[str]()
    for name in claims:
        found = {one for one in catalogue.named(name) if catalogue.get(one).layer in layers}
        if not found:
            raise UsageError(f"--claim {name} is outside of --layers {','.join(layers)}")
        chosen |= found
    return chosen


def _command(then: str | None) -> list[str]:
    """The words of `--then`. Raises UsageError before the run, where afterwards nothing could be launched."""
    if then is None:
        return []
    try:
        words = shlex.split(then)
    except ValueError as error:
        raise UsageError(f"--then {then}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"--then {then!r} names no command that can be run here")
    return words
