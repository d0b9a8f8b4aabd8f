"""A stub inference server: `engine.py serve MODEL --port N --served-model-name X …`, misbehaving by STUB_MODE.

It speaks what the launcher needs (models, one token, version, metrics, reset) and a stream of exact token counts.

STUB_AFTER: number of good streams before the mode breaks a run (a warm-up sends at least 12 streams).
STUB_NOTE: file for the time (CLOCK_MONOTONIC, s) of the latest stream's start, or of the server's own end.
STUB_ALONE: file that a server locks. A second server finds the file locked and exits.
STUB_KEY: key that each request must have, as Authorization: Bearer KEY.
STUB_TELL: word that the server logs at its start, with its command line and with several spellings of its HF_TOKEN.
STUB_FAMILY: folder in which a child and a detached grandchild register, see tests/faults/stubs/stub_server.py.
"""

import base64
import fcntl
import gzip
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

MODE = os.environ.get("STUB_MODE", "")
ITL_S = float(os.environ.get("STUB_ITL_S", "0.001"))
AFTER = int(os.environ.get("STUB_AFTER", "17"))
WARM_UP = 12  # requests of the shortest warm-up; a busy machine needs more until it is steady
COUNTS = {"requests": 0, "prompt": 0, "generated": 0, "alone": 0}  # alone: answered without a stream
STREAMS = {"begun": 0, "ended": 0}
MEASURED = []  # streams that had ended when the cache was first emptied: from there on it is measured
TRACES = []
LOCK = threading.Lock()


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def due():
    """How many streams are to end well: AFTER, where the warm-up is the shortest."""
    if AFTER <= WARM_UP:
        return AFTER
    return AFTER - WARM_UP + MEASURED[0] if MEASURED else float("inf")


