"""Makes small DeepSeek-V4 checkpoints as real files: names, dtypes and layout as published, the same bytes everywhere.

    python -m references.make_checkpoint FOLDER --seed 1 --files 3 --set '{"num_hidden_layers": 3}'

Every stored element is looked up by one byte of a hash of (seed, tensor, row, column), so that bytes depend neither on
the machine nor on which other tensors there are. Weights are near normal with a spread of 1 / sqrt(inputs), block
scales differ from block to block: a model that answers, and one in which no two places are alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from hashlib import sha256
from math import log2, prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from references import checkpoint, seeded

#: 6 heads in 6 groups, 768 channels, 768 rows: a stack without virtual TP shards it at TP1, TP2 and TP3.
EVEN: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "torch_dtype": "bfloat16",
    "vocab_size": 768,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "compress_ratios": [0, 4, 128, 4, 0],
    "num_hash_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 256,
    "o_lora_rank": 128,
    "o_groups": 6,
    "sliding_window": 128,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 512,
    "n_routed_experts": 12,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 768,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "swiglu_limit": 10.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "max_position_embeddings": 4096,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "expert_dtype": "fp4",
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}
#: Nothing divides by 3: heads, groups, routed and shared channels and vocabulary are all padded under virtual TP.
UNEVEN: dict[str, Any] = EVEN | {
    "vocab_size": 640,
    "num_attention_heads": 16,
    "o_groups": 2,
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 128, 0],
    "num_hash_layers": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}
#: The gate of layer e2e: every layer routed by token id, since a learned router's near-ties make long tails, and a
#: SwiGLU limit that bites (activations here stay under 10). Trained, as it were, on 4,096 positions: a stack's table of
#: rotations has 16 times that, and a gibibyte of them in all ranks at the published 65,536.
E2E: dict[str, Any] = EVEN | {
    "compress_ratios": [0, 4, 128, 4],
    "num_hash_layers": 4,
    "num_nextn_predict_layers": 0,
    "rope_scaling": EVEN["rope_scaling"] | {"original_max_position_embeddings": 4096},
    "swiglu_limit": 1.0,
}
#: Beside it, with looser limits: half of its layers routed by learned scores.
LEARNED: dict[str, Any] = E2E | {"num_hash_layers": 2}
#: Two layers and a draft layer, written by `write(..., drafting=True)`: a draft that is often right.
DRAFTING: dict[str, Any] = E2E | {
    "num_hidden_layers": 2,
    "compress_ratios": [4, 0, 0],
    "num_hash_layers": 1,
    "num_nextn_predict_layers": 1,
}
#: What GPU kernels take: vLLM 0.33's router 16 experts and not 12, DeepGEMM's indexer 64 heads; widths of 1,024.
_ON_GPUS: dict[str, Any] = {
    "hidden_size": 1024,
    "num_attention_heads": 12,
    "q_lora_rank": 512,
    "o_lora_rank": 256,
    "index_n_heads": 64,
    "n_routed_experts": 16,
}
PRESETS = {
    "even": EVEN,
    "uneven": UNEVEN,
    "e2e": E2E,
    "learned": LEARNED,
    "drafting": DRAFTING,
    "e2e-gpu": E2E | _ON_GPUS,
    "drafting-gpu": DRAFTING | _ON_GPUS,
}

_TORCH = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}
_MEAN = {"norm.weight": 1.0, "_scale": 1.0}
#: Spread of what is no projection (of a projection it is 1 / sqrt(inputs)); the first ending that fits counts.
_SPREAD = {
    "hc_head_base": 0.3,
    "hc_attn_base": 0.3,
    "hc_ffn_base": 0.3,
    "_scale": 0.1,
    "ape": 0.3,
    "gate.bias": 0.1,
    "attn_sink": 1.0,
    "norm.weight": 0.1,
    "embed.weight": 1.0,
}
_HEAD_GAIN = 4.0
_EXPONENT = 127  # of E8M0: the byte that means 1
_E2M1_SPREAD = 2.93  # root mean square of the 16 codes, all equally likely


def write(folder: Path, config: dict[str, Any] = EVEN, seed: int = 0, files: int = 1, drafting: bool = False) -> None:
    """Write config.json, the index and `files` .safetensors files of about equal size into a new or empty folder.

    `drafting`: with a draft layer that is near the target (see `drafted`). Peak memory is one file's bytes. Raises
    ValueError for a config without such a layout, FileExistsError.
    """
    due = checkpoint.tensors(config)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; a new or empty folder was due")
    parts = _parts(due, files)
    weight_map: dict[str, str] = {}
    total = 0
    for number, part in enumerate(parts, 1):
        file = "model.safetensors" if files == 1 else f"model-{number:05}-of-{len(parts):05}.safetensors"
        made = {name: (drafted if drafting else tensor)(name, due[name], config, seed) for name in part}
        save_file(made, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
        total += sum(t.numel() * t.element_size() for t in made.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def tensor(name: str, due: checkpoint.Tensor, config: dict[str, Any], seed: int) -> torch.Tensor:
    """One tensor of the checkpoint, alone: the bytes that `write` puts into its file."""
    if due.dtype == "I64":
        return _routes(name, due.shape, config["n_routed_experts"], seed)
    rows, cols = (1, *due.shape)[-2:]
    codes = seeded.block(seed, _number(name), 0, (0, rows), (0, cols)).reshape(due.shape)
    if due.dtype == "I8":
        return codes.contiguous().view(torch.int8)
    if name.endswith(".scale"):
        packed = ".experts." in name and config.get("expert_dtype", "fp4") == "fp4"
        exponent = round(_level(packed, due.shape)) + codes.int() % 2  # two neighbouring powers
        if due.dtype == "F32":
            return torch.exp2(exponent.float())
        return (exponent + _EXPONENT).to(torch.uint8).view(torch.float8_e8m0fnu)
    if due.dtype == "F8_E4M3":
        return _normal(codes, 0.0, 1.0).to(torch.float8_e4m3fn)
    mean = next((value for ending, value in _MEAN.items() if name.endswith(ending)), 0.0)
    spread = next((value for ending, value in _SPREAD.items() if name.endswith(ending)), due.shape[-1] ** -0.5)
    if name == "head.weight":
        spread *= _HEAD_GAIN
    return _normal(codes, mean, spread).to(_TORCH[due.dtype])


def drafted(name: str, due: checkpoint.Tensor, config: dict[str, Any], seed: int) -> torch.Tensor:
    """As `tensor`, of a model whose draft layer is the last layer once more, with the next token's embedding as its
    input, and whose earlier layers, and the target's streams in the draft, count for a sixteenth. A random draft would
    be right as often as a guess, and a wrong one no less often."""
    last = config["num_hidden_layers"] - 1
    part = name.removeprefix("mtp.0.")
    if part == name:
        made = tensor(name, due, config, seed)
        early = name.startswith("layers.") and not name.startswith(f"layers.{last}.")
        return _quieter(made) if early and name.endswith(("wo_b.scale", "w2.scale")) else made
    if part in ("enorm.weight", "hnorm.weight"):
        return torch.ones(due.shape, dtype=_TORCH[due.dtype])
    if part == "e_proj.weight":
        return torch.eye(due.shape[0]).to(torch.float8_e4m3fn)
    if part == "e_proj.scale":
        return torch.full(due.shape, _EXPONENT, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    if part.startswith("h_proj"):
        made = tensor(name, due, config, seed)
        return _quieter(made) if part.endswith(".scale") else made
    own = part in ("norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale")
    return tensor(part if own else f"layers.{last}.{part}", due, config, seed)


def _quieter(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 scales, four powers of two less."""
    return (scale.view(torch.uint8) - 4).view(scale.dtype)


