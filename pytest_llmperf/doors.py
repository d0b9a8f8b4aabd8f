"""Doors: how packages of other people add engines, routers, hardware kinds, metrics, workloads and sinks.

A package adds something by an entry point of the group `llmperf` with the name "engine.NAME", "router.NAME",
"connector.NAME", "kind.NAME", "metric.NAME", "workload.NAME" or "sink.NAME". Names are read without an import. The
object behind a name is loaded when the name is first used. A project adds the same objects in its `conftest.py` by the
hooks of `hookspec.py`. What this package ships is listed in the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import TypeVar

#: Version of the doors. An added object states the version for which it was written in its attribute `api`.
API = 1
GROUP = "llmperf"
OURS = "pytest-llmperf"
T = TypeVar("T")


class Door(Mapping[str, T]):
    """One kind of addition: each name and the object behind the name, in the order of shipped, installed and registered
    additions. Names are read without an import, and an object is loaded when the object is first read.

    Args:
        name: "engine"; entry points are called "engine.NAME".
        accepts: what each object must be, in words: "an EngineAdapter".
        fits: whether an object is that.
        shipped: name → what this package brings: an object, or its place "module:attribute".
    """

    def __init__(self, name: str, accepts: str, fits: Callable[[object], bool], shipped: Mapping[str, T | str]) -> None:
        self.name, self._accepts, self._fits = name, accepts, fits
        self._shipped = dict(shipped)
        self._added: dict[str, tuple[T, str]] = {}  # name → object and where it comes from
        self._loaded: dict[str, T] = {}

    def __iter__(self) -> Iterator[str]:
        """All names.

        Raises:
            ConfigError: two packages add the same name.
        """
        return iter((*self.taken(), *self._added))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)

    def __getitem__(self, name: str) -> T:
        """The object of that name.

        Raises:
            KeyError: no such name exists.
            ConfigError: the object cannot be imported, is of another type, or was written for another version of the
                doors. The message names the package.
        """
        if name in self._added:
            return self._added[name][0]
        if name not in self._loaded:
            self._loaded[name] = self._checked(name, *self._place(name))
        return self._loaded[name]

    @contextmanager
    def added(self, values: Iterable[T], origin: str) -> Iterator[None]:
        """Register the objects until the block ends.

        Args:
            values: objects with attributes `name` and `api`.
            origin: where they come from: "conftest.py".

        Raises:
            ConfigError: an object is of another type or version, or its name is known already.
        """
        names: list[str] = []
        try:
            for value in values:
                name = str(getattr(value, "name", ""))
                self._check(name, value, origin)
                if name in self:
                    raise _config_error(f"{origin} adds the {self.name} {name!r}, which {self.owner(name)} has, too. "
                                      "Choose another name.")
                self._added[name] = value, origin
                names.append(name)
            yield
        finally:
            for name in names:
                del self._added[name]

    def taken(self) -> tuple[str, ...]:
        """The names of shipped and installed additions. A project cannot choose them.

        Raises:
            ConfigError: two packages add the same name.
        """
        return (*self._shipped, *self._installed())

    def unknown(self, name: object) -> str:
        """The message for an unknown name, with the nearest known name and all names."""
        from pytest_llmperf.errors import did_you_mean

        return (f"There is no {self.name} {name!r}.{did_you_mean(name, self)} Known {self.name}s: "
                f"{', '.join(sorted(self))}.")

    def _installed(self) -> dict[str, EntryPoint]:
        points: dict[str, EntryPoint] = {}
        for point in _entry_points():
            door, _, name = point.name.partition(".")
            if door != self.name:
                continue
            if name in self._shipped or name in points:
                other = OURS if name in self._shipped else _package(points[name])
                raise _config_error(f"{_package(point)} adds the {self.name} {name!r}, which {other} has, too. "
                                    "Uninstall one of the packages.")
            points[name] = point
        return points

    def _place(self, name: str) -> tuple[Callable[[], object], str]:
        """A function that loads the object, and the name of the package; KeyError for an unknown name."""
        installed = self._installed()  # also for a shipped name: a package that adds the same name is refused
        if (ours := self._shipped.get(name)) is not None:
            return lambda: _imported(ours) if isinstance(ours, str) else ours, OURS
        return installed[name].load, _package(installed[name])

    def _checked(self, name: str, load: Callable[[], object], package: str) -> T:
        try:
            value = load()
        except Exception as error:
            raise _config_error(f"{package} adds the {self.name} {name!r}, which cannot be imported: "
                              f"{type(error).__name__}: {error}. Repair or uninstall {package}.") from error
        return self._check(name, value, package)

    def _check(self, name: str, value: object, origin: str) -> T:
        if not self._fits(value):
            raise _config_error(f"{origin} adds the {self.name} {name!r}, which is {type(value).__name__} and must be "
                              f"{self._accepts}.")
        if (api := getattr(value, "api", API)) != API:
            raise _config_error(f"{origin} adds the {self.name} {name!r} for version {api!r} of the doors, and this "
                              f"pytest-llmperf has version {API}. Install a version of {origin} for it.")
        if not name.replace("-", "_").isidentifier():
            raise _config_error(f"{origin} adds the {self.name} {name!r}. Name it by letters, digits and underscores.")
        if (own := getattr(value, "name", name)) != name:
            raise _config_error(f"{origin} adds the {self.name} {name!r}, whose own name is {own!r}. Use one name.")
        return value  # type: ignore[return-value]

    def owner(self, name: str) -> str:
        """The package that has the name, or the place where a project adds it."""
        if name in self._added:
            return self._added[name][1]
        return OURS if name in self._shipped else _package(self._installed()[name])


def _config_error(text: str) -> Exception:
    from pytest_llmperf.errors import ConfigError  # 2 ms, which a run without performance tests need not pay

    return ConfigError(text)


def _imported(place: str) -> object:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    """The entry points of the group, each from the first distribution of its name. Every run of pytest asks for them,
    and searching the texts takes half of the time of parsing them all."""
    ours: dict[str, Distribution] = {}
    for each in distributions():
        if f"[{GROUP}]" in (each.read_text("entry_points.txt") or ""):
            ours.setdefault(each.name, each)
    return tuple(point for each in ours.values() for point in each.entry_points.select(group=GROUP))


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
