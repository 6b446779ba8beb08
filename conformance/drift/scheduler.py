"""Compiles the checkout's prepare_next_batch for the CPU, runs it to the end of every request, checks each batch."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from conformance.drift.context import SCHEDULER, Context
from conformance.drift.execute import run_limited
from conformance.drift.finding import NotFound
from conformance.drift.locate.cxx import Body, CxxSource

#: Slots, batched tokens, page size, pages, longest sequence, prompt lengths. Prompts end on, before and behind a page's
#: end; 44 tokens in batches of 32 leave 12.
CONFIGURATIONS = (
    {"slots": 2, "tokens": 32, "page": 16, "pages": 32, "sequence": 96, "prompts": [44, 33, 5]},
    {"slots": 1, "tokens": 8, "page": 8, "pages": 16, "sequence": 40, "prompts": [20, 8, 9]},
)
_ITERATIONS = 1000
_COMPILE_SECONDS, _RUN_SECONDS = 30, 10
_LIMITS = "ulimit -t 20; ulimit -f 131072; ulimit -c 0; exec "

_HARNESS = """
#include <cstdint>
#include <cstdio>
#define __device__
#define __host__
#define __forceinline__ inline
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
struct RuntimeConfig { @FIELDS@ };
bool prepare_next_batch(RuntimeConfig const &config) { @BODY@ }
template <typename T> static void row(char const *name, T const *values, int count, char const *end) {
  printf("\\"%s\\":[", name);
  for (int i = 0; i < count; i++) printf("%s%lld", i ? "," : "", (long long)values[i]);
  printf("]%s", end);
}
int main() {
  constexpr int R = MPK_MAX_NUM_BATCHED_REQUESTS, P = MPK_MAX_NUM_PAGES, N = sizeof((int[]){@PROMPTS@}) / sizeof(int);
  RuntimeConfig config{};
  @ALLOCATE@
  int const prompts[] = {@PROMPTS@};
  for (int i = 0; i < N; i++) config.prompt_length[i] = prompts[i];
  for (int i = 0; i < R; i++) config.request_ids[i] = -1;
  for (int i = 0; i < P; i++) config.page_queue[i] = i;
  *config.page_queue_tail = P;
  for (int iteration = 0; iteration < @ITERATIONS@; iteration++) {
    for (int i = 0; i < MPK_MAX_NUM_BATCHED_TOKENS; i++) config.output_tokens[i] = 7;
    bool more = prepare_next_batch(config);
    printf("{");
    row("request", config.request_ids, R, ",");
    row("step", config.step, N, ",");
    row("qo", config.qo_indptr_buffer, R + 1, ",");
    row("kv", config.paged_kv_indptr_buffer, R + 1, ",");
    row("pages", config.paged_kv_indices_buffer, P, ",");
    row("last", config.paged_kv_last_page_len_buffer, R, ",");
    row("queue", config.page_queue, P, ",");
    int const head = *config.page_queue_head, tail = *config.page_queue_tail;
    printf("\\"head\\":%d,\\"tail\\":%d,\\"more\\":%d}\\n", head, tail, more);
    if (!more) return 0;
  }
  return 0;
}
"""


def run_scheduler(context: Context) -> dict[str, Any] | str:
    """What the batches of all configurations show: problems, Q_LEN seen, iterations; or a line why there is nothing."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return "no C++ compiler here (g++ or clang++)"
    try:
        source = CxxSource.of(context.mpk, SCHEDULER)
        body = source.function("prepare_next_batch")
    except NotFound as error:
        return error.words
    problems: list[dict[str, Any]] = []
    q_lens: set[int] = set()
    iterations = 0
    for configuration in CONFIGURATIONS:
        states = _run(compiler, body, configuration)
        if isinstance(states, str):
            return states
        iterations += len(states)
        counted: Counter[str] = Counter()
        for state in states:
            counted.update(violations(state, configuration))
            q_lens |= {b - a for a, b in pairwise(state["qo"]) if b > a}
        if not states or states[-1]["more"]:
            counted["requests do not end"] += 1
        words = f"{configuration['slots']} requests, {configuration['tokens']} tokens"
        problems += [{"what": what, "count": n, "configuration": words} for what, n in sorted(counted.items())]
    return {
        "problems": problems,
        "q_lens": sorted(q_lens),
        "iterations": iterations,
        "configurations": len(CONFIGURATIONS),
    }


