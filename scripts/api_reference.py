"""The pages of docs/api/: every public name with its arguments, units, errors and an example, from the docstrings.

The examples are calls in the guides and the shipped suites, which tests run.
"""

import ast
import enum
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest_llmperf
from pytest_llmperf import extending
from pytest_llmperf.plugin import hookspec

ROOT = Path(__file__).parents[1]
ARRIVALS = ("closed", "poisson", "constant", "gamma", "ramp", "at_times", "recorded", "exponential")
MODIFIERS = ("cancelled", "retried", "across_models")
WORKLOADS = ("random_tokens", "shared_prefix", "multi_turn", "mixed", "sharegpt", "trace")
METHODS = {
    "EngineSpec": ("with_flags", "with_installation", "with_lmcache"),
    "Measurement": ("value", "values", "value_with_failures", "values_with_failures", "records", "to_pandas",
                    "to_vllm_json"),
    "CheckResult": ("stated", "effective_n", "compares_with_baseline"),
    "ClaimResult": ("verdict",),
    "Server": ("spec", "url", "model", "start_id", "starting_s", "pids", "facts", "counters"),
}
SECTION = re.compile(r"^(Args|Returns|Raises):\n((?:(?: {4}.*)?\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\S[^:\n]*): (.+(?:\n {8}.+)*)", re.MULTILINE)
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
MOST_CHARACTERS = 500
WRITTEN = "Written by `python scripts/document_reference.py` from {}; do not edit."
PERF = "A test takes the fixture `perf`, of the type `pytest_llmperf.Perf`."


