"""The suite that users copy first, with the emulator's HTTP service in the place of theirs."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import BUSY_MACHINE, STEADY_AT_ONCE

pytestmark = pytest.mark.emulated
FOLDER = Path(__file__).parents[2] / "suites" / "service"
SMALL = (("requests_per_s = 2.0", "requests_per_s = 20.0"), ("requests = 100", "requests = 20"),
         ("conversations = 20", "conversations = 4"), ("turns = 4", "turns = 2"), ("think_s = 5.0", "think_s = 0.1"),
         ('model = "chat"', 'model = "llama-3.1-8b"'), ("500ms", "10s"), ("50ms", "1s"),
         ('# api_key_env', 'api_key_env'))


@pytest.fixture
def measure_copy(pytester, emulate, monkeypatch):
    """Measures a copy of the suite, whose file names an emulated server and these changes."""
    monkeypatch.setenv("SERVICE_KEY", "canary")

    def measure_copy(*changes):
        shutil.copytree(FOLDER, pytester.path / "service")
        file = pytester.path / "service" / "service.toml"
        text = file.read_text()
        for old, new in (*SMALL, *changes):
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
        pytester.makepyprojecttoml(f"[tool.llmperf]\n{BUSY_MACHINE}")
        pytester.makeconftest(STEADY_AT_ONCE)
        return pytester.runpytest_subprocess("service", "-rs")

    return measure_copy


def served(emulate):
    server = emulate(engine=("serve", "llama-3.1-8b", "--max-model-len", "16384"))
    return 'url = ""', f'url = "{server.url}"'


def test_copied_suite_passes_on_service_of_edited_file(measure_copy, emulate):
    result = measure_copy(served(emulate))
    result.assert_outcomes(passed=2)
    assert result.ret == 0


def test_copied_suite_fails_by_slo_of_edited_file(measure_copy, emulate):
    result = measure_copy(served(emulate), ("tpot_mean <= 1s", "tpot_mean <= 0.001ms"))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*tpot_mean*0.001 ms*FAIL*"])


def test_copied_suite_without_url_is_skipped_and_names_file(measure_copy):
    result = measure_copy()
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*write the URL of your service into service.toml"])


def test_service_suite_has_at_most_sixty_lines():
    assert sum(len(path.read_text().splitlines()) for path in FOLDER.glob("*.*")) <= 60
