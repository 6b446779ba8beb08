"""A whole vLLM engine in this worker: started, asked, ended. The plug-in goes into every process that vLLM starts."""

import contextlib
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from .problems import Missing, Refused, Unsupported, stacks_words

_PLUGIN = "conformance_vllm_plugin"
#: The end of a rank's traceback in the log, and how far back it is looked for.
_RAISED = re.compile(r"^\(Worker[^)]*\) ERROR [^\]]*\] (\w*(?:Error|Exception): .*)$", re.MULTILINE)
_LOG_BYTES = 1 << 16
_DIED = re.compile(r"(Worker proc \S+ died unexpectedly \(exit code: [^)]*\))")
#: The running engine and its trace folder.
RUNNING: dict[str, Any] = {}
#: Request -> the tokens that each step computed, of the last `generate`.
STEPS: dict[str, list[int]] = {}


def open_engine(plugin, model, tp, settings, fault):
    """`plugin`: {module: source}; `settings`: arguments of vLLM's LLM; `fault`: a spec, or none."""
    trace = Path.cwd() / "trace"
    trace.mkdir(exist_ok=True)
    os.environ |= {"CONFORMANCE_ENGINE_TRACE": str(trace)}
    prepare(plugin, settings, fault)
    try:
        import torch
        import vllm
    except Exception as error:
        raise Missing(stacks_words(error)) from error
    executor = "uni" if tp == 1 and torch.cuda.is_available() else "mp"  # one process less to start
    given = {"model": model, "tensor_parallel_size": tp, "distributed_executor_backend": executor, **settings}
    try:
        RUNNING["llm"] = vllm.LLM(**given)
    except Exception as error:
        raise Refused(_root_cause(error)) from error
    RUNNING["trace"] = trace
    entry = sys.modules.get(f"{_PLUGIN}.entry")
    patches = [*(entry.PATCHES if entry else []), *_watch_schedule(RUNNING["llm"])]
    return {"version": vllm.__version__, "patches": patches}


def prepare(plugin, settings, fault):
    """The environment of this process and of all that it starts: plug-in, fault, and no GPU where there is none.

    Raises Missing without a torch that can be imported, Unsupported for what vLLM does on GPUs alone.
    """
    install(plugin)
    if fault:
        os.environ["CONFORMANCE_ENGINE_FAULT"] = json.dumps(fault)
    try:
        import torch
    except Exception as error:
        raise Missing(stacks_words(error)) from error
    if not torch.cuda.is_available():
        os.environ["CONFORMANCE_ENGINE_CPU"] = "1"
        _check_without_a_gpu(settings)


def _check_without_a_gpu(settings):
    """Before anything is loaded."""
    if not settings["enforce_eager"]:
        raise Unsupported("vLLM captures no graphs without CUDA")
    found = importlib.util.find_spec("vllm")
    if (settings.get("speculative_config") or {}).get("method") == "mtp" and found and found.origin:
        stub = Path(found.origin).with_name("models") / "deepseek_v4" / "cpu" / "mtp.py"
        words = re.search(r'"([^"]*not implemented on CPU[^"]*)"', stub.read_text()) if stub.exists() else None
        if words:
            raise Unsupported(f"vLLM says: {words[1]}")


def _root_cause(error):
    """vLLM's ranks say what went wrong in the log alone; the exception here says no more than that something did."""
    words = stacks_words(error)
    first = next((line for line in _RAISED.findall(_logged()) if "root cause" not in line), "")
    return f"{first} (as a rank has it in the log; {words[:80]})" if first else words


def _logged():
    """The end of this process's log."""
    try:
        with open("/proc/self/fd/2", "rb") as log:  # noqa: PTH123
            log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


@contextlib.contextmanager
def _asking():
    """What a dead rank leaves vLLM to say (`cancelled`) comes with how it ended: minus the signal, if one ended it."""
    try:
        yield
    except Exception as error:
        if ended := _DIED.findall(_logged()):
            words = f"{ended[-1]}: killed from outside, or out of memory? ({stacks_words(error)})"
            raise RuntimeError(words) from error
        raise


def _watch_schedule(llm):
    """Write down how many tokens of which request each step computes. A version that hides its scheduler tells none."""
    core = getattr(getattr(llm.llm_engine, "engine_core", None), "engine_core", None)
    scheduler = getattr(core, "scheduler", None)
    if scheduler is None:
        return []
    inner = scheduler.schedule

    def schedule(*arguments, **named):
        found = inner(*arguments, **named)
        for request, tokens in found.num_scheduled_tokens.items():
            STEPS.setdefault(str(request), []).append(int(tokens))
        return found

    scheduler.schedule = schedule
    return ["the scheduler's steps are written down: how many tokens of which request"]


