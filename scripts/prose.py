"""Private words, docstrings without a subject, unclear test names, tests without assertion, errors without remedy.

`python scripts/prose.py` names each place, and fails if there is one.

A private word is a word of this project for which docs/glossary.md has a term of the field. A docstring has no subject
if it begins with a preposition or a pronoun: "Of one layer." leaves open what the function returns. In a test name "no
X and Y" leaves open whether Y is absent, too. An error has a next step in one of three forms: a sentence begins with
an imperative, a sentence names what is needed or possible, or the error inserts a variable named `remedy`, `hint` or
`advice`. A text in lower case without a period is a clause for another error.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = ("README.md", "CONTRIBUTING.md", "docs", "pytest_llmperf", "scripts", "benchmarks", "suites", "tests")
#: They have tables of words that a clear text avoids.
WORD_LISTS = ("CONTRIBUTING.md", "scripts/prose.py")


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Word of older texts → term of docs/glossary.md.
PRIVATE = {
    "a person's word": "accepted change", "blind": "smallest detectable change",
    "chunks that came together": "coalesced chunks", "climbing": "drift", "creeping": "gradual drift",
    "crew": "load generator", "crying wolf": "false alarm", "demand": "requirement", "departure": "actual send time",
    "dialogue": "conversation", "eviction of a sequence": "preemption", "fate": "planted fault",
    "glide": "fast-forward", "how much starts differ": "between-start sd", "kept run": "stored run",
    "lateness": "send delay", "none where": "None if", "empty where": "empty if",
    "stranger": "foreign process", "memory waste": "internal fragmentation", "no evidence": "invalid run",
    "nobody intends a moment": "closed loop", "rival": "alternative rule",
    "start-to-start spread": "between-start sd", "straying": "drift",
    "what a claim may not make worse": "guard metric", "what a side must show": "mechanism",
    "what is known beforehand": "prior", "what somebody else runs": "attached server",
    "what speaks against it": "obstacle",
}  # fmt: skip
PRIVATE_WORD = re.compile(rf"\b({'|'.join(map(re.escape, PRIVATE))})\b", re.IGNORECASE)
AUXILIARIES = words_of(
    "is are was were has have had does do did can cannot may must will becomes become")
#: Stems. Of the ambiguous ones only the form with an s counts, after the first word.
VERBS = words_of(
    "accept add admit agree allow append apply arrive ascend attach avoid become begin belong bind borrow break "
    "bring build buy cancel carry choose clear close compare compute confirm contain continue contradict convert "
    "cover create cry decide decode decrease defer define delete depart depend detect determine differ disagree divide "
    "double draw drop empty encode equal evict exceed exclude exist expire explain "
    "fail fall fill find finish fit "
    "follow forget generate get give go grow halve happen hide hold ignore include increase inherit install "
    "invalidate join judge keep kill know lack last leak leave let lie list listen lock lose lower make match "
    "mean measure meet merge mirror miss move name need occur omit open outlive outrank override overtake pass "
    "pay point pool precede preempt prefer prevent print produce propagate prove raise reach read recover reduce "
    "refuse reject release remain remove repeat replace report require reserve resolve restart resume retry "
    "return reuse save say scale see select send serve share shrink sleep sort spend split spread stand stay stop "
    "store succeed suffice sum survive take tell time trigger trust use vary wait warm win withdraw withstand work "
    "write")
AMBIGUOUS = words_of(
    "answer ask cause change check claim cost count end exit hit limit load look mark name plan record request "
    "result run show start state step test turn value")
IMPERATIVES = "|".join(sorted(words_of(
    "add allow announce ask begin build check choose close copy correct create declare delete drop end fix free give "
    "go hand install keep leave let list look lower make measure mend move name open pass pick put raise read remove "
    "rename renew repair repeat replace restart restore run say see send set shorten sort start state stop store take "
    "try turn uninstall unset update upgrade use wait widen write")))
IMPERATIVE = re.compile(rf"(^|[.:;,?]\s|VALUE |\bor |\bthen |\band )({IMPERATIVES})\b", re.IGNORECASE)
#: What is needed or possible.
POSSIBLE = re.compile(
    r"--\w|e\.g\.|\b(must|needs?|these can|takes|instead|at least|at most|between|there (is|are)|one of|expected|"
    r"can be|may be|such as|as text|pip install|allowed|known|only|llmperf \w+)\b")
#: Errors of a programming mistake, which a user never reads.
INTERNAL = words_of("AssertionError AttributeError IndexError KeyError LookupError NotImplementedError OSError "
                    "RuntimeError StopIteration TypeError ValueError")
REMEDY = re.compile(r"remedy|hint|advice|create", re.IGNORECASE)
CLAUSE = re.compile(r"(VALUE )?[a-z](.*[^.])?", re.DOTALL)
#: "The parameters of one layer" says what "Of one layer" leaves open.
NO_SUBJECT = re.compile(
    r"(Of|As of|By|From|Those|Such|At|With|Its?|So|Until|Up|Also|Nobody|None|Whatever|For (?!each))\b")
NO_AND = re.compile(r"_no_[a-z]+_and_(?!no_)([a-z0-9]+)")
#: "ValueError: the value is negative" says what "it is negative" leaves open.
RAISES_PRONOUN = re.compile(r"^ +[A-Z]\w+: (it|they) .*", re.MULTILINE)
CHECKS = re.compile(r"assert|raises|warns|fail|check|expect|match|message|hold|validate|until|wait_for", re.IGNORECASE)
#: A shorter text is that of another error.
SHORTEST = 4


@dataclass(frozen=True)
class Place:
    """A place to look at.

    Args:
        what: what is wrong at the place.
        text: begin of the text of the place.
    """

    path: str
    line: int
    what: str
    text: str


def places(root: Path) -> Iterator[Place]:
    """All places of the project."""
    for path in (path for place in PLACES for path in [root / place, *sorted((root / place).rglob("*"))]):
        name = path.relative_to(root).as_posix()
        if path.suffix not in (".md", ".py") or not path.is_file() or name.startswith("docs/measured/"):
            continue
        for line, text in passages(name, path.read_text(encoding="utf-8")):
            for match in PRIVATE_WORD.finditer(text) if name not in WORD_LISTS else ():
                context = " ".join(text[max(0, match.start() - 20):match.end() + 20].split())
                yield Place(name, line, f"“{match[0]}” instead of “{PRIVATE[match[0].lower()]}”", context)
        if path.suffix == ".py":
            yield from places_in_code(name, ast.parse(path.read_text(encoding="utf-8")))


def passages(name: str, text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page, and the docstrings and test names of a module."""
    if name.endswith(".md"):
        yield from enumerate(text.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (docstring := ast.get_docstring(node)):
            yield node.body[0].lineno, docstring
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")


def places_in_code(name: str, tree: ast.Module) -> Iterator[Place]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and name.startswith("tests/"):
            if not any(map(is_verb, node.name.split("_")[2:])):
                yield Place(name, node.lineno, "test name without an outcome", node.name)
            if any(not is_verb(word) for word in NO_AND.findall(node.name)):
                yield Place(name, node.lineno, "test name with an ambiguous “no … and …”", node.name)
            if not any(map(is_check, ast.walk(node))):
                yield Place(name, node.lineno, "test without an assertion", node.name)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not name.startswith(("tests/", "suites/")):
            docstring = ast.get_docstring(node) or ""
            if NO_SUBJECT.match(docstring):
                yield Place(name, node.lineno, "docstring without a subject", docstring.partition("\n")[0])
            for match in RAISES_PRONOUN.finditer(docstring.partition("Raises:")[2]):
                yield Place(name, node.lineno, "pronoun in Raises", match[0].strip())
        if isinstance(node, ast.Raise) and name.startswith("pytest_llmperf/") and "/emulator/" not in name:
            text = error_text(node)
            if len(re.findall(r"[a-z]+", text)) >= SHORTEST and not (IMPERATIVE.search(text) or POSSIBLE.search(text)):
                yield Place(name, node.lineno, "error without a next step", text[:100])


def is_verb(word: str) -> bool:
    stems = {word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)}
    return word in AUXILIARIES | VERBS or bool(stems & VERBS) or (word.endswith("s") and bool(stems & AMBIGUOUS))


def is_check(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Assert) or (called is not None and bool(CHECKS.search(ast.unparse(called))))


def error_text(node: ast.Raise) -> str:
    """Text of an error that users read; values count as one word."""
    if not (isinstance(node.exc, ast.Call) and node.exc.args) or ast.unparse(node.exc.func) in INTERNAL:
        return ""
    argument = node.exc.args[0]
    parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    if not all(isinstance(part, ast.FormattedValue) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
               for part in parts):
        return ""
    text = "".join(part.value if isinstance(part, ast.Constant)
                   else " instead " if REMEDY.search(ast.unparse(part.value)) else "VALUE" for part in parts)
    return "" if CLAUSE.fullmatch(text) else text


def main() -> int:
    found = list(places(ROOT))
    for place in found:
        print(f"{place.path}:{place.line}: {place.what}: {place.text}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
