"""One self-contained HTML file about a run.

Plotly draws the charts. Its script comes from the installed Python package, so this project contains no copy. The page
contains the script (5 MB, 2 MB packed) and the details of each test in gzipped form, and unpacks them when a reader
first opens a test. So two hundred tests load as fast as one test. Without JavaScript the page still shows each verdict
and its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.errors import UsageError
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.report.html.page import TestPage, counts, pack, session_facts, test_page
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.results.sentences import basis_text, estimate_text, interval_text, limit_text, reason_text

if TYPE_CHECKING:
    import jinja2

    from pytest_llmperf.results.baseline import ReadBaseline

FILE = "report.html"


def write_report(folders: Sequence[Path], read: ReadBaseline, out: Path) -> Path:
    """Write `out/report.html`, whole or not at all.

    Args:
        folders: run folders; the first names the page.
        read: gives a test's baseline, for its history.
        out: a folder; made where it is missing.

    Raises:
        UsageError: a folder is no run folder, or the report cannot be written.
        BaselineError: a run file cannot be read.
    """
    tests = [test for folder in folders for test in read_run(folder)]
    tests.sort(key=lambda test: -test.verdict.severity)
    pages = [test_page(test, number, read) for number, test in enumerate(tests, start=1)]
    text = render(pages, title=folders[0].resolve().name, facts=session_facts(folders))
    path = out / FILE
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{path}: the report cannot be written: {error.strerror}.") from error
    return path


def render(pages: Sequence[TestPage], *, title: str, facts: Sequence[tuple[str, str]]) -> str:
    """The page as text.

    Args:
        title: of the run.
        facts: what is known of the session, name and value.
    """
    from pytest_llmperf.report.html.plotly import packed_script

    tests = [page.test for page in pages]
    emulated = any(side.hardware.startswith("emulated") for page in pages for side in page.sides)
    environment = _environment()
    more = environment.get_template("more.html.j2")

    def packed(page: TestPage) -> str:
        return pack({**page.drawn, "more": more.render(page=page)})

    return environment.get_template("report.html.j2").render(
        title=title, facts=facts, pages=pages, packed=packed, counts=counts(tests), emulated=emulated,
        plotly=packed_script(),
    )


def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"reason": reason_text, "estimate": estimate_text, "limit": limit_text,
                            "interval": interval_text, "basis": basis_text}
    return environment
