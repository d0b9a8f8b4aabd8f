"""`llmperf capacity` on the emulator, and its messages for invalid input."""

import json
import shutil
import signal
import sys
from argparse import ArgumentParser
from functools import partial
from itertools import count
from subprocess import PIPE, Popen, TimeoutExpired

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.cli.commands.capacity import search_text, tried_rates_text
from pytest_llmperf.cli.parser import add_table
from pytest_llmperf.cli.target import arguments, flag, spec_of
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.errors import UsageError
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.report.watch import LineWatch
from pytest_llmperf.session.bisection import SearchResult, TriedRate
from pytest_llmperf.session.capacity import RateSeries
from pytest_llmperf.session.perf_session import PerfSession

TAKE_SIGINT = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's job in the background ignores it
SMALL = ("vllm:llama-3.1-8b", "--flag", "max_model_len=4096", "--requests", "40", "--output", "8", "--emulate", "h200")


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [("max-num-seqs=64", 64), ("--enable_prefix_caching=false", False), ("dtype=bfloat16", "bfloat16"),
     ('speculative_config={"method": "ngram"}', {"method": "ngram"})],
)
def test_flag_is_parsed_as_typed(text, value):
    name, parsed = flag(text)
    assert "-" not in name
    assert parsed == value


def test_flag_without_value_is_refused():
    with pytest.raises(UsageError, match="NAME=VALUE"):
        flag("max_num_seqs")


def test_options_of_a_running_server_reach_the_endpoint():
    parser = ArgumentParser()
    add_table(parser, arguments(""))
    words = ["http://h:8000:m", "--protocol", "chat", "--dialect", "openai", "--tokenizer", "t"]
    assert spec_of(parser.parse_args(words)) == endpoint("http://h:8000", model="m", protocol="chat", dialect="openai",
                                                         tokenizer="t")


@pytest.mark.emulated
def test_capacity_prints_equal_max_rate_for_equal_seed(capsys):
    search = ("capacity", *SMALL, "--slo", "ttft_p50 <= 100ms", "--rate", "60", "--precision", "0.2", "--cooldown", "0")
    assert main(search) == 0
    first = capsys.readouterr().out
    assert first.splitlines()[0].endswith("emulated h200")
    assert first.splitlines()[-1].startswith("max_rate: ")
    assert "ttft_p99" in first.splitlines()[1]
    assert main(search) == 0
    assert capsys.readouterr().out == first  # the same seed, the same answer


def sigint_ends(*search):
    """What a search wrote about its first rate, and its output after SIGINT; a hung search fails with its stacks."""
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest_llmperf", *search]
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True, preexec_fn=TAKE_SIGINT) as process:  # noqa: PLW1509
        said = next(line for line in process.stderr if "the SLO" in line)
        process.send_signal(signal.SIGINT)
        try:
            out, _ = process.communicate(timeout=60)
        except TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
            pytest.fail("\n".join(process.communicate()))
    assert process.returncode == 130
    return said, out


@pytest.mark.emulated
def test_interrupted_capacity_search_prints_known_bounds():
    options = ("--requests", "400", "--rate", "60", "--slo", "ttft_p50 <= 100ms", "--precision", "0.001")
    said, out = sigint_ends("capacity", *SMALL, *options)
    words = "above 60/s" if "within" in said else "below 60/s"
    assert f"The search did not reach its end: max_rate lies {words}" in out
    assert "60/s" in out.splitlines()[2]


@pytest.mark.emulated
def test_servers_stop_though_progress_cannot_be_written(monkeypatch):
    """Ctrl-C in `llmperf capacity … 2>&1 | tee log` ends `tee` as well."""
    def broken(_watch):
        raise RuntimeError("nobody reads the progress")

    closed = []
    monkeypatch.setattr(LineWatch, "close", broken)
    monkeypatch.setattr(PerfSession, "close", lambda session: closed.append(session) or session.pool.close())
    search = ("capacity", *SMALL, "--slo", "ttft_p50 <= 100ms", "--rate", "60", "--precision", "1", "--cooldown", "0")
    with pytest.raises(RuntimeError, match="nobody reads"):
        main(search)
    assert len(closed) == 1


