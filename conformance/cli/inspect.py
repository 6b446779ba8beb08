"""Commands that only tell: explain, claims, profiles, stacks, doctor."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from conformance.cli import options


def explain(claim: Annotated[str, typer.Argument(help="Claim id, such as loader.w2.offsets.")]) -> None:
    """What a claim states, where it comes from, what it needs, and which faults it must catch."""
    from conformance import catalogue
    from conformance.faults.catalogue import FAULTS

    found = catalogue.get(claim)
    needs = ", ".join(catalogue.dependencies().get(found.group, ())) or "nothing"
    typer.echo(f"{found.id}: {found.title}")
    typer.echo(f"  layer     {found.layer}, group {found.group} (needs {needs})")
    typer.echo(f"  severity  {found.severity}")
    typer.echo(f"  source    {found.source}")
    typer.echo(f"  check     {found.check or 'none in this version: the claim counts as not run'}")
    if found.needs_geometry:
        typer.echo(f"  applies   to models with {', '.join(found.needs_geometry)}")
    if found.needs_option:
        typer.echo(f"  needs     {' '.join(f'--{option}' for option in found.needs_option)}")
    if found.needs:
        typer.echo(f"  applies   to runs with {', '.join(found.needs).replace('-', ' ')}")
    if found.check and (doc := inspect.getdoc(found.function())):
        typer.echo(f"  how       {' '.join(doc.split())}")
    for fault in FAULTS.values():
        if claim in fault.claims:
            typer.echo(f"  catches   {fault.id}: {fault.what}")
    typer.echo(f"  run it    conformance gate --claim {found.id}")


def claims(layer: Annotated[str | None, typer.Option(help="Only this layer.")] = None) -> None:
    """Every claim, in the order in which the gate runs them."""
    from conformance import catalogue

    layers = catalogue.check_layers([layer] if layer else catalogue.LAYERS)
    for claim in catalogue.claims().values():
        if claim.layer in layers:
            typer.echo(f"{claim.id:<26} {claim.title}" + ("" if claim.check else "  [no check yet]"))


def profiles() -> None:
    """Hardware profiles, with the GPU that is here."""
    import hardware_profiles

    here, words = hardware_profiles.found()
    for name in hardware_profiles.names():
        p = hardware_profiles.load(name)
        capability = f"{p.capability[0]}.{p.capability[1]}" if p.capability else "none"
        mark = " <- here" if name == (here or hardware_profiles.CPU) else ""
        typer.echo(f"{name:<6} capability {capability:<5} stack {p.stack:<10} MoE {p.backend:<19} {p.title}{mark}")
    typer.echo(words)


def stacks() -> None:
    """Stacks that are plugged in (entry-point group conformance.stacks)."""
    from conformance.stacks import registry

    for name, target in registry.described().items():
        typer.echo(f"{name:<12} {target}")


def doctor(
    vllm_python: options.VllmPython = None,
    vllm_source: options.VllmSource = None,
    json: options.Json = None,
) -> None:
    """What this machine has: GPU, stacks, tools. Exit code 0 if the cpu profile can run here, 3 otherwise."""
    from conformance import machine

    options.check_json(json)
    findings = machine.examine(vllm_python, vllm_source)
    for f in findings if str(json) != "-" else []:
        typer.echo(
            f"{'ok' if f.ok else 'missing':<8} {f.what:<22} {f.found}" + (f"  -> {f.advice}" if f.advice else "")
        )
    options.write_json(json, {"findings": findings, "ready": machine.ready(findings)})
    raise typer.Exit(0 if machine.ready(findings) else 3)
