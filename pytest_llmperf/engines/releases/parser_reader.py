"""Prints the options of an engine's own argument parser as JSON, from the Python files of its wheel alone.

A program, run by `pytest_llmperf.engines.releases.wheel` in an interpreter without packages:

    python -I -S parser_reader.py FOLDER PARSER_CLASS ALTERNATIVE [ALTERNATIVE …]

An alternative is one MODULE:FUNCTION, or several joined by "+"; each function adds its options to the parser. The first
alternative whose functions exist is used. The modules of the engine are the real modules. Every other package outside
the standard library is a stand-in, and so is what a failed import of an engine's module leaves undefined. pydantic,
msgspec and regex keep what parsers are built with.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SHOWN_CHARACTERS = 200
ABSENT = ("libtpu", "tpu_inference", "amdsmi", "torch_npu", "mlx")  # whose presence would name another platform
WITHOUT_VALUE = ("boolean", "store_true", "store_false", "store_const", "help", "version")
NOT_DEFAULTS = (argparse.SUPPRESS, dataclasses.MISSING)


class _StandInType(type(typing.Protocol)):  # type: ignore[misc]  # so that it goes with ABC, Protocol and Generic
    """Metaclass of classes that stand in for any name of a package that is not installed."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return stand_in(f"{cls.__name__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__dict__.get("is_stand_in"):
            return super().__call__(*args, **kwargs)
        decorated = len(args) == 1 and not kwargs and isinstance(args[0], type | types.FunctionType)
        return args[0] if decorated else stand_in(cls.__name__)

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __bool__(cls) -> bool:
        return not cls.__dict__.get("is_stand_in")

    def __or__(cls, other: object) -> Any:
        return typing.Any

    __ror__ = __or__

    def __len__(cls) -> int:
        return 0

    __int__ = __index__ = __len__

    def __float__(cls) -> float:
        return 0.0

    def __setitem__(cls, key: object, value: object) -> None:
        return None

    def __add__(cls, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *error: object) -> None:
        return None

    def __contains__(cls, item: object) -> bool:
        return False

    __lt__ = __gt__ = __le__ = __ge__ = __contains__


def stand_in(name: str) -> Any:
    """A class that can be called, subscripted, inherited and decorated with."""
    return _StandInType(name, (), {"is_stand_in": True, "__module__": "stand_in", "__init__": _take_anything,
                                    "__init_subclass__": _take_anything})


def _take_anything(self: object, *args: object, **kwargs: object) -> None:
    """Constructor of subclasses of stand-ins: accepts all arguments."""


class StandInModule(types.ModuleType):
    """A module that has every name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return stand_in(self.__name__)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":
            return []
        if name == "__version__":
            return "0"
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = stand_in(name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for what is not there; it comes after the finders of the interpreter."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] in {*sys.stdlib_module_names, *ABSENT}:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        fill = FILLED.get(module.__name__)
        for name, value in (fill() if fill else {}).items():
            setattr(module, name, value)


class Forgiving(importlib.machinery.SourceFileLoader):
    """A loader of the engine's modules: what a failed import had defined stays, and the rest is stand-ins."""

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            super().exec_module(module)
        except (Exception, SystemExit) as error:  # an engine's module may raise anything without its packages
            print(f"{module.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
            module.__class__ = StandInModule


class FieldInfo:
    """pydantic's, as far as vLLM asks it."""

    def __init__(self, default: Any = dataclasses.MISSING, *, default_factory: Any = None, **kwargs: Any) -> None:
        self.default, self.default_factory, self.init = default, default_factory, kwargs.get("init")
        if default is ...:
            self.default = dataclasses.MISSING

    def value(self) -> Any:
        return self.default_factory() if self.default_factory is not None else self.default


def model(cls: Any = None, **kwargs: Any) -> Any:
    """pydantic's dataclass without validation."""
    if cls is None:
        return lambda decorated: model(decorated, **kwargs)
    settle = getattr(cls, "__post_init__", None)

    def finish(self: Any, *args: Any) -> None:
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name, None), FieldInfo):
                object.__setattr__(self, field.name, value.value())
        if settle is not None:
            with contextlib.suppress(Exception):
                settle(self, *args)

    cls.__post_init__ = finish
    return dataclasses.dataclass(kw_only=True)(cls)


