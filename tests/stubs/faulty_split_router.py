"""A router before one prefill server and one decode server, which hands over every fourth KV cache wrongly.

Usage: faulty_split_router.py PORT FAULT PREFILL DECODE. The faults: "none", "swapped" (two requests get each other's
transfer parameters), "stale" (the last block is another block of the prompt), "truncated" (the last block is missing)
and "lost" (no parameters, so the decode server computes the prompt).
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.request import Request, urlopen

PARAMETERS = "kv_transfer_params"
ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
         "remote_host": None, "remote_port": None}
EVERY, PARTNER_S, ANSWER_S = 4, 5.0, 120.0


class Router(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    numbers, waiting, lock = count(), [], threading.Lock()
    fault, prefill, decode = sys.argv[2:]

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first = body | {"max_tokens": 1, "min_tokens": 1, "stream": False, PARAMETERS: ASKED}
        first.pop("stream_options", None)
        with self.ask(self.prefill, first) as answer:
            given = json.loads(answer.read()).get(PARAMETERS)
        self.relay(self.ask(self.decode, body | {PARAMETERS: self.handed_over(given)}))

    def handed_over(self, given):
        if given is None or next(self.numbers) % EVERY:
            return given
        blocks = given["remote_block_ids"]
        match self.fault:
            case "swapped":
                return self.swapped(given)
            case "stale":
                return given | {"remote_block_ids": [[*group[:-1], group[0]] for group in blocks]}
            case "truncated":
                return given | {"remote_block_ids": [group[:-1] for group in blocks]}
            case "lost":
                return None
        return given

    def swapped(self, given):
        """The parameters of the next request that comes here, or after a while the request's."""
        with self.lock:
            if self.waiting:
                other, arrived = self.waiting.pop()
                taken, other[:] = other[0], [given]
                arrived.set()
                return taken
            mine, arrived = [given], threading.Event()
            self.waiting.append((mine, arrived))
        if not arrived.wait(PARTNER_S):
            with self.lock:
                if (mine, arrived) in self.waiting:
                    self.waiting.remove((mine, arrived))
        return mine[0]

    def do_GET(self):
        self.relay(urlopen(self.decode + self.path, timeout=ANSWER_S))

    def ask(self, server, body):
        request = Request(server + self.path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return urlopen(request, timeout=ANSWER_S)

    def relay(self, answer):
        """Pass on an answer as it comes. The end of the connection ends it."""
        with answer:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
            self.send_header("Connection", "close")
            self.end_headers()
            while piece := answer.read1():
                self.wfile.write(piece)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Router).serve_forever()
