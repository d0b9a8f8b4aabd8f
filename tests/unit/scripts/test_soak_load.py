"""What the soak says of the memory of its processes."""

import pytest

from pytest_llmperf.model.exchange import Ending

ENDED = {Ending.COMPLETE: 900, Ending.CANCELLED: 200}


@pytest.fixture
def soak(load_script):
    return load_script("soak_load")


def grown(growth):
    """The samples of ten minutes in which a process grows by so many MB/min after three, and faster before."""
    minutes = [sample / 12 for sample in range(1, 121)]
    return [(at, 100 + 5 * min(at, 3) + growth * max(0.0, at - 3)) for at in minutes]


def test_growth_counts_from_the_settling_time(soak):
    assert soak.growth(grown(0.02)) == pytest.approx(0.02)
    assert soak.growth(grown(0.02)[:61]) is None  # two settled samples make no line


@pytest.mark.parametrize(
    ("growth", "endings", "problem"),
    [
        (0.09, ENDED, None),
        (0.11, ENDED, "emulator grows by 0.110 MB/min"),
        (0.0, ENDED | {Ending.IDLE_TIMEOUT: 3}, "3 requests ended as idle timeout"),
        (0.0, {Ending.COMPLETE: 900}, "the plan ran out of requests"),
    ],
)
def test_load_passes_where_every_process_is_flat_and_every_request_served(soak, growth, endings, problem):
    problems = soak.problems({"emulator": grown(growth)}, endings)
    assert problems == [] if problem is None else problem in problems[0]


def test_load_without_samples_shows_nothing(soak):
    assert soak.problems({"emulator": grown(0.0)[:61]}, ENDED) == [
        "no process lived for three samples after 5 minutes: nothing was shown"]


def test_sample_contains_resident_size_of_this_process(soak):
    samples = {}
    soak.sample(samples, 0.5)
    ((at_min, rss_mb),) = samples["pytest's part"]
    assert (at_min, rss_mb > 5) == (0.5, True)
    assert "\n| pytest's part | 1 |" in soak.table(samples)
