"""Planted faults: one edit of the mini-checkout each, with the rule that must call it drift."""

from __future__ import annotations

from typing import NamedTuple

from conformance.drift.context import BUILDER, CONVERT, DEMO, MULTIGPU, README, SCHEDULER, WRAPPERS
from conformance.drift.locate.tasks import GRAPH, REGISTER, RUNTIME, RUNTIME_HEADER

_KERNELS = "include/mirage/persistent_kernel/tasks/blackwell"


class Mutation(NamedTuple):
    id: str
    rule: str
    path: str
    old: str
    new: str
    #: Probes that the rule needs; fewer are faster.
    probes: str = ""
    #: How many occurrences are edited; -1 for all.
    count: int = -1


M = Mutation
_PREFILL_TP8 = """
    def mla_prefill_tp8_layer(self, q_nope, q_pe, ckv, kpe, output, mla_params, grid_dim, block_dim):
        tb_graph = TBGraph(CyTBGraph(grid_dim, block_dim, 1, 64))
        tb_graph.new_input(q_nope, (-1, -1, -1), -1, True)
        tb_graph.new_input(q_pe, (-1, -1, -1), -1, True)
        tb_graph.new_input(ckv, (-1, -1, -1), -1, True)
        tb_graph.new_input(kpe, (-1, -1, -1), -1, True)
        tb_graph.new_input(output, (-1, -1, -1), -1, True)
        self.kn_graph.customized([q_nope, q_pe, ckv, kpe, output], tb_graph)
        self.kn_graph.register_task(tb_graph, "mla_prefill_sm100", [])

    def rotary_layer("""
_SECOND_PREFILL = """if prefix == "":
            self.mpk.mla_prefill_layer(
                q_nope=self.q_nope,
                grid_dim=(self.heads, (q_len + 63) // 64, 1),
            )
        self.mpk.mla_kv_gather_layer("""
_VOCABULARY = """part = VOCAB // self.world_size
        self.part = self.weights["lm_head.weight"][:part].contiguous()
        self.head = self.mpk.attach_input(torch_tensor=self.part, name="lm_head")"""
_MERGE_GATE = "void *out, int Q_LEN, int block_x, int block_y) {\n  if (Q_LEN > 8)"
_WINDOW = "contiguous_kv_ptr_ = static_cast<bf16*>(task_desc->input_ptrs[3]) + bi_ * MPK_MAX_SEQ_LENGTH"
_TAIL_FILL = """  for (int slot = active; slot <= MPK_MAX_NUM_BATCHED_REQUESTS; slot++) {
    config.qo_indptr_buffer[slot] = tokens;
    config.paged_kv_indptr_buffer[slot] = pages;
  }
"""
_BUILD_INPUT = """        self.mpk.mtp_build_embed_input_layer(
            output_tokens=self.next_token, mtp_input_tokens=first, grid_dim=(1, 1, 1), block_dim=BLOCK
        )
"""

