"""A load host without Ray: pickled calls of `HostLoad` on stdin, pickled answers on stdout."""

import pickle
import sys

from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.load.host_load import HostLoad

host = HostLoad()
while True:
    try:
        method, arguments = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        answer = getattr(host, method)(*arguments)
    except LlmperfError as problem:
        answer = problem
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
host.end()
