"""One self-contained HTML file about a run.

The page contains its style sheet, its script and the charts as SVG; it loads nothing. The details of each test are in
the page in gzipped form, and the script unpacks them when a reader first opens the test. So two hundred tests load as
fast as one test. Without JavaScript the page still shows each verdict, its number and its reason.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.errors import UsageError, escaped
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.report.html.overview import (
    COLUMNS,
    bar_of,
    csv_text,
    groups,
    headline,
    headroom_text,
    measured_values,
    row_of,
    tiles,
)
from pytest_llmperf.report.html.page import TestPage, counts, pack, test_page
from pytest_llmperf.report.html.session_facts import SessionFacts, session_facts
from pytest_llmperf.results.conditions import EMULATED, kind_of
from pytest_llmperf.results.ended_test import GOOD
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.results.sentences import basis_text, estimate_text, interval_text, limit_text, reason_text

if TYPE_CHECKING:
    import jinja2

    from pytest_llmperf.results.baseline import ReadBaseline

FILE = "report.html"
#: The page runs its own script alone and loads nothing. Bars and labels are placed by style attributes.
POLICY = ("default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
          "form-action 'none'")
#: A page of few tests opens the first of those that are not good.
MOST_TESTS_OPENED = 12
MOST_OPENED = 3


def write_report(folders: Sequence[Path], read: ReadBaseline, out: Path) -> Path:
    """Write `out/report.html`, whole or not at all.

    Args:
        folders: run folders.
        read: gives a test's baseline, for its history.
        out: a folder; made where it is missing.

    Raises:
        UsageError: a folder is no run folder, or the report cannot be written.
        BaselineError: a run file cannot be read.
    """
    tests = [test for folder in folders for test in read_run(folder)]
    tests.sort(key=lambda test: -test.ending.severity)
    kinds = {kind_of(measurement.conditions) for test in tests for measurement in test.measurements}
    kind = kinds.pop().removeprefix(EMULATED) if len(kinds) == 1 else ""
    pages = [test_page(test, number, read, kind, out) for number, test in enumerate(tests, start=1)]
    return write_page(out / FILE, render(pages, session_facts(folders, tests)))


def write_page(path: Path, text: str) -> Path:
    """Write a page, whole or not at all, and make its folder.

    Raises:
        UsageError: the page cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{path}: the page cannot be written: {error.strerror}. Name another folder.") from error
    return path


def render(pages: Sequence[TestPage], session: SessionFacts) -> str:
    """The page as text.

    Args:
        pages: of each test, the worst verdict first.
        session: the facts of the session.
    """
    tests = [page.test for page in pages]
    rows = [row_of(page.test, page.anchor) for page in pages]
    environment = page_environment()
    more = environment.get_template("more.html.j2")
    script = environment.get_template("report.js").render()
    return escaped(environment.get_template("report.html.j2").render(
        script=script, policy=POLICY.format(base64.b64encode(sha256(script.encode()).digest()).decode()),
        title=headline(tests, session), session=session, tiles=list(tiles(tests)), groups=groups(rows),
        pages={page.anchor: page for page in pages}, opened=_opened(pages), count=len(pages), counts=counts(tests),
        csv=csv_text(rows), measured=_measured(pages),
        measured_names=list(COLUMNS.values()), packed=lambda page: pack(escaped(more.render(page=page))),
    ))


def _measured(pages: Sequence[TestPage]) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Anchor, test, side and values of each measurement, in the order of the page; a search has a table of its own."""
    return [
        (page.anchor, page.title, side.label, measured_values(measurement))
        for page in pages for side in page.sides
        if (measurement := side.measurement).runs and not (measurement.tried or measurement.searched)
    ]


def _opened(pages: Sequence[TestPage]) -> set[str]:
    """Anchors of the tests that are open at first: a single test, or the worst of a few."""
    if len(pages) == 1:
        return {pages[0].anchor}
    bad = [page.anchor for page in pages if page.test.outcome not in GOOD]
    return set(bad[:MOST_OPENED]) if len(pages) <= MOST_TESTS_OPENED else set()


def page_environment() -> jinja2.Environment:
    """The templates of all pages, with the filters of the report."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"reason": reason_text, "estimate": estimate_text, "limit": limit_text,
                            "interval": interval_text, "basis": basis_text,
                            "headroom": headroom_text, "bar": bar_of}
    return environment
