"""`llmperf doctor` as it is typed."""

from pytest_llmperf.cli import main


def test_doctor_reports_problems_with_remedies_and_exits_with_1(tmp_path, capsys):
    assert main(["doctor", "--root", str(tmp_path), "nowhere"]) == 1
    output = capsys.readouterr().out
    for part in ("hardware", "engines", "models", "baselines", "suites"):
        assert f"\n{part}\n" in f"\n{output}"
    assert "! nowhere: not there\n      → " in output
    assert output.rstrip().endswith(("problem", "problems"))
    assert list(tmp_path.iterdir()) == []  # it only looks


def test_doctor_refuses_invalid_settings(tmp_path, capsys):
    (tmp_path / "llmperf.toml").write_text("stop_grace = 3\n")
    assert main(["doctor", "--root", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "stop_grace_s" in output.err
    assert "Traceback" not in output.err


def test_doctor_refuses_missing_root(tmp_path, capsys):
    assert main(["doctor", "--root", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_doctor_gives_same_output_in_subfolder(tmp_path, capsys, monkeypatch):
    (tmp_path / "suites").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "llmperf.toml").write_text('baselines_dir = "kept"\n')
    suites, outputs = tmp_path / "suites", []
    for folder, named in ((tmp_path, ()), (tmp_path, ("suites",)), (suites, ()), (suites, (".",))):
        monkeypatch.chdir(folder)
        main(["doctor", *named])
        outputs.append(capsys.readouterr().out)
    assert "kept" in outputs[0]
    assert len(set(outputs)) == 1
