// The mini-checkout's prefill kernel: what the audit reads of one.
#pragma once
static constexpr int PF_D_CKV = 512;
static constexpr int PF_BM = 64;
static constexpr int PF_SMEM_SIZE = PF_BM * PF_D_CKV * sizeof(bf16) + 2 * PF_BM * sizeof(float);

namespace kernel {
__device__ __noinline__ void
    mla_prefill_sm100_task_impl(bf16 const *Q_nope, bf16 const *Q_pe, bf16 const *CKV, bf16 const *KPE, bf16 *O,
                                int const S, int const Q_LEN, int const H, float const scale, int const head, int const q_block) {
  // Shorter queries are decode's.
  if (Q_LEN < 9) {
    return;
  }
  if (q_block * PF_BM >= Q_LEN) {
    return;
  }
}
} // namespace kernel
