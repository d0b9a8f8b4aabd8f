"""Imports point down. The test reads the installed source, so the result holds for the wheel that users get."""

import ast
from pathlib import Path

import pytest

import pytest_llmperf

ROOT = Path(pytest_llmperf.__file__).parent
#: Folders and single files, lowest first. A module imports from its own folder and from entries before it.
LAYERS = (
    "errors", "version", "lazy", "clock", "masking", "bounded_file", "doors", "kinds", "shapes", "releases", "model",
    "wire", "metrics", "workload", "stats", "slo",
    "config",
    "process", "telemetry", "emulator", "load",
    "results",
    "engines", "baseline",
    "judging", "doctor",
    "report", "session",
    "calibration",
    "experiments",
    "plugin", "cli",
)  # fmt: skip
RANK = {name: rank for rank, name in enumerate(LAYERS)}
PURE = frozenset(LAYERS[: LAYERS.index("config")])
#: A report is made from results alone; callers hand over what is stored.
NOT_IMPORTED_BY_REPORT = {"session", "baseline"}
APART = {"emulator"}  # imports none of our code
DATASHEETS = {"kinds", "shapes", "releases"}  # data that the emulator reads, too
ANYWHERE = {"testing", "extending", "__init__", "__main__"}  # the public front and the public fakes
PYTEST_MAY_BE_IMPORTED_BY = {"plugin", "testing"}
# What does input, output or waiting; `workload` reads traces with `bounded_file`.
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
        assert targets <= APART | DATASHEETS
        return
    assert layer in RANK, f"{layer}: give the new folder a layer"
    upward = {target for target in targets if RANK[target] > RANK[layer]}
    assert not upward, f"{path.name} in {layer} imports {upward}"


def test_report_does_not_import_session_or_baseline():
    guilty = {(str(path.relative_to(ROOT)), target) for path in modules() if layer_of(path) == "report"
              for target in set(ours(path)) & NOT_IMPORTED_BY_REPORT}
    assert not guilty


def test_files_have_no_circular_imports():
    """Imports inside functions and for annotations count, too."""
    files = {module_name(path): path for path in modules()}
    targets = {name: module_targets(path, files) - {name} for name, path in files.items()}
    circles = [sorted(group) for group in strongly_connected(targets) if len(group) > 1]
    assert not circles


def test_package_does_not_import_scipy_stats():
    """scipy.stats takes a second of CPU time, where scipy.special has the same distributions."""
    assert not [path for path in modules() if "scipy.stats" in imported(path)]


def module_name(path):
    parts = ("pytest_llmperf", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_targets(path, files):
    """Modules of the package that a file imports: `from package import name` may name a module."""
    package = ["pytest_llmperf", *path.relative_to(ROOT).parts[:-1]]
    targets = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            targets |= {
                f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in files else origin for alias in node.names
            }
    return targets & files.keys()


def strongly_connected(targets):
    """Groups of modules that reach each other (Kosaraju's algorithm)."""
    order, seen = [], set()

    def visit(start, edges, done):
        stack = [(start, iter(edges[start]))]
        seen.add(start)
        while stack:
            _, rest = stack[-1]
            following = next((each for each in rest if each not in seen), None)
            if following is None:
                done.append(stack.pop()[0])
            else:
                seen.add(following)
                stack.append((following, iter(edges[following])))

    for name in targets:
        if name not in seen:
            visit(name, targets, order)
    importers = {name: set() for name in targets}
    for name, imports in targets.items():
        for target in imports:
            importers[target].add(name)
    seen.clear()
    for name in reversed(order):
        if name not in seen:
            group = []
            visit(name, importers, group)
            yield group


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
        if layer_of(path) in PURE and path.name not in ("clock.py", "bounded_file.py")
        for name in imported(path)
        if name.split(".")[0] in IMPURE
    }
    assert not guilty


def test_no_module_calls_time_time():
    guilty = [path.name for path in modules() if "time.time(" in path.read_text(encoding="utf-8")]
    assert not guilty
