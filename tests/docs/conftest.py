"""The pages that people read, as blocks that can be run. What a block's words mean is told in CONTRIBUTING.md."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        line: its first, in the page.
        language: the first word after the backticks.
        words: the others, NAME=VALUE or alone.
        text: what stands in it.
    """

    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def word(self, name):
        """The value of a word NAME=VALUE, True for the word NAME without a value, None if the word is missing."""
        for word in self.words:
            key, equals, value = word.partition("=")
            if key == name:
                return value if equals else True
        return None


@dataclass(frozen=True)
class Page:
    """A file of Markdown."""

    path: Path

    @property
    def blocks(self):
        fences = (token for token in MarkdownIt().parse(self.text) if token.type == "fence")
        return [Block(token.map[0] + 1, *_words(token.info), token.content) for token in fences]

    @property
    def spans(self):
        """What stands in single backticks."""
        inline = (token for token in MarkdownIt().enable("table").parse(self.text) if token.type == "inline")
        return [child.content for token in inline for child in token.children if child.type == "code_inline"]

    @property
    def text(self):
        return self.path.read_text(encoding="utf-8")


def _words(info):
    language, *words = info.split() or [""]
    return language, tuple(words)


def pytest_generate_tests(metafunc):
    if "page" in metafunc.fixturenames:
        pages = [pytest.param(Page(path), id=str(path.relative_to(ROOT))) for path in PAGES]
        metafunc.parametrize("page", pages)


@pytest.fixture
def page_blocks():
    """The blocks of a page, by its path."""
    return lambda path: Page(path).blocks
