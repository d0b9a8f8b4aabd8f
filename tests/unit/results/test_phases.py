"""Requests before, during and after the events of a run."""

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.phases import has_phases, judge_phases, phase
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.slo.parse import parse_check
from pytest_llmperf.testing.records import make_record

COUNTERS = {"disturbed_from_s": 10.0, "disturbed_until_s": 20.0, "generation_tokens": 5.0}


def run(seed, outcome=Outcome.RESET, slower=1.0):
    """A request each 50 ms for 30 s, of 140 ms each; every second one fails during the events."""
    records = [
        make_record(number, intended_ms=50 * number + 7e6, ttft_ms=50.0 * (slower if number >= 400 else 1.0),
                    outcome=outcome if 200 <= number < 400 and number % 2 else Outcome.OK)
        for number in range(600)
    ]
    return Run(seed, 1, records, counters=COUNTERS, replicas={"1": {}, "2": {}})


def measurement(**changes):
    return Measurement("fleet", "load", {"kind": "h100"}, tuple(run(seed, **changes) for seed in range(3)))


def judged(*texts, **changes):
    parsed = {text: parse_check(text) for text in texts}
    slos = [each for each in parsed.values() if not isinstance(each, tuple)]
    ratios = [text for text, each in parsed.items() if isinstance(each, tuple)]
    return judge_phases(measurement(**changes), slos, ratios, Settings(), ())


def test_request_in_flight_at_the_first_event_belongs_to_during():
    parts = {name: [record.index for record in phase(measurement(), name).runs[0].records]
             for name in ("before", "during", "after")}
    assert parts["before"] == list(range(198))  # 198 begins at 9.9 s and ends after 10 s
    assert parts["during"] == list(range(198, 400))
    assert parts["after"] == list(range(400, 600))
    assert phase(measurement(), "after").metrics[0].value("tokens_per_step") is None


def test_limits_and_ratios_judge_the_phase_that_they_name():
    results = judged("error_rate(before) == 0", "error_rate(during) <= 30%", "error_rate(after) == 0",
                     "ttft_p50(after) / ttft_p50(before) <= 1.2", slower=1.5)
    verdicts = {result.metric: result.verdict for result in results}
    assert verdicts == {"error_rate(before)": Verdict.PASS, "error_rate(during)": Verdict.FAIL,
                        "error_rate(after)": Verdict.PASS,
                        "ttft_p50(after) / ttft_p50(before)": Verdict.FAIL}


def test_failed_requests_of_a_phase_that_no_text_judges_make_a_check_of_it_an_error():
    (result,) = judged("ttft_p50(during) <= 500ms")
    assert (result.verdict, result.metric) == (Verdict.ERROR, "validity")
    assert [result.verdict for result in judged("ttft_p50(after) <= 500ms")] == [Verdict.PASS]


def test_run_without_events_has_no_phases():
    assert has_phases(measurement())
    assert not has_phases(Measurement("fleet", "load", {}, (Run(0, 1, ()),)))
