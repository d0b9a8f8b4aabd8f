"""What cannot be meant ends with exit code 4 and one sentence, before any test."""

import pytest

from pytest_llmperf.plugin.options import REPLACED

PLAIN = "def test_plain(): pass\n"


@pytest.mark.parametrize("option", ["--llmperf-runs", "--llmperf-report"])
def test_a_folder_elsewhere_never_moves_pytest_s_root(run, pytester, tmp_path, monkeypatch, option):
    result, _ = run(PLAIN, option, str(tmp_path))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*rootdir*Write it as one word: {option}={tmp_path}"])
    result, _ = run(PLAIN, f"{option}={tmp_path}")
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"rootdir: {pytester.path}"])
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{option} {tmp_path}")
    assert run(PLAIN)[0].ret == pytest.ExitCode.USAGE_ERROR


def test_relative_run_folder_is_accepted(run):
    assert run(PLAIN, "--llmperf-runs", "runs/today")[0].ret == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--llmperf-set=load_hosts=here:1",), "*--llmperf-set: load_hosts = 'here:1': must be the address of a Ray*"),
        (("--llmperf-set=load_host=here:1",), "*--llmperf-set: load_host: unknown. Did you mean load_hosts?*"),
        (("--llmperf-set=load_hosts",), "*--llmperf-set load_hosts: write it as SETTING=VALUE*"),
        (("--llmperf-set=load_hosts=ray://127.0.0.1:1",), "*load_hosts = 'ray://127.0.0.1:1': *Ray*: *"),
        (("--llmperf-engine=vllm",), "*write it as NAME=PLACE*"),
        (("--llmperf-engine=vlm=/x",), "*There is no engine 'vlm'. Did you mean 'vllm'?*"),
        (("--emulate=h200", "--emulate-seed=-1"), "*--emulate-seed: -1: write a whole number, 0 or more*"),
        (("--emulate=h200", "--emulate-noise=foo"), "*--emulate-noise foo: 'foo' is none of session=…*"),
    ],
)
def test_unreadable_option_is_refused_once_without_traceback(run, options, expected):
    result, _ = run("def test_it(perf): give(perf, 'PASS')\n", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([expected])
    assert "Traceback" not in result.stderr.str()


@pytest.mark.parametrize("table", ["send_delay_p99_limit = 20", "engines = {vlmm = 'x'}"])
@pytest.mark.parametrize("dist", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_wrong_settings_are_refused_before_any_test(run, pytester, table, dist):
    pytester.makepyprojecttoml(f"[tool.llmperf]\n{table}\n")
    result, _ = run(PLAIN, *dist)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *Did you mean *"])


def test_settings_refused_by_machine_do_not_affect_other_tests(run, pytester):
    pytester.makepyprojecttoml("[tool.llmperf]\nload_cpus = '4711'\n")
    result, _ = run(f"{PLAIN}def test_it(perf): give(perf, 'PASS')\n")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["llmperf USAGE: load_cpus = '4711': CPU 4711 is not usable here*"])
    assert "plugin/state.py" not in result.stdout.str()


@pytest.mark.parametrize(("name", "replacement"), REPLACED.items())
def test_replaced_option_is_refused_with_the_new_option(run, name, replacement):
    for words in ([f"{name}=0"], [name, "0"]):
        result, _ = run(PLAIN, *words)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*unrecognized arguments: {name}*", f"*{name}: use {replacement} (*"])


@pytest.mark.parametrize("words", [("--budget=wrong",), ("--budget", "wrong")])
def test_free_short_name_is_the_option_with_the_prefix(run, words):
    result, _ = run(PLAIN, *words)
    result.stderr.fnmatch_lines(["*--llmperf-budget: 'wrong' is no time*"])


def test_short_name_that_another_plugin_has_is_left_to_that_plugin(run, pytester):
    (pytester.path / "rival.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--budget')\n"
        "def pytest_report_header(config):\n    return f\"rival: {config.getoption('--budget')}\"\n"
    )
    result, _ = run(PLAIN, "-p", "rival", "--budget", "wrong")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["rival: wrong"])