def _level(packed: bool, shape: tuple[int, ...]) -> float:
    """log2 of the scale that gives a projection's weights a spread of 1 / sqrt(inputs), half a step low."""
    inputs = shape[-1] * (checkpoint.GROUP if packed else checkpoint.BLOCK)
    return -0.5 * log2(inputs) - (log2(_E2M1_SPREAD) if packed else 0.0) - 0.5


def _number(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:7], "little")


def _normal(codes: torch.Tensor, mean: float, spread: float) -> torch.Tensor:
    """Each byte b as the normal distribution's quantile (b + 1/2) / 256, in float32."""
    level = (torch.arange(256, dtype=torch.float64) + 0.5) / 256
    table = (mean + spread * torch.special.ndtri(level)).float()
    return table[codes.int()]


def _routes(name: str, shape: tuple[int, ...], experts: int, seed: int) -> torch.Tensor:
    """(vocabulary, k) different experts for each token, int64."""
    words = seeded.block(seed, _number(name), 0, (0, shape[0]), (0, 8 * experts)).contiguous().view(torch.int64)
    return words.argsort(dim=1, stable=True)[:, : shape[1]].contiguous()


def _parts(due: dict[str, checkpoint.Tensor], files: int) -> list[list[str]]:
    """The names in order, cut where a file has its share of the bytes; no part is empty."""
    sizes = {name: prod(t.shape) * {"F32": 4, "I64": 8, "BF16": 2}.get(t.dtype, 1) for name, t in due.items()}
    if not 1 <= files <= len(due):
        raise ValueError(f"files is {files}; 1 to {len(due)} was due")
    parts: list[list[str]] = [[] for _ in range(files)]
    total, before = sum(sizes.values()), 0
    for name, size in sizes.items():
        parts[min(files - 1, before * files // total)].append(name)
        before += size
    return [part for part in parts if part]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a small DeepSeek-V4 checkpoint.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preset", choices=PRESETS, default="even")
    parser.add_argument("--set", default="{}", help="JSON object: keys of config.json to change.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)  # small matrices: more threads take minutes where one takes seconds
    try:
        config = PRESETS[given.preset] | json.loads(given.set)
        write(given.folder, config, given.seed, given.files, drafting=given.preset.startswith("drafting"))
    except (OSError, ValueError) as error:
        sys.exit(f"make_checkpoint: {error}")


if __name__ == "__main__":
    main()
