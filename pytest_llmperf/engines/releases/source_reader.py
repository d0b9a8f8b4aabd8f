"""Finds metrics, variables and routes in the source code of an engine, and digests the functions that are cited."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Entries = dict[str, dict[str, Any]]
Test = Callable[[str], re.Match[str] | None]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
#: Folders with code that no server runs.
NOT_SERVED = frozenset({"test", "tests", "testing", "benchmarks", "benchmark", "multimodal_gen", "__pycache__"})
KINDS = ("counter", "gauge", "histogram", "summary")
METHODS = {"get": "GET", "post": "POST", "put": "PUT", "delete": "DELETE", "patch": "PATCH", "websocket": "WEBSOCKET",
           "api_route": "ANY", "add_api_route": "ANY"}
SHORT_DIGEST = 12


def source_facts(package: Path, metric: str, variable: str, cited: Mapping[str, str]) -> dict[str, Entries]:
    """Sections "metrics", "variables", "routes" and "sources".

    Args:
        package: folder of the engine's Python package.
        metric: regular expression of whole metric names.
        variable: regular expression of whole names of environment variables.
        cited: name of a function or class → what a table here takes from it.
    """
    facts: dict[str, Entries] = {"metrics": {}, "variables": {}, "routes": {}, "sources": {}}
    is_metric, is_variable = re.compile(metric).fullmatch, re.compile(variable).fullmatch
    parts: dict[str, list[str]] = {}
    definitions = rf"|(?:def|class) (?:{'|'.join(cited)})\b" if cited else ""
    worth_parsing = re.compile(rf"{metric}|{variable}|router\.|app\.{definitions}")
    for path in sorted(package.rglob("*.py")):
        if NOT_SERVED & set(path.relative_to(package).parts[:-1]):
            continue
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        if not worth_parsing.search(text):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:  # of a newer Python
            continue
        compared: set[int] = set()
        for node in ast.walk(tree):  # parents come first
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                compared.add(id(node.left))  # `"NAME" in os.environ` alone refuses the variable, and reads nothing
            elif isinstance(node, ast.Call):
                _take_metric(node, is_metric, facts["metrics"])
                _take_route(node, facts["routes"])
                _take_default(node, is_variable, facts["variables"])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in compared:
                if is_metric(node.value):
                    facts["metrics"].setdefault(node.value, {})
                elif is_variable(node.value):
                    facts["variables"].setdefault(node.value, {})
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                _take_field(node, is_variable, facts["variables"])
            elif isinstance(node, Definition) and node.name in cited:
                parts.setdefault(node.name, []).append(ast.dump(_without_docstring(node)))
    facts["sources"] = {name: {"digest": hashlib.sha256("\n".join(each).encode()).hexdigest()[:SHORT_DIGEST]}
                        for name, each in parts.items()}
    return {name: dict(sorted(entries.items())) for name, entries in facts.items()}


def _take_metric(call: ast.Call, is_metric: Test, metrics: Entries) -> None:
    """Kind and labels of a metric, where one call states name and labels."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    name = _text(named.get("name") or (call.args[0] if call.args else None))
    if name is None or not is_metric(name):
        return
    kinds = [kind for kind in KINDS if kind in ast.dump(call.func).lower()]
    labels = named.get("labelnames") or next((each for each in call.args[1:] if isinstance(each, ast.List)), None)
    entry = metrics.setdefault(name, {})
    if kinds:
        entry["kind"] = kinds[0]
    if own := sorted(set(_texts(labels))):
        entry["labels"] = own


def _take_route(call: ast.Call, routes: Entries) -> None:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in METHODS:
        return
    path = next(iter(call.args), None) or next((each.value for each in call.keywords if each.arg == "path"), None)
    owner = ast.unparse(call.func.value).lower()
    if (route := _text(path)) and route.startswith("/") and ("app" in owner or "router" in owner):
        methods = [word for each in call.keywords if each.arg == "methods" for word in _texts(each.value)]
        for method in methods or [METHODS[call.func.attr]]:
            routes[f"{method} {route}"] = {}


def _take_default(call: ast.Call, is_variable: Test, variables: Entries) -> None:
    """The default of `os.getenv("NAME", default)` and its like."""
    name = _text(call.args[0]) if call.args else None
    if name is None or not is_variable(name):
        return
    entry = variables.setdefault(name, {})
    default = call.args[1] if len(call.args) > 1 else None
    if isinstance(default, ast.Constant) and default.value is not None:
        entry.setdefault("default", default.value)


def _take_field(node: ast.Assign | ast.AnnAssign, is_variable: Test, variables: Entries) -> None:
    """SGLang declares `NAME = EnvBool(False)` in a class."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    value = node.value
    called = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2].startswith("Env")
    if isinstance(target, ast.Name) and is_variable(target.id) and called and isinstance(value, ast.Call):
        default = value.args[0] if value.args else None
        known = isinstance(default, ast.Constant) and default.value is not None
        variables[target.id] = {"default": default.value} if known and isinstance(default, ast.Constant) else {}


def _without_docstring(node: Definition) -> Definition:
    first = node.body[0]
    if len(node.body) > 1 and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        node.body = node.body[1:]
    return node


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _texts(node: ast.AST | None) -> Iterator[str]:
    """Every text in an expression, so that `labels + ["source"]` gives "source"."""
    for each in ast.walk(node) if node is not None else ():
        if (text := _text(each)) is not None:
            yield text
