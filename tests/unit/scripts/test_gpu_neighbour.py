"""The bad neighbour's arguments and its clock, without a GPU."""

import pytest


@pytest.fixture
def neighbour(load_script):
    return load_script("gpu_neighbour")


class Time:
    """Every step takes 10 ms; resting takes as long as it is told to."""

    def __init__(self):
        self.now, self.worked = 0.0, 0.0

    def step(self):
        self.now += 0.01
        self.worked += 0.01

    def rest(self, duration_s):
        self.now += duration_s


def busy(neighbour, *arguments, ended=lambda: False):
    clock = Time()
    steps = neighbour.keep_busy(neighbour.parse(arguments), clock.step, lambda: clock.now, clock.rest, ended)
    return clock, steps


def test_gpu_load_ends_after_given_seconds(neighbour):
    clock, steps = busy(neighbour, "--seconds", "3")
    assert clock.now == pytest.approx(3, abs=0.02)
    assert clock.worked == pytest.approx(clock.now)
    assert steps == pytest.approx(300, abs=2)


@pytest.mark.parametrize("duty", [0.25, 0.5])
def test_gpu_load_is_busy_for_given_share_of_time(neighbour, duty):
    clock, _ = busy(neighbour, "--seconds", "10", "--duty", str(duty))
    assert clock.worked / clock.now == pytest.approx(duty, rel=0.02)


def test_gpu_load_with_zero_duty_only_holds_memory(neighbour):
    clock, steps = busy(neighbour, "--seconds", "2", "--duty", "0")
    assert (steps, clock.worked) == (0, 0.0)
    assert clock.now == pytest.approx(2, abs=0.2)


def test_gpu_load_ends_on_request(neighbour):
    assert busy(neighbour, ended=lambda: True)[1] == 0


def test_a_bounded_time_is_the_default(neighbour):
    assert neighbour.parse([]).seconds == 60


@pytest.mark.parametrize(
    "arguments",
    [["--seconds", "0"], ["--seconds", "1e9"], ["--seconds", "nan"], ["--duty", "1.5"], ["--memory-gib", "-1"],
     ["--device", "-1"], ["--size", "1"]],
)
def test_invalid_gpu_load_argument_is_refused(neighbour, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        neighbour.parse(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err
