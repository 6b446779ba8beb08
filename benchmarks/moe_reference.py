"""Speed and memory of the MoE reference, beside decoding every expert first, as other projects' tests do.

    python benchmarks/moe_reference.py            64 experts against the peer, then 256 experts alone

Each part runs in a process of its own, so that peak memory is its own. Weights are made before the clock starts for
both; M tokens are routed to 6 experts each. The peer decodes every expert, then loops over experts, in FP32 too; it
decodes as those tests do: nibbles apart, a table, a product with exp2 of the scales. Both have one thread: a block fits
one core's cache, and threads that share it mostly wait for each other.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from conformance import geometry
from references import moe, mxfp4

MODEL = geometry.load("deepseek-v4-flash")
H, I = MODEL.hidden_size, MODEL.intermediate  # noqa: E741
PEER_EXPERTS, PEER_TOKENS = 64, 16
LIMIT = 10.0


def packed(expert: int, start: int, stop: int) -> moe.Packed:
    """One expert's bytes out of a pool: what they say does not matter here, only how many there are."""
    rows = slice(start, stop)
    return moe.Packed(
        CODES[expert % len(CODES), rows],
        SCALES[rows],
        CODES[(expert + 1) % len(CODES), rows],
        SCALES[rows],
        CODES_T[expert % len(CODES), :, start // 2 : stop // 2],
        SCALES_T[:, start // 32 : stop // 32],
    )


def tokens(m: int, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randperm(experts, generator=rng)[: MODEL.top_k] for _ in range(m)])
    return torch.randn(m, H, generator=rng), ids, torch.rand(m, MODEL.top_k, generator=rng)


def ours(m: int, experts: int) -> torch.Tensor:
    x, ids, weights = tokens(m, experts)
    return moe.moe(x, ids, weights, packed, I, LIMIT, dtype=torch.float32)


def decoded_as_tests_do(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(mxfp4.E2M1)
    values = table[torch.stack((codes & 0xF, codes >> 4), -1).flatten(-2).long()]
    return (values.unflatten(-1, (-1, 32)) * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(-2)


def peer(m: int, experts: int) -> torch.Tensor:
    """Decode everything, then loop over the experts."""
    x, ids, weights = tokens(m, experts)
    w1, w3, w2 = torch.empty(experts, I, H), torch.empty(experts, I, H), torch.empty(experts, H, I)
    for e in range(experts):
        p = packed(e, 0, I)
        w1[e] = decoded_as_tests_do(p.w1, p.w1_scale)
        w3[e] = decoded_as_tests_do(p.w3, p.w3_scale)
        w2[e] = decoded_as_tests_do(p.w2, p.w2_scale)
    y = torch.zeros_like(x)
    for e in range(experts):
        chosen, slot = torch.nonzero(ids == e, as_tuple=True)
        gate, up = (x[chosen] @ w1[e].T).clamp(max=LIMIT), (x[chosen] @ w3[e].T).clamp(-LIMIT, LIMIT)
        y.index_add_(0, chosen, (torch.nn.functional.silu(gate) * up) @ w2[e].T * weights[chosen, slot, None])
    return y


def measured(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--one", *arguments], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "TOKENS", "EXPERTS"), help="run one part, print JSON")
    one = parser.parse_args().one
    if one:
        run, m, experts = {"ours": ours, "peer": peer}[one[0]], int(one[1]), int(one[2])
        torch.set_num_threads(1)
        start, cpu = time.perf_counter(), time.process_time()
        total = float(run(m, experts).double().abs().sum())
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({"seconds": seconds, "cpu": cpu, "GiB": memory, "checksum": total}))
        return 0
    print(f"one thread; hidden {H}, intermediate {I}, top-k {MODEL.top_k}, FP32")
    mine, theirs = (measured(what, str(PEER_TOKENS), str(PEER_EXPERTS)) for what in ("ours", "peer"))
    large = measured("ours", "64", "256")
    for words, found in (
        (f"reference, M={PEER_TOKENS}, {PEER_EXPERTS} experts", mine),
        (f"decode everything, M={PEER_TOKENS}, {PEER_EXPERTS} experts", theirs),
        ("reference, M=64, 256 experts", large),
    ):
        print(f"{words:42}{found['seconds']:8.2f} s {found['cpu']:8.2f} s CPU {found['GiB']:6.2f} GiB")
    assert abs(mine["checksum"] / theirs["checksum"] - 1) < 1e-5, "the two disagree"
    print(f"ratio {theirs['seconds'] / mine['seconds']:.1f} in time, {theirs['GiB'] / mine['GiB']:.1f} in memory")
    return 0


POOL = 8
RNG = torch.Generator().manual_seed(1)
CODES = torch.randint(0, 256, (POOL, I, H // 2), dtype=torch.uint8, generator=RNG)
CODES_T = torch.randint(0, 256, (POOL, H, I // 2), dtype=torch.uint8, generator=RNG)
SCALES = torch.randint(119, 123, (I, H // 32), dtype=torch.uint8, generator=RNG)
SCALES_T = torch.randint(119, 123, (H, I // 32), dtype=torch.uint8, generator=RNG)

if __name__ == "__main__":
    sys.exit(main())