SEARCH = ("capacity", *SMALL, "--slo", "ttft_p50 <= 100ms", "--rate", "60", "--precision", "0.2", "--cooldown", "0")


def tried(run_file):
    """Requests files of each tried rate, in the order of the run file."""
    measurements = json.loads(run_file.read_text())["measurements"]
    return {each["conditions"]["tried_rate"]: [run["requests"] for run in each["runs"]] for each in measurements
            if "tried_rate" in each["conditions"]}


def cut(run_file, rates):
    """The run file as an interruption leaves it, after so many rates and one run of the next."""
    content = json.loads(run_file.read_text())
    kept = [each for each in content["measurements"] if "tried_rate" in each["conditions"]][: rates + 1]
    del kept[-1]["conditions"]["rate_verdict"]
    kept[-1] |= {"runs": kept[-1]["runs"][:1], "complete": False}
    run_file.write_text(json.dumps(content | {"measurements": kept, "complete": False}))


@pytest.mark.emulated
def test_resumed_search_measures_only_missing_rates_and_finds_same_answer(tmp_path, capsys):
    assert main(SEARCH) == 0
    whole = capsys.readouterr().out
    (run_file,) = tmp_path.glob(".llmperf/runs/*/tests/*.json")
    first = tried(run_file)
    cut(run_file, 3)
    judged = dict(list(first.items())[:3])
    for _ in range(2):  # the second time nothing is missing
        assert main((*SEARCH, "--resume", "newest")) == 0
        resumed = capsys.readouterr().out
        assert resumed.splitlines()[-1] == whole.splitlines()[-1]
        assert {line for line in whole.splitlines() if line.split()[0] in judged} <= set(resumed.splitlines())
        again = tried(run_file)
        assert list(again) == list(first)
        assert {rate: again[rate] for rate in judged} == judged
        judged, whole = again, resumed
    assert len(list(tmp_path.glob(".llmperf/runs/*/tests/*.json"))) == 1
    assert all((run_file.parents[1] / path).is_file() for paths in again.values() for path in paths)


SHORT_SEARCH = (*SEARCH, "--precision", "0.5")


