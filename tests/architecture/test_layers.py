"""Imports point down. The walk reads the source that is installed, so it holds for what users get."""

import ast
from pathlib import Path

import pytest

import pytest_llmperf

ROOT = Path(pytest_llmperf.__file__).parent
# Lower layers first; a module may import from its own layer's folder and from lower layers.
LAYERS = [
    {"errors", "clock", "masking", "model"},
    {"slo", "stats", "metrics", "workload", "wire"},
    {"config"},
    {"process"},
    {"load", "telemetry"},
    {"results"},
    {"engines", "baseline"},
    {"judging", "doctor"},
    {"session", "report"},
    {"calibration"},
    {"plugin", "cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
APART = {"emulator"}  # imports none of ours, and nothing imports it
ANYWHERE = {"testing", "__init__", "__main__"}  # the public front and the public fakes
NEVER = {"unittest.mock", "random.seed"}
PYTEST_MAY_BE_IMPORTED_BY = {"plugin", "testing"}
PURE = LAYERS[0] | LAYERS[1]
# What does input, output or waiting; `workload.sharegpt` reads the file that it is named after.
IMPURE = {"socket", "subprocess", "httpx", "asyncio", "uvloop", "threading", "os", "time", "requests"}


def modules():
    return sorted(ROOT.rglob("*.py"))


def layer_of(path):
    parts = path.relative_to(ROOT).parts
    return parts[0].removesuffix(".py")


def imported(path):
    """Absolute names that a file imports, also inside functions; TYPE_CHECKING blocks count too."""
    package = ["pytest_llmperf", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*base, *([node.module] if node.module else [])])


def ours(path):
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "pytest_llmperf" and len(parts) > 1:
            yield parts[1]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    layer = layer_of(path)
    if layer in ANYWHERE:
        return
    targets = set(ours(path))
    if layer in APART:
        assert targets <= APART
        return
    assert layer in RANK, f"{layer}: give the new folder a layer"
    upward = {target for target in targets if target in APART or RANK[target] > RANK[layer]}
    assert not upward, f"{path.name} in {layer} imports {upward}"


def test_only_the_plugin_knows_pytest():
    guilty = {
        str(path.relative_to(ROOT))
        for path in modules()
        if layer_of(path) not in PYTEST_MAY_BE_IMPORTED_BY
        and any(name.split(".")[0] in {"pytest", "_pytest"} for name in imported(path))
    }
    assert not guilty


def test_pure_layers_neither_read_nor_wait():
    guilty = {
        (str(path.relative_to(ROOT)), name)
        for path in modules()
        if layer_of(path) in PURE and path.name != "clock.py"
        for name in imported(path)
        if name.split(".")[0] in IMPURE
    }
    assert not guilty


def test_time_has_one_clock():
    guilty = [path.name for path in modules() if "time.time(" in path.read_text(encoding="utf-8")]
    assert not guilty
