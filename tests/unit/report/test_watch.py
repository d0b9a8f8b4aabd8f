"""When something is shown, and when not. Time is turned by hand; the thread's own ticks then change nothing."""

import io

import pytest

from pytest_llmperf.clock import VirtualClock, seconds
from pytest_llmperf.model.status import Measuring, Note, Starting, WarmingUp
from pytest_llmperf.report.live import LiveWatch
from pytest_llmperf.report.watch import LineWatch, Pace


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def watch(clock):
    lines = []
    watch = LineWatch(lines.append, clock)
    watch.lines = lines
    watch.subject = "test_it"
    yield watch
    watch.close()


def after(watch, clock, duration_s):
    clock.sleep_ns(seconds(duration_s))
    watch.tick()


def run(done, number=1):
    return Measuring(number, 3, requests=10, done=done, failed=0, elapsed_s=float(done))


def test_short_phases_are_not_shown(watch, clock):
    for status in (Starting("e"), WarmingUp("e"), run(10), run(10, 2), run(10, 3)):
        watch.notify(status)
        after(watch, clock, 0.2)
    watch.rest()
    assert watch.lines == []


def test_phase_is_shown_after_one_second_and_then_every_ten_seconds(watch, clock):
    watch.notify(Starting("e"))
    for _ in range(60):
        after(watch, clock, 0.5)
        watch.notify(Starting("e", "Loading"))  # the same phase, with news
    assert watch.lines == [f"test_it: starting e, {s} s: Loading" for s in (1, 11, 21)]


def test_blocking_call_does_not_stop_elapsed_time(watch, clock):
    watch.notify(Starting("e", "Compiling"))
    for _ in range(61):
        after(watch, clock, 1)
    assert len(watch.lines) == 7
    assert watch.lines[-1].endswith("1 min 1 s: Compiling")


def test_shown_run_ends_with_final_count(watch, clock):
    watch.notify(run(1))
    after(watch, clock, 2)
    watch.notify(run(10))
    watch.notify(run(0, 2))
    assert watch.lines[-1].startswith("test_it: run 1 of 3: 10 of 10 answered")
    assert len(watch.lines) == 2


def test_unchanged_line_is_not_repeated(watch, clock):
    watch.notify(run(10))
    after(watch, clock, 2)
    watch.rest()
    assert len(watch.lines) == 1


def test_note_is_shown_immediately(watch):
    watch.notify(Note("The server died."))
    assert watch.lines == ["test_it: The server died."]


def test_note_about_run_follows_result_shown_once(watch, clock):
    watch.notify(run(4))
    after(watch, clock, 2)
    watch.notify(run(10))
    watch.notify(Note("12/s: within"))
    watch.notify(run(0, 2))
    after(watch, clock, 0.5)
    assert [line.split(",")[0] for line in watch.lines] == [
        "test_it: run 1 of 3: 4 of 10 answered", "test_it: run 1 of 3: 10 of 10 answered", "test_it: 12/s: within"]


def test_note_within_run_does_not_end_the_run(watch, clock):
    watch.notify(run(4))
    after(watch, clock, 2)
    watch.notify(Note("NVML is silent"))
    watch.notify(run(10))
    watch.rest()
    assert [line.split(",")[0] for line in watch.lines] == [
        "test_it: run 1 of 3: 4 of 10 answered", "test_it: NVML is silent", "test_it: run 1 of 3: 10 of 10 answered"]


def test_watch_is_silent_at_rest_and_after_close(watch, clock):
    watch.notify(Starting("e"))
    watch.rest()
    after(watch, clock, 100)
    watch.close()
    watch.notify(Note("too late"))
    after(watch, clock, 100)
    assert watch.lines == []


def test_quiet_pace_shows_phase_once_per_minute(clock):
    lines = []
    watch = LineWatch(lines.append, clock, Pace(60, 60))
    watch.notify(Starting("e"))
    for _ in range(130):
        after(watch, clock, 1)
    watch.close()
    assert [line.rpartition(", ")[2] for line in lines] == ["1 min 0 s", "2 min 0 s"]


def test_watch_thread_shows_status_without_further_calls():
    from threading import Event

    shown = Event()
    watch = LineWatch(lambda _line: shown.set(), pace=Pace(0, 0))
    watch.notify(Starting("e"))
    assert shown.wait(60)
    watch.close()


def screen_of(file, columns=60, lines=10):
    import pyte

    screen = pyte.Screen(columns, lines)
    pyte.Stream(screen).feed(file.getvalue().replace("\n", "\r\n"))
    return screen


def shown(screen):
    return [line.rstrip() for line in screen.display if line.strip()]


@pytest.fixture
def live(clock):
    file = io.StringIO()
    file.write("tests/test_it.py ")
    watch = LiveWatch(file, lambda line: file.write(f"{line}\n"), lambda: len("tests/test_it.py "), clock)
    watch.subject = "test_it[h200]"
    yield watch, file
    watch.close()


def test_live_status_is_shown_in_two_lines_below_pytest_output(live, clock):
    watch, file = live
    watch.notify(run(4))
    watch.tick()
    after(watch, clock, 1)
    first, head, facts = shown(screen_of(file))
    assert first == "tests/test_it.py"
    assert head.startswith("test_it[h200]  run 1 of 3")
    assert facts == "  4 of 10 answered · 4 s"


def test_live_status_is_erased_before_pytest_continues(live, clock):
    watch, file = live
    for status in (Starting("e", "Loading"), run(4), run(5)):
        watch.notify(status)
        after(watch, clock, 1)
        after(watch, clock, 1)
    watch.rest()
    file.write(".")
    assert shown(screen_of(file)) == ["tests/test_it.py ."]
    assert not screen_of(file).cursor.hidden


def test_live_status_is_erased_at_bottom_of_screen(live, clock):
    watch, file = live
    text = "\n" * 30 + file.getvalue()
    file.seek(0)
    file.write(text)
    watch.notify(run(4))
    watch.tick()
    after(watch, clock, 1)
    watch.rest()
    file.write(".")
    assert shown(screen_of(file)) == ["tests/test_it.py ."]


def test_long_lines_are_cut_not_wrapped(live, clock):
    watch, file = live
    watch.notify(Starting("e" * 200, "l" * 200))
    watch.tick()
    after(watch, clock, 1)
    assert len(shown(screen_of(file, columns=80))) == 3


def test_a_phase_that_passes_at_once_does_not_flicker(live):
    watch, file = live
    watch.notify(run(10))
    watch.tick()
    watch.rest()
    assert file.getvalue() == "tests/test_it.py "