def runs_of_rates(run_file):
    return [path for paths in tried(run_file).values() for path in paths]


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Searches until so many runs and verdicts of rates were stored; gives the run file, or None after the end."""

    def interrupted(times):
        shutil.rmtree(tmp_path / ".llmperf", ignore_errors=True)
        stored = count(1)

        def interrupting(store):
            def store_and_interrupt(series, *args, **kwargs):
                result = store(series, *args, **kwargs)
                if next(stored) == times:
                    raise KeyboardInterrupt
                return result

            return store_and_interrupt

        with monkeypatch.context() as patch:
            for name in ("keep", "judged"):
                patch.setattr(RateSeries, name, interrupting(getattr(RateSeries, name)))
            ended = main(SHORT_SEARCH) == 0
        return None if ended else next(tmp_path.glob(".llmperf/runs/*/tests/*.json"))

    return interrupted


@pytest.mark.emulated
@pytest.mark.thorough
def test_search_interrupted_after_any_run_or_verdict_keeps_stored_runs(tmp_path, capsys, interrupted):
    """The resumed search has another server start, whose noise may ask for more runs at a rate."""
    assert main(SHORT_SEARCH) == 0
    capsys.readouterr()
    (run_file,) = tmp_path.glob(".llmperf/runs/*/tests/*.json")
    rates, runs = list(tried(run_file)), len(runs_of_rates(run_file))
    stored_counts = set()
    for times in count(1):
        run_file = interrupted(times)
        if run_file is None:
            break
        stored = runs_of_rates(run_file)
        stored_counts.add(len(stored))
        assert main((*SHORT_SEARCH, "--resume", "newest")) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("max_rate: ")
        assert list(tried(run_file)) == rates
        assert runs_of_rates(run_file)[: len(stored)] == stored
    assert stored_counts == set(range(1, runs + 1))


@pytest.mark.emulated
@pytest.mark.parametrize("change", [{"rate_host": "elsewhere"}, {"rate_valid_runs": "0"}], ids=["host", "invalid run"])
def test_unfinished_rate_of_other_host_or_with_invalid_run_is_measured_again(tmp_path, interrupted, change):
    run_file = interrupted(2)  # runs, before the verdict
    content = json.loads(run_file.read_text())
    (rate,) = (each for each in content["measurements"] if "tried_rate" in each["conditions"])
    assert (len(rate["runs"]), rate["conditions"]["rate_valid_runs"]) == (2, "2")
    rate["conditions"] |= change
    run_file.write_text(json.dumps(content))
    stored = runs_of_rates(run_file)
    assert main((*SHORT_SEARCH, "--resume", "newest")) == 0
    assert not set(stored) & set(runs_of_rates(run_file))


@pytest.mark.emulated
def test_search_resumes_in_several_commands(tmp_path, capsys):
    assert main(SEARCH) == 0
    whole = capsys.readouterr().out
    (run_file,) = tmp_path.glob(".llmperf/runs/*/tests/*.json")
    cut(run_file, 3)
    sigint_ends(*SEARCH, "--resume", str(run_file.parents[1]))
    verdicts = [each["conditions"].get("rate_verdict") for each in json.loads(run_file.read_text())["measurements"]]
    assert len(verdicts) - verdicts.count(None) >= 3  # of the first command, whether the second has reached them or not
    assert main((*SEARCH, "--resume", "newest")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == whole.splitlines()[-1]


@pytest.mark.emulated
@pytest.mark.parametrize(("change", "words"), [
    (("--slo", "ttft_p50 <= 90ms"), "Give the options of the first command"),
    (("--requests", "50"), "Give the options of the first command"),
    (("--emulate", "h100"), "its hardware is emulated h200, and this is emulated h100"),
])
def test_search_with_other_options_is_not_resumed(tmp_path, capsys, change, words):
    assert main(SEARCH) == 0
    (run_file,) = tmp_path.glob(".llmperf/runs/*/tests/*.json")
    before = run_file.read_text()
    assert main((*SEARCH, *change, "--resume", "newest")) == 2
    assert words in capsys.readouterr().err
    assert json.loads(run_file.read_text())["measurements"] == json.loads(before)["measurements"]


@pytest.mark.parametrize("named", ["newest", "/tmp/elsewhere/run"])
def test_search_without_run_folder_is_not_resumed(capsys, named):
    assert main((*SEARCH, "--resume", named)) == 2
    assert f"{named}: no run is stored in" in capsys.readouterr().err


@pytest.mark.emulated
def test_unsuccessful_capacity_search_prints_tried_rates(capsys):
    assert main(("capacity", *SMALL, "--slo", "ttft_p50 <= 0.01ms", "--rate", "60", "--cooldown", "0")) == 2
    shown = capsys.readouterr()
    assert "not even" in shown.err
    assert "FAIL     over" in shown.out
    assert "max_rate: no rate is proven within ttft_p50 <= 0.01ms (no rate as measured, over at " in shown.out


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (
            [
                TriedRate(25, Verdict.PASS, True),
                TriedRate(50, Verdict.FAIL, False),
                TriedRate(35, Verdict.INCONCLUSIVE, False),
            ],
            "above 25/s and below 35/s.",
        ),
        ([TriedRate(25, Verdict.INCONCLUSIVE, True)], "lies above 25/s."),
        ([TriedRate(25, Verdict.FAIL, False)], "lies below 25/s."),
    ],
)
def test_unfinished_search_text_names_proven_and_refuted_rates(points, words):
    assert tried_rates_text(points)[-1].endswith(words)


def point(rate, verdict, **measured):
    return TriedRate(rate, verdict, verdict is not Verdict.FAIL, measured)


def test_capacity_headlines_the_proven_rate_and_prints_latencies_of_each_rate():
    points = (point(32, Verdict.PASS, ttft_p99=120.0, tpot_p50=None), point(64, Verdict.FAIL, ttft_p99=900.0),
              point(48.294, Verdict.INCONCLUSIVE, ttft_p99=480.25, tpot_p50=7.0))
    lines = search_text(SearchResult(48.294, 64, points), ["ttft_p99 <= 500ms"])
    assert lines[0].split() == ["rate", "verdict", "as", "measured", "ttft_p99", "tpot_p50"]
    assert [line.split()[0] for line in lines[1:4]] == ["32/s", "48.29/s", "64/s"]
    assert lines[2].endswith("within       480.2 ms  7 ms")
    assert lines[3].endswith("over         900 ms    –")
    assert lines[4].startswith("max_rate: 32/s is proven within ttft_p99 <= 500ms (48.29/s as measured, over at 64/s).")
    assert lines[4].endswith("--requests N.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("capacity", "vlm:m", "--slo", "ttft_p50 <= 1ms"), "vllm:MODEL"),
        (("capacity", "vllm:", "--slo", "ttft_p50 <= 1ms"), "vllm:MODEL"),
        (("capacity", "http://h:8000", "--slo", "ttft_p50 <= 1ms"), "HOST:PORT:MODEL"),
        (("capacity", "vllm:m", "--slo", "ttft <= 1ms"), "ttft_p50"),
        (("capacity", "vllm:m", "--slo", "ttft_p50 <= 1ms", "--precision", "0"), "precision"),
        (("capacity", "vllm:m", "--slo", "ttft_p50 <= 1ms", "--input", "1:2:3"), "--input"),
        (("capacity", "vllm:m", "--slo", "ttft_p50 <= 1ms", "--rate", "0"), "rate"),
        (("capacity", "vllm:m", "--slo", "ttft_p50 <= 1ms", "--emulate", "h300"), "h200"),
        (("capacity", "vllm:no-model", "--slo", "ttft_p50 <= 1ms", "--emulate", "h200"), "no model"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_capacity_arguments_are_refused_without_output(capsys, arguments, words):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"llmperf {arguments[0]}: " in said.err
    assert words in said.err


@pytest.fixture
def mooncake(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 100 * n, "input_length": 600, "output_length": 8, "hash_ids": [0, n + 1]} for n in range(60)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.emulated
def test_capacity_of_recorded_requests_finds_a_rate(mooncake, capsys):
    assert main(["capacity", *SMALL, "--trace", str(mooncake), "--slo", "ttft_p90 <= 500ms"]) in (0, 11)
    shown = capsys.readouterr().out
    assert "/s" in shown


@pytest.mark.parametrize(("options", "complaint"), [
    (["--trace-window", "soon"], "--trace-window soon: write FROM:TO in seconds"),
    (["--trace-window", "5"], "--trace-window 5: write FROM:TO in seconds"),
    (["--most-tokens", "10"], "trace.jsonl has 0 usable requests"),
])
def test_unusable_selection_of_trace_is_refused_before_anything_is_sent(mooncake, capsys, options, complaint):
    assert main(["capacity", *SMALL, "--trace", str(mooncake), *options, "--slo", "ttft_p90 <= 500ms"]) == 2
    assert complaint in capsys.readouterr().err


def test_sharegpt_with_a_time_window_is_refused(tmp_path, capsys):
    options = ["--trace", str(tmp_path / "chat.json"), "--trace-window", "0:5"]
    assert main(["capacity", *SMALL, *options, "--slo", "ttft_p90 <= 500ms"]) == 2
    assert "ShareGPT has no times" in capsys.readouterr().err


def test_anonymised_trace_keeps_lengths_and_shared_blocks_and_changes_ids(mooncake, tmp_path, capsys):
    assert main(["trace", "anonymise", str(mooncake), str(tmp_path / "out.jsonl")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out.jsonl'}: 60 requests without contents\n"
    old, new = ([json.loads(line) for line in path.read_text().splitlines()]
                for path in (mooncake, tmp_path / "out.jsonl"))
    assert [(line["input_length"], line["output_length"]) for line in new] == [(600, 8)] * 60
    assert len({line["hash_ids"][0] for line in new}) == 1
    assert {block for line in new for block in line["hash_ids"]}.isdisjoint(
        block for line in old for block in line["hash_ids"])


def test_broken_line_of_trace_is_named_and_leaves_no_output(mooncake, tmp_path, capsys):
    mooncake.write_text(mooncake.read_text() + "{broken\n")
    assert main(["trace", "anonymise", str(mooncake), str(tmp_path / "out.jsonl")]) == 2
    assert "trace.jsonl, line 61: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]
