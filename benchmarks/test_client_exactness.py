"""Our load generator against the server of known timing: one minute, limits of docs/evidence/load_generator.md."""

import shutil

import our_clients
import pytest
from figures import figures
from timed import TimedServer

# Wide enough for a machine that does other things; the page's figures come from `make bench-clients`.
MEDIAN_LIMIT_MS = {10: 0.2, 100: 0.5}


@pytest.mark.skipif(shutil.which("cc") is None, reason="the server of known timing needs a C compiler")
@pytest.mark.parametrize("streams", sorted(MEDIAN_LIMIT_MS))
def test_errors_stay_small(streams, benchmark):
    with TimedServer() as server:
        measured = benchmark.pedantic(our_clients.closed, (server, streams, 3 * streams), rounds=1)
        errors = figures(measured, server.stats())
    benchmark.extra_info.update(errors.notes, ttft_p50_ms=errors.ttft_p50, ttft_p99_ms=errors.ttft_p99)
    assert errors.reached == streams
    assert errors.notes["kernel_stamped"] == 1.0
    assert errors.ttft_p50 <= MEDIAN_LIMIT_MS[streams]
