"""The markers of a claim: its layer, the profiles that ask for it, and the claim itself."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conformance.catalogue import Claim
    from conformance.pytest_plugin.options import Asked

#: One xdist group for nearly all claims: a worker that runs claims holds the stacks, the context in which each thing is
#: measured once, and the results that block others. Claims of different stacks depend on each other as well
#: (moe=flashinfer needs what loader=vllm recorded), so a group a stack would have to be joined again.
GROUP = "conformance"


def register(config: pytest.Config) -> None:
    import hardware_profiles
    from conformance.catalogue import LAYERS

    for layer in LAYERS:
        config.addinivalue_line("markers", f"{layer}: claims of the layer {layer}.")
    for profile in hardware_profiles.names():
        config.addinivalue_line("markers", f"{profile}: claims that the hardware profile {profile} asks for.")
    config.addinivalue_line("markers", "claim(id): the claim that a check proves.")
    config.addinivalue_line("markers", "xdist_group(name): what one worker process of pytest-xdist runs alone.")


def of(claim: Claim, asked: Asked) -> list[pytest.MarkDecorator]:
    profiles = {name for name, asks in _profiles().items() if claim.id in asks}
    if asked.given and claim.id in asked.run.required:  # a stack or geometry without a must-pass list asks for all
        profiles.add(asked.run.profile.name)
    named = [getattr(pytest.mark, name) for name in (claim.layer, *sorted(profiles))]
    # The keyword is for `-m 'claim(id="loader.w2.offsets")'`, which sees no positional arguments.
    return [*named, pytest.mark.claim(claim.id, id=claim.id), pytest.mark.xdist_group(group_of(claim, asked))]


def group_of(claim: Claim, asked: Asked) -> str:
    """The claim's xdist group. Claims that run all ranks at once on a kernel library may have a worker of their own,
    beside those that need one GPU, as long as no loader is judged whose results they would wait for."""
    from conformance.stacks import registry

    if not (claim.together and asked.given) or "loader" in asked.run.layers:
        return GROUP
    foreign = registry.is_foreign(asked.run.stacks.get(claim.layer, ""))
    return f"{GROUP}-ranks" if foreign else GROUP


@cache
def _profiles() -> dict[str, frozenset[str]]:
    """Profile -> ids that any of its must-pass lists holds; all where it has none."""
    import hardware_profiles
    from conformance import catalogue

    lists = {name: hardware_profiles.load(name).must_pass for name in hardware_profiles.names()}
    return {
        name: frozenset(catalogue.matching({pattern for m in must_pass for pattern in m.claims}))
        if must_pass
        else frozenset(catalogue.claims())
        for name, must_pass in lists.items()
    }
