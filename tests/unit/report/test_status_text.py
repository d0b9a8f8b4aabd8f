"""What goes on, in words."""

import pytest

from pytest_llmperf.model.status import Measuring, Note, SearchRest, Starting, Waiting, WarmingUp
from pytest_llmperf.report.watch import duration, sentence

RUN = Measuring(2, 3, requests=100, done=61, failed=1, elapsed_s=6.4, requested_rate=10, rate=9.53, ttft_ms=45.12,
                itl_ms=6.44, left_s=14)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Starting("vllm('m')"), "starting vllm('m'), 7 s"),
        (Starting("vllm('m')", "Loading weights"), "starting vllm('m'), 7 s: Loading weights"),
        (WarmingUp("vllm('m')"), "warming up vllm('m'), 7 s"),
        (Waiting("another run uses this machine"), "waiting: another run uses this machine, 7 s"),
        (Note("It died."), "It died."),
        (RUN, "run 2 of 3: 61 of 100 answered, 1 failed, 9.53/s (10/s asked), TTFT 45.1 ms, ITL 6.44 ms, 6 s, "
              "14 s left"),
        (Measuring(1, 1, 8, 0, 0, 0.2), "run 1 of 1: 0 of 8 answered, 0 s"),
        (Measuring(1, 2, 8, 4, 0, 1, left_s=3, label="8/s", search=SearchRest(60, 180)),
         "8/s, run 1 of 2: 4 of 8 answered, 1 s, 3 s left, search: 1 min 3 s to 3 min 3 s left"),
        (Measuring(1, 3, 8, 0, 0, 0.2, label="A"), "A, run 1 of 3: 0 of 8 answered, 0 s"),
    ],
)
def test_status_is_shown_as_sentence(status, text):
    assert sentence(status, 7) == text


def test_durations_are_shown_in_minutes_and_seconds():
    assert [duration(value) for value in (0.4, 59.4, 59.6, 185)] == ["0 s", "59 s", "1 min 0 s", "3 min 5 s"]
