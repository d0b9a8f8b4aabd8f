"""A hook of mkdocs: the words behind a block's language are for the tests, and Markdown's fences know no such words."""

import re

_FENCE = re.compile(r"^(?P<fence>\s*```\w+) [^`\n]+$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs with the text of each page."""
    return _FENCE.sub(r"\g<fence>", markdown)
