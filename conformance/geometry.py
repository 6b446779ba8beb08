"""A model's dimensions, read from a Hugging Face `config.json`: one of the embedded ones or the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from conformance.errors import UsageError, nearest, short

_EMBEDDED = Path(__file__).with_name("geometries")
_MAX_CONFIG_BYTES = 4 << 20
#: One E8M0 scale covers this many MXFP4 elements (OCP Microscaling Formats v1.0, section 5.2).
SCALE_GROUP = 32
#: Two E2M1 elements share a byte.
ELEMENTS_PER_BYTE = 2

#: field of Geometry -> the names it has in config.json (first one found counts), and its largest sane value
_FIELDS: dict[str, tuple[tuple[str, ...], int]] = {
    "hidden_size": (("hidden_size",), 1 << 17),
    "attention_heads": (("num_attention_heads",), 1 << 12),
    "kv_heads": (("num_key_value_heads",), 1 << 12),
    "head_dim": (("head_dim",), 1 << 12),
    "intermediate": (("moe_intermediate_size", "intermediate_size"), 1 << 17),
    "experts": (("n_routed_experts", "num_local_experts", "num_experts"), 1 << 14),
    "top_k": (("num_experts_per_tok", "num_experts_per_token"), 1 << 14),
    "vocab": (("vocab_size",), 1 << 24),
    "layers": (("num_hidden_layers",), 1 << 12),
}
_OPTIONAL: dict[str, tuple[tuple[str, ...], int]] = {
    "output_groups": (("o_groups",), 1 << 12),
    "o_lora_rank": (("o_lora_rank",), 1 << 17),
    "q_lora_rank": (("q_lora_rank",), 1 << 17),
    "shared_experts": (("n_shared_experts",), 1 << 10),
    "index_heads": (("index_n_heads",), 1 << 12),
    "index_head_dim": (("index_head_dim",), 1 << 12),
    "index_topk": (("index_topk",), 1 << 20),
}


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """Dimensions in elements, before any padding. `config` is the whole config.json, which real stacks are given.

    `intermediate` is one routed expert's, `shared_intermediate` all shared experts' together (0: none).
    `output_groups` is DeepSeek-V4's grouped output projection (0: the model has none).
    """

    name: str
    model_type: str
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    experts: int
    top_k: int
    vocab: int
    layers: int
    output_groups: int = 0
    o_lora_rank: int = 0
    q_lora_rank: int = 0
    shared_experts: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    swiglu_limit: float | None = None
    config: dict[str, Any] = {}

    @property
    def shared_intermediate(self) -> int:
        return self.shared_experts * self.intermediate

    @property
    def draft_layers(self) -> int:
        """Layers of the draft (MTP) model in the same checkpoint; 0: it has none."""
        found = self.config.get("num_nextn_predict_layers")
        return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0

    @property
    def unpadded(self) -> dict[str, int]:
        """Axes that no plan may change (audit: `The KV head, index heads, hidden size, expert count and top-k`)."""
        axes = {
            "kv_heads": self.kv_heads,
            "hidden_size": self.hidden_size,
            "experts": self.experts,
            "top_k": self.top_k,
        }
        return axes | ({"index_heads": self.index_heads} if self.index_heads else {})

    def checkpoint_shape(self, parameter: str) -> tuple[int, int]:
        """(rows, bytes) of one expert's checkpoint tensor that feeds `parameter`: w1 and w3 are
        (intermediate, hidden / 2), w2 is (hidden, intermediate / 2); scales hold one byte per 32 elements."""
        unit = SCALE_GROUP if parameter.endswith("_scale") else ELEMENTS_PER_BYTE
        if parameter.startswith("w13"):
            return self.intermediate, self.hidden_size // unit
        return self.hidden_size, self.intermediate // unit


def embedded() -> list[str]:
    """Names of the geometries that ship with the harness."""
    return sorted(path.stem for path in _EMBEDDED.glob("*.json"))


def load(name: str) -> Geometry:
    """A geometry by embedded name, or by the path of a `config.json` (or of the folder that holds one).

    Raises UsageError: unknown name, unreadable file, a field that is missing, negative, no integer or absurd.
    """
    if name in embedded():
        return parse(_read(_EMBEDDED / f"{name}.json"), name)
    path = Path(name)
    try:
        if path.is_dir():
            path = path / "config.json"
        is_file = path.suffix == ".json" or path.exists()
    except OSError as error:  # a name that no file system takes
        raise UsageError(f"geometry {short(name)}: {error.strerror}") from None
    if is_file:
        folder = path.absolute().parent
        return parse(_read(path), folder.name if path.name == "config.json" else path.stem, where=str(path))
    if "/" in name:
        raise UsageError(f"geometry {short(name, 200)}: no such file or folder; a config.json was due")
    raise nearest(name, embedded(), "geometry")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_BYTES + 1)
        if len(data) > _MAX_CONFIG_BYTES:
            raise UsageError(f"{path}: more than {_MAX_CONFIG_BYTES} bytes are no config.json")
        config = msgspec.json.decode(data)
    except (OSError, msgspec.DecodeError, RecursionError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{short(str(path), 200)}: not a readable config.json: {why}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: a config.json holds an object, got {type(config).__name__}")
    return config


def parse(config: dict[str, Any], name: str, where: str | None = None) -> Geometry:
    """Geometry from a decoded config.json (multimodal ones keep the language model under `text_config`)."""
    where = where or name
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    sizes = {field: _size(text, keys, most, where, lowest=1) for field, (keys, most) in _FIELDS.items()}
    extra = {
        field: _size(text, keys, most, where, lowest=0)
        for field, (keys, most) in _OPTIONAL.items()
        if any(text.get(key) is not None for key in keys)
    }
    limit = text.get("swiglu_limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < 1e6):
        raise UsageError(f"{where}: swiglu_limit is {short(limit)}; a positive number was due")
    model_type = text.get("model_type", "")
    if not isinstance(model_type, str):
        raise UsageError(f"{where}: model_type is {short(model_type)}; a string was due")
    geometry = Geometry(
        name=name,
        model_type=model_type,
        swiglu_limit=limit,
        config=config,
        **sizes,
        **extra,
    )
    _consistent(geometry, text, where)
    return geometry


def _size(config: dict[str, Any], keys: tuple[str, ...], most: int, where: str, lowest: int) -> int:
    for key in keys:
        if (value := config.get(key)) is not None:
            break
    else:
        raise UsageError(f"{where}: field {' or '.join(keys)} is missing; a whole number was due")
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{where}: {key} is {short(value)}; a whole number was due")
    if not lowest <= value <= most:
        raise UsageError(f"{where}: {key} is {short(value)}; {lowest} to {most} was due")
    return value


def _consistent(g: Geometry, text: dict[str, Any], where: str) -> None:
    """`text` tells which of its names a field has in this config.json."""
    name = {
        field: next((key for key in keys if text.get(key) is not None), keys[0])
        for field, (keys, _) in (_FIELDS | _OPTIONAL).items()
    }
    for field in ("hidden_size", "intermediate"):
        if (value := getattr(g, field)) % SCALE_GROUP:
            due = f"a multiple of {SCALE_GROUP} (one MXFP4 scale group) was due"
            raise UsageError(f"{where}: {name[field]} is {value}; {due}")
    if g.top_k > g.experts:
        raise UsageError(f"{where}: {name['top_k']} is {g.top_k}; at most {name['experts']}, {g.experts}, was due")
    for field in ("kv_heads", "output_groups"):
        parts = getattr(g, field)
        if parts and g.attention_heads % parts:
            due = f"a divisor of {name['attention_heads']}, {g.attention_heads}, was due"
            raise UsageError(f"{where}: {name[field]} is {parts}; {due}")
