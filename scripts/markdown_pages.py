"""Tables in Markdown, and pages with a part that a script writes."""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; a bar in a cell becomes another sign."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |" for line in lines)


def with_part(page: str, name: str, text: str) -> str:
    """The page with the text between the lines `<!-- NAME: … -->` and `<!-- end of NAME -->`.

    Raises:
        ValueError: the page lacks one of the lines.
    """
    part = re.compile(rf"(<!-- {name}: [^\n]* -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not part.search(page):
        raise ValueError(f"the page has no lines <!-- {name}: … --> and <!-- end of {name} -->")
    return part.sub(lambda lines: f"{lines[1]}\n{text}\n\n{lines[2]}", page)