@dataclass(frozen=True)
class Name:
    """A public name: a function, a class, a method or a property."""

    shown: str
    value: object

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.value) or ""

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of a function; None for a class, an enumeration and a property."""
        return inspect.signature(self.value) if inspect.isfunction(self.value) else None

    @property
    def parameters(self) -> tuple[str, ...]:
        return () if self.signature is None else tuple(
            name for name in self.signature.parameters if name not in ("self", "cls"))

    @property
    def entries(self) -> dict[str, dict[str, str]]:
        """Section of the docstring → entry → text."""
        return {title: {name: " ".join(text.split()) for name, text in ENTRY.findall(body)}
                for title, body in SECTION.findall(f"{self.doc}\n")}

    def text(self) -> str:
        parts = [f"### `{self.shown}`"]
        if self.signature is not None:
            parts.append(f"```text\n{self.shown.rpartition('.')[2]}{_shown(self.signature)}\n```")
        parts += [SECTION.sub("", self.doc).strip(), *self._tables()]
        if isinstance(self.value, enum.EnumMeta):
            parts.append(", ".join(f"`{member}`" for member in self.value.__members__))
        if code := example(self.shown):
            parts.append(f"```python part\n{code}\n```")
        return "\n\n".join(part for part in parts if part)

    def _tables(self) -> Iterator[str]:
        for title, body in SECTION.findall(f"{self.doc}\n"):
            entries = self.entries[title].items()
            if title == "Args":
                rows = (f"| `{name}` | {text.replace('|', '∣')} |" for name, text in entries)
                yield "\n".join(["| argument | |", "|---|---|", *rows])
            elif title == "Raises":
                yield from (f"Raises `{name}`: {text}" for name, text in entries)
            else:
                yield f"Returns: {' '.join(body.split())}"


def _shown(signature: inspect.Signature) -> str:
    """One argument a line if the signature is long."""
    bound = [parameter for name, parameter in signature.parameters.items() if name not in ("self", "cls")]
    text = str(signature.replace(parameters=bound)).replace("'", "").replace("RunningServer", "Server")
    if len(text) <= 90:
        return text
    inside, _, returned = text[1:].rpartition(")")
    arguments = re.split(r", (?=\*|\w+: )", inside)
    return "(\n    " + ",\n    ".join(arguments) + f",\n){returned}"


def _members(name: str) -> Iterator[Name]:
    value = getattr(pytest_llmperf, name)
    yield Name(name, value)
    for member in METHODS[name]:
        found = inspect.getattr_static(value, member)
        function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        yield Name(f"{name}.{member}", found if isinstance(found, property) else function)


def _verbs(*, measuring: bool) -> list[Name]:
    return [Name(f"perf.{name}", value) for name, value in vars(pytest_llmperf.Perf).items()
            if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
            and (name in MEASURING) == measuring]


def _top(*names: str) -> list[Name]:
    return [Name(name, getattr(pytest_llmperf, name)) for name in names]


def example(shown: str) -> str:
    """The call with the most arguments and literals in the guides and suites; "" if nothing calls it."""
    owner, _, name = shown.rpartition(".")
    calls = [(-weight, len(code), code) for weight, code in _calls().get(name, ())
             if (f"perf.{name}(" in code) == (owner == "perf")]
    return min(calls)[2] if calls else ""


_CALLS: dict[str, list[tuple[int, str]]] = {}


def _calls() -> dict[str, list[tuple[int, str]]]:
    """Name of the function or method → (number of arguments and literals, statement) of each call."""
    if not _CALLS:
        guides = sorted((ROOT / "docs").glob("*.md"))
        sources = [code for page in guides for code in BLOCK.findall(page.read_text(encoding="utf-8"))]
        files = [*sorted((ROOT / "suites").glob("*.py")), *sorted((ROOT / "docs" / "examples").rglob("*.py"))]
        for source in [*sources, *(path.read_text(encoding="utf-8") for path in files)]:
            for statement in ast.walk(ast.parse(source)):
                if isinstance(statement, ast.Assign | ast.Expr | ast.Assert):
                    _add(statement, ast.get_source_segment(source, statement) or "")
                elif isinstance(statement, ast.Return) and statement.value is not None:
                    _add(statement.value, ast.get_source_segment(source, statement.value) or "")
    return _CALLS


def _add(statement: ast.AST, code: str) -> None:
    for call in ast.walk(statement):
        if isinstance(call, ast.Call) and len(code) <= MOST_CHARACTERS:
            function = call.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            literals = sum(isinstance(node, ast.Constant) for node in ast.walk(call))
            _CALLS.setdefault(name, []).append((len(call.args) + len(call.keywords) + literals, inspect.cleandoc(code)))


def page(title: str, text: str, sections: dict[str, list[Name]]) -> str:
    parts = [f"# {title}", text, WRITTEN.format("the docstrings")]
    for heading, names in sections.items():
        parts += [f"## {heading}", *(name.text() for name in names)]
    return "\n\n".join(parts) + "\n"


def _of_extending(names: Iterable[str]) -> list[Name]:
    return [Name(name, getattr(extending, name)) for name in names
            if name not in pytest_llmperf.__all__ and (inspect.isclass(getattr(extending, name))
                                                       or inspect.isfunction(getattr(extending, name)))]


ROUTERS = ("vllm_router", "sglang_router", "nginx")
ROUTER_NAMES = ("Router", "RouterAdapter", "RouterPlacement", "router_of")
OTHER_NAMES = tuple(name for name in extending.__all__ if name not in ROUTER_NAMES)
MEASURING = ("measure", "measure_each", "together", "extend", "max_rate", "profile", "refuses", "accuracy",
             "check_answers")

PAGES: dict[str, Callable[[], tuple[str, str, dict[str, list[Name]]]]] = {
    "specs.md": lambda: ("API: specs", "`from pytest_llmperf import …`", {
        "Engines": [*_top("vllm", "sglang", "endpoint", "transformers", "spending_limit"), *_members("EngineSpec")],
        "Hardware": _top("by_kind", "decode_floor_ms", "prefill_peak_per_s")}),
    "deployments.md": lambda: ("API: deployments", "`from pytest_llmperf import …`; [guide](../deployments.md)", {
        "Deployments": _top("replicas", "prefill_decode", "nixl", *ROUTERS, "kill", "stop", "restart"),
        "Routers of other packages": _of_extending(ROUTER_NAMES)}),
    "workloads.md": lambda: ("API: workloads", "`from pytest_llmperf import …`", {
        "Workloads": _top(*WORKLOADS, "Workload"), "When requests come": _top(*ARRIVALS, "Arrivals"),
        "What clients do": _top(*MODIFIERS)}),
    "perf_measure.md": lambda: ("API: perf, measuring", PERF, {
        "Perf": _top("Perf"), "Verbs": _verbs(measuring=True)}),
    "perf_judge.md": lambda: ("API: perf, judging", PERF, {
        "Verbs and attributes": _verbs(measuring=False)}),
    "results.md": lambda: ("API: results", "What the verbs of `perf` and the fixture `engine` give.", {
        **{name: list(_members(name)) for name in ("Measurement", "ClaimResult", "CheckResult", "Server")},
        "Verdict": _top("Verdict")}),
    "extending.md": lambda: ("API: extending", "`from pytest_llmperf.extending import …`; [guide](../extending.md)", {
        "Hooks of a conftest.py": [Name(name, value) for name, value in vars(hookspec).items()
                                   if name.startswith("pytest_llmperf_")],
        "Names": _of_extending(OTHER_NAMES)}),
}
