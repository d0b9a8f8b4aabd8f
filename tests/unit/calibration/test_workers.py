"""Suite runs in several processes: all rows, in any order, and nobody left over."""

import multiprocessing
import os
import signal

import pytest

from pytest_llmperf.calibration.row import CalibrationRow
from pytest_llmperf.calibration.workers import results_of, usable_cores
from pytest_llmperf.errors import InfrastructureError, UsageError


def row(number, pid=0):
    return CalibrationRow("A/A", number, {"PASS": 1}, {}, (), (), 3, {}, pid)


def work(numbers):
    return (row(number, os.getpid()) for number in numbers)


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_each_suite_run_is_executed_once(jobs):
    rows = list(results_of(work, range(7), jobs))
    assert sorted(row.number for row in rows) == list(range(7))
    pids = {row.seen for row in rows}
    assert len(pids) == jobs
    assert os.getpid() not in pids
    assert multiprocessing.active_children() == []


def test_more_worker_processes_than_suite_runs_are_accepted():
    assert [row.number for row in results_of(work, [3], 4)] == [3]
    assert list(results_of(work, [], 4)) == []


def test_an_error_of_the_work_is_raised_here():
    def refuse(numbers):
        yield row(numbers[0])
        raise UsageError("No such test.")

    with pytest.raises(UsageError, match="No such test"):
        list(results_of(refuse, range(4), 2))
    assert multiprocessing.active_children() == []


def test_killed_worker_process_raises_infrastructure_error():
    def die(_numbers):
        os.kill(os.getpid(), signal.SIGKILL)
        yield

    with pytest.raises(InfrastructureError, match=r"died \(exit code -9\)"):
        list(results_of(die, range(4), 2))


def test_closed_row_iterator_ends_all_worker_processes():
    def unending(numbers):
        while True:
            yield row(numbers[0])

    rows = results_of(unending, range(2), 2)
    next(rows)
    assert len(multiprocessing.active_children()) == 2
    rows.close()
    assert multiprocessing.active_children() == []


def test_usable_cores_are_at_least_one_core():
    assert 1 <= usable_cores() <= 64
