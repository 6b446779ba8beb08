"""Writes a whole mini-checkout of MPK, and a mini vLLM: the least in which every rule finds what it looks for.

All of it is written for these tests. The C++ side is generated from one table of tasks, as are the Python wrappers.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Task(NamedTuple):
    layer: str
    name: str
    inputs: str
    outputs: str
    #: Outputs attached as inputs, the convention (N, 0).
    hidden: bool = False

    @property
    def enum(self) -> str:
        return f"TASK_{self.name.upper()}"

    @property
    def tensors(self) -> list[str]:
        return [*self.inputs.split(), *self.outputs.split()]

    @property
    def counts(self) -> tuple[int, int]:
        together = len(self.tensors)
        return (together, 0) if self.hidden else (len(self.inputs.split()), len(self.outputs.split()))


PLAIN = [
    Task("embed_layer", "embedding", "input weight", "output"),
    Task("rmsnorm_layer", "rms_norm", "input weight", "output"),
    Task("linear_layer", "linear_sm100", "input weight", "output"),
    Task("linear_with_residual_layer", "linear_with_residual_sm100", "input weight residual", "output"),
    Task("silu_mul_layer", "silu_mul", "input", "output"),
    Task("rotary_layer", "rotary_sm100", "input cos sin", "output"),
    Task("elementwise_add_layer", "elementwise_add_sm100", "input_a input_b", "output"),
    Task("moe_topk_sigmoid_routing_layer", "moe_topk_sigmoid_sm100", "input bias", "weights indices mask"),
    Task("moe_w13_linear_layer", "moe_w13_linear_sm100", "input weight indices mask", "output"),
    Task("moe_silu_mul_layer", "moe_silu_mul", "input", "output"),
    Task("moe_w2_linear_layer", "moe_w2_linear_sm100", "input weight indices mask", "output"),
    Task("moe_mul_sum_add_layer", "moe_mul_sum_add_sm100", "input weight residual", "output"),
    Task("argmax_layer", "argmax_sm100", "input", "output"),
    Task("mtp_build_embed_input_layer", "mtp_build_embed_input", "output_tokens", "mtp_input_tokens"),
    Task("mtp_token_scatter_layer", "mtp_token_scatter", "src", "dst"),
]
GATHERS = [
    Task("mla_kv_gather_layer", "mla_kv_gather_sm100", "c_latent_new k_pe_new paged_cache", "contiguous_kv", True),
    Task(
        "mla_kv_gather_split_layer",
        "mla_kv_gather_split_sm100",
        "c_latent_new k_pe_new paged_cache",
        "ckv_sep kpe_sep",
        True,
    ),
]
PREFILL = Task("mla_prefill_layer", "mla_prefill_sm100", "q_nope q_pe ckv kpe", "output", True)
SIZES = (1, 2, 4, 8)


def _decode(tp: int) -> Task:
    suffix = "" if tp == 1 else f"_tp{tp}"
    name = f"mla_mtp_decode{suffix}"
    return Task(f"{name}_layer", f"{name}_sm100", "q_input kv_input", "output_partial output_lse")


def _reduce(tp: int) -> Task:
    name = "mla_mtp_reduce" if tp == 1 else f"mla_mtp_decode_tp{tp}_reduce"
    return Task(f"{name}_layer", f"{name}_sm100", "input_partial input_lse", "output")


DECODES, REDUCES = [_decode(tp) for tp in SIZES], [_reduce(tp) for tp in SIZES]
ALLREDUCE = Task("", "nvshmem_tile_allreduce", "input", "output")
ALL = [*PLAIN, *GATHERS, PREFILL, *DECODES, *REDUCES, ALLREDUCE]


def write_mpk(root: Path) -> Path:
    mpk = root / "python/mirage/mpk"
    kernels = root / "include/mirage/persistent_kernel"
    files = {
        mpk / "models/deepseek_v3/builder.py": _read("python/builder.py.in"),
        mpk / "models/graph_builder.py": _read("python/graph_builder.py.in"),
        mpk / "speculative.py": _read("python/speculative.py.in"),
        mpk / "multigpu.py": _read("python/multigpu.py.in"),
        mpk / "persistent_kernel.py": wrappers(),
        root / "demo/deepseek_v3/demo.py": _read("demo/demo.py.in"),
        root / "demo/deepseek_v3/models/convert.py": _read("demo/convert.py.in"),
        root / "demo/deepseek_v3/readme.md": _read("demo/readme.md"),
        root / "src/kernel/graph.cc": graph(),
        root / "src/kernel/task_register.cc": register(),
        root / "src/kernel/runtime.cc": runtime(),
        root / "include/mirage/kernel/task_register.h": register_header(),
        kernels / "runtime_header.h": runtime_header(),
        kernels / "persistent_kernel.cuh": _read("cxx/persistent_kernel.cuh"),
        kernels / "tma.cuh": tma(),
        kernels / "tasks/blackwell/task_header.cuh": task_header(),
        kernels / "tasks/blackwell/mla_prefill_sm100.cuh": _read("cxx/mla_prefill_sm100.cuh"),
        kernels / "tasks/blackwell/mla_kv_gather.cuh": _read("cxx/mla_kv_gather.cuh"),
    }
    files |= {kernels / f"tasks/blackwell/mla_mtp_decode_tp{tp}_sm100.cuh": decode_kernel(tp) for tp in SIZES}
    return _written(root, files)


def write_vllm(root: Path) -> Path:
    executor = root / "vllm/model_executor"
    return _written(
        root,
        {
            executor / "models/deepseek_v2.py": _read("vllm/deepseek_v2.py.in"),
            executor / "models/deepseek_mtp.py": _read("vllm/deepseek_mtp.py.in"),
            executor / "layers/linear.py": _read("vllm/linear.py.in"),
            executor / "layers/mla.py": _read("vllm/mla.py.in"),
            executor / "layers/attention/mla_attention.py": _read("vllm/mla_attention.py.in"),
        },
    )


def _read(name: str) -> str:
    return (HERE / name).read_text()


def _written(root: Path, files: dict[Path, str]) -> Path:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def wrappers() -> str:
    """persistent_kernel.py: flags, the kernel's limits, one method a task; TP variants share helpers."""
    head = '''"""The mini-checkout's wrappers; verified with NVSHMEM 3.6.5 and CUDA 13.2."""
import os

from ..core import CyKNGraph, CyTBGraph
from ..kernel import KNGraph, TBGraph
from .multigpu import auto_select_allreduce_implementation


def get_compile_command(mpk, target_cc, use_nvshmem):
    _rdc_false = os.environ.get("MPK_RDC_FALSE", "0") == "1"
    flags = ["-rdc=false" if (not use_nvshmem or _rdc_false) else "-rdc=true", "-lcuda"]
    flags += [f"-DMPK_MAX_NUM_BATCHED_REQUESTS={mpk.max_num_batched_requests}"]
    flags += [f"-DMPK_MAX_NUM_BATCHED_TOKENS={mpk.max_num_batched_tokens}"]
    flags += [f"-DMPK_MAX_NUM_PAGES={mpk.max_num_pages}"]
    flags += [f"-DMPK_PAGE_SIZE={mpk.page_size}"]
    return [*flags, f"-DMPK_MAX_SEQ_LENGTH={mpk.max_seq_length}"]


class PersistentKernel:
    def __init__(self, **settings):
        self.__dict__.update(settings)
        self.kn_graph = KNGraph(CyKNGraph())

    def attach_input(self, torch_tensor, name):
        tensor = self.kn_graph.new_input(dims=tuple(torch_tensor.shape), strides=None, dtype=torch_tensor.dtype)
        self.kn_graph.attach_torch_tensor(tensor, torch_tensor, name)
        return tensor

    def new_tensor(self, dims, name):
        tensor = self.kn_graph.new_input(dims=dims, strides=None, dtype=None)
        self.kn_graph.attach_cuda_tensor(tensor, name)
        return tensor

    def allreduce_layer(self, input, buffer, output, grid_dim, block_dim):
        chosen = auto_select_allreduce_implementation(self.world_size, self.mpi_rank)
        tensors = {"input": input, "buffer": buffer, "output": output}
        chosen.register_tasks(self, tensors=tensors, grid_dim=grid_dim, block_dim=block_dim, params=[self.world_size])
'''
    methods = [_method(task, "grid_dim, block_dim", [], f'"{task.name}"') for task in PLAIN]
    methods += [_method(task, "mla_params, grid_dim, block_dim", [], f'"{task.name}"') for task in [*GATHERS, PREFILL]]
    for tasks, helper, grid in (
        (DECODES, "_decode_layer", "(num_splits, self.max_num_batched_requests, 1)"),
        (REDUCES, "_reduce_layer", "(256, num_splits, self.max_num_batched_requests)"),
    ):
        setup = ["num_splits = (kv_len + 127) // 128", f"grid_dim = {grid}", "block_dim = (128, 1, 1)"]
        methods.append(_method(tasks[0]._replace(layer=helper), "q_len, kv_len, task_name", setup, "task_name"))
        for task in tasks:
            names = ", ".join([*task.tensors, "q_len", "kv_len"])
            methods.append(
                f'\n    def {task.layer}(self, {names}):\n        self.{helper}({names}, task_name="{task.name}")\n'
            )
    return head + "".join(methods)


