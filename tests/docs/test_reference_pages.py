"""The reference pages are whole: every metric, option, setting, and message that they explain is the product's own."""

import importlib.util
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import pytest_llmperf
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.metrics import all_metrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts"))

import api_reference  # noqa: E402

#: What guides and suites of this project have no use for.
WITHOUT_EXAMPLE = ("Measurement.value_with_failures", "Measurement.values_with_failures", "completion_body")
API_NAMES = [name for page in api_reference.PAGES.values() for names in page()[2].values() for name in names]


@pytest.fixture
def reference():
    path = ROOT / "scripts" / "document_reference.py"
    spec = importlib.util.spec_from_file_location("document_reference", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_generated_tables_and_pages_are_current(reference):
    repair = "run `python scripts/document_reference.py`"
    page = (DOCS / "verdicts.md").read_text()
    assert reference.with_tables(page, reference.PAGES["verdicts.md"]) == page, repair
    assert reference.generated() == {path.name: path.read_text() for path in (DOCS / "api").iterdir()}, repair


@pytest.mark.parametrize("metric", all_metrics().values(), ids=lambda metric: metric.name)
def test_metrics_page_contains_every_metric_with_formula_id(metric):
    page = (DOCS / "api" / "metrics.md").read_text()
    if metric.family is not None:
        formula_id, stat = metric.formula_id.split("/")
        assert f"| `{metric.name.removesuffix(stat)}…` | `{formula_id}/…` |" in page
        return
    (row,) = [line for line in page.splitlines() if re.match(rf"\| `{metric.name}(\(…\))?` \|", line)]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == (metric.unit.value or "count")
    assert f"`{metric.formula_id}`" in cells


@pytest.mark.parametrize("tool", ["vllm bench serve", "GuideLLM", "AIPerf", "GenAI-Perf"])
def test_metrics_page_lists_terms_of_other_tools(tool):
    page = (DOCS / "metrics_of_other_tools.md").read_text()
    (table,) = re.findall(r"\n\| word \|.*?\n\n", page, re.DOTALL)
    rows = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in table.strip().splitlines()]
    column = next(at for at, head in enumerate(rows[0]) if tool in head)
    documented = {row[0]: row[column] for row in rows[2:]}
    assert all(documented[word] for word in ("TTFT", "TPOT", "ITL", "E2E latency", "goodput"))


def test_api_pages_contain_every_public_name():
    documented = {name.shown for name in API_NAMES}
    verbs = {f"perf.{name}" for name in vars(pytest_llmperf.Perf) if not name.startswith("_")}
    assert {*pytest_llmperf.__all__, *verbs} <= documented
    constants = {"API", "Flag"}
    assert set(pytest_llmperf.extending.__all__) - documented == constants


@pytest.mark.parametrize("name", API_NAMES, ids=lambda name: name.shown)
def test_public_name_documents_every_argument(name):
    assert name.doc
    documented = {argument.strip() for entry in name.entries.get("Args", {}) for argument in entry.split(",")}
    assert set(name.parameters) - {"config"} <= documented


@pytest.mark.parametrize("name", [name for name in API_NAMES if set(name.parameters) - {"config"}],
                         ids=lambda name: name.shown)
def test_public_function_has_example_from_guides_or_suites(name):
    assert api_reference.example(name.shown) or name.shown in WITHOUT_EXAMPLE


def test_options_of_settings_page_equal_options_of_pytest(pytester):
    config = pytester.parseconfig()
    (ours,) = [group for group in config._parser._groups if group.name == "llmperf"]
    options = {option.names()[0] for option in ours.options}
    documented = set(re.findall(r"^\| `(--[\w-]+)", (DOCS / "api" / "command_line.md").read_text(), re.MULTILINE))
    assert documented == options


def test_settings_page_contains_every_setting():
    table = (DOCS / "api" / "command_line.md").read_text().partition("## Settings")[2]
    documented = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert documented == {field.name for field in fields(Settings)}


def test_settings_page_contains_every_exit_code():
    from pytest_llmperf.plugin import verdicts

    codes = {value for name, value in vars(verdicts).items() if name.startswith("EXIT_")}
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", (DOCS / "settings.md").read_text(), re.MULTILINE)}
    assert codes | {int(code) for code in (0, 1, 4)} <= documented


def test_no_page_has_more_than_2500_words():
    words = {str(page.relative_to(DOCS)): len(page.read_text().split()) for page in DOCS.rglob("*.md")}
    assert {page: count for page, count in words.items() if count > 2500} == {}


def test_messages_quoted_in_faq_exist_in_package():
    """Each heading of the page quotes a piece of a message; f-strings and lines are joined before it is looked for."""
    package = Path(pytest_llmperf.__file__).parent
    said = "\n".join(path.read_text() for path in sorted(package.rglob("*.py")))
    said = re.sub(r"\"\s*\n\s*f?\"", "", said)
    quoted = re.findall(r"^### `(.+)`$", (DOCS / "faq.md").read_text(), re.MULTILINE)
    assert quoted
    assert [piece for piece in quoted if piece not in said] == []


def test_glossary_defines_each_term_once_in_order():
    sections = (DOCS / "glossary.md").read_text().split("\n## ")[1:]
    rows = [[line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][1:]
            for section in sections]
    assert all(terms == sorted(terms, key=str.lower) for terms in rows)
    everything = [term.lower() for terms in rows for term in terms]
    assert len(everything) == len(set(everything)) > 60


def test_replaced_word_belongs_to_a_term_and_is_no_term():
    glossary = (DOCS / "glossary.md").read_text()
    terms = set(re.findall(r"^\| (.+?) \| ", glossary, re.MULTILINE))
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("### Replaced words")[2].partition("\n## ")[0]
    replaced = dict(re.findall(r"^\| (.+?) \| (.+) \|$", table.partition("|---|---|")[2], re.MULTILINE))
    assert len(replaced) > 40
    assert replaced.keys() <= terms
    assert not terms & {word.strip() for words in replaced.values() for word in words.split(",")}
