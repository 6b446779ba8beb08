"""The reference stack's engine behind HTTP on loopback: completions by token ids, one at a time."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from conformance.stacks.engine_protocol import EngineRequest, Likely
from conformance.stacks.reference_engine import ReferenceSession

MODEL = "reference"


class _Patient(ThreadingHTTPServer):
    """Keeps as many clients waiting as a load sends: the default of 5 turns some away."""

    request_queue_size = 128


class ReferenceServer:
    """See engine_protocol.Served."""

    model = MODEL

    def __init__(self, request: EngineRequest):
        session, lock = ReferenceSession(request), threading.Lock()
        self.context, counted = request.context, [0]

        def complete(asked: dict[str, Any]) -> dict[str, Any]:
            prompt, tokens = asked.get("prompt"), asked.get("max_tokens")
            if asked.get("model") != MODEL:
                raise LookupError("no such model")
            if not isinstance(prompt, list) or not all(isinstance(t, int) for t in prompt):
                raise ValueError("prompt is no list of token ids")
            if not isinstance(tokens, int) or tokens < 1 or len(prompt) + tokens > request.context:
                raise ValueError("max_tokens below 1, or more than the context holds")
            with lock:
                counted[0] += 1
                (answer,) = session.generate([prompt], tokens, int(asked.get("logprobs") or 1))
                asked_of_prompt = int(asked.get("prompt_logprobs") or 0)
                scored = session.score(prompt, asked_of_prompt) if asked_of_prompt else None
            values = answer.likely.values[:, 0].tolist()
            choice: dict[str, Any] = {"text": "", "token_ids": answer.tokens, "finish_reason": answer.finish}
            choice["logprobs"] = {"token_logprobs": values, "top_logprobs": _named(answer.likely)}
            if scored:
                rows = [{key: {"logprob": value} for key, value in row.items()} for row in _named(scored)]
                choice["prompt_logprobs"] = [None, *rows]
            usage = {"prompt_tokens": len(prompt), "completion_tokens": len(answer.tokens)}
            return {"choices": [choice], "usage": usage | {"total_tokens": len(prompt) + len(answer.tokens)}}

        listed = {"data": [{"id": MODEL, "root": request.model, "max_model_len": request.context}]}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    self._answer(200, json.dumps(complete(json.loads(body))))
                except LookupError as error:
                    self._answer(404, json.dumps({"error": {"message": str(error)}}))
                except ValueError as error:
                    self._answer(400, json.dumps({"error": {"message": str(error)}}))

            def do_GET(self) -> None:
                told = {"/metrics": f"requests_total {counted[0]}\n", "/v1/models": json.dumps(listed), "/health": ""}
                self._answer(200 if self.path in told else 404, told.get(self.path, ""))

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Nothing: the harness's terminal is not the server's log."""

        self._http = _Patient(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def ended(self) -> int | None:
        return None  # it lives in this process

    def close(self) -> str:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)
        return ""


def _named(likely: Likely) -> list[dict[str, float]]:
    rows = zip(likely.ids.tolist(), likely.values.tolist(), strict=True)
    return [{f"token_id:{token}": value for token, value in zip(*row, strict=True)} for row in rows]