def _method(task: Task, more: str, setup: list[str], name: str) -> str:
    lines = [f"    def {task.layer}(self, {', '.join(task.tensors)}, {more}):", *(f"        {line}" for line in setup)]
    lines.append("        tb_graph = TBGraph(CyTBGraph(grid_dim, block_dim, 1, 64))")
    lines += [f"        tb_graph.new_input({tensor}, (-1, -1, -1), -1, True)" for tensor in task.tensors]
    lines.append(f"        self.kn_graph.customized([{', '.join(task.tensors)}], tb_graph)")
    lines.append(f"        self.kn_graph.register_task(tb_graph, {name}, [])")
    return "\n" + "\n".join(lines) + "\n"


def graph() -> str:
    arms = []
    for task in ALL:
        inputs, outputs = task.counts
        arms.append(f"""if (name == "{task.name}") {{
    int variant_id = task_register->register_{task.name}_task(customized->bgraph, params);
    task_config[op] = std::make_tuple({inputs}, {outputs}, {task.enum}, variant_id);
  }}""")
    body = " else ".join(arms)
    return f"""// The mini-checkout's dispatch.
namespace mirage {{
void Graph::register_task(char const *task_type, std::vector<int> params) {{
  std::string name = std::string(task_type);
  TaskRegister *task_register = TaskRegister::get_instance();
  {body} else {{
    assert(false && "Unsupported task type");
  }}
}}
}} // namespace mirage
"""


