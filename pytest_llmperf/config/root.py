"""Where a project begins, for commands that are typed in a folder of it: where pytest or this plugin is configured."""

from __future__ import annotations

from pathlib import Path

from pytest_llmperf.bounded_file import read_text

OURS = ("baselines", ".llmperf", "llmperf.toml")
PYTESTS = {  # and what they must hold to count
    "pytest.ini": ("",), ".pytest.ini": ("",), "pytest.toml": ("",), ".pytest.toml": ("",),
    "pyproject.toml": ("[tool.pytest", "[tool.llmperf"), "tox.ini": ("[pytest]",), "setup.cfg": ("[tool:pytest]",),
}  # fmt: skip


def project_root(*places: Path) -> Path:
    """The nearest root at or above the first place that has one, then the current folder, which stands in for it."""
    here = Path.cwd()
    for place in (*places, here):
        for folder in (place.resolve(), *place.resolve().parents):
            is_ours = any((folder / name).exists() for name in OURS)
            if is_ours or any(_holds(folder / name, texts) for name, texts in PYTESTS.items()):
                return folder
    return here


def _holds(path: Path, texts: tuple[str, ...]) -> bool:
    try:
        content = read_text(path)
    except OSError:  # not there, or not for us
        return False
    return any(text in content for text in texts)
