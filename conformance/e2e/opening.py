"""What a run's e2e claims are about: its checkpoint, sizes and device. Nothing is started."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hardware_profiles
from conformance.e2e.measured import PARTS, Measured, Plan
from conformance.e2e.prompts import RECIPE
from conformance.errors import NotSupported, StackMissing, UsageError
from conformance.stacks.endpoint import AGAINST, JUDGED
from conformance.stacks.registry import is_url
from conformance.target import Target
from conformance.world import leases

if TYPE_CHECKING:
    from conformance.stacks.protocols import Stack

#: The reference stack's own checkpoint: a layer without compression and one with, window 16, an indexer that has to
#: choose. (128 tokens to an entry would make prompts long.)
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "compress_ratios": [0, 4],
    "num_hash_layers": 2,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 128,
    "o_lora_rank": 32,
    "sliding_window": 16,
    "index_head_dim": 32,
    "index_n_heads": 16,
    "index_topk": 18,
    "hc_sinkhorn_iters": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 192,
    "swiglu_limit": 1.0,
    "max_position_embeddings": 512,
    "num_nextn_predict_layers": 0,
}

#: Of the reference stack, unless others are asked for.
SIZES = (2, 3)


def measured(
    stack: Stack,
    target: Target,
    kept: Path | None = None,
    faults: dict[int, dict[str, Any]] | None = None,
    clean: Measured | None = None,
    parts: frozenset[str] = PARTS,
) -> Measured:
    """Raises NotSupported where the stack has no engine or the limits that were named do not fit, StackMissing (not
    run) where a real one is given no model."""
    if not hasattr(stack, "engine"):
        raise NotSupported(f"the stack {stack.name} offers no engine to this harness (no `engine()`)")
    reference = stack.name == "reference"
    if not target.model and not reference:
        raise StackMissing(
            "no model is named: give --model DIR (python -m references.make_checkpoint DIR --preset e2e makes one)"
        )
    folder = Path(target.model) if target.model else small()
    config = json.loads((folder / "config.json").read_text())
    if target.endpoint:
        return _of_servers(stack, target, folder, config, kept)
    device = "reference stack" if reference else _device(target)
    plan = Plan(
        *(folder, config, target.sizes or SIZES, stack.name, device, kept, target.limits or None, faults, clean, parts),
        drafting=small_drafting() if reference and not config.get("num_nextn_predict_layers") else None,
        backend="" if reference else target.asked,
    )
    found = Measured(plan, stack.engine, stack.info().version)
    if target.limits:
        _ = found.limits  # those that were named must fit, before minutes are spent
    return found


def _device(target: Target) -> str:
    """In words. Raises NotSupported where engines here would be no evidence about the profile's GPU, or there are too
    few of it."""
    profile, words = hardware_profiles.found()
    here = hardware_profiles.load(profile).capability if profile else None
    if target.capability and here != target.capability and not target.planting:
        major, minor = target.capability
        raise NotSupported(
            f"the profile is of a GPU of capability {major}.{minor}; here: {words}. Run it where that GPU is, or judge "
            "this machine's CPU with --profile cpu"
        )
    if profile and target.capability and (here_are := len(leases.visible())) < (most := max(target.sizes or SIZES)):
        raise NotSupported(f"TP{most} needs {most} GPUs; here {'is' if here_are == 1 else 'are'} {here_are}")
    return words if profile else "CPU"


def _of_servers(stack: Stack, target: Target, folder: Path, config: dict[str, Any], kept: Path | None) -> Measured:
    """The judged server against another one, or against the base record of a run of the same checkpoint."""
    from conformance.e2e import limits
    from conformance.e2e.record import base_of

    against = None
    names = {JUDGED: target.endpoint}
    if target.against:
        names = {AGAINST: target.against, JUDGED: target.endpoint}
    if target.against and not is_url(target.against):
        against = base_of(Path(target.against))
        about = against.about
        if about.model != limits.digest(folder) or about.recipe != RECIPE:
            raise UsageError(f"--against {target.against} is of another checkpoint, or of other prompts, than --model")
        which = "a server" if about.stack == stack.name else f"{about.stack} {about.version} TP{about.tp}"
        names[AGAINST] = f"{which} of {target.against}"
    # what the servers run on, an API does not say: it is taken to be what this machine has
    device = "CPU" if target.capability is None else hardware_profiles.found()[1] or "a GPU that is not here"
    plan = Plan(
        folder, config, tuple(names), stack.name, device, kept, target.limits or None, names=names, against=against
    )
    return Measured(plan, stack.engine, stack.info().version)  # type: ignore[attr-defined]


def small() -> Path:
    """The reference stack's own."""
    from references import make_checkpoint

    return _made("small", json.dumps(make_checkpoint.EVEN | SMALL))


def small_drafting() -> Path:
    """Beside it, with a draft layer."""
    from references import make_checkpoint

    drafting = {key: make_checkpoint.DRAFTING[key] for key in ("compress_ratios", "num_hash_layers")}
    config = make_checkpoint.EVEN | SMALL | drafting | {"num_nextn_predict_layers": 1}
    return _made("drafting", json.dumps(config), drafting=True)


def plain() -> Path:
    """What a real stack's faults are planted in: on a GPU the gate's checkpoint; without one, where vLLM's kernel knows
    no SwiGLU limit, with a limit that does not bite."""
    from references import make_checkpoint

    if hardware_profiles.found()[0]:
        return _made("gpu", json.dumps(make_checkpoint.PRESETS["e2e-gpu"]))
    return _made("plain", json.dumps(make_checkpoint.E2E | {"swiglu_limit": 10.0}))


@cache
def _made(name: str, config: str, drafting: bool = False) -> Path:
    """Made once a process, removed at its end."""
    from references import make_checkpoint

    made = Path(tempfile.mkdtemp(prefix=f"conformance-{name}-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    make_checkpoint.write(made, json.loads(config), drafting=drafting)
    return made