def register() -> str:
    return "// The mini-checkout's generators.\n" + "\n".join(_generator(task) for task in ALL)


def _generator(task: Task) -> str:
    if task in GATHERS:
        body = _gather_body(task)
    elif task == PREFILL:
        body = _PREFILL_BODY
    elif task in DECODES:
        body = _decode_body(SIZES[DECODES.index(task)])
    elif task in REDUCES:
        body = _reduce_body(SIZES[REDUCES.index(task)])
    else:
        inputs, outputs = task.counts
        pointers = [f"task_desc->input_ptrs[{i}]" for i in range(inputs)]
        pointers += [f"task_desc->output_ptrs[{i}]" for i in range(outputs)]
        if "linear" in task.name and task.name.startswith("moe_"):
            pointers.append("task_desc->task_metadata.expert_offset")
        body = f'  code.e("kernel::{task.name}_impl({", ".join(pointers)});");'
    return f"""
int TaskRegister::register_{task.name}_task(threadblock::Graph const &bgraph, std::vector<int> const &params) {{
  mirage::transpiler::CodeKeeper code;
{body}
  return register_task_variant({task.enum}, code.to_string());
}}
"""


_REQUEST = """  code.e("  int bi_ = task_desc->task_metadata.$FIELD;");
  code.e("  int qo_fp_ = runtime_config.qo_indptr_buffer[bi_];");"""
