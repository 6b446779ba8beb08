// The mini-checkout's KV gathers.
#pragma once
namespace kernel {
__device__ void mla_kv_gather_impl(bf16 const *c_latent, bf16 const *k_pe, void *cache, bf16 *out) {}
__device__ void mla_kv_gather_split_impl(bf16 const *c_latent, bf16 const *k_pe, void *cache, bf16 *ckv, bf16 *kpe) {}
} // namespace kernel
