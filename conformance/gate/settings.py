"""The options of a run, as the gate and pytest both take them, and what they resolve to."""

from __future__ import annotations

import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

import hardware_profiles
from conformance import catalogue, geometry
from conformance.checkpoint import folder, layout
from conformance.checkpoint.folder import Files
from conformance.e2e import limits
from conformance.errors import UsageError, nearest, short
from conformance.faults import repairs
from conformance.gate import waivers
from conformance.gate.waivers import Waiver
from conformance.stacks import registry
from conformance.stacks.protocols import StackOptions
from conformance.target import Target
from hardware_profiles import Profile

DEFAULT_GEOMETRY = "deepseek-v4-flash"
DEFAULT_TP = 3
_MOST_TP = 1024


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """As given; None means `the default`, and so does empty, but for `layers`."""

    profile: str | None = None
    emulate: str | None = None
    stack: str | None = None
    geometry: str = DEFAULT_GEOMETRY
    tp: str = str(DEFAULT_TP)
    backend: str | None = None
    layers: str | None = None
    policy: str = "full"
    run_dir: str | None = None
    resume: bool = False
    vllm_python: str | None = None
    vllm_source: str | None = None
    python: str | None = None
    force_shard: bool = False
    repair: str = ""
    no_gate: bool = False
    waivers: str | None = None
    loader_run: str | None = None
    checkpoint: str | None = None
    model: str | None = None
    limits: str | None = None
    endpoint: str | None = None
    against: str | None = None
    checkpoint_bytes: bool = False
    nightly: bool = False


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a policy runs and refuses. `only_required`: claims outside the must-pass list do not run."""

    title: str
    required: str
    only_required: bool = False
    release: bool = False


class Resolved(msgspec.Struct, frozen=True):
    """A valid run: everything looked up, nothing started."""

    settings: Settings
    profile: Profile
    target: Target
    policy: Policy
    layers: tuple[str, ...]
    #: layer in scope -> name of the stack that is judged in it
    stacks: dict[str, str]
    stack_options: StackOptions
    #: ids required for a GO, in schedule order, before any narrowing of scope
    required: tuple[str, ...]
    repairs: tuple[str, ...]
    waivers: dict[str, Waiver]
    #: What the headers of `--checkpoint` say.
    files: Files | None = None

    @property
    def stack_words(self) -> str:
        names = set(self.stacks.values())
        return names.pop() if len(names) == 1 else ",".join(f"{layer}={name}" for layer, name in self.stacks.items())

    @property
    def given(self) -> frozenset[str]:
        """Options that claims may need: see `Claim.needs_option`."""
        options = {"checkpoint": self.files, "checkpoint-bytes": self.settings.checkpoint_bytes}
        return frozenset(name for name, value in options.items() if value)

    @property
    def partial(self) -> bool:
        return bool(self.settings.layers)


def policies() -> dict[str, Policy]:
    data = tomllib.loads(Path(__file__).with_name("policies.toml").read_text())
    return {name: msgspec.convert(entry, Policy) for name, entry in data.items()}


def resolve(settings: Settings, default_profile: str | None = None) -> Resolved:
    """Look everything up. `default_profile` is what `-m` names, if it names one.

    Raises UsageError for each thing that does not exist or does not go together.
    """
    settings = _endpoint(settings)
    profile = _profile(settings, default_profile)
    policy = policies().get(settings.policy)
    if policy is None:
        raise nearest(settings.policy, policies(), "policy")
    layers = catalogue.LAYERS if settings.layers is None else catalogue.check_layers(layer_names(settings.layers))
    stacks = {layer: name for layer, name in _stacks(settings, profile).items() if layer in layers}
    if "reference" in stacks.values() and profile.capability is not None:
        raise UsageError(
            f"the reference stack cannot be judged under the GPU profile {profile.name}: "
            f"use --emulate {profile.name} to judge the harness with that profile's arithmetic"
        )
    named = "--vllm-python" if settings.vllm_python else "--vllm-source" if settings.vllm_source else ""
    if named and set(stacks.values()) == {"reference"}:
        raise UsageError(f"{named} names a vLLM, but the reference stack is judged: add --stack vllm")
    if settings.python and set(stacks.values()) <= {"reference", "vllm"}:
        raise UsageError("--python names a library's interpreter, and no library is judged: add --stack torchao, ...")
    if settings.emulate and set(stacks.values()) != {"reference"}:
        raise UsageError(f"--emulate {settings.emulate} runs on the reference stack, not on {settings.stack}")
    if policy.release and (settings.layers or settings.repair or settings.force_shard):
        raise UsageError(
            f"policy {settings.policy} refuses a partial scope, a repair and --force-shard: "
            "it judges what would be launched"
        )
    emulated = hardware_profiles.load(settings.emulate) if settings.emulate else None
    backend_name = settings.backend or (emulated or profile).backend
    backend = hardware_profiles.backends().get(backend_name)
    if backend is None:
        raise nearest(backend_name, hardware_profiles.backends(), "backend")
    if settings.backend and layers == ("e2e",) and not profile.capability and settings.stack not in (None, "reference"):
        raise UsageError("--backend is for GPUs: engines on a CPU have kernels of their own; leave it out")
    files = _files(settings)
    model = files.geometry if files else _geometry(settings)
    sizes = _sizes(settings, layers)
    tp = max(sizes)
    chosen = tuple(_words(settings.repair))
    judged = emulated or profile
    guarded = emulated is None or bool(emulated.vetted)  # an emulated guard knows vetted pairs, or is not there
    target = Target(
        geometry=model,
        tp=tp,
        backend=backend.name,
        attention=(judged.attention if not settings.backend else backend.attention) or backend.attention,
        capability=judged.capability if guarded else None,
        intermediate_roundings=backend.intermediate,
        hidden_roundings=backend.hidden,
        force=settings.force_shard,
        attributes=repairs.attributes(chosen, model, tp),
        vetted=hardware_profiles.vetted(),
        arithmetic=judged.arithmetic if backend.name == judged.backend else None,
        expert_parallel=judged.expert_parallel,
        tactics=backend.tactics,
        nightly=settings.nightly,
        layout=backend.layout,
        model=settings.model or "",
        sizes=sizes if settings.model or "," in settings.tp else (),
        limits=settings.limits or "",
        asked=backend.name if settings.backend and profile.capability else "",
        endpoint=settings.endpoint or "",
        against=settings.against or "",
        head_paddings=judged.head_paddings,
        output_scales=judged.output_scales,
        choiceless=_choiceless(stacks),
    )
    padding = {"intermediate": backend.intermediate[0], "hidden": backend.hidden[0]}
    return Resolved(
        settings=settings,
        profile=profile,
        target=target,
        policy=policy,
        layers=layers,
        stacks=stacks,
        stack_options=StackOptions(
            python=settings.vllm_python,
            source=settings.vllm_source,
            library_python=settings.python,
            endpoint=settings.endpoint or "",
            against=settings.against or "",
            emulate=padding,
            arithmetic=backend.arithmetic or judged.arithmetic,
            vetted=hardware_profiles.vetted() if emulated and guarded else None,
            work_dir=None,
            head_paddings=judged.head_paddings,
            output_scales=judged.output_scales,
        ),
        required=tuple(_required(profile, policy, stacks, tp, model)),
        repairs=chosen,
        waivers=waivers.load(settings.waivers),
        files=files,
    )


def _endpoint(settings: Settings) -> Settings:
    """Servers that are up are judged in layer e2e alone. Raises UsageError for what does not go with them."""
    if not settings.endpoint:
        if settings.against:
            raise UsageError("--against is what --endpoint URL is compared with: which server is judged?")
        return settings
    for option, words in (("--endpoint", settings.endpoint), ("--against", settings.against or "")):
        if option == "--endpoint" or registry.is_url(words):
            _check_url(option, words)
        elif words and not (Path(words) / "manifest.json").is_file():
            raise UsageError(f"--against {short(words)}: the URL of a server, or the folder of a run, was due")
    if settings.endpoint.rstrip("/") == (settings.against or "").rstrip("/"):
        raise UsageError("--against is the same server as --endpoint: it would be compared with itself")
    if settings.stack or settings.vllm_python or settings.vllm_source:
        raise UsageError("--endpoint judges a server that is up: leave --stack, --vllm-python and --vllm-source out")
    if settings.layers not in (None, "e2e"):
        raise UsageError(f"--endpoint is judged in layer e2e alone; --layers is {short(settings.layers)}")
    if not settings.model:
        raise UsageError("--endpoint needs --model DIR: the checkpoint that the server serves (prompts and limits)")
    if settings.emulate or settings.force_shard or settings.repair:
        raise UsageError("--endpoint judges a server as it is: leave --emulate, --force-shard and --repair out")
    return msgspec.structs.replace(settings, layers="e2e")


def _check_url(option: str, words: str) -> None:
    try:
        parts = urlsplit(words)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"{option} {short(words)}: the root URL of a server was due, as in http://127.0.0.1:8000")


def _profile(settings: Settings, default: str | None) -> Profile:
    known = hardware_profiles.names()
    for name in (settings.profile, settings.emulate):
        if name and name not in known:
            raise nearest(name, known, "profile")
    if settings.emulate:
        if settings.profile not in (None, hardware_profiles.CPU):
            raise UsageError(
                f"--emulate {settings.emulate} implies --profile cpu; it does not go with --profile {settings.profile}"
            )
        if settings.emulate == hardware_profiles.CPU:
            raise UsageError("--emulate takes a GPU profile: sm90, sm100, sm103, sm120 or sm121")
        return hardware_profiles.load(hardware_profiles.CPU)
    name = settings.profile or default or hardware_profiles.found()[0] or hardware_profiles.CPU
    return hardware_profiles.load(name)


def _files(settings: Settings) -> Files | None:
    """Raises UsageError for files that are no checkpoint, and for a config.json that has no such layout."""
    if settings.checkpoint_bytes and not settings.checkpoint:
        raise UsageError("--checkpoint-bytes needs --checkpoint: which files shall be read?")
    if not settings.checkpoint:
        return None
    if settings.geometry != DEFAULT_GEOMETRY:
        raise UsageError("--checkpoint brings its own config.json; leave --geometry out")
    files = folder.read(settings.checkpoint)
    layout.check(files)
    return files


def _stacks(settings: Settings, profile: Profile) -> dict[str, str]:
    chosen = dict.fromkeys(catalogue.LAYERS, profile.stack)
    if settings.endpoint:
        return dict.fromkeys(catalogue.LAYERS, registry.ENDPOINT)
    for part in _words(settings.stack or ""):
        layer, equals, name = part.partition("=")
        if not equals:
            chosen = dict.fromkeys(catalogue.LAYERS, part)
            name = part
        else:
            catalogue.check_layers([layer])
            chosen[layer] = name
        if name not in registry.names():
            raise nearest(name, registry.names(), "stack")
    return chosen


def _geometry(settings: Settings) -> geometry.Geometry:
    """Of `--model` if there is one. Raises UsageError for a folder without config.json and safetensors."""
    if not settings.model:
        if settings.limits:
            raise UsageError("--limits are those of a --model: which one?")
        return geometry.load(settings.geometry)
    if settings.geometry != DEFAULT_GEOMETRY:
        raise UsageError("--model brings its own config.json; leave --geometry out")
    path = Path(settings.model)
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        raise UsageError(f"--model {short(settings.model)}: a folder with config.json and *.safetensors was due")
    found = folder.read(str(path))  # a broken file is the caller's, and no engine's
    if settings.limits:
        limits.known(Path(settings.limits))
    return found.geometry


def _sizes(settings: Settings, layers: tuple[str, ...]) -> tuple[int, ...]:
    """The sizes that layer e2e compares: as given, or the one that is judged and the next smaller one."""
    given = [_tp(word) for word in settings.tp.split(",")]
    if len(given) > 1 and layers != ("e2e",):
        raise UsageError(f"--tp {short(settings.tp)}: several sizes are for --layers e2e alone; name one")
    if len(set(given)) < len(given):
        raise UsageError(f"--tp {short(settings.tp)} names a size twice")
    return tuple(given) if len(given) > 1 else tuple(n for n in (given[0] - 1, given[0]) if n)


def _choiceless(stacks: dict[str, str]) -> str:
    """Why nobody in scope chooses MoE kernels: the layer plan is out of scope, and whose kernels run is a library that
    is told which. By the registry's data; what a stack says of itself is not asked."""
    kernels = stacks.get("moe")
    if "plan" in stacks or kernels is None or not registry.is_kernel_library(kernels):
        return ""
    return f"{kernels} is a library of kernels and told which to run; whoever chooses is judged with the layer plan"


def _tp(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= _MOST_TP:
        raise UsageError(f"--tp is {short(text)}; a whole number from 1 to {_MOST_TP} was due")
    return int(text)


def _required(profile: Profile, policy: Policy, stacks: dict[str, str], tp: int, model: geometry.Geometry) -> list[str]:
    judged = "reference" if set(stacks.values()) == {"reference"} else "*"
    patterns = profile.required(policy.required, judged, model.name, tp)
    if patterns is None:
        return list(catalogue.claims())
    try:
        return catalogue.matching(patterns)
    except ValueError as error:
        raise UsageError(f"hardware_profiles/{profile.name}.toml: {error}") from None


def layer_names(text: str) -> list[str]:
    """Raises UsageError where a name is empty: what was meant there, or by a variable that is not set, is not known."""
    if not text.strip():
        raise UsageError("--layers is empty: name a layer, or leave it out for all of them")
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        one = f"one of {', '.join(catalogue.LAYERS)}"
        raise UsageError(f"--layers {short(text)}: an empty name beside a comma; {one} was due, or no comma")
    return found


def _words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in text.split(",")) if word]
