"""A dequantising grouped GEMM for SM90 in CuTe DSL: BF16 activations, E2M1 weights with a scale for each block along K.

    out[o_e + i, n] = bf16( global_e * sum_k a[o_e + i, k] * code[e, n, k] * scale[e, n, k // block] )

Codes and scales become BF16 on their way to shared memory, without a rounding: a product of E2M1 (2 significant bits)
and E4M3 (4) has at most 6, one with a power of two 2, and BF16 holds 8. `mma.sync` m16n8k16 multiplies them and adds up
in FP32; the global scale meets the FP32 sums, which are rounded once.

A thread block has one expert and TILE columns, and goes through that expert's rows: no size is known at compile time,
no group is too small, and an empty one costs nothing. It is written to be read, not to be fast.
"""

from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Uint8, Uint32
from cutlass.cute.nvgpu import warp
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator

TILE = 64  # rows and columns of the result, and elements along K, that a thread block has in hand
WARPS = (2, 2, 1)  # along M, N and K
THREADS = 32 * 2 * 2
PAD = 8  # elements between rows of a tile in shared memory: rows start in different banks

#: Twice the magnitudes of E2M1, a nibble each, code 0 in the lowest: 0, 1, 2, 3, 4, 6, 8, 12.
TWICE_E2M1 = 0xC8643210


def e2m1(code: Uint32) -> Float32:
    """The value of a code of 4 bits: sign, two bits of exponent, one of mantissa."""
    twice = Int32((Uint32(TWICE_E2M1) >> (Uint32(4) * (code & 7))) & 15)
    return Float32(twice * (1 - 2 * Int32(code >> 3))) * Float32(0.5)


def e4m3(code: Uint32) -> Float32:
    """An E4M3 scale, in units of its smallest, 2^-9. The sign is not looked at: a scale has none. 0x7F is NaN."""
    magnitude = code & 0x7F
    exponent, mantissa = magnitude >> 3, magnitude & 7
    normal = cutlass.min(exponent, Uint32(1))
    value = Float32(Int32((mantissa + 8 * normal) << (exponent - normal))) * Float32(2.0**-9)
    nan = ((magnitude + 1) >> 7) * Uint32(0x7FC00000)
    return (value.bitcast(Uint32) | nan).bitcast(Float32)


def e8m0(code: Uint32) -> Float32:
    """2^(code - 127), which is FP32's own exponent; code 0 is FP32's subnormal 2^-127, 0xFF is NaN."""
    nan = ((code + 1) >> 8) * Uint32(0x00400000)
    return (cutlass.max(code << 23, Uint32(0x00400000)) | nan).bitcast(Float32)


