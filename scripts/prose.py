"""Hard sentences and hard test names: list them, and fail where a change adds some.

    python scripts/prose.py                    # fails where a count grew since it was recorded, and lists the additions
    python scripts/prose.py --list messages    # every offender of one kind
    python scripts/prose.py --record           # stores smaller counts

A sentence is hard if it has more than 35 words, or if it has 8 words or more and a quarter of them point elsewhere
(it, one, what, …). A test name is hard if it is very short or long, has a pronoun, or names no outcome. In test names
a relative "that", and "one" before a noun, do not count as pronouns. An offender is a place to look at, not a proof.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTS = "scripts/prose_counts.json"
KINDS = ("docs", "docstrings", "messages", "test_names")
#: Folders and files that are read, and the kinds that each may have.
PLACES = ("README.md", "CONTRIBUTING.md", "docs", "pytest_llmperf", "scripts", "benchmarks", "suites", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/")
MESSAGES_IN = "pytest_llmperf/"
#: Their texts are those of the engines that they stand for.
QUOTED = ("pytest_llmperf/emulator/http/metrics_page.py",)
TESTS_IN = "tests/"

MOST_SHOWN = 40
LONGEST, SHORTEST, POINTING_SHARE = 35, 8, 0.25


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


POINTING = _words(
    "it its itself what one ones those these them they their there both such none neither nobody nothing who "
    "whose whom so else other others another beside too where that")
NAME_WORDS = range(3, 13)
PRONOUNS = _words(
    "it its itself what ones those these this them they their there none nothing nobody who whose whom such")
#: A pronoun at the end of a name, or before one of these; else a numeral or a relative.
ONE_OR_THAT = _words("one that")
AFTER_A_PRONOUN = _words("of in for to and or than on at by with from")
AUXILIARIES = _words(
    "is are was were has have had does do did can cannot may must will becomes become")
#: Stems. Of the ambiguous ones only the form with an s counts, after the first word.
VERBS = _words(
    "accept add admit agree allow append apply arrive ascend attach avoid become begin belong bind borrow break "
    "bring build buy cancel carry choose clear close compare compute confirm contain continue contradict convert "
    "cover create cry decide decode decrease defer define delete depart depend detect determine differ divide "
    "double draw drop empty encode equal evict exceed exclude exist expire explain fail fall fill find finish fit "
    "follow forget generate get give go grow halve happen hide hold ignore include increase inherit install "
    "invalidate join judge keep kill know lack last leak leave let lie list listen lock lose lower make match mean "
    "measure meet merge mirror miss move name need occur omit open outlive outrank override overtake pass pay point "
    "pool precede preempt prefer prevent print produce propagate prove raise reach read recover reduce refuse "
    "reject release remain remove repeat replace report require reserve resolve restart resume retry return reuse "
    "save say scale see select send serve share shrink sleep sort spend split spread stand stay stop store suffice "
    "sum survive take tell time trigger trust use vary wait warm win withstand work write")
AMBIGUOUS = _words(
    "answer ask cause change check claim cost count end exit hit limit load look mark name plan record request result "
    "run show start state step test turn value")
#: Lines of a docstring that are no prose: command lines, doctests, diagrams.
NO_PROSE = re.compile(r"\s+(python|make|llmperf|\$|>>>) |.*[├└│]")
FENCE = re.compile(r"^(```|~~~)")
SPAN = re.compile(r"`[^`]*`|\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Passage:
    """A piece of prose, or a test's name, and where it stands."""

    kind: str
    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Offender:
    """A sentence or name that is hard to read, and why."""

    kind: str
    path: str
    line: int
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}: {self.text[:160]}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=KINDS, help="print every offender of this kind")
    parser.add_argument("--record", action="store_true", help="store the counts, where they are smaller")
    options = parser.parse_args(argv)
    passages = [passage for path, text in sources(ROOT) for passage in passages_of(path, text)]
    offenders = [offender for passage in passages for offender in offenders_in(passage)]
    if options.list:
        print(*(offender for offender in offenders if offender.kind == options.list), sep="\n")
        return 0
    print(shares(passages, offenders))
    return record(offenders) if options.record else check(offenders)


