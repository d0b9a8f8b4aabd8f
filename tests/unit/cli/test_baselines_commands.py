"""`llmperf baselines list`, `show` and `diff`, and what each says to broken input."""

import subprocess
from dataclasses import replace

import pytest

from pytest_llmperf.baseline.paths import baseline_path
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.cli import main
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession

A, B = "suites/test_s.py::test_alpha", "suites/test_s.py::test_beta"
FORMULAS = {"ttft_p50": "ttft.1/p50", "itl_p99": "itl.1/p99"}


def session(name, ttft_ms, **fields):
    session_fields = {"date": "2026-01-02", "commit": "c0ffee", "host": "h", "accepted": None, "anchor": False} | fields
    metrics = {"ttft_p50": (ttft_ms, ttft_ms), "itl_p99": (9.0, None)}
    return StoredSession(id=name, runs=((0, 1), (1, 1)), metrics=metrics, **session_fields)


def stored(*sessions, **fingerprint):
    return StoredMeasurement({"model": "m"} | fingerprint, sessions, ("ttft_p50",), FORMULAS)


ANCHOR = session("s1", 40.0, anchor=True)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(A, stored(ANCHOR, session("s2", 42.0, date="2026-01-03", accepted="new driver")))
    write(B, stored(ANCHOR))
    return tmp_path


def write(test, *measurements, kind="h200", root="baselines"):
    from pathlib import Path

    names = {"": measurements[0]} if len(measurements) == 1 else dict(zip("xy", measurements, strict=True))
    with Store(Path.cwd() / root).update() as write:
        write({baseline_path(test, kind): Baseline(test, names)})


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".lock" not in path.name}


