"""Speaks the emulator's pipe protocol, one command after the other, without emulating anything."""

import json
import sys
import time


def main():
    now_ns = 0
    print(json.dumps({"ready": True, "now_ns": 0}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "sleep" in command:
            now_ns += command["sleep"]["ns"]
            answer = {}
        elif "http" in command:
            answer = {"status": 200, "content_type": "application/json", "body": json.dumps(command["http"])}
        elif "simulate" in command:
            started_ns, now_ns = now_ns, now_ns + 1000
            answer = {"started_ns": started_ns, "ended_ns": now_ns, "records": records(command, started_ns)}
        elif "exit" in command:
            print("the reason is here", file=sys.stderr, flush=True)
            sys.exit(command["exit"])
        elif "hang" in command:
            time.sleep(60)
        elif "long" in command:
            answer = {"body": "x" * command["long"]}
        elif "garbage" in command:
            print("no json", flush=True)
            continue
        else:
            answer = {"error": f"no command {', '.join(command)}"}
        print(json.dumps(answer | {"now_ns": now_ns}), flush=True)


def records(command, started_ns):
    replay = command["simulate"]
    if "hang" in replay["requests"][0]["body"]:
        time.sleep(60)
    return [
        {
            "index": request["index"],
            "intended_ns": started_ns + (request["at_ns"] or 0),
            "sent_ns": started_ns + (request["at_ns"] or 0),
            "ended_ns": started_ns + 1000,
            "ending": "complete" if replay["limits"]["idle_ns"] else "idle timeout",
            "outcome": "ok",
            "error": None,
            "token_ns": [started_ns + 500, started_ns + 1000],
            "token_counts": [1, 2],
            "prompt_tokens": 3,
            "output_tokens": 3,
            "cached_tokens": 0,
        }
        for request in replay["requests"]
    ]


main()