def _steps(request):
    """vLLM may lengthen a request's name by a random part of its own."""
    return next((steps for name, steps in STEPS.items() if name.partition("-")[0] == str(request)), [])


def install(plugin):
    """Modules and entry point in a folder of ours, first on the path of this process and of all that follow."""
    home = Path.cwd() / "plugin"
    package, info = home / _PLUGIN, home / f"{_PLUGIN}-1.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    for name, text in {"__init__": "", **plugin}.items():
        (package / f"{name}.py").write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PLUGIN}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{_PLUGIN} = {_PLUGIN}.entry:register\n")
    sys.path.insert(0, str(home))
    kept = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(home), *([kept] if kept else [])])


def generate(prompts, tokens, top):
    """Greedy, all prompts in one batch: [(token ids, finish reason, ids and log-probabilities of each step, tokens from
    the prefix cache, tokens that each step computed)]."""
    from vllm import SamplingParams

    STEPS.clear()
    how = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=top, detokenize=False)
    with _asking():
        answers = RUNNING["llm"].generate([{"prompt_token_ids": p} for p in prompts], how, use_tqdm=False)
    return [
        (
            list(a.outputs[0].token_ids),
            str(a.outputs[0].finish_reason),
            _packed(a.outputs[0].logprobs, top),
            a.num_cached_tokens or 0,
            _steps(a.request_id),
        )
        for a in answers
    ]


def score(sequence, top):
    """Row i: the `top` likeliest tokens i + 1, and the sequence's own."""
    from vllm import SamplingParams

    how = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=top, detokenize=False)
    with _asking():
        (answer,) = RUNNING["llm"].generate([{"prompt_token_ids": sequence}], how, use_tqdm=False)
    return _packed(answer.prompt_logprobs[1:], top)


def trace(sequence):
    """Run one prompt with tracing on. `folder`: of safetensors files, one a block, that rank 0 wrote; `experts`: the
    kernel of the routed experts, as vLLM's class of it is called."""
    from vllm import SamplingParams

    folder = RUNNING["trace"]
    for old in folder.glob("*.safetensors"):
        old.unlink()
    (folder / "on").touch()
    try:
        how = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
        with _asking():
            RUNNING["llm"].generate([{"prompt_token_ids": sequence}], how, use_tqdm=False)
    finally:
        (folder / "on").unlink()
    experts = folder / "experts.txt"
    return {"folder": str(folder), "experts": experts.read_text() if experts.exists() else ""}


def drafts():
    """(verification steps, how many of them accepted the first draft token, the second, ...), of vLLM's metrics."""
    found = {metric.name: metric for metric in RUNNING["llm"].get_metrics()}
    steps = found.get("vllm:spec_decode_num_drafts")
    accepted = found.get("vllm:spec_decode_num_accepted_tokens_per_pos")
    return (int(steps.value) if steps else 0), [int(n) for n in accepted.values] if accepted else []


def _packed(steps, top):
    """(ids int32, log-probabilities float32) as bytes, `top` a step, likeliest first: what vLLM ranks 1 to top."""
    import numpy

    ids, values = numpy.full((len(steps), top), -1, "<i4"), numpy.full((len(steps), top), -numpy.inf, "<f4")
    for row, step in enumerate(steps):
        best = sorted(step.items(), key=lambda item: item[1].rank)[:top]
        for column, (token, found) in enumerate(best):
            ids[row, column], values[row, column] = token, found.logprob
    return ids.tobytes(), values.tobytes()


def close_engine():
    """Let the engine end its processes."""
    llm = RUNNING.pop("llm", None)
    if llm is not None:
        core = getattr(llm.llm_engine, "engine_core", None)
        if core is not None and hasattr(core, "shutdown"):
            core.shutdown()


def serve(**request):
    from . import serving

    return serving.serve(**request)


def serving_ended():
    """The exit status of the server, or of a process of its own that died; none while all run."""
    from . import serving

    return serving.ended()


def stop():
    from . import serving

    serving.stop()


CALLS = {
    "serve": serve,
    "serving_ended": serving_ended,
    "stop": stop,
    "open_engine": open_engine,
    "generate": generate,
    "score": score,
    "trace": trace,
    "drafts": drafts,
    "close_engine": close_engine,
}
