"""Answers a webhook of Flagger with the verdict on a canary: `python ci/flagger_webhook.py 8080`.

The metadata of the webhook are the variables of `ci/canary.sh`. A PASS is HTTP 200. Each other verdict is HTTP 409,
whose body is the verdict in one line: Flagger shows the line in its events. Requests are answered one after the other.
"""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

VARIABLES = ("CANARY", "STABLE", "CANARY_PAGES", "STABLE_PAGES")


class Webhook(BaseHTTPRequestHandler):
    """One POST is one claim."""

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        metadata = {name: payload["metadata"][name] for name in VARIABLES if name in payload["metadata"]}
        judged = subprocess.run(["sh", "ci/canary.sh"], env={**os.environ, "LINE": os.devnull, **metadata},
                                stdout=subprocess.PIPE, text=True, check=False)
        sys.stdout.write(judged.stdout)
        line = judged.stdout.rstrip().rpartition("\n")[2].encode()
        self.send_response(200 if judged.returncode == 0 else 409)
        self.send_header("Content-Length", str(len(line)))
        self.end_headers()
        self.wfile.write(line)


if __name__ == "__main__":
    HTTPServer(("", int(sys.argv[1])), Webhook).serve_forever()