class GroupedGemm:
    """One format. Shapes, strides and the number of experts are arguments of each launch."""

    BLOCK: ClassVar = {"nvfp4": 16, "mxfp4": 32}
    SCALE: ClassVar = {"nvfp4": e4m3, "mxfp4": e8m0}

    def __init__(self, weights: str):
        self.block, self.scale = self.BLOCK[weights], self.SCALE[weights]

    # Where kernels of this kind go wrong, each on its own.

    def rows(self, offsets: cute.Tensor, sizes: cute.Tensor, expert: Int32) -> tuple[Int32, Int32]:
        """First and last row (exclusive) of an expert's group."""
        return offsets[expert], offsets[expert] + sizes[expert]

    def weights_of(self, expert: Int32) -> Int32:
        return expert

    def nibbles(self, pair: Uint32) -> tuple[Uint32, Uint32]:
        """The codes of an even element and of the one after it."""
        return pair & 15, pair >> 4

    def scale_of(self, scales: cute.Tensor, expert: Int32, n: Int32, k: Int32) -> Uint32:
        return Uint32(scales[expert, n, k // self.block])

    def dequantised(self, code: Uint32, scale: Uint32) -> BFloat16:
        return BFloat16(e2m1(code) * self.scale(scale))

    def finished(self, total: Float32, global_scale: Float32) -> BFloat16:
        return BFloat16(total * global_scale)

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,  # (T, K) bfloat16
        codes: cute.Tensor,  # (E, N, K / 2) uint8: the even element is in the low nibble
        scales: cute.Tensor,  # (E, N, K / block) uint8
        global_scales: cute.Tensor,  # (E,) float32
        offsets: cute.Tensor,  # (E,) int32: the first row of each group
        sizes: cute.Tensor,  # (E,) int32: its rows
        out: cute.Tensor,  # (T, N) bfloat16
        stream,
    ):
        op = warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16))
        tiled = cute.make_tiled_mma(op, cute.make_layout(WARPS))
        grid = (cute.ceil_div(out.shape[1], TILE), codes.shape[0], 1)
        self.kernel(tiled, a, codes, scales, global_scales, offsets, sizes, out).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        tiled: cute.TiledMma,
        a: cute.Tensor,
        codes: cute.Tensor,
        scales: cute.Tensor,
        global_scales: cute.Tensor,
        offsets: cute.Tensor,
        sizes: cute.Tensor,
        out: cute.Tensor,
    ):
        thread, _, _ = cute.arch.thread_idx()
        column_tile, expert, _ = cute.arch.block_idx()
        column = column_tile * TILE
        first, last = self.rows(offsets, sizes, expert)
        source = self.weights_of(expert)

        smem = SmemAllocator()
        layout = cute.make_layout((TILE, TILE), stride=(TILE + PAD, 1))
        a_tile = smem.allocate_tensor(BFloat16, layout, 16)
        b_tile = smem.allocate_tensor(BFloat16, layout, 16)

        mine = tiled.get_slice(thread)
        a_mine, b_mine = mine.partition_A(a_tile), mine.partition_B(b_tile)
        a_fragment, b_fragment = tiled.make_fragment_A(a_mine), tiled.make_fragment_B(b_mine)
        sums = cute.make_rmem_tensor(tiled.partition_shape_C((TILE, TILE)), Float32)
        places = mine.partition_C(cute.make_identity_tensor((TILE, TILE)))

        for row in cutlass.range(first, last, TILE):
            sums.fill(0.0)
            for k in cutlass.range(0, a.shape[1], TILE):
                self.load_activations(a, a_tile, thread, row, last, k)
                self.load_weights(codes, scales, b_tile, thread, source, column, k)
                cute.arch.sync_threads()
                cute.autovec_copy(a_mine, a_fragment)
                cute.autovec_copy(b_mine, b_fragment)
                cute.gemm(tiled, sums, a_fragment, b_fragment, sums)
                cute.arch.sync_threads()
            for i in cutlass.range_constexpr(cute.size(sums)):
                m, n = places[i]
                if row + m < last and column + n < out.shape[1]:
                    out[row + m, column + n] = self.finished(sums[i], global_scales[source])

    @cute.jit
    def load_activations(self, a, a_tile, thread, row, last, k):
        """Rows [row, row + TILE) of this group and elements [k, k + TILE); zero beyond either end."""
        for i in cutlass.range_constexpr(TILE * TILE // THREADS):
            m, j = (i * THREADS + thread) // TILE, thread % TILE
            a_tile[m, j] = BFloat16(0.0)
            if row + m < last and k + j < a.shape[1]:
                a_tile[m, j] = a[row + m, k + j]

    @cute.jit
    def load_weights(self, codes, scales, b_tile, thread, expert, column, k):
        """Columns [column, column + TILE) and elements [k, k + TILE), dequantised; zero beyond either end."""
        for i in cutlass.range_constexpr(TILE * TILE // 2 // THREADS):
            n, j = (i * THREADS + thread) // (TILE // 2), 2 * (thread % (TILE // 2))
            b_tile[n, j] = BFloat16(0.0)
            b_tile[n, j + 1] = BFloat16(0.0)
            if column + n < codes.shape[1] and k + j < 2 * codes.shape[2]:
                even, odd = self.nibbles(Uint32(codes[expert, column + n, (k + j) // 2]))
                scale = self.scale_of(scales, expert, column + n, k + j)
                b_tile[n, j] = self.dequantised(even, scale)
                b_tile[n, j + 1] = self.dequantised(odd, scale)


def compiled(gemm: GroupedGemm):
    """The kernel as a function of torch tensors, for any shape and stride; the last axis of each tensor is contiguous.

    Needs no GPU: tensors are stand-ins with symbolic shapes, and CUTE_DSL_ARCH names the target.
    """
    tokens, depth, columns, experts = (cute.sym_int() for _ in range(4))
    half, blocks = cute.sym_int(), cute.sym_int()
    far = cute.sym_int64  # an expert's weights may lie beyond 2^31 bytes
    vector = {"shape": (experts,), "stride": (1,)}
    arguments = (
        make_fake_tensor(BFloat16, (tokens, depth), (far(), 1)),
        make_fake_tensor(Uint8, (experts, columns, half), (far(), far(), 1)),
        make_fake_tensor(Uint8, (experts, columns, blocks), (far(), far(), 1)),
        make_fake_tensor(Float32, **vector),
        make_fake_tensor(Int32, **vector),
        make_fake_tensor(Int32, **vector),
        make_fake_tensor(BFloat16, (tokens, columns), (far(), 1)),
    )
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(gemm, *arguments, stream, options="--enable-tvm-ffi")
