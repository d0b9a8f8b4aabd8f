"""The exit code of a suite on a machine that other processes use at the same time."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "measured.sh"


@pytest.mark.parametrize(
    ("codes", "ended", "runs"),
    [([0], 0, 1), ([11], 0, 1), ([1], 1, 1), ([10, 0], 0, 2), ([10, 11], 0, 2), ([10, 10], 10, 2), ([10, 1], 1, 2)],
)
def test_only_invalid_suite_run_is_repeated(tmp_path, codes, ended, runs):
    (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
    script = 'echo run >> runs; code=$(head -n 1 codes); sed -i 1d codes; exit "$code"'
    done = subprocess.run(["sh", str(SCRIPT), "sh", "-c", script], cwd=tmp_path, check=False, capture_output=True)
    assert done.returncode == ended
    assert (tmp_path / "runs").read_text().split() == ["run"] * runs
