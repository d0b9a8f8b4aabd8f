"""What the code of a test depends on: its file, the project's modules that this file imports, data files, variables.

Imports are followed by the source, so an import inside a function counts. A text in the code that names an existing
file or an environment variable stands for the content of that file or variable.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from types import ModuleType, SimpleNamespace

from pytest_llmperf.version import PACKAGE_DIR

INSTALLED = frozenset({"site-packages", "dist-packages"})
LONGEST_NAME = 200  # of a file or variable in a text of the code
LARGE_BYTES = 64 * 2**20  # of a larger data file size and time count
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PLAIN = (str, bytes, int, float, complex, bool, type(None), PurePath)


def is_of_project(path: Path) -> bool:
    """Whether a module is neither installed nor part of Python or of this package."""
    return (INSTALLED.isdisjoint(path.parts) and not path.is_relative_to(PACKAGE_DIR)
            and not any(path.is_relative_to(place) for place in _places_of_packages(tuple(sys.path), Path.cwd())))


@lru_cache
def _places_of_packages(search_path: tuple[str, ...], folder: Path) -> tuple[Path, ...]:
    """Folders of Python, and folders of installed packages (`pip install --target`) that do not contain `folder`."""
    python = (Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    targets = (place for place in map(Path, search_path) if next(place.glob("*.dist-info"), None) is not None)
    return (*python, *(place for place in targets if not folder.is_relative_to(place)))


@dataclass(frozen=True)
class Part:
    """One statement of a module: a digest of its syntax, and the names and texts in it."""

    name: str
    digest: str
    names: frozenset[str]
    texts: frozenset[str]


class Module:
    """A source file. Comments and empty lines do not change its parts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.tree = ast.parse(path.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError):
            self.tree = ast.Module([], [])

    @cached_property
    def parts(self) -> list[Part]:
        """The statements of the module."""
        return list(map(_part, self.tree.body))

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """Level and dotted name of every module that it may import."""
        texts = {text for part in self.parts for text in part.texts if DOTTED.fullmatch(text)}
        return [*((0, text) for text in texts), *(pair for node in ast.walk(self.tree) for pair in _imported(node))]

    def of_test(self, test: str, is_test: Callable[[str], bool]) -> list[Part]:
        """The parts without other tests, unless the remaining parts name them."""
        chosen = {part for part in self.parts if not is_test(part.name) or part.name == test}
        while named := {part for part in self.parts if part not in chosen
                        and any(part.name in other.names for other in chosen)}:
            chosen |= named
        return [part for part in self.parts if part in chosen]