def harness(body: Body, configuration: dict[str, Any]) -> str:
    """A C++ program around the function: its fields typed by how the function uses them, all numbers int."""
    names = sorted(set(re.findall(r"\bconfig\.(\w+)", body.body)))
    known = {
        "request_ids",
        "step",
        "qo_indptr_buffer",
        "prompt_length",
        "page_queue",
        "page_queue_head",
        "page_queue_tail",
    }
    known |= {"paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer", "output_tokens"}
    absent = sorted(known - set(names))
    if absent:
        raise NotFound("anchor-absent", f"{SCHEDULER}: prepare_next_batch uses no config.{absent[0]}")
    fields, allocate = [], []
    scalars = {
        "max_seq_length": configuration["sequence"],
        "total_num_requests": len(configuration["prompts"]),
        "eos_token_id": -1,
    }
    room = max(configuration["pages"], configuration["sequence"] * len(configuration["prompts"])) + 64
    for name in names:
        if re.search(rf"\bconfig\.{name}\s*\[|\*\s*config\.{name}\b", body.body):
            fields.append(f"int *{name};")
            allocate.append(f"static int room_{name}[{room}]; config.{name} = room_{name};")
        else:
            fields.append(f"int {name};")
            allocate.append(f"config.{name} = {scalars.get(name, 0)};")
    filled = {
        "FIELDS": " ".join(fields),
        "BODY": body.body,
        "ALLOCATE": " ".join(allocate),
        "PROMPTS": ", ".join(map(str, configuration["prompts"])),
        "ITERATIONS": str(_ITERATIONS),
    }
    return re.sub(r"@(\w+)@", lambda m: filled[m[1]], _HARNESS)


def _run(compiler: str, body: Body, configuration: dict[str, Any]) -> list[dict[str, Any]] | str:
    with tempfile.TemporaryDirectory(prefix="conformance-drift-") as folder:
        home = Path(folder)
        source, program, log = home / "scheduler.cc", home / "scheduler", home / "log"
        try:
            source.write_text(harness(body, configuration))
        except NotFound as error:
            return error.words
        limits = {
            "MPK_MAX_NUM_BATCHED_REQUESTS": configuration["slots"],
            "MPK_MAX_NUM_BATCHED_TOKENS": configuration["tokens"],
            "MPK_PAGE_SIZE": configuration["page"],
            "MPK_MAX_NUM_PAGES": configuration["pages"],
            "MPK_MAX_SEQ_LENGTH": configuration["sequence"],
        }
        flags = [f"-D{name}={value}" for name, value in limits.items()]
        made = run_limited(
            [compiler, "-O1", "-w", *flags, "-o", str(program), str(source)], home, _COMPILE_SECONDS, log
        )
        if made != 0:
            said = next((line for line in log.read_text(errors="replace").splitlines() if "error" in line), "no word")
            return f"prepare_next_batch does not compile for the CPU: {said[:160]}"
        output = home / "states"
        ended = run_limited(["/bin/sh", "-c", f"{_LIMITS}{shlex.quote(str(program))}"], home, _RUN_SECONDS, output)
        if ended is None:
            return f"prepare_next_batch did not end in {_RUN_SECONDS} s"
        try:
            return [json.loads(line) for line in output.read_text(errors="replace").splitlines()]
        except ValueError:
            return f"the scheduler's program ended with {ended} and left no states"


def violations(state: dict[str, Any], configuration: dict[str, Any]) -> list[str]:
    """What one batch breaks."""
    qo, kv, page = state["qo"], state["kv"], configuration["page"]
    found = []
    if any(a > b for row in (qo, kv) for a, b in pairwise(row)):
        found.append("index pointers decrease")
    for slot, request in enumerate(state["request"]):
        tokens, pages = qo[slot + 1] - qo[slot], kv[slot + 1] - kv[slot]
        if request < 0:
            if tokens or pages:
                found.append("an empty slot holds tokens or pages")
            continue
        length = (pages - 1) * page + state["last"][slot]
        if length != state["step"][request] + tokens:
            found.append("pages and last-page length do not add up to the tokens seen")
    if qo[-1] > configuration["tokens"]:
        found.append("more tokens than max-num-batched-tokens")
    active = sum(request >= 0 for request in state["request"])
    used = state["pages"][: kv[active]] if 0 <= kv[active] <= len(state["pages"]) else []
    free = [state["queue"][i % configuration["pages"]] for i in range(state["head"], state["tail"])]
    if len(set(used)) != len(used):
        found.append("a page is given twice")
    if sorted({*used, *free}) != list(range(configuration["pages"])) or len(used) + len(free) != configuration["pages"]:
        found.append("used and free pages are not all pages")
    return found
