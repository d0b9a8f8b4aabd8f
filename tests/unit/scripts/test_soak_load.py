"""What the soak says of the memory of its processes."""

from collections import Counter

import pytest


@pytest.fixture
def soak(load_script):
    return load_script("soak_load")


@pytest.fixture
def loaded(soak):
    """A load of ten minutes in which the one process grows by so many MB/min after three, and faster before."""

    def load(growth, **changed):
        minutes = [sample / 12 for sample in range(1, 121)]
        rss_mb = [100 + 5 * min(at, 3) + growth * max(0.0, at - 3) for at in minutes]
        emulator = soak.Process("emulator", minutes, rss_mb)
        fields = {
            "processes": (emulator,),
            "streams": 200,
            "minutes": 10.0,
            "chunks_per_s": 770.0,
            "endings": Counter(),
            "exhausted": False,
        }
        return soak.Soaked(**fields | changed)

    return load


def test_growth_counts_from_the_settling_time(soak, loaded):
    (process,) = loaded(0.02).processes
    assert process.growth(5) == pytest.approx(0.02)
    assert process.growth(0) > 1
    assert process.growth(9.9) is None  # two samples make no line


@pytest.mark.parametrize(
    ("growth", "changed", "problem"),
    [
        (0.09, {}, None),
        (0.11, {}, "emulator grows by 0.110 MB/min"),
        (0.0, {"endings": Counter({"idle timeout": 3})}, "3 requests ended as idle timeout"),
        (0.0, {"exhausted": True}, "the plan ran out of requests after 10.0 minutes"),
        (0.0, {"processes": ()}, "no process lived for three samples after 5 minutes"),
    ],
)
def test_load_passes_where_every_process_is_flat_and_every_request_served(soak, loaded, growth, changed, problem):
    problems = soak.problems(loaded(growth, **changed), 5, 0.1)
    assert problems == [] if problem is None else problem in problems[0]
    last = soak.table(loaded(growth, **changed), 5, 0.1)[-2]
    assert last.startswith("PASS" if problem is None else "FAIL")


def test_sample_contains_resident_size_of_this_process(soak):
    processes = {}
    soak._sample(processes, 0.5)
    assert any(process.name == "pytest's part" and process.rss_mb[0] > 5 for process in processes.values())