class Sources:
    """The source files of a project. Each file is read once.

    Args:
        root: of the project.
        environ: variables of this process.
    """

    def __init__(self, root: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._root = root
        self._environ = environ
        self._modules: dict[Path, Module] = {}
        self._reached: dict[Path, frozenset[Path]] = {}
        self._digests: dict[Path, str] = {}
        self._listed: dict[Path, frozenset[str]] = {}
        self._whole: dict[Path, list[str]] = {}
        self._loaded = {Path(file): module for module in list(sys.modules.values())
                        if isinstance(module, ModuleType) and (file := getattr(module, "__file__", None))}

    def inputs(self, path: Path, test: str, others: Iterable[Path], is_test: Callable[[str], bool]) -> list[str]:
        """What the code of a test depends on, as sorted lines.

        Args:
            path: file of the test.
            test: name of its function or class in that file.
            others: files with fixtures and hooks of the test.
            is_test: whether a name is that of a test.
        """
        files = frozenset[Path]().union(*map(self._reach, [path, *others]))
        own = self._module(path).of_test(test, is_test)
        lines = [f"part {part.digest}" for part in own]
        if path in files:
            lines += self._outside_code(path, own)
        for file in files - {path}:
            lines += self._whole_file(file)
        return sorted(set(lines))

    def names(self, path: Path, others: Iterable[Path]) -> set[str]:
        """Every name and text in the code that a test can reach."""
        files = frozenset[Path]().union(*map(self._reach, [path, *others]))
        parts = [part for file in files for part in self._module(file).parts]
        return set().union(*(part.names | part.texts for part in parts))

    def _whole_file(self, path: Path) -> list[str]:
        """The inputs of a file of which every statement counts. They are found once, because tests share helpers."""
        if path not in self._whole:
            self._whole[path] = [f"file {self._shown(path)} {self._digest(path)}",
                                 *self._outside_code(path, self._module(path).parts)]
        return self._whole[path]

    def _outside_code(self, path: Path, parts: Collection[Part]) -> Iterator[str]:
        """Data files, environment variables and values of global variables that these parts of a file name."""
        yield from self._named_by(path, frozenset[str]().union(*(part.texts for part in parts)))
        yield from self._values(path, frozenset[str]().union(*(part.names for part in parts)))

    def _module(self, path: Path) -> Module:
        if path not in self._modules:
            self._modules[path] = Module(path)
        return self._modules[path]

    def _reach(self, path: Path) -> frozenset[Path]:
        """The file and every file of the project that it imports, transitively."""
        if path not in self._reached:
            left, seen = [path], set[Path]()
            while left:
                if (file := left.pop()) not in seen:
                    seen.add(file)
                    left += [module for level, name in self._module(file).imports
                             for module in self._find(file, level, name)]
                    left += [init for parent in file.parents if (init := parent / "__init__.py").is_file()]
            self._reached[path] = frozenset(file for file in seen if is_of_project(file))
        return self._reached[path]

    def _find(self, importing: Path, level: int, name: str) -> Iterator[Path]:
        """Files of the project that this import can load. Another copy of this package on the path is none of them."""
        if not level and name.partition(".")[0] == PACKAGE_DIR.name:
            return
        loaded = getattr(sys.modules.get(name), "__file__", None) if not level else None
        bases = [importing.parents[level - 1]] if level else [importing.parent, *map(Path, sys.path)]
        relative = Path(*name.split("."))
        candidates = [Path(loaded)] if loaded else []
        candidates += [base / place for base in bases if is_of_project(base / relative)
                       for place in (relative.with_name(f"{relative.name}.py"), relative / "__init__.py")]
        yield from (path for path in candidates if is_of_project(path) and path.is_file())

    def _named_by(self, path: Path, texts: Collection[str]) -> Iterator[str]:
        """Content of the data files and environment variables that texts of the code name."""
        short = [text for text in texts if 0 < len(text) <= LONGEST_NAME and text.isprintable()]
        folders = [parent for parent in path.parents if parent.is_relative_to(self._root)] or [path.parent]
        with suppress(OSError, ValueError):
            folders += [found for folder in list(folders) for text in short
                        if (found := self._below(folder, text)) is not None and found.is_dir()]
        for text in short:
            if text in self._environ:
                yield f"variable {text} {_sha256(self._environ[text].encode(errors='surrogateescape'))}"
            with suppress(OSError, ValueError):
                for file in {self._below(folder, text) for folder in folders}:
                    if file is not None and file.is_file() and file.suffix != ".py":
                        yield f"data {self._shown(file)} {self._digest(file)}"

    def _below(self, folder: Path, text: str) -> Path | None:
        """The path of a text below a folder; None: the folder has no entry with the first part of the text.

        The folder is listed once, because a project's code has tens of thousands of texts.
        """
        first = text.partition("/")[0]
        if folder not in self._listed:
            with suppress(OSError):
                self._listed[folder] = frozenset(os.listdir(folder))  # noqa: PTH208 - names, not paths
        # An absolute path begins with "", and ".." is in no listing.
        return folder / text if first in {"", ".", ".."} or first in self._listed.get(folder, ()) else None

    def _values(self, path: Path, names: Collection[str]) -> Iterator[str]:
        """Data in the module's global variables, which may come from elsewhere."""
        for name, value in vars(self._loaded.get(path, ModuleType(""))).items():
            if name in names and (text := stable(value)) is not None:
                yield f"value {self._shown(path)} {name} {_sha256(text.encode(errors='surrogatepass'))}"

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            status = path.stat()
            large = status.st_size > LARGE_BYTES
            content = f"{status.st_size} {status.st_mtime_ns}".encode() if large else path.read_bytes()
            self._digests[path] = _sha256(content)
        return self._digests[path]

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else path.name


def stable(value: object) -> str | None:
    """A text that is equal for equal data in every process; None for other values."""
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{stable(key)}:{stable(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple | set | frozenset):
        texts = [str(stable(each)) for each in value]
        return ",".join(sorted(texts) if isinstance(value, set | frozenset) else texts).join("[]")
    if isinstance(value, SimpleNamespace):
        return stable(vars(value))
    ours = type(value).__module__.startswith("pytest_llmperf.") or (is_dataclass(value) and not isinstance(value, type))
    return ADDRESS.sub("", repr(value)) if ours else None


def _part(node: ast.stmt) -> Part:
    names, texts = set[str](), set[str]()
    for below in ast.walk(node):
        if isinstance(below, ast.Name):
            names.add(below.id)
        elif isinstance(below, ast.Attribute):
            names.add(below.attr)
        elif isinstance(below, ast.alias):
            names.add((below.asname or below.name).partition(".")[0])
        elif isinstance(below, ast.Constant) and isinstance(below.value, str):
            texts.add(below.value)
    return Part(getattr(node, "name", ""), _sha256(ast.dump(node).encode(errors="surrogatepass")), frozenset(names),
                frozenset(texts))


def _imported(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Level and name of each module that an import statement may load, packages included."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from ((0, name) for name in _prefixes(alias.name))
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.level, name) for name in _prefixes(node.module or ""))
        yield from ((node.level, f"{node.module}.{alias.name}" if node.module else alias.name) for alias in node.names)


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".") if name else []
    yield from (".".join(parts[: number + 1]) for number in range(len(parts)))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