WEIGHTS = [
    M("value-slice", "W05", DEMO, "by_head[:, nope_rows:, :]", "by_head[:, :v_dim, :]"),
    M("value-slice-by-numbers", "W05", DEMO, "W_UV = by_head[:, nope_rows:, :]",
      "values = by_head[:, :v_dim, :]\n        W_UV_ = values\n        W_UV = W_UV_", "weights"),
    M("draft-layer-not-absorbed", "W04", DEMO, "    if args.mtp > 0:\n        absorb_layers.append(num_layers)\n", ""),
    M("nope-and-rope-swapped", "W05", CONVERT, "torch.cat([absorbed, per_head[:, nope:]], dim=1)",
      "torch.cat([per_head[:, nope:], absorbed], dim=1)", "weights"),
    M("keys-from-values", "W05", CONVERT, '[:, :nope]\n', '[:, nope : 2 * nope]\n', "weights"),
    M("o-proj-by-rows", "W06", DEMO, r'(r"self_attn\.o_proj\.weight", 1)', r'(r"self_attn\.o_proj\.weight", 0)'),
    M("q-a-sharded", "W06", DEMO, r'(r"self_attn\.q_a_proj\.weight", None)', r'(r"self_attn\.q_a_proj\.weight", 0)'),
    M("shards-overlap", "W06", CONVERT, "rank * width, width", "0, width", "weights"),
    M("w13-cut-whole", "W09", DEMO, 'if "experts.w13.weight" in key:', "if False:"),
    M("w13-halves-swapped", "W09", DEMO, "gate, up = torch.chunk", "up, gate = torch.chunk", "weights"),
    M("split-form-missing", "W01", DEMO, 'state_dict[f"{attn}q_b_pe.weight"] =', "unused ="),
    M("nope-rows-unabsorbed", "W02", DEMO, "per_head[:, :kv_lora_rank].reshape(heads * kv_lora_rank, -1)",
      "per_head[:, :128].reshape(heads * 128, -1)", "weights"),
    M("fused-without-rope", "W03", DEMO, '"{attn}q_b_proj.weight"] = absorbed\n',
      '"{attn}q_b_proj.weight"] = per_head[:, :kv_lora_rank].flatten(0, 1)\n'.replace('"{attn}', '"{attn}'), "weights"),
    M("builder-rules-disagree", "W07", BUILDER, "BLOCK = (128, 1, 1)",
      'BLOCK = (128, 1, 1)\nSHARD_RULES = [(r"o_proj", 0), (r"down_proj", 1)]'),
    M("converter-forgets-draft", "W08", CONVERT, 'params["num_layers"] + params["mtp_layers"]', 'params["num_layers"]'),
    M("converter-shards-q-a", "W08", CONVERT, r'(r"self_attn\.q_a_proj\.weight", None)',
      r'(r"self_attn\.q_a_proj\.weight", 0)'),
    M("converter-folds-nothing", "W08", CONVERT, 'weights[f"{attn}o_proj.weight"] =', "folded ="),
]  # fmt: skip
BUILDING = [
    M("threshold", "B01", BUILDER, "mbt > 8", "mbt >= 32"),
    M("draft-prefill-off", "B02", BUILDER, "self._attached = {}", "use_mtp_prefill_attention = False"),
    M("direct-at-tp8", "B03", BUILDER, "self._attached = {}",
      "self._attached = {}\n        self._direct_paged_decode_kv = self.world_size in (2, 4, 8)"),
    M("gather-elsewhere", "B04", BUILDER, "contiguous_kv=self.contiguous_kv,", "contiguous_kv=self.attn_out,", "trace"),
    M("draft-unabsorbed", "B05", BUILDER, "self.mpk.mla_prefill_layer(",
      "self.mpk.mla_prefill_tp8_layer(", "trace"),
    M("no-prefill", "B06", BUILDER, "if self._use_prefill:", "if self._use_prefill and not prefix:", "trace"),
    M("merge-of-one", "B07", BUILDER, "if split:", "if True:", "trace"),
    M("merge-missing", "B07", BUILDER, "self.mpk.mla_mtp_decode_tp2_reduce_layer(", "(lambda *_: None)(", "trace"),
    M("moe-not-reduced", "B08", BUILDER, "if self.world_size > 1:",
      'if self.world_size > 1 and not name.endswith("moe"):', "trace"),
    M("attention-not-reduced", "B08", BUILDER, "if self.world_size > 1:",
      'if self.world_size > 1 and not name.endswith("attn_o"):', "trace"),
    M("reduce-lost", "B08", BUILDER, "self.mpk.allreduce_layer(", "(lambda **_: None)(", "trace"),
    M("residual-first", "B08", BUILDER,
      'self._linear(self.attn_out, f"{attn}o_proj.weight", projected)',
      'self.mpk.linear_with_residual_layer(self.attn_out, self._weight(f"{attn}o_proj.weight"), self.x, projected, '
      "(64, 1, 1), BLOCK)", "trace"),
    M("reduced-twice", "B08", BUILDER, "        total = self._new(",
      "        if whole is not partial:\n"
      '            self.mpk.allreduce_layer(whole, buffer, partial, (56, 1, 1), BLOCK)\n'
      "            whole = partial\n        total = self._new(", "trace"),
    M("vocabulary-part-with-draft", "B09", BUILDER, 'self.head = self._weight("lm_head.weight")', _VOCABULARY, "trace"),
    M("hidden-before-norm", "B10", BUILDER, "main_hidden = self.final_hidden", "main_hidden = self.x", "trace"),
    M("hidden-stays", "B10", BUILDER, "main_hidden if step == 0 else self.x", "main_hidden", "trace"),
    M("input-built-in-loop", "B11", BUILDER, _BUILD_INPUT + "        for step in range(self.drafts):\n",
      "        for step in range(self.drafts):\n" + _BUILD_INPUT.replace("        ", "            ", 1), "trace"),
    M("fused-query-to-prefill", "B12", BUILDER, "q_nope=self.q_nope,", "q_nope=self.q_fused,", "trace"),
    M("partials-of-last-step", "B13", BUILDER, "decoded = self.partial_o if split else",
      'decoded = self.partial_o if split and ".61." not in prefix else', "trace"),
    M("no-rotation", "B14", BUILDER,
      "        grid = (self.max_num_batched_tokens, 1, 1)\n        self.mpk.rotary_layer(",
      "        return\n        self.mpk.rotary_layer(", "trace"),
    M("eh-columns-swapped", "B15", BUILDER, "self.eh_embed = both[:, :HIDDEN].contiguous()\n"
      "        self.eh_hidden = both[:, HIDDEN:].contiguous()", "self.eh_embed = both[:, HIDDEN:].contiguous()\n"
      "        self.eh_hidden = both[:, :HIDDEN].contiguous()", "trace"),
]  # fmt: skip
KERNELS = [
    M("tuple", "K03", GRAPH, "make_tuple(2, 2, TASK_MLA_MTP_DECODE_TP2_SM100",
      "make_tuple(2, 1, TASK_MLA_MTP_DECODE_TP2_SM100"),
    M("pointer-past-end", "K03", REGISTER, "input_ptrs[4]) + qo_fp_", "input_ptrs[5]) + qo_fp_"),
    M("name-typo", "K01", WRAPPERS, 'task_name="mla_mtp_decode_tp4_sm100"', 'task_name="mla_mtp_decode_tp4_sm10"'),
    M("printed-name-missing", "K01", RUNTIME, '  task_type_to_name[TASK_ROTARY_SM100] = "TASK_ROTARY_SM100";\n', ""),
    M("not-included", "K01", f"{_KERNELS}/task_header.cuh", '#include "mla_prefill_sm100.cuh"\n', ""),
    M("enum-missing", "K01", RUNTIME_HEADER, "TASK_MLA_KV_GATHER_SM100 =", "TASK_OTHER ="),
    M("tensor-not-attached", "K02", WRAPPERS, "        tb_graph.new_input(kpe, (-1, -1, -1), -1, True)\n", ""),
    M("two-conventions", "K04", GRAPH, "make_tuple(5, 0, TASK_MLA_PREFILL", "make_tuple(4, 1, TASK_MLA_PREFILL"),
    M("offset-width", "K05", REGISTER, "qo_fp_ * $;\", num_heads * d_kpe", "qo_fp_ * $;\", num_heads * d_ckv"),
    M("offset-missing", "K05", REGISTER, " + bi_ * MPK_MAX_SEQ_LENGTH * $;\", d_kpe", ";\", d_kpe"),
    M("gate-7", "K06", f"{_KERNELS}/mla_mtp_decode_tp4_sm100.cuh", "Q_LEN > 8", "Q_LEN > 7",
      count=1),
    M("gate-16", "K06", f"{_KERNELS}/mla_prefill_sm100.cuh", "Q_LEN < 9", "Q_LEN < 16"),
    M("gate-8-twice", "K06", f"{_KERNELS}/mla_prefill_sm100.cuh", "Q_LEN < 9", "Q_LEN < 8"),
    M("merge-gate", "K06", f"{_KERNELS}/mla_mtp_decode_tp8_sm100.cuh", _MERGE_GATE, _MERGE_GATE.replace("8", "4")),
    M("axis", "K07", RUNTIME, "request_id = bid.z", "request_id = bid.y"),
    M("arm-missing", "K08", RUNTIME, "if (task_type == TASK_MLA_KV_GATHER_SM100)", "if (task_type == TASK_OTHER)"),
    M("expert-arm-missing", "K08", RUNTIME, " || task_type == TASK_MOE_W2_LINEAR_SM100", ""),
    M("shared-memory", "K09", f"{_KERNELS}/mla_mtp_decode_tp2_sm100.cuh", "STAGES = 5", "STAGES = 7"),
    M("barrier", "K10", f"{_KERNELS}/mla_mtp_decode_tp8_sm100.cuh", "bar.sync 12, 128", "bar.sync 1, 128"),
    M("scale", "K11", REGISTER, "sm_scale = mscale * mscale / sqrtf(192.0f)",
      "sm_scale = 1.0f / sqrtf(192.0f)", count=1),
    M("scale-of-latent", "K11", REGISTER, "sqrtf(192.0f)", "sqrtf(576.0f)", count=1),
    M("descriptor-missing", "K12", REGISTER,
      '  code.e("    static_cast<const CUtensorMap*>(task_desc->input_tma_desc_ptrs[1][0]),");\n', "", count=1),
    M("windows-overlap", "K13", REGISTER, _WINDOW, _WINDOW.replace("MPK_MAX_SEQ_LENGTH", "S_")),
    M("one-request", "K14", BUILDER, "self.mpk.mla_kv_gather_layer(", _SECOND_PREFILL),
]  # fmt: skip
RUNNING = [
    M("flags-swapped", "R01", WRAPPERS, "-DMPK_MAX_NUM_PAGES={mpk.max_num_pages}",
      "-DMPK_MAX_NUM_PAGES={mpk.page_size}"),
    M("demo-argument", "R01", DEMO, "page_size=args.page_size", "page_size=args.max_num_pages"),
    M("rdc-inverted", "R02", WRAPPERS, "not use_nvshmem or", "use_nvshmem or"),
    M("rdc-escape-on", "R02", WRAPPERS, '"MPK_RDC_FALSE", "0"', '"MPK_RDC_FALSE", "1"'),
    M("last-page-empty", "R03", SCHEDULER, "rest == 0 ? MPK_PAGE_SIZE : rest", "rest", "scheduler"),
    M("tail-not-filled", "R03", SCHEDULER, _TAIL_FILL, "", "scheduler"),
    M("pages-lost", "R03", SCHEDULER, "tail++ %", "tail %", "scheduler"),
    M("rank-skips-reduce", "R04", BUILDER, "if self.world_size > 1:",
      "if self.world_size > 1 and self.mpk.mpi_rank != 1:", "trace"),
    M("too-few-teams", "R05", MULTIGPU, "count + 6 + 16", "count - 1"),
    M("too-many-teams", "R05", BUILDER, "(HIDDEN // 128, 1, 1)", "(HIDDEN // 64, 1, 1)", "trace"),
    M("other-nvshmem", "R06", README, "3.6.5", "3.5.0"),
]  # fmt: skip
ALL = [*WEIGHTS, *BUILDING, *KERNELS, *RUNNING]
#: Edits that go with a mutation: (mutation id, path, old, new).
ALONG = [("draft-unabsorbed", WRAPPERS, "\n    def rotary_layer(", _PREFILL_TP8)]
