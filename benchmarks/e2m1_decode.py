"""How fast E2M1 codes are decoded, on one core, beside others in the same run.

    python benchmarks/e2m1_decode.py [--peers PYTHON]     an interpreter with ml_dtypes and torchao

Elements a second, in Mi, best of three; the quant layer needs 64 of its reference. Ratios are against it.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable

import torch

from conformance.stacks import reference_quant
from references import codes, mxfp4

_BYTES = 4 << 20
_PEERS = """
import time, numpy
packed = numpy.random.default_rng(0).integers(0, 256, {n}, dtype=numpy.uint8)
def best(call):
    times = []
    for _ in range(3):
        start = time.perf_counter(); call(); times.append(time.perf_counter() - start)
    return 2 * len(packed) / min(times) / 2**20
import ml_dtypes
def plain():
    unpacked = numpy.empty(2 * len(packed), numpy.uint8)
    unpacked[0::2], unpacked[1::2] = packed & 15, packed >> 4
    return unpacked.view(ml_dtypes.float4_e2m1fn).astype(numpy.float32)
print("ml_dtypes (NumPy)", best(plain))
import torch
torch.set_num_threads(1)
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
tensor = torch.from_numpy(packed)
print("torchao", best(lambda: f4_unpacked_to_f32(unpack_uint4(tensor))))
"""


def _best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 2 * _BYTES / min(times) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="interpreter with ml_dtypes and torchao")
    torch.set_num_threads(1)
    packed = torch.randint(0, 256, (1, _BYTES), dtype=torch.uint8)
    scratch = mxfp4.Scratch()
    table = torch.tensor(mxfp4.E2M1, dtype=torch.float16)
    rates = {
        "references.mxfp4, packed to float16": _best(lambda: mxfp4.decode_codes(packed, scratch)),
        "reference stack, float32": _best(lambda: reference_quant.decode_e2m1(reference_quant.unpack(packed))),
        "references.codes, FP64": _best(lambda: codes.decode_e2m1(codes.unpack(packed))),
        "torch: one look-up a code": _best(lambda: table[codes.unpack(packed).int()]),
    }
    if peers := parser.parse_args().peers:
        told = subprocess.run([peers, "-c", _PEERS.format(n=_BYTES)], capture_output=True, text=True, check=True)
        rates |= {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in told.stdout.splitlines()}
    own = next(iter(rates.values()))
    for name, rate in rates.items():
        print(f"{name:<38} {rate:8.1f} Mi elements/s   {rate / own:5.2f}")


if __name__ == "__main__":
    main()
