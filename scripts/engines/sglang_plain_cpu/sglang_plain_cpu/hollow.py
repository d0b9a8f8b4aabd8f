"""Packages that SGLang and transformers import whatever happens, and never call on a CPU: importable, and empty.

Any name below such a package exists: a submodule, a class to derive from, a decorator that changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class HollowType(type):
    """A class whose every attribute is its own name, as with the members of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Hollow(ModuleType):
    """A module, function or decorator that is not there."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = hollow_class(name) if name[0].isupper() else Hollow(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __call__(self, *args: object, **kwargs: object) -> object:
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else lambda function: function


def hollow_class(name: str) -> type:
    """A class that takes any arguments; an exception where its name says so."""
    bases = (Exception,) if name.endswith("Error") else ()
    return HollowType(name, bases, {"__init__": _take_anything})


def _take_anything(self: object, *args: object, **kwargs: object) -> None:
    """A constructor."""


class Below(MetaPathFinder, Loader):
    """Finds every submodule of one package."""

    def __init__(self, package: str) -> None:
        self.start = package + "."

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        return ModuleSpec(name, self, is_package=True) if name.startswith(self.start) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Hollow(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def make(package: str, **names: object) -> None:
    """Turn an imported package into a hollow one in which only `names` are real."""
    module = sys.modules[package]
    module.__class__ = Hollow
    vars(module).update(names)
    sys.meta_path.insert(0, Below(package))