def sources(root: Path) -> Iterator[tuple[str, str]]:
    """Path below the root, and text, of every page and module."""
    for place in PLACES:
        paths = [root / place] if (root / place).is_file() else sorted((root / place).rglob("*"))
        for path in paths:
            if path.suffix in (".md", ".py") and path.is_file():
                yield str(path.relative_to(root)), path.read_text(encoding="utf-8")


def passages_of(path: str, text: str) -> Iterator[Passage]:
    if path.endswith(".md"):
        yield from paragraphs(path, text) if path.startswith(PAGES) else ()
        return
    tree = ast.parse(text)
    described = {id(node.body[0].value): node for node in ast.walk(tree) if _docstring(node) is not None}
    for node in described.values():
        yield Passage("docstrings", path, node.body[0].lineno, _docstring(node))
    if path.startswith(MESSAGES_IN) and path not in QUOTED:
        yield from messages(path, tree, described)
    if path.startswith(TESTS_IN):
        yield from (Passage("test_names", path, node.lineno, node.name) for node in ast.walk(tree)
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"))


def _docstring(node: ast.AST) -> str | None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    text = ast.get_docstring(node) if isinstance(node, documented) else None
    return text and "\n".join(line for line in text.splitlines() if not NO_PROSE.match(line))


def paragraphs(path: str, text: str) -> Iterator[Passage]:
    """Paragraphs and list items of Markdown, without code blocks, tables and headings."""
    fenced, begun, words = False, 1, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        if FENCE.match(stripped):
            fenced, stripped = not fenced, ""
        if fenced or not stripped or stripped.startswith(("|", "#", "<", "- ", "* ")):
            if words:
                yield Passage("docs", path, begun, " ".join(words))
            item = not fenced and stripped.startswith(("- ", "* "))
            begun, words = number, [stripped[2:]] if item else []
        else:
            begun, words = (begun if words else number), [*words, stripped]


def messages(path: str, tree: ast.Module, described: Mapping[int, ast.AST]) -> Iterator[Passage]:
    """Texts in the package's code that are long enough to be sentences; values in f-strings count as one word each."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
             if part is not node}
    for node in ast.walk(tree):
        if id(node) in inner or id(node) in described:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "`value`" for part in node.values]
            yield Passage("messages", path, node.lineno, "".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Passage("messages", path, node.lineno, node.value)


def sentences(text: str) -> list[str]:
    flat = SPAN.sub(lambda match: match[1] or "code", " ".join(text.split()))
    return [sentence for sentence in re.split(r"(?<=[.!?:;])\s+|\s·\s", flat) if sentence]


def offenders_in(passage: Passage) -> Iterator[Offender]:
    if passage.kind == "test_names":
        hard_names = [(passage.text, why) for why in [why_hard_name(passage.text)] if why]
    else:
        hard_names = [(sentence, why) for sentence in sentences(passage.text) if (why := why_hard_sentence(sentence))]
    for text, why in hard_names:
        yield Offender(passage.kind, passage.path, passage.line, text, why)


def why_hard_sentence(sentence: str) -> str | None:
    words = sentence.split()
    pointing = sum(word.strip(".,:;()\"'").lower() in POINTING for word in words)
    if len(words) > LONGEST:
        return f"{len(words)} words"
    if len(words) >= SHORTEST and pointing >= POINTING_SHARE * len(words):
        return f"{pointing} of {len(words)} words point elsewhere"
    return None


def why_hard_name(name: str) -> str | None:
    words = name.removeprefix("test_").split("_")
    if pronouns := [word for word, after in zip(words, [*words[1:], ""], strict=True) if _is_pronoun(word, after)]:
        return f"has {', '.join(pronouns)} instead of a noun"
    if len(words) not in NAME_WORDS:
        return f"{len(words)} words; {NAME_WORDS[0]} to {NAME_WORDS[-1]} can name subject, condition and outcome"
    return None if any(map(_is_verb, words[1:])) else "names no outcome (no verb)"


def _is_pronoun(word: str, after: str) -> bool:
    alone = not after or after in AFTER_A_PRONOUN or (word == "one" and after in AUXILIARIES)
    return word in PRONOUNS or (word in ONE_OR_THAT and alone)


def _is_verb(word: str) -> bool:
    stems = {word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)}
    return word in AUXILIARIES or word in VERBS or bool(stems & VERBS) or \
        (word.endswith("s") and bool(stems & AMBIGUOUS))


def shares(passages: list[Passage], offenders: list[Offender]) -> str:
    """A line for each kind: offenders, of how many that are long enough to be one."""
    candidates = Counter(passage.kind for passage in passages for sentence in sentences(passage.text)
                         if passage.kind == "test_names" or len(sentence.split()) >= SHORTEST)
    counts = Counter(offender.kind for offender in offenders)
    return "\n".join(f"{kind}: {counts[kind]} of {candidates[kind]} are hard to read "
                     f"({counts[kind] / max(1, candidates[kind]):.1%})" for kind in KINDS)


def record(offenders: list[Offender]) -> int:
    """Write the counts; a count that grew needs its file deleted first, which a review sees."""
    counts = Counter(offender.kind for offender in offenders)
    if grown(counts, recorded()):
        return check(offenders)
    (ROOT / COUNTS).write_text(json.dumps({kind: counts[kind] for kind in KINDS}, indent=2) + "\n", encoding="utf-8")
    return 0


def recorded() -> dict[str, int]:
    path = ROOT / COUNTS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def grown(counts: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    return [kind for kind in KINDS if kind in limits and counts[kind] > limits[kind]]


def check(offenders: list[Offender]) -> int:
    counts, limits = Counter(offender.kind for offender in offenders), recorded()
    kinds = grown(counts, limits)
    for kind in kinds:
        print(f"\n{kind}: {counts[kind]} hard ones, at most {limits[kind]} ({COUNTS}). Rewrite these:", file=sys.stderr)
        new = added([offender for offender in offenders if offender.kind == kind])
        more = [f"and {len(new) - MOST_SHOWN} more: --list {kind}"] if len(new) > MOST_SHOWN else []
        print(*(f"  {entry}" for entry in [*new[:MOST_SHOWN], *more]), sep="\n", file=sys.stderr)
    if not kinds and any(counts[kind] < limits.get(kind, 0) for kind in KINDS):
        print("Fewer than recorded: `python scripts/prose.py --record` keeps the gain.")
    return 1 if kinds else 0


def added(offenders: list[Offender]) -> list[Offender]:
    """Offenders that were not there when the counts were recorded; all of them where git cannot tell."""
    recorded = Counter((offender.kind, offender.text) for path, text in sources_when_recorded()
                     for passage in passages_of(path, text) for offender in offenders_in(passage))
    new = []
    for offender in offenders:
        recorded[offender.kind, offender.text] -= 1
        if recorded[offender.kind, offender.text] < 0:
            new.append(offender)
    return new


def sources_when_recorded() -> Iterator[tuple[str, str]]:
    commit = _git("log", "-1", "--format=%H", "--", COUNTS).decode().strip()
    tracked = set(_git("ls-tree", "--name-only", commit).decode().splitlines()) if commit else set()
    if archive := _git("archive", commit, "--", *sorted(tracked & set(PLACES))) if tracked else b"":
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                if member.isfile() and member.name.endswith((".md", ".py")):
                    yield member.name, tar.extractfile(member).read().decode()


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
