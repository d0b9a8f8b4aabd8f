"""Real Hugging Face `generate`: exact tokens, whole batches, one step for each token of the longest answer."""

import pytest

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(300)]

SERVES = """
import pytest
from pytest_llmperf import closed, random_tokens, transformers

@pytest.mark.cpu
@pytest.mark.engine(transformers("tiny", max_batch_size=4, batch_wait_ms=500))
def test_batches_wait_for_the_longest(engine, perf):
    run = perf.measure(engine, random_tokens(input=(8, 40), output=(4, 24), arrivals=closed(4), requests=4), runs=2)
    perf.check(run, "error_rate == 0")
    for one in run.runs:
        lengths = [sum(record.chunk_tokens) for record in one.metrics.records]
        assert lengths == [record.asked_output_tokens for record in one.metrics.records]
        assert one.counters["generation_tokens"] == sum(lengths)
        assert one.counters["engine_steps"] == max(lengths)
        assert one.counters["requests_finished"] == 4
    assert engine.facts["max_batch_size"] == "4"
"""

REFUSES = """
import pytest
from pytest_llmperf import transformers

@pytest.mark.cpu
@pytest.mark.engine(transformers("tiny").with_flags(max_batch_sise=4))
def test_unknown_flag(engine): pass
"""


def test_static_server_takes_as_many_steps_as_longest_answer_has_tokens(run_real):
    result, tags = run_real(SERVES)
    assert tags == {"test_batches_wait_for_the_longest": set()}, result.stdout.str()


def test_unknown_flag_of_static_server_is_named_at_start(run_real):
    result, tags = run_real(REFUSES)
    assert tags == {"test_unknown_flag": {"error"}}
    result.stdout.fnmatch_lines(["*unrecognized arguments: --max-batch-sise 4*"])