_SCALE = """  float const mscale = 0.1f * logf(40.0f) + 1.0f;
  float const sm_scale = mscale * mscale / sqrtf(192.0f);"""
_PREFILL_BODY = f"""  int num_heads = params[0];
  int d_ckv = params[2];
  int d_kpe = params[3];
  int d_v = params[4];
{_SCALE}
  float sm_scale_log2 = sm_scale * 1.44269504089f;
{_REQUEST.replace("$FIELD", "request_id")}
  code.e("  auto *q_nope_ = static_cast<const "
         "bf16*>(task_desc->input_ptrs[0]) + qo_fp_ * $;", num_heads * d_ckv);
  code.e("  auto *q_pe_ = static_cast<const bf16*>(task_desc->input_ptrs[1]) + qo_fp_ * $;", num_heads * d_kpe);
  code.e("  auto *ckv_ = static_cast<const bf16*>(task_desc->input_ptrs[2]) + bi_ * MPK_MAX_SEQ_LENGTH * $;", d_ckv);
  code.e("  auto *kpe_ = static_cast<const bf16*>(task_desc->input_ptrs[3]) + bi_ * MPK_MAX_SEQ_LENGTH * $;", d_kpe);
  code.e("  auto *out_ = static_cast<bf16*>(task_desc->input_ptrs[4]) + qo_fp_ * $;", num_heads * d_v);
  code.e("  kernel::mla_prefill_sm100_task_impl(q_nope_, q_pe_, ckv_, kpe_, out_, S_, Q_LEN_, $,", num_heads);
  code.e("      $f,", sm_scale_log2);
  code.e("      task_desc->task_metadata.merge_task_offset, task_desc->task_metadata.kv_idx);");"""


def _gather_body(task: Task) -> str:
    split = "split" in task.name
    outs = ["ckv_ptr_", "kpe_ptr_"] if split else ["contiguous_kv_ptr_"]
    lines = [_REQUEST.replace("$FIELD", "request_id")]
    for index, name in enumerate(outs, start=3):
        lines.append(
            f'  code.e("  auto *{name} = static_cast<bf16*>(task_desc->input_ptrs[{index}]) + '
            f'bi_ * MPK_MAX_SEQ_LENGTH * $;", params[0]);'
        )
    kernel = "mla_kv_gather_split_impl" if split else "mla_kv_gather_impl"
    reads = [f"static_cast<const bf16*>(task_desc->input_ptrs[{i}])" for i in (0, 1)]
    arguments = ", ".join([*reads, "task_desc->input_ptrs[2]", *outs])
    return "\n".join([*lines, f'  code.e("  kernel::{kernel}({arguments});");'])


def _decode_body(tp: int) -> str:
    return f"""{_SCALE}
{_REQUEST.replace("$FIELD", "request_id")}
  code.e("  kernel::mla_mtp_tp{tp}::mla_mtp_tp{tp}_main(");
  code.e("    static_cast<const CUtensorMap*>(task_desc->input_tma_desc_ptrs[0][0]),");
  code.e("    static_cast<const CUtensorMap*>(task_desc->input_tma_desc_ptrs[1][0]),");
  code.e("    static_cast<bf16*>(task_desc->output_ptrs[0]), static_cast<float*>(task_desc->output_ptrs[1]),");
  code.e("    $f,", sm_scale);
  code.e("    q_len_, task_desc->task_metadata.kv_idx, bi_);");"""


def _reduce_body(tp: int) -> str:
    return f"""{_REQUEST.replace("$FIELD", "merge_task_offset")}
  code.e("  kernel::mla_mtp_tp{tp}::mla_mtp_tp{tp}_reduce(task_desc->input_ptrs[0], task_desc->input_ptrs[1],");
  code.e("    task_desc->output_ptrs[0], q_len_, task_desc->task_metadata.kv_idx, bi_);");"""