def note():
    if "STUB_NOTE" in os.environ:
        with open(os.environ["STUB_NOTE"], "w") as file:
            file.write(str(time.monotonic()))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer on a kept connection waits 40 ms and comes in one piece

    def log_message(self, *args):
        pass

    def send(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def lacks_key(self):
        key = os.environ.get("STUB_KEY")
        return key is not None and self.headers.get("Authorization") != f"Bearer {key}"

    def do_GET(self):
        if MODE == "wants-a-key" or self.lacks_key():
            self.send(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            name = "somebody-else" if MODE == "foreign" else option("--served-model-name")
            root = "another-model" if MODE == "wrong-model" else sys.argv[2]
            self.send(200, {"data": [{"id": name, "root": root}]})
        elif self.path == "/version":
            self.send(200, {"version": "stub-1"})
        elif self.path == "/metrics":
            self.metrics()
        elif self.path.startswith("/server_info"):
            self.send(200, {"vllm_config": {"scheduler_config": {"max_num_seqs": 64}}})
        else:
            self.send(404, {})

    def metrics(self):
        if MODE == "no-metrics":
            return self.send(404, {})
        lines = [
            f"vllm:external_prefix_cache_hits_total {COUNTS['alone'] if MODE == 'hits' else 0}",
            f"vllm:request_success_total {COUNTS['requests']}",
            f"vllm:prompt_tokens_total {COUNTS['prompt']}",
            f"vllm:generation_tokens_total {COUNTS['generated'] * (2 if MODE == 'lies' else 1)}",
            f"vllm:prompt_tokens_cached_total {COUNTS['prompt'] // 2 if MODE == 'cached' else 0}",
            f"vllm:num_preemptions_total {COUNTS['requests'] if MODE == 'preempts' else 0}",
            f"process_start_time_seconds {2e9 if MODE == 'restarts' and STREAMS['ended'] > due() else 1e9}",
        ]
        return self.send(200, "\n".join([*lines, ""]).encode(), "text/plain")

    def profile(self):
        """vLLM's profiler: the second trace is that of the run, the first one is empty."""
        if MODE == "without-profiler" or "--profiler-config" not in sys.argv:
            return self.send(404, {"detail": "Not Found"})
        if self.path == "/start_profile":
            TRACES.append([])
        elif MODE == "dies-of-the-trace" and len(TRACES) > 1:
            print("stub: last words before the trace", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        elif MODE != "writes-no-trace":
            events = [{"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": 10.0}
                      for at, name in ((0.0, "flash_fwd"), (20.0, "nvjet_tst"), (30.0, "ncclDevKernel_AllReduce"))]
            trace = gzip.compress(json.dumps({"traceEvents": events if len(TRACES) > 1 else []}).encode())
            folder = json.loads(option("--profiler-config"))["torch_profiler_dir"]
            with open(os.path.join(folder, f"rank0.{len(TRACES)}.pt.trace.json.gz"), "wb") as file:
                file.write(trace[:-20] if MODE == "cuts-off-the-trace" else trace)
        return self.send(200, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.partition("?")[0] == "/reset_prefix_cache":
            MEASURED.append(STREAMS["ended"])
            return self.send(200, {"success": True})
        if self.path in ("/start_profile", "/stop_profile"):
            return self.profile()
        if self.lacks_key():
            return self.send(401, {"error": "Unauthorized"})
        if MODE == "no-tokens":
            return self.send(500, {"error": "engine core is dead"})
        request = json.loads(body)
        chat, responses = self.path == "/v1/chat/completions", self.path == "/v1/responses"
        text = request["messages"][0]["content"] if chat else request["input" if responses else "prompt"]
        prompt, tokens = len(text), request["max_output_tokens" if responses else "max_tokens"]
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        if MODE == "dies-of-long-prompts" and prompt > 10:
            print("stub: illegal memory access in a connector", flush=True)
            os.kill(os.getpid(), signal.SIGABRT)
        if not request.get("stream") and tokens == 1:
            COUNTS["alone"] += 1
            return self.send(200, {"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage})
        with LOCK:
            STREAMS["begun"] += 1
            broken = STREAMS["begun"] > due() and tokens > 1  # the probe of an endpoint is served
            note()
        if broken and MODE == "errors":
            return self.send(500, {"error": "engine core is dead"})
        if broken and MODE == "repeats-the-key":
            return self.send(401, {"error": f"Incorrect API key: {self.headers['Authorization'].split()[1]}",
                                   "headers": {"X-Team": self.headers["X-Team"]}})
        if broken and MODE in ("short", "long"):
            tokens += -2 if MODE == "short" else 2
            usage |= {"completion_tokens": tokens}
        if responses:
            self.respond(tokens, prompt)
        elif request.get("stream"):
            self.stream(tokens, usage, {"delta": {"content": "x"}} if chat else {"text": "x"})
        else:
            self.send(200, {"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage})
        with LOCK:
            STREAMS["ended"] += 1
            if MODE == "resets" and STREAMS["ended"] == due():
                COUNTS.update(requests=0, prompt=0, generated=0)
            COUNTS["requests"] += 1
            COUNTS["prompt"] += prompt
            COUNTS["generated"] += tokens
            if STREAMS["ended"] >= due() and MODE in ("dies", "hangs"):
                print(f"stub: last words before it {MODE}", flush=True)
                note()
                os.kill(os.getpid(), signal.SIGKILL if MODE == "dies" else signal.SIGSTOP)

    def stream(self, tokens, usage, content):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for done in range(1, tokens + 1):
            if MODE != "coalesces" or done % 2:
                time.sleep(ITL_S)
            so_far = usage | {"completion_tokens": done}
            last = "length" if done == tokens else None
            self.event({"choices": [{"index": 0, **content, "finish_reason": last}], "usage": so_far},
                       together=MODE == "coalesces" and done % 2 and done < tokens)
        self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def respond(self, tokens, prompt):
        """A stream of the Responses API."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(tokens):
            time.sleep(ITL_S)
            self.event({"type": "response.output_text.delta", "delta": "x"})
        usage = {"input_tokens": prompt, "output_tokens": tokens}
        self.event({"type": "response.completed", "response": {"status": "completed", "usage": usage}})
        self.chunk(b"")

    def event(self, value, together=False):
        self.chunk(f"data: {json.dumps(value)}\n\n".encode(), together)

    held = b""

    def chunk(self, data, together=False):
        """Writes a chunk; with `together` the chunk waits and is sent in one write with the next chunk."""
        self.held += b"%x\r\n%s\r\n" % (len(data), data)
        if not together:
            self.wfile.write(self.held)
            self.held = b""


SHAPED = (  # secrets that only the server knows
    "Authorization: Bearer shaped-canary-1", "cloning https://shaped-canary-2@example.org/r",
    "found hf_ShapedCanary3x", "key sk-shaped-canary-4", "BASIC_AUTH=shaped-canary-5", "Cookie: id=shaped-canary-6",
    "CHAT_WEBHOOK=shaped-canary-7", "and --max-num-batched-token cannot be emulated.",
)


def tell_everything(word):
    token = os.environ.get("HF_TOKEN", "")
    spelled = [token, base64.b64encode(token.encode()).decode(), quote(token, safe="")]
    print(f"stub: {word}", " ".join(sys.argv), *spelled, f"Authorization: Bearer {token}", flush=True)
    print(*SHAPED, sep="\n", flush=True)


def be_alone(path):
    """Hold the lock for as long as this process lives."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("stub: error: two servers at once", flush=True)
        sys.exit(3)


def have_family(folder):
    import pathlib

    sys.path.append(str(pathlib.Path(__file__).parents[1] / "faults" / "stubs"))
    import stub_server

    folder = pathlib.Path(folder)
    (folder / "pids").mkdir(parents=True, exist_ok=True)
    (folder / "port").write_text(option("--port"))
    stub_server.register(folder, "server")
    stub_server.child(folder)
    stub_server.detached(folder)


def main():
    if "STUB_TELL" in os.environ:
        tell_everything(os.environ["STUB_TELL"])
    if "STUB_ALONE" in os.environ:
        be_alone(os.environ["STUB_ALONE"])
    if "STUB_FAMILY" in os.environ:
        have_family(os.environ["STUB_FAMILY"])
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "exit-2":
        print("stub: error: unrecognized arguments: --no-such-flag", flush=True)
        sys.exit(2)
    if MODE == "exit-0":
        sys.exit(0)
    if MODE == "port-taken" and not os.path.exists(os.environ["STUB_ONCE"]):
        open(os.environ["STUB_ONCE"], "w").close()
        print("OSError: [Errno 98] Address already in use", flush=True)
        sys.exit(1)
    if MODE == "starts-twice":
        with open(os.environ["STUB_ONCE"], "a") as starts:
            starts.write("x")
            if starts.tell() > 2:
                sys.exit(3)
    if MODE == "never":
        time.sleep(600)
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
