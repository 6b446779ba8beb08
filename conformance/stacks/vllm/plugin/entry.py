"""A general plug-in of vLLM's, loaded by every process of an engine that the harness starts. Standard library at first.

What it does is asked for by environment: `CONFORMANCE_ENGINE_CPU` opens what keeps DeepSeek-V4 off a CPU without AMX
and without a CPU Triton, `CONFORMANCE_ENGINE_TRACE` names a folder for traces, `CONFORMANCE_ENGINE_FAULT` a fault to
plant. None of the first two changes a number that the model computes.
"""

import json
import os

#: What was changed, in words; filled by `register`.
PATCHES: list[str] = []


def register():
    if os.environ.get("CONFORMANCE_ENGINE_CPU"):
        from . import gates, kernels, processes, routers

        PATCHES.extend(gates.open_gates())
        PATCHES.extend(kernels.arrange())
        PATCHES.extend(routers.arrange())
        PATCHES.extend(processes.arrange())
    if os.environ.get("CONFORMANCE_ENGINE_TRACE"):
        from . import tracing

        PATCHES.append(tracing.install(os.environ["CONFORMANCE_ENGINE_TRACE"]))
    if os.environ.get("CONFORMANCE_ENGINE_FAULT"):
        from . import faults

        PATCHES.append(faults.install(json.loads(os.environ["CONFORMANCE_ENGINE_FAULT"])))