def runtime() -> str:
    arms = [_arm([GATHERS[0]], request_id="x"), _arm([GATHERS[1]], request_id="x")]
    arms.append(_arm([PREFILL], request_id="z", kv_idx="y", merge_task_offset="x"))
    arms.append(_arm(DECODES, kv_idx="x", request_id="y"))
    arms.append(_arm(REDUCES, kv_idx="x", merge_task_offset="z"))
    arms.append(_arm([task for task in PLAIN if task.name.startswith("moe_w")], expert_offset="x"))
    rows = "\n".join(f'  task_type_to_name[{task.enum}] = "{task.enum}";' for task in ALL)
    return f"""// The mini-checkout's task set-up.
void set_metadata(TaskType task_type, FullTaskDesc &task, dim3 bid) {{
{"".join(arms)}}}
void name_tasks() {{
  std::map<TaskType, std::string> task_type_to_name;
{rows}
}}
"""


def _arm(tasks: list[Task], **fields: str) -> str:
    condition = " || ".join(f"task_type == {task.enum}" for task in tasks)
    lines = "\n".join(f"    task.task_metadata.{field} = bid.{axis};" for field, axis in fields.items())
    return f"  if ({condition}) {{\n{lines}\n  }}\n"


def register_header() -> str:
    declared = (
        f"  int register_{t.name}_task(threadblock::Graph const &bgraph, std::vector<int> const &params);" for t in ALL
    )
    return "// The mini-checkout's declarations.\nclass TaskRegister {\n" + "\n".join(declared) + "\n};\n"


def runtime_header() -> str:
    rows = "\n".join(f"  {task.enum} = {number}," for number, task in enumerate(ALL, start=100))
    return f"""// The mini-checkout's limits and task types.
constexpr int WORKER_RESERVED_STATIC_SHARED_MEMORY_SIZE = 6 * 1024;
#if MPK_TARGET_CC >= 90
constexpr int MAX_DYNAMIC_SHARED_MEMORY_SIZE = 207 * 1024 - WORKER_RESERVED_STATIC_SHARED_MEMORY_SIZE;
#else
constexpr int MAX_DYNAMIC_SHARED_MEMORY_SIZE = 99 * 1024;
#endif
enum TaskType {{
{rows}
}};
"""


def tma() -> str:
    cases = "\n".join(f"  case {task.enum}:" for task in DECODES)
    switch = f"  switch (type) {{\n{cases}\n    break;\n  }}"
    return f"// The mini-checkout's TMA descriptors.\nvoid fill(TaskType type) {{\n{switch}\n}}\n"


def task_header() -> str:
    names = ["mla_prefill_sm100.cuh", "mla_kv_gather.cuh", *(f"mla_mtp_decode_tp{tp}_sm100.cuh" for tp in SIZES)]
    return "#pragma once\n" + "".join(f'#include "{name}"\n' for name in names)


def decode_kernel(tp: int) -> str:
    return f"""// The mini-checkout's decode kernel for TP{tp}.
#pragma once
#define SYNC_TP{tp}() asm volatile("bar.sync 12, 128;" ::: "memory")
namespace kernel {{
namespace mla_mtp_tp{tp} {{
static constexpr int STAGES = 5;
static constexpr int SMEM_SIZE = STAGES * 2 * 16384;
__device__ void mla_mtp_tp{tp}_main(CUtensorMap const *Q, CUtensorMap const *KV, bf16 *O, float *L, float scale,
                                    int Q_LEN, int block_x, int block_y) {{
  if (Q_LEN > 8) {{
    return;
  }}
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(0), "r"(512));
  SYNC_TP{tp}();
}}
__device__ void mla_mtp_tp{tp}_reduce(void const *O, void const *L, void *out, int Q_LEN, int block_x, int block_y) {{
  if (Q_LEN > 8) {{
    return;
  }}
}}
}} // namespace mla_mtp_tp{tp}
}} // namespace kernel
"""
