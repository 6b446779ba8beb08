"""The `reference` stack's loader of whole DeepSeek-V4 and gpt-oss models: a tensor has one home, and whatever is odd is
refused.

Written from the model, not from `references/`: parameters as vLLM fuses them, shares found by counting up, and a
rank's part cut off by splitting the tensor into equal pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.errors import NotSupported, StackRefused
from conformance.stacks.model_protocol import Coded, FromFile, ModelInfo, ModelRequest, Stored
from conformance.stacks.reference import head_step
from conformance.stacks.reference_pieces import Memory, Pieces

if TYPE_CHECKING:
    import torch

_BLOCK = 128
_DTYPES = {
    "BF16": "bfloat16",
    "F32": "float32",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "I8": "uint8",
    "U8": "uint8",
    "I64": "int64",
}


class Home(NamedTuple):
    """A tensor's place: the parameter, the row at which its part begins, and how the tensor is cut.

    `pieces` is a rank's stored units along `axis`, `room` what the parameter has for them.
    """

    parameter: str
    dtype: str
    shape: tuple[int, ...]
    row: int
    axis: int | None = None
    pieces: int = 0
    room: int = 0


def share(size: int, tp: int, step: int) -> int:
    """The smallest whole number of steps whose tp-fold holds the axis."""
    per_rank = step
    while per_rank * tp < size:
        per_rank += step
    return per_rank


class Layout:
    """Every tensor's home for one request. `step`: what the MoE kernel rounds a rank's width up to."""

    def __init__(self, request: ModelRequest, step: int):
        self.c: dict[str, Any] = request.geometry.config
        self.tp, self.step, self.experts = request.tp, step, request.experts
        self.homes: dict[str, Home] = {}
        self.parameters: dict[str, tuple[str, list[int]]] = {}
        if request.geometry.model_type == "gpt_oss":
            self._gpt_oss(request.layers)
            return
        if request.geometry.model_type != "deepseek_v4":
            raise NotSupported(f"the reference stack loads no whole model of type {request.geometry.model_type!r}")
        c = self.c
        ratios = c["compress_ratios"]
        heads = c["num_attention_heads"]
        self.heads = share(heads, self.tp, head_step(heads, c["o_groups"], c["moe_intermediate_size"], self.tp))
        if request.draft:
            for index in range(c.get("num_nextn_predict_layers", 0)):
                self._layer(f"mtp.{index}", ratios[c["num_hidden_layers"] + index], hashed=False)
                self._draft(f"mtp.{index}")
            return
        vocab = next(n for n in range(c["vocab_size"], 1 << 32) if n % 64 == 0 and n % self.tp == 0) // self.tp
        for name in ("embed.weight", "head.weight"):
            self._add(name, "BF16", (c["vocab_size"], c["hidden_size"]), axis=0, pieces=vocab)
        self._add("norm.weight", "BF16", (c["hidden_size"],))
        self._hyper("hc_head", c["hc_mult"], 1)
        for index in range(request.layers):
            self._layer(f"layers.{index}", ratios[index], hashed=index < c.get("num_hash_layers", 0))

    def _add(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        parameter: str = "",
        axis: int | None = None,
        pieces: int = 0,
        room: int = 0,
    ) -> None:
        """Give the tensor the next free rows of its parameter."""
        parameter = parameter or name
        size = list(shape)
        if axis is not None:
            size[axis] = room = room or pieces
        _, have = self.parameters.setdefault(parameter, (_DTYPES[dtype], [0, *size[1:]]))
        self.homes[name] = Home(parameter, dtype, shape, have[0], axis, pieces, room)
        have[0] += size[0]

    def _linear(
        self, name: str, rows: int, cols: int, parameter: str = "", axis: int | None = None, part: int = 0
    ) -> None:
        """An FP8 weight and its block scales; `part`: elements of one rank along `axis`."""
        blocks = (-(-rows // _BLOCK), -(-cols // _BLOCK))
        scale = "F8_E8M0" if self.c.get("expert_dtype", "fp4") == "fp4" else "F32"
        for end, dtype, shape, unit in (
            (".weight", "F8_E4M3", (rows, cols), 1),
            (".scale", scale, blocks, _BLOCK),
        ):
            home = parameter + end if parameter else ""
            self._add(name + end, dtype, shape, home, axis, -(-part // unit))

    def _hyper(self, name: str, rows: int, scales: int) -> None:
        c = self.c
        self._add(f"{name}_fn", "F32", (rows, c["hc_mult"] * c["hidden_size"]))
        self._add(f"{name}_base", "F32", (rows,))
        self._add(f"{name}_scale", "F32", (scales,))

    def _layer(self, layer: str, ratio: int, hashed: bool) -> None:
        c = self.c
        hidden = c["hidden_size"]
        for name in ("attn", "ffn"):
            self._add(f"{layer}.{name}_norm.weight", "BF16", (hidden,))
            self._hyper(f"{layer}.hc_{name}", (2 + c["hc_mult"]) * c["hc_mult"], 3)
        self._attention(f"{layer}.attn", ratio)
        self._add(f"{layer}.ffn.gate.weight", "BF16", (self.experts, hidden))
        if hashed:
            self._add(f"{layer}.ffn.gate.tid2eid", "I64", (c["vocab_size"], 1))
        else:
            self._add(f"{layer}.ffn.gate.bias", "F32", (self.experts,))
        self._experts(f"{layer}.ffn")

    def _attention(self, attn: str, ratio: int) -> None:
        c, hidden = self.c, self.c["hidden_size"]
        heads, dim, rank, groups = c["num_attention_heads"], c["head_dim"], c["q_lora_rank"], c["o_groups"]
        each = heads // groups
        if self.heads % each:
            raise StackRefused(f"{self.heads} heads a rank do not make whole groups of {each}")
        out = self.heads // each * c["o_lora_rank"]
        self._linear(f"{attn}.wq_a", rank, hidden, f"{attn}.fused_wqa_wkv")
        self._linear(f"{attn}.wkv", dim, hidden, f"{attn}.fused_wqa_wkv")
        self._add(f"{attn}.q_norm.weight", "BF16", (rank,))
        self._add(f"{attn}.kv_norm.weight", "BF16", (dim,))
        self._linear(f"{attn}.wq_b", heads * dim, rank, axis=0, part=self.heads * dim)
        self._linear(f"{attn}.wo_a", groups * c["o_lora_rank"], heads * dim // groups, axis=0, part=out)
        self._linear(f"{attn}.wo_b", hidden, groups * c["o_lora_rank"], axis=1, part=out)
        self._add(f"{attn}.attn_sink", "F32", (heads,), axis=0, pieces=self.heads)
        if ratio:
            self._compressor(f"{attn}.compressor", ratio, dim)
        if ratio == 4:
            index = c["index_head_dim"]
            self._linear(f"{attn}.indexer.wq_b", c["index_n_heads"] * index, rank)
            self._add(f"{attn}.indexer.weights_proj.weight", "BF16", (c["index_n_heads"], hidden))
            self._compressor(f"{attn}.indexer.compressor", ratio, index)

    def _compressor(self, name: str, ratio: int, dim: int) -> None:
        overlap = 2 if ratio == 4 else 1
        self._add(f"{name}.ape", "F32", (ratio, overlap * dim))
        for part in ("wkv", "wgate"):
            shape = (overlap * dim, self.c["hidden_size"])
            self._add(f"{name}.{part}.weight", "BF16", shape, f"{name}.fused_wkv_wgate.weight")
        self._add(f"{name}.norm.weight", "BF16", (dim,))

    def _experts(self, ffn: str) -> None:
        c, hidden, size = self.c, self.c["hidden_size"], self.c["moe_intermediate_size"]
        if shared := c.get("n_shared_experts", 0) * size:
            part = share(shared, self.tp, _BLOCK)
            for name in ("w1", "w3"):
                home = f"{ffn}.shared_experts.gate_up_proj"
                self._linear(f"{ffn}.shared_experts.{name}", shared, hidden, home, axis=0, part=part)
            self._linear(f"{ffn}.shared_experts.w2", hidden, shared, axis=1, part=part)
        part = share(size, self.tp, 32)
        width = share(part, 1, self.step)
        if c.get("expert_dtype", "fp4") != "fp4":
            raise NotSupported("the reference stack loads whole models with MXFP4 experts only (expert_dtype fp4)")
        for expert in range(self.experts):
            for name, home in (("w1", "w13"), ("w3", "w13"), ("w2", "w2")):
                rows, cols = (hidden, size) if name == "w2" else (size, hidden)
                axis = 1 if name == "w2" else 0
                for end, dtype, unit in ((".weight", "I8", 2), (".scale", "F8_E8M0", 32)):
                    along = unit if axis == 1 else 1
                    self._add(
                        f"{ffn}.experts.{expert}.{name}{end}",
                        dtype,
                        (rows, cols // unit),
                        f"{ffn}.experts.{home}{end}",
                        axis,
                        part // along,
                        width // along,
                    )

    def _gpt_oss(self, layers: int) -> None:
        """Experts' blocks are held whole here: how they are cut is asked of the routed experts' loader."""
        c, tp = self.c, self.tp
        hidden, dim = c["hidden_size"], c["head_dim"]
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        if heads % tp or kv % tp:
            raise StackRefused(f"{heads} query and {kv} key/value heads are not divisible by {tp}")
        vocab = next(n for n in range(c["vocab_size"], 1 << 32) if n % 64 == 0 and n % tp == 0) // tp
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            self._add(name, "BF16", (c["vocab_size"], hidden), axis=0, pieces=vocab)
        self._add("model.norm.weight", "BF16", (hidden,))
        part = share(c["intermediate_size"], tp, 32)
        for index in range(layers):
            layer = f"model.layers.{index}"
            attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            for norm in ("input", "post_attention"):
                self._add(f"{layer}.{norm}_layernorm.weight", "BF16", (hidden,))
            for name, size in (("q", heads * dim), ("k", kv * dim), ("v", kv * dim)):
                for end, shape in ((".weight", (size, hidden)), (".bias", (size,))):
                    self._add(f"{attn}.{name}_proj{end}", "BF16", shape, f"{attn}.qkv_proj{end}", 0, size // tp)
            self._add(f"{attn}.o_proj.weight", "BF16", (hidden, heads * dim), axis=1, pieces=heads * dim // tp)
            self._add(f"{attn}.o_proj.bias", "BF16", (hidden,))
            self._add(f"{attn}.sinks", "BF16", (heads,), axis=0, pieces=heads // tp)
            self._add(f"{mlp}.router.weight", "BF16", (self.experts, hidden))
            self._add(f"{mlp}.router.bias", "BF16", (self.experts,))
            up, down = (f"{mlp}.experts.{name}_proj_bias" for name in ("gate_up", "down"))
            wide = (self.experts, 2 * c["intermediate_size"])
            self._add(up, "BF16", wide, f"{mlp}.experts.w13_bias", 1, 2 * part, 2 * share(part, 1, self.step))
            for name, rows, cols in (
                ("gate_up", 2 * c["intermediate_size"], hidden),
                ("down", hidden, c["intermediate_size"]),
            ):
                for end, axes in (("blocks", (cols // 32, 16)), ("scales", (cols // 32,))):
                    self._add(f"{mlp}.experts.{name}_proj_{end}", "U8", (self.experts, rows, *axes))
            self._add(down, "BF16", (self.experts, hidden), f"{mlp}.experts.w2_bias", 1, hidden)  # one piece: rank 0's

    def _draft(self, layer: str) -> None:
        hidden = self.c["hidden_size"]
        for name in ("e_proj", "h_proj"):
            self._linear(f"{layer}.{name}", hidden, hidden)
        for name in ("enorm", "hnorm", "norm"):
            self._add(f"{layer}.{name}.weight", "BF16", (hidden,))
        self._hyper(f"{layer}.hc_head", self.c["hc_mult"], 1)


class ReferenceModelLoader:
    def __init__(self, intermediate_step: int):
        self._step = intermediate_step

    def open_model(self, request: ModelRequest) -> ReferenceModel:
        return ReferenceModel(request, self._step)


class ReferenceModel:
    def __init__(self, request: ModelRequest, step: int):
        import torch

        layout = Layout(request, step)
        self._homes, self._rank = layout.homes, request.rank
        stored = {n: Stored(dtype, tuple(shape)) for n, (dtype, shape) in layout.parameters.items()}
        self.info = ModelInfo(stored, "reference", {name: home.parameter for name, home in self._homes.items()})
        self._data = {n: Pieces(getattr(torch, s.dtype), s.shape, _rest(n)) for n, s in stored.items()}
        self._memory = Memory()

    def fill(self, value: int) -> None:
        for data in self._data.values():
            data.fill(value)

    def load(self, tensors: list[Coded]) -> None:
        self._load((one.name, one.shape, _tensor(one)) for one in tensors)

    def load_files(self, tensors: list[FromFile]) -> None:
        self._load((one.name, one.shape, _read(one)) for one in tensors)

    def _load(self, tensors: Iterable[tuple[str, tuple[int, ...], torch.Tensor]]) -> None:
        missing = dict.fromkeys(self._homes)
        for name, shape, tensor in tensors:
            home = self._homes.get(name)
            if home is None:
                raise StackRefused(f"unknown tensor {name}")
            if name not in missing:
                raise StackRefused(f"{name} comes twice")
            if shape != home.shape:
                raise StackRefused(f"{name} has shape {shape}; {home.shape} was due")
            del missing[name]
            self._place(home, tensor.view(self._data[home.parameter].dtype))
        if missing:
            raise StackRefused(f"missing from the checkpoint: {', '.join(list(missing)[:3])}")

    def _place(self, home: Home, tensor: torch.Tensor) -> None:
        """The rank's part. Of a tensor out of a file (that is, of any that no line of codes stands for) a copy."""
        height = tensor.shape[0]
        part: torch.Tensor | None = tensor
        if home.axis is not None:
            height = home.room if home.axis == 0 else height
            pieces = tensor.split(home.pieces, dim=home.axis)
            part = pieces[self._rank] if self._rank < len(pieces) else None
        if part is not None and 0 not in part.stride():
            part = part.clone()
        self._data[home.parameter].write(home.row, home.row + height, part)

    def read(self, parameter: str, first: int, last: int) -> torch.Tensor:
        return self._data[parameter].read(first, last, self._memory)

    def close(self) -> None:
        self._data.clear()


def _rest(parameter: str) -> int | float:
    """What a parameter holds where no tensor reaches."""
    return -math.inf if parameter.endswith("attn_sink") else 0


def _tensor(one: Coded) -> torch.Tensor:
    import torch

    kind = getattr(torch, _DTYPES[one.dtype])
    line = torch.frombuffer(bytearray(one.codes), dtype=torch.uint8).view(kind)
    return line.view([-1 if axis == one.dim else 1 for axis in range(len(one.shape))]).expand(one.shape)


def _read(one: FromFile) -> torch.Tensor:
    import numpy as np
    import torch

    kind = getattr(torch, _DTYPES[one.dtype])
    count = math.prod(one.full) * kind.itemsize
    with Path(one.path).open("rb") as file:
        file.seek(one.offset)
        data = np.frombuffer(bytearray(file.read(count)), dtype=np.uint8)
    return torch.from_numpy(data).view(kind).view(one.full)[tuple(slice(length) for length in one.shape)]
