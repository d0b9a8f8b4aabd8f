"""A version of an engine that nobody stored is a note, before and after the measurement."""

from pathlib import Path

import pytest

from pytest_llmperf.releases.stored import untested
from pytest_llmperf.report.html.session_facts import version_notes

TEST = """
import pytest

@pytest.mark.cpu
def test_it(perf):
    pass
"""


@pytest.mark.parametrize(("version", "noted"), [("0.30.0", True), ("0.33.0", False)])
def test_unknown_version_of_configured_engine_is_noted_in_header(pytester, version, noted):
    bundle = Path(pytester.path, "bundle")
    for name, text in {"vllm/__init__.py": "", f"vllm-{version}.dist-info/METADATA":
                       f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"}.items():
        (bundle / name).parent.mkdir(parents=True)
        (bundle / name).write_text(text)
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess("--collect-only", "-m", "cpu", f"--llmperf-engine=vllm={bundle}")
    lines = [line for line in result.outlines if line.startswith("llmperf: note: ")]
    expected = ("llmperf: note: vllm 0.30.0 is none of the versions that this package knows (0.26.0, 0.32.0, 0.33.0); "
                "llmperf engine-changes vllm 0.33.0 0.30.0 lists what is different")
    assert lines == ([expected] if noted else [])


def test_report_notes_each_unknown_version_that_was_measured():
    measured = [{"engine": "vllm", "engine.version": "0.32.0+cpu"}, {"engine": "sglang", "engine.version": "0.6.0"},
                {"engine": "endpoint", "engine.version": "0.6.0"}, {"engine": "vllm"}]
    notes = list(version_notes(measured))
    assert [note.split(" is none")[0] for note in notes] == ["sglang 0.6.0"]


def test_engine_without_stored_versions_and_emulated_version_have_no_note():
    assert not untested("transformers", "5.0")
    assert not untested("vllm", "0.32.0+emulated")
    assert not untested("vllm", None)
