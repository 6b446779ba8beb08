"""Faults of captured calls, the JIT cache and custom operators."""

from __future__ import annotations

from conformance.faults import (
    graph,
    graph_attention,
    jit,
    ops,
)
from conformance.faults.fault import Fault


def _graph(*names: str) -> tuple[str, ...]:
    return tuple(f"graph.moe.{name}" for name in names)


def _graph_attention(*names: str) -> tuple[str, ...]:
    return tuple(f"graph.attention.{name}" for name in names)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "graph-frozen-tokens",
        "the graph reads the tokens that it was captured with",
        _graph("fresh", "inputs"),
        "vLLM #52308",
        graph=graph.frozen_x,
    ),
    Fault(
        "graph-frozen-routes",
        "the graph reads the routes that it was captured with",
        _graph("fresh", "inputs", "routing"),
        "vLLM #52308",
        graph=graph.frozen_ids,
    ),
    Fault(
        "graph-frozen-weights",
        "the graph reads the routing weights that it was captured with",
        _graph("fresh", "inputs"),
        "vLLM #52308",
        graph=graph.frozen_weights,
    ),
    Fault(
        "graph-first-routes",
        "every replay sends tokens where its first replay did",
        _graph("fresh", "inputs", "routing"),
        graph=graph.first_routes,
    ),
    Fault("graph-count-baked", "the last token is left out", _graph("fresh", "sizes"), graph=graph.count_baked),
    Fault("graph-stale-output", "every other replay computes nothing", _graph("fresh", "steady"), graph=graph.skipped),
    Fault(
        "graph-first-output",
        "every replay answers with what the first one computed",
        _graph("fresh", "inputs", "routing"),
        "vLLM #52308",
        graph=graph.first_output,
    ),
    Fault(
        "graph-number-read",
        "Python reads a number off a tensor (`.item()`)",
        _graph("capture", "fresh"),
        graph=graph.number_read,
    ),
    Fault(
        "graph-list-made",
        "a tensor is made from a Python list",
        _graph("capture"),
        "SGLang, vLLM: `new_tensor(list)` in a captured path",
        graph=graph.list_made,
    ),
    Fault("graph-new-tensor", "`new_tensor` in the captured path", _graph("capture"), graph=graph.new_tensor_made),
    Fault("graph-scale-baked", "a scale is the number that capture saw", _graph("fresh"), graph=graph.scale_baked),
    Fault("graph-counted", "`bincount` in the captured path", _graph("capture"), graph=graph.counted),
    Fault("graph-list-mutated", "a Python list grows with each call", _graph("fresh"), graph=graph.list_mutated),
    Fault("graph-output-over-input", "x is overwritten", _graph("canaries"), graph=graph.output_over_input),
    Fault("graph-pad-rows-leak", "each row takes a part of all", _graph("sizes"), graph=graph.rows_mixed),
    Fault(
        "graph-pool-output",
        "a graph's replay writes over the output of another in its pool",
        _graph("pool"),
        graph=graph.output_clobbered,
    ),
    Fault(
        "graph-pool-input",
        "a graph's workspace lies over the input of another in its pool",
        _graph("pool"),
        graph=graph.input_clobbered,
    ),
    Fault(
        "graph-reads-freed", "memory that was freed after capture is read", _graph("memory"), graph=graph.reads_freed
    ),
    Fault("graph-takes-memory", "each replay keeps 512 bytes", _graph("memory"), graph=graph.takes_memory),
    Fault(
        "graph-tactic-switched",
        "every third replay runs another tactic",
        _graph("fresh", "steady"),
        graph=graph.tactic_switched,
    ),
    Fault("graph-warm-up-behind", "warm-up zeroes what follows", _graph("canaries"), graph=graph.warm_up_behind),
    Fault(
        "graph-reduce-left-out",
        "the all-reduce is not in the graph: each rank replays its own part",
        ("graph.world.fresh",),
        reduce=graph.reduce_left_out,
    ),
    Fault(
        "graph-rank2-reduce-of-copy",
        "rank 2's graph all-reduces a copy that nobody reads",
        ("graph.world.fresh",),
        reduce=graph.reduce_of_copy,
    ),
    Fault(
        "graph-rank1-frozen-tokens",
        "rank 1 alone reads the tokens that it was captured with",
        ("graph.world.fresh",),
        seen_in="vLLM #52308",
        graph=graph.rank1_frozen_x,
    ),
    Fault(
        "graph-rank2-stale-output",
        "every other replay of rank 2 computes nothing",
        ("graph.world.fresh",),
        graph=graph.rank2_skipped,
    ),
    Fault("graph-warm-up-zeroes", "warm-up zeroes its caller's input", _graph("canaries"), graph=graph.warm_up_zeroes),
    *(
        Fault(
            f"graph-attention-frozen-{name.replace('_', '-')}",
            f"the graph of attention reads the {name.replace('_', ' ')} that it was captured with",
            _graph_attention("fresh", "inputs", *more),
            "vLLM #52308",
            graph=graph_attention.frozen[name],
        )
        for name, more in {
            "q": (),
            "sinks": (),
            "window": (),
            "window_slots": ("lengths",),
            "window_lengths": ("lengths",),
            "entries": (),
            "entries_slots": ("lengths",),
            "entries_lengths": ("lengths",),
        }.items()
    ),
    Fault(
        "graph-attention-length-read",
        "Python reads the longest length and cuts the block table at it",
        _graph_attention("capture", "fresh", "lengths"),
        graph=graph_attention.length_read,
    ),
    Fault(
        "graph-attention-longest-of-capture",
        "no request sees more tokens than the longest did at first",
        _graph_attention("fresh", "lengths"),
        graph=graph_attention.longest_of_capture,
    ),
    Fault(
        "graph-attention-pages-left",
        "a request is read from the pages that it had at first",
        _graph_attention("fresh", "inputs", "lengths"),
        graph=graph_attention.pages_left,
    ),
    Fault(
        "graph-attention-empty-nan",
        "a request of length 0 gives NaN in a replay",
        _graph_attention("lengths"),
        "vLLM #38436",
        graph=graph_attention.empty_nan,
    ),
    Fault(
        "graph-attention-tile-spread",
        "NaN in a pad row's queries spoils the rows beside it",
        _graph_attention("sizes"),
        "vLLM #38436",
        graph=graph_attention.tile_spread,
    ),
    Fault(
        "graph-attention-stale-rows",
        "what an earlier batch left in pad rows shifts a real row",
        _graph_attention("sizes"),
        "FlashInfer #3057",
        graph=graph_attention.stale_rows,
    ),
    Fault(
        "graph-attention-counters-kept",
        "a counter of splits is not reset: every third replay is off",
        _graph_attention("fresh", "steady"),
        graph=graph_attention.counters_kept,
    ),
    Fault(
        "graph-attention-pool-output",
        "partial results lie over another graph's output",
        _graph_attention("pool"),
        graph=graph_attention.workspace_shared,
    ),
    Fault(
        "graph-attention-pool-cache",
        "scratch memory lies over another graph's cache",
        _graph_attention("pool"),
        graph=graph_attention.cache_scratched,
    ),
    Fault(
        "graph-attention-reads-freed",
        "the plan of splits lies in memory that was freed after capture",
        _graph_attention("memory"),
        graph=graph_attention.reads_freed,
    ),
    Fault(
        "graph-attention-takes-memory",
        "each replay keeps 512 bytes",
        _graph_attention("memory"),
        graph=graph_attention.takes_memory,
    ),
    Fault(
        "graph-attention-warm-up-behind",
        "warm-up zeroes what follows the output",
        _graph_attention("canaries"),
        graph=graph_attention.behind_output,
    ),
    Fault(
        "graph-attention-sinks-consumed",
        "sinks are turned to base two in place, again with each call",
        _graph_attention("canaries"),
        graph=graph_attention.sinks_consumed,
    ),
    Fault(
        "graph-attention-warm-up-zeroes",
        "warm-up zeroes a page of the cache",
        _graph_attention("canaries"),
        graph=graph_attention.zeroes_cache,
    ),
    Fault(
        "graph-layer-frozen-lengths",
        "the layer's graph attends to as many tokens as at capture",
        ("graph.layer.fresh", "graph.layer.inputs"),
        "vLLM #52308",
        graph=graph_attention.frozen["window_lengths"],
    ),
    Fault(
        "graph-layer-frozen-positions",
        "the layer's output projection rotates back by the positions of capture",
        ("graph.layer.fresh", "graph.layer.inputs"),
        "vLLM #52308",
        graph=graph_attention.frozen_positions,
    ),
    Fault(
        "graph-layer-frozen-routes",
        "the layer's experts are those of capture",
        ("graph.layer.fresh", "graph.layer.inputs"),
        "vLLM #52308",
        graph=graph_attention.frozen_routes,
    ),
    Fault(
        "jit-first-size",
        "the batch size of the first call is compiled in",
        ("graph.jit.shapes",),
        moe=jit.first_size,
    ),
    Fault(
        "jit-larger-left",
        "a small batch after a larger one runs with that one's settings",
        ("graph.jit.shapes",),
        moe=jit.larger_left,
    ),
    Fault(
        "jit-first-address",
        "a descriptor is bound to the first call's memory",
        ("graph.jit.memory",),
        moe=jit.first_address,
    ),
    Fault("jit-by-address", "tokens are kept by their address", ("graph.jit.memory",), moe=jit.by_address),
    Fault(
        "jit-first-clobbers",
        "the first call zeroes what follows its output",
        ("graph.jit.memory",),
        moe=jit.first_clobbers,
    ),
    Fault(
        "jit-published-empty",
        "an entry is in the cache of kernels before it is filled",
        ("graph.jit.threads",),
        "NVFP4 contract, S16",
        moe=jit.published_empty,
    ),
    Fault("jit-built-twice", "two threads add to one entry", ("graph.jit.threads",), moe=jit.built_twice),
    Fault("jit-scratch-shared", "two threads work in one buffer", ("graph.jit.threads",), moe=jit.scratch_shared),
    Fault(
        "jit-table-in-capture",
        "a table that later calls look up is filled under capture",
        ("graph.jit.tables",),
        "NVFP4 contract, S16",
        graph=graph.table_in_capture,
    ),
    Fault("op-fake-shape", "the fake announces twice the columns", ("graph.op.fake",), op=ops.fake_shape),
    Fault("op-fake-dtype", "the fake announces another dtype", ("graph.op.fake",), op=ops.fake_dtype),
    Fault("op-fake-stride", "the fake announces other strides", ("graph.op.fake",), op=ops.fake_stride),
    Fault("op-fake-batch", "the fake announces 8 rows, whatever comes", ("graph.op.fake",), op=ops.fake_batch),
    Fault(
        "op-returns-input",
        "the result is a view of the input",
        ("graph.op.schema", "graph.op.alias"),
        "vLLM #52308",
        op=ops.returns_input,
    ),
    Fault("op-returns-buffer", "results lie in one buffer", ("graph.op.alias",), op=ops.returns_buffer),
    Fault("op-mutates-input", "an input is halved, undeclared", ("graph.op.schema",), op=ops.mutates_input),
    Fault("op-graph-break", "Python round the operator breaks the graph", ("graph.op.compile",), op=ops.graph_break),
    Fault("op-disabled", "`torch.compiler.disable` round the operator", ("graph.op.compile",), op=ops.disabled),
    Fault("op-locked", "a lock on the way to the operator", ("graph.op.compile",), op=ops.locked),
    Fault("op-by-folder", "`Path.cwd()` on the way to the operator", ("graph.op.compile",), op=ops.by_folder),
    Fault("op-each-size", "each batch size is a program of its own", ("graph.op.recompiles",), op=ops.each_size),
    Fault("op-numbers-again", "a free number is given again", ("graph.op.runners",), op=ops.numbers_again),
    Fault("op-found-at-trace", "objects are looked up when traced", ("graph.op.runners",), op=ops.found_at_trace),
    Fault("op-width-of-first", "the fake knows the first object's width", ("graph.op.runners",), op=ops.width_of_first),
    Fault("op-free-answers", "a number that is free still answers", ("graph.op.runners",), op=ops.free_answers),
    Fault("op-branching", "Python branches on a number of the result", ("graph.op.compile",), op=ops.branching),
)
