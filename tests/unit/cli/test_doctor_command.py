"""`llmperf doctor` as it is typed."""

from pytest_llmperf.cli import main


def test_problems_remedies_and_the_exit_code(tmp_path, capsys):
    assert main(["doctor", "--root", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    for part in ("hardware", "engines", "models", "baselines", "suites"):
        assert f"\n{part}\n" in f"\n{told}"
    assert "! suites: not there\n      → " in told
    assert told.rstrip().endswith("problems")
    assert list(tmp_path.iterdir()) == []  # it only looks


def test_settings_that_cannot_be_read(tmp_path, capsys):
    (tmp_path / "llmperf.toml").write_text("stop_grace = 3\n")
    assert main(["doctor", "--root", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "stop_grace_s" in told.err
    assert "Traceback" not in told.err


def test_a_root_that_is_not_there(tmp_path, capsys):
    assert main(["doctor", "--root", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
