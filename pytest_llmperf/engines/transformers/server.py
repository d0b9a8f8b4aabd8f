"""Hugging Face `generate` behind OpenAI's completions route, in static batches.

Runs in the interpreter that has transformers, as a script of its own: it imports nothing of this package.

    python server.py MODEL --port 8000 --served-model-name NAME --max-batch-size 8

The server takes up to `--max-batch-size` waiting requests, pads their prompts on the left to one length and calls
`generate` once. The model computes every row of the batch until the longest answer ends. No waiting request takes the
place of a finished row: this is the difference to continuous batching. The server sends each token when the token is
computed, so a short answer does not wait for the longest answer of its batch.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: What a request gets that the model cannot compute.
FAILED = -1


@dataclass
class QueuedRequest:
    """One request: the prompt, the number of tokens to answer, and the queue of tokens for the connection."""

    prompt: list[int]
    answer_tokens: int
    tokens: queue.Queue[int] = field(default_factory=queue.Queue)


@dataclass
class Counts:
    """What /metrics shows. A step computes one token of every row of a batch, padding and finished rows included."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests_finished: int = 0
    steps: int = 0
    running: int = 0
    started_s: float = field(default_factory=time.time)


class Batch:
    """A batch that is computed, as `generate` streams it: first the prompts, then one token of each row a step."""

    def __init__(self, rows: Sequence[QueuedRequest], counts: Counts) -> None:
        self.rows = rows
        self._counts = counts
        self._step = -1

    def put(self, value: Any) -> None:  # noqa: ANN401 - a tensor of PyTorch, which is not imported here
        """Take what `generate` streams: the prompts once, then the next token of each row."""
        self._step += 1
        if self._step == 0:
            return
        self._counts.steps += 1
        for row, token in zip(self.rows, value.tolist(), strict=True):
            if self._step <= row.answer_tokens:
                self._counts.generation_tokens += 1
                self._counts.prompt_tokens += len(row.prompt) if self._step == 1 else 0
                self._counts.requests_finished += self._step == row.answer_tokens
                row.tokens.put(token)

    def end(self) -> None:
        """The longest answer of the batch has ended."""