def _unchanged(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda decorated: decorated


NO_DEFAULT = stand_in("NODEFAULT")


class Struct:
    """msgspec's, as far as SGLang asks it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        own = inspect.get_annotations(cls)
        cls.__annotations__ = {name: kind for name, kind in own.items() if "ClassVar" not in str(kind)}
        for name, value in list(cls.__dict__.items()):
            if name in own and isinstance(value, list | dict | set):
                setattr(cls, name, dataclasses.field(default_factory=copy.copy(value).copy))
        dataclasses.dataclass(kw_only=bool(kwargs.get("kw_only")), eq=False, init="__init__" not in cls.__dict__)(cls)
        vars_of: Any = cls
        vars_of.__struct_fields__ = tuple(each.name for each in dataclasses.fields(vars_of))


def define_struct(name: str, fields: Sequence[tuple[Any, ...]], *, namespace: dict[str, Any], **kwargs: Any) -> Any:
    """msgspec's defstruct."""
    body = {key: value for key, value in namespace.items() if not isinstance(value, types.MemberDescriptorType)}
    body |= {each[0]: each[2] for each in fields if len(each) > 2}
    return type(name, (Struct,), body | {"__annotations__": {each[0]: each[1] for each in fields}})


def struct_fields(cls: Any) -> tuple[Any, ...]:
    return tuple(types.SimpleNamespace(
        name=each.name, type=each.type,
        default=NO_DEFAULT if each.default is dataclasses.MISSING else each.default,
        default_factory=NO_DEFAULT if each.default_factory is dataclasses.MISSING else each.default_factory,
    ) for each in dataclasses.fields(cls))


def _struct_field(default: Any = dataclasses.MISSING, default_factory: Any = dataclasses.MISSING, **_: Any) -> Any:
    return dataclasses.field(default=default, default_factory=default_factory)


class _Transparent:
    """An annotation that stands for the type inside its brackets."""

    def __class_getitem__(cls, item: Any) -> Any:
        return item


def _type_variable(name: str, *bounds: Any, **kwargs: Any) -> Any:
    return typing.TypeVar(name, *bounds, bound=kwargs.get("bound"))


def _pydantic() -> dict[str, Any]:
    decorators = ("field_validator", "model_validator", "field_serializer", "model_serializer", "validator",
                  "root_validator", "computed_field", "with_config", "validate_call")
    return dict.fromkeys(decorators, _unchanged) | {
        "ConfigDict": dict, "Field": FieldInfo, "dataclasses": importlib.import_module("pydantic.dataclasses"),
        "ValidationError": type("ValidationError", (ValueError,), {}), "SkipValidation": _Transparent,
        "BaseModel": stand_in("BaseModel"),
    }


FILLED: dict[str, Callable[[], dict[str, Any]]] = {
    "pydantic": _pydantic,
    "pydantic.dataclasses": lambda: {"dataclass": model},
    "pydantic.fields": lambda: {"FieldInfo": FieldInfo, "Field": FieldInfo},
    "msgspec": lambda: {"Struct": Struct, "NODEFAULT": NO_DEFAULT, "field": _struct_field, "defstruct": define_struct,
                        "structs": importlib.import_module("msgspec.structs")},
    "msgspec.structs": lambda: {"fields": struct_fields, "replace": dataclasses.replace},
    "regex": lambda: dict(vars(re)),
    "typing_extensions": lambda: {**vars(typing), "dataclass_transform": _unchanged, "TypeVar": _type_variable},
}


def entry(action: argparse.Action) -> dict[str, Any]:
    """What an option takes, without what is usual: one text that is stored."""
    name = main_name(action)
    kind = action_name(action)
    off = set(getattr(action, "negative_option_strings", ())) if kind == "boolean" else set()
    others = [each for each in action.option_strings if each != name and not each.startswith("--no-")]
    described: dict[str, Any] = {
        "names": [each for each in others if each not in off], "off": [each for each in others if each in off],
        "action": kind,
        "required": (action.required and bool(action.option_strings)) or None,
        "dest": action.dest if action.dest != name.lstrip("-").replace("-", "_") else None,
    }
    if described["dest"] is not None:  # an older name, which sets another option to this value
        described["const"] = shown(action.const)
    if kind not in WITHOUT_VALUE:
        described |= {
            "type": type_name(action.type), "nargs": action.nargs,
            "choices": None if action.choices is None else sorted(map(shown, action.choices), key=str),
        }
    described["default"] = None if action.default in NOT_DEFAULTS else shown(action.default)
    return {key: value for key, value in described.items() if value is not None and value != []}


def main_name(action: argparse.Action) -> str:
    """The longest name of the option, by which command lines are written; of a positional its destination."""
    long = [each for each in action.option_strings if each.startswith("--")]
    return (long or list(action.option_strings) or [action.dest])[0]


def action_name(action: argparse.Action) -> str | None:
    """The name of an option's action, "store_true"; None: the option stores its value."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "boolean"
    names = {argparse._StoreAction: None, argparse._StoreTrueAction: "store_true",
             argparse._StoreFalseAction: "store_false", argparse._StoreConstAction: "store_const",
             argparse._AppendAction: "append", argparse._HelpAction: "help", argparse._VersionAction: "version"}
    return names.get(type(action), type(action).__name__)


def type_name(kind: Any) -> str | None:
    """Name of what converts a value: int, float, json or the engine's own function; None for text."""
    if kind in (None, str):
        return None
    inner = [cell.cell_contents for cell in getattr(kind, "__closure__", None) or ()]
    kinds = [each for each in inner if callable(each)]
    if json.loads in (kind, *kinds) or any(dataclasses.is_dataclass(each) for each in inner):
        return "json"
    if "parse_dataclass" in getattr(kind, "__name__", ""):
        return "json"
    return type_name(kinds[0]) if kinds and kind.__name__.startswith("_") else str(getattr(kind, "__name__", kind))


def shown(value: Any) -> Any:
    """A default or choice as JSON. The fields of a configuration object become keys; its other objects their text."""
    value = value.value() if isinstance(value, FieldInfo) else value
    if value is None or isinstance(value, enum.Enum | bool | int | float | str):
        return value.name if isinstance(value, enum.Enum) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: shown(getattr(value, each.name, None)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = [shown(item) for item in value]
        return sorted(items, key=str) if isinstance(value, set | frozenset) else items
    if isinstance(value, type) and issubclass(type(value), _StandInType):
        return f"<{value.__name__}>"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:SHOWN_CHARACTERS]


def main(argv: Sequence[str]) -> int:
    folder, parser_class, *alternatives = argv
    sys.path.insert(0, folder)
    own = importlib.machinery.FileFinder.path_hook((Forgiving, importlib.machinery.SOURCE_SUFFIXES))
    sys.path_hooks.insert(0, lambda path: own(path) if path.startswith(folder) else _not_ours(path))
    sys.path_importer_cache.clear()
    sys.meta_path.append(Finder())
    importlib.metadata.version = lambda distribution_name: "0"
    sys.argv = ["serve"]
    for alternative in alternatives:
        builders = [_member(name) for name in alternative.split("+")]
        if all(isinstance(build, types.FunctionType) for build in builders):
            parser = _member(parser_class)(add_help=False, prog="serve")
            for build in builders:
                build(parser)
            print("\n" + json.dumps({main_name(action): entry(action) for action in parser._actions}))
            return 0
    print(f"none of {', '.join(alternatives)} is there", file=sys.stderr)
    return 1


def _member(name: str) -> Any:
    """The object "module:attribute.attribute"."""
    module, _, path = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _not_ours(path: str) -> Any:
    raise ImportError(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
