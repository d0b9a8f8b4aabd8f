"""The run folder that a resumed session goes on in."""

import pytest

from pytest_llmperf.errors import UsageError
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.session.resumption import folder_to_resume


@pytest.mark.parametrize(("named", "says"), [
    ("nosuch", "--resume nosuch: no run is stored in .*/runs. Run pytest first. Drop --resume."),
    ("suites", "--resume .*/suites: this is no run folder: .* Drop --resume."),
    ("notes.txt", "--resume .*/notes.txt: this is a file and no run folder.* Drop --resume."),
    ("elsewhere/run", "--resume elsewhere/run: .* Write --llmperf-runs=.*/elsewhere, or move the folder."),
])
def test_only_a_run_folder_elsewhere_is_offered_as_place_of_runs(tmp_path, named, says):
    (tmp_path / "suites").mkdir()
    (tmp_path / "notes.txt").touch()
    write_test(tmp_path / "elsewhere/run", "test_x", [], [])
    with pytest.raises(UsageError, match=says) as refused:
        folder_to_resume(named, tmp_path / "runs", tmp_path)
    assert named.startswith("elsewhere") or "--llmperf-runs" not in str(refused.value)