class Batcher:
    """Forms batches of waiting requests and computes one batch after the other.

    Args:
        path: folder or hub id of the model.
        size: most rows of a batch.
        fill_s: how long a batch waits for its rows, counted from when the model is free and a request waits.
        dtype: number format of weights and arithmetic, by its PyTorch name.
        device: PyTorch device.
    """

    def __init__(self, path: str, size: int, fill_s: float, dtype: str, device: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.counts = Counts()
        self.waiting: queue.Queue[QueuedRequest] = queue.Queue()
        self._size, self._fill_s, self._device = size, fill_s, device
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).to(device).eval()
        self.longest = int(self._model.config.max_position_embeddings)

    def run(self) -> None:
        """Compute batches for ever."""
        while True:
            rows = self._rows()
            self.counts.running = len(rows)
            try:
                self._generate(rows)
            except RuntimeError:  # out of memory: the requests of this batch fail, the next batch may fit
                for row in rows:
                    row.tokens.put(FAILED)
                raise
            finally:
                self.counts.running = 0

    def _rows(self) -> list[QueuedRequest]:
        rows = [self.waiting.get()]
        until_s = time.monotonic() + self._fill_s
        while len(rows) < self._size:
            try:
                rows.append(self.waiting.get(timeout=max(0.0, until_s - time.monotonic())))
            except queue.Empty:
                break
        return rows

    def _generate(self, rows: list[QueuedRequest]) -> None:
        import torch

        width = max(len(row.prompt) for row in rows)
        padding = [width - len(row.prompt) for row in rows]
        ids = torch.tensor([[0] * gap + row.prompt for gap, row in zip(padding, rows, strict=True)])
        mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in padding])
        with torch.inference_mode():
            self._model.generate(
                input_ids=ids.to(self._device), attention_mask=mask.to(self._device), do_sample=False,
                max_new_tokens=max(row.answer_tokens for row in rows), eos_token_id=None, pad_token_id=0,
                streamer=Batch(rows, self.counts),
            )


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    batcher: Batcher
    model: str
    name: str
    facts: dict[str, object]
    tokenizer: Any = None

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not logged."""

    def do_GET(self) -> None:
        """Answer a control request."""
        pages: dict[str, object] = {
            "/health": {}, "/version": {"version": self.facts["version"]}, "/facts": self.facts,
            "/v1/models": {"object": "list", "data": [{"id": self.name, "object": "model", "root": self.model}]},
        }
        if self.path == "/metrics":
            self._whole(200, self._metrics().encode(), "text/plain")
        elif self.path in pages:
            self._whole(200, json.dumps(pages[self.path]).encode())
        else:
            self._whole(404, b"{}")

    def do_POST(self) -> None:
        """Answer a completion: streamed, with one event per token and the usage so far."""
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            request = self._request(body)
        except (ValueError, KeyError, TypeError) as error:
            self._whole(400, json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode())
            return
        self.batcher.waiting.put(request)
        if body.get("stream"):
            self._stream(request)
        else:
            tokens = [request.tokens.get() for _ in range(request.answer_tokens)]
            body = self._event(request, self._text(tokens), len(tokens), "length")
            self._whole(200, json.dumps(body).encode())

    def _request(self, body: dict[str, Any]) -> QueuedRequest:
        if self.path != "/v1/completions":
            raise ValueError(f"there is no route {self.path}; this server has /v1/completions")
        prompt, tokens = body["prompt"], int(body["max_tokens"])
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("the model has no tokenizer; send token ids")
            prompt = self.tokenizer(prompt)["input_ids"]
        if not prompt or not all(isinstance(token, int) for token in prompt) or tokens < 1:
            raise ValueError("a prompt is a text or a list of token ids, and max_tokens at least 1")
        if len(prompt) + tokens > self.batcher.longest:
            raise ValueError(f"prompt and answer have {len(prompt) + tokens} tokens, and the model "
                             f"{self.batcher.longest} positions")
        return QueuedRequest(prompt, tokens)

    def _stream(self, request: QueuedRequest) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in self._events(request):
                self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client is gone; its row is computed to the end of the batch all the same
            self.close_connection = True

    def _events(self, request: QueuedRequest) -> Iterator[bytes]:
        for sent in range(1, request.answer_tokens + 1):
            token = request.tokens.get()
            if token == FAILED:
                yield b'data: {"error": {"message": "the batch could not be computed"}}\n\n'
                return
            reason = "length" if sent == request.answer_tokens else None
            yield b"data: " + json.dumps(self._event(request, self._text([token]), sent, reason)).encode() + b"\n\n"
        usage = self._event(request, "", request.answer_tokens, None) | {"choices": []}
        yield b"data: " + json.dumps(usage).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _event(self, request: QueuedRequest, text: str, sent: int, reason: str | None) -> dict[str, object]:
        prompt = len(request.prompt)
        return {
            "id": "static", "object": "text_completion", "created": 0, "model": self.name,
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent},
        }

    def _text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens)) if self.tokenizer is not None else " ".join(map(str, tokens))

    def _metrics(self) -> str:
        counts = self.batcher.counts
        counters = {"prompt_tokens": counts.prompt_tokens, "generation_tokens": counts.generation_tokens,
                    "requests_finished": counts.requests_finished, "steps": counts.steps}
        gauges = {"running": counts.running, "waiting": self.batcher.waiting.qsize()}
        lines = [f"# TYPE static:{name}_total counter\nstatic:{name}_total {value}" for name, value in counters.items()]
        lines += [f"# TYPE static:{name} gauge\nstatic:{name} {value}" for name, value in gauges.items()]
        began = f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {counts.started_s!r}"
        return "\n".join([*lines, began, ""])

    def _whole(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class HttpServer(ThreadingHTTPServer):
    """A thread for each connection, of which a run opens one per request in flight."""

    daemon_threads = True
    request_queue_size = 512


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-batch-size", type=int, default=8)
    parser.add_argument("--batch-wait-ms", type=float, default=50.0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.max_batch_size < 1 or options.batch_wait_ms < 0:
        parser.error("--max-batch-size is at least 1, and --batch-wait-ms at least 0")
    from transformers import AutoTokenizer, __version__

    Handler.batcher = Batcher(
        options.model, options.max_batch_size, options.batch_wait_ms / 1000, options.dtype, options.device
    )
    Handler.model, Handler.name = options.model, options.served_model_name
    Handler.facts = {"version": __version__, "max_batch_size": options.max_batch_size,
                     "batch_wait_ms": options.batch_wait_ms, "dtype": options.dtype}
    if (Path(options.model) / "tokenizer.json").is_file():
        Handler.tokenizer = AutoTokenizer.from_pretrained(options.model)
    server = HttpServer((options.host, options.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.batcher.run()


if __name__ == "__main__":
    main()