@pytest.fixture
def baselines_output(capsys):
    def baselines_output(*arguments, code=0):
        command, *others = arguments
        words = ["diff", "--baselines"] if command == "diff" else ["baselines", command]
        assert main([*words, *others]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return baselines_output


def test_baselines_list_shows_sessions_and_latest_value(project, baselines_output):
    head, alpha, beta = baselines_output("list").splitlines()
    assert head.split() == ["kind", "test", "sessions", "latest", "primary", "metrics"]
    assert alpha.split() == ["h200", A, "2", "2026-01-03", "ttft_p50", "41", "ms"]
    assert beta.split()[:3] == ["h200", B, "1"]


@pytest.mark.parametrize("name", [A, "test_alpha", "alpha", "h200/s/test_alpha.json"])
def test_baselines_show_accepts_id_name_part_or_path(project, baselines_output, name):
    lines = baselines_output("show", name).splitlines()
    assert lines[0] == f"{A} on h200 (h200/s/test_alpha.json)"
    assert "  model  m" in lines
    (row,) = [line for line in lines if line.startswith("  ttft_p50")]
    assert row.split() == ["ttft_p50*", "41", "ms", "40", "ms", "42", "ms", "4"]
    (row,) = [line for line in lines if line.startswith("  itl_p99")]
    assert row.split()[-1] == "2"  # runs that have it


def test_history_lists_sessions_with_distance_from_the_first_and_accepted_reason(project, capsys):
    assert main(["history", "baselines", "--test", "alpha"]) == 0
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| 2026"))
    assert first == "| 2026-01-02 | s1 | c0ffee | 40 ms | +0.0 % | anchor |"
    assert second.endswith("| 42 ms | +5.0 % | accepted: new driver |")
    assert main(["history", "baselines", "--test", "alpha", "--metric", "itl_p99"]) == 0
    assert "| 2 | 9 ms |" in capsys.readouterr().out
    assert main(["history", "baselines", "--test", "alpha", "--metric", "tpot_mean"]) == 2
    assert "no session with such a test and metric is stored" in capsys.readouterr().err


def test_unknown_metric_of_newer_version_is_shown_without_unit(project, baselines_output, message):
    newer = session("s1", 40.0, anchor=True)
    newer = replace(newer, metrics=newer.metrics | {"ttft_p42": (39.0, 39.5)})
    measured = replace(stored(newer), primaries=("ttft_p42",), formulas=FORMULAS | {"ttft_p42": "ttft.1/p42"})
    write(A, measured)
    write(A, replace(measured, sessions=(replace(newer, metrics=newer.metrics | {"ttft_p42": (42.0, 42.0)}),)),
          root="other")
    write(B, stored(ANCHOR), root="other")
    assert baselines_output("list").splitlines()[1].endswith("ttft_p42 39.25")
    message(*(line for line in baselines_output("show", "alpha").splitlines() if "ttft_p42" in line))
    assert baselines_output("diff", "baselines", "other").endswith("ttft_p42 39.25 → 42 (+7.0 %)\n")


def test_baselines_diff_of_folders_shows_changes(project, baselines_output, message):
    write(A, stored(ANCHOR, session("s2", 42.0), session("s3", 56.0, accepted="slower on purpose"), model="n"),
          root="other")
    write(B + "_new", stored(ANCHOR), root="other")
    message(*baselines_output("diff", "baselines", "other").splitlines())
    assert baselines_output("diff", "other", "other") == "no difference\n"


def test_baselines_diff_names_primaries_sessions_and_test_of_file(project, baselines_output, message):
    after = replace(stored(ANCHOR, session("s3", 42.0)), primaries=("itl_p99",))
    write(A, after, root="other")
    path = project / "other/h200/s/test_alpha.json"
    write(B, stored(ANCHOR), root="other")
    message(baselines_output("diff", "baselines", "other"))
    path.write_text((project / "baselines/h200/s/test_alpha.json").read_text().replace(A, f"old/{A}"))
    message(baselines_output("diff", "other", "baselines"))


@pytest.mark.parametrize(("text", "shown"), [("load(input={})", "input=512 → input=520"), (None, "d512 → d520")])
def test_baselines_diff_names_the_arguments_in_which_workloads_differ(project, baselines_output, text, shown):
    """Files of earlier versions have the digests alone."""
    for root, tokens in (("baselines", 512), ("other", 520)):
        measurement = stored(ANCHOR, workload=f"d{tokens}")
        write(A, replace(measurement, workload=text and text.format(tokens)), root=root)
        write(B, stored(ANCHOR), root=root)
    expected_line = f"changed  h200/s/test_alpha.json  workload: {shown}\n"
    assert baselines_output("diff", "baselines", "other") == expected_line


def test_numbers_of_another_formula_are_not_compared(project, baselines_output):
    newer = replace(stored(ANCHOR, session("s2", 56.0)), formulas=FORMULAS | {"ttft_p50": "ttft.2/p50"})
    write(A, newer, root="other")
    write(B, stored(ANCHOR), root="other")
    expected_line = "changed  h200/s/test_alpha.json  formula of ttft_p50: ttft.1/p50 → ttft.2/p50\n"
    assert baselines_output("diff", "baselines", "other") == expected_line


def test_baselines_diff_compares_with_git_revision(project, baselines_output, message):
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x"]
    for arguments in (["init", "-q"], ["add", "baselines"], ["commit", "-qm", "m"]):
        subprocess.run([*git, *arguments], check=True, cwd=project)
    assert baselines_output("diff") == "no difference\n"
    write(A, stored(ANCHOR, session("s2", 44.0)))
    message(baselines_output("diff"))
    assert baselines_output("diff", "HEAD", "HEAD") == "no difference\n"


@pytest.mark.parametrize("command", [("list",), ("show", "alpha")])
def test_baselines_commands_give_same_output_in_subfolder(project, baselines_output, monkeypatch, command):
    there = baselines_output(*command)
    monkeypatch.chdir(folder_of(project))
    assert baselines_output(*command) == there


def test_baselines_diff_in_subfolder_accepts_relative_folders(project, baselines_output, monkeypatch):
    write(A, stored(ANCHOR), root="suites/other")
    monkeypatch.chdir(folder_of(project))
    assert (
        baselines_output("diff", "baselines", "other")
        == baselines_output("diff", "../baselines", "../suites/other")
        != "no difference\n"
    )


def folder_of(project):
    folder = project / "suites"
    folder.mkdir(exist_ok=True)
    return folder


def test_two_measurements_of_a_test_have_names(project, baselines_output):
    write(A, stored(ANCHOR), replace(stored(ANCHOR), primaries=("itl_p99",)))
    assert f"{A} [y]" in baselines_output("list")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "--kind", "h100"), ("h100", "h200", "--update-baselines-new")),
        (("show", "alhpa"), ("alhpa", "llmperf baselines list")),
        (("show", "test_alhpa"), ("Did you mean test_alpha",)),
        (("show", "test_"), (A, B, "Write more")),
        (("diff", "no-such-revision"), ("no-such-revision", "neither a folder nor a git revision")),
    ],
    ids=lambda value: "-".join(value[:3]) if isinstance(value, tuple) else "",
)
def test_invalid_baselines_arguments_are_refused_without_changes(project, baselines_output, arguments, words):
    earlier_files = files(project)
    said = baselines_output(*arguments, code=2)
    assert said.startswith("llmperf diff: " if arguments[0] == "diff" else "llmperf baselines: ")
    for word in words:
        assert word in said
    assert files(project) == earlier_files


@pytest.mark.parametrize("command", [("list",), ("show", "alpha"), ("diff", "baselines")])
@pytest.mark.parametrize("content", ["{", '{"schema": 99}', "[]", ""], ids=["cut", "newer", "list", "empty"])
def test_corrupt_baseline_is_refused_without_changes(project, baselines_output, command, content):
    path = project / "baselines" / "h200" / "s" / "test_alpha.json"
    path.write_text(content)
    earlier_files = files(project)
    assert "test_alpha.json" in baselines_output(*command, code=2)
    assert files(project) == earlier_files


def test_missing_baselines_folder_is_refused(tmp_path, monkeypatch, baselines_output):
    monkeypatch.chdir(tmp_path)
    assert "no such folder" in baselines_output("list", code=2)
    assert list(tmp_path.iterdir()) == []
