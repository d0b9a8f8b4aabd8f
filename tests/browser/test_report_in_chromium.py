"""The report in a browser: the page loads fast, no element overflows, all text has enough contrast, charts appear."""

import re

import pytest

from pytest_llmperf.testing.waiting import least

pytestmark = pytest.mark.browser
STATES = ("pass", "regression", "error", "inconclusive")
DRAWN = "[...document.querySelectorAll('details.test[open] .charts')].every((one) => one.dataset.drawn === 'yes')"
OVERFLOW = """() => [...document.querySelectorAll("body *")].filter((one) => {
    if (one.closest("svg, .scroll, pre, script, style") || one.checkVisibility?.() === false) return false;
    return one.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
}).map((one) => one.outerHTML.slice(0, 120))"""
# WCAG 2: the contrast of every text with the first background behind it.
CONTRAST = """() => {
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = (colour) => colour.slice(0, 3).map((v) => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (one) => {
        for (let at = one; at; at = at.parentElement) {
            const colour = rgb(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const one of document.querySelectorAll("body *")) {
        const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || one.closest("svg, script, style, noscript, option") || !one.checkVisibility()) continue;
        const pair = [light(rgb(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => b - a);
        found.push([(pair[0] + 0.05) / (pair[1] + 0.05), one.className + " " + one.textContent.trim().slice(0, 30)]);
    }
    for (const one of document.querySelectorAll("svg text")) {
        const colours = [rgb(getComputedStyle(one).fill), behind(one.closest("figure"))];
        const pair = colours.map(light).sort((a, b) => b - a);
        found.push([(pair[0] + 0.05) / (pair[1] + 0.05), "svg " + one.textContent.slice(0, 30)]);
    }
    return found;
}"""


def drawn(page):
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_function(DRAWN)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("state", STATES)
def test_report_page_has_no_overflow_and_readable_contrast(open_page, report, tmp_path, state, scheme, width):
    page = drawn(open_page(report(state), scheme=scheme, width=width))
    page.screenshot(path=tmp_path / f"{state}-{scheme}-{width}.png", full_page=True)
    assert page.evaluate(OVERFLOW) == []
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 5
    assert [(round(ratio, 2), what) for ratio, what in contrasts if ratio < 4.5] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_hundred_tests_load_within_a_second(open_page, report, tmp_path, scheme):
    path, pages = report(*(STATES[number % 4] for number in range(200))), []

    def took_ms():
        pages.append(open_page(path, scheme=scheme))
        return pages[-1].evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")

    assert 0 < least(took_ms, 1000) < 1000
    page = pages[-1]
    assert page.locator("details.test").count() == 200
    page.screenshot(path=tmp_path / f"200-{scheme}.png")
    assert page.evaluate(OVERFLOW) == []


def test_charts_of_both_sides_are_drawn(open_page, report):
    page = drawn(open_page(report("pass")))
    captions = page.locator("figcaption").all_inner_texts()
    assert [re.split(r"\n", caption)[0] for caption in captions] == [
        "Time to first token", "Gaps between chunks (ITL)", "Timeline"]  # fmt: skip
    assert page.locator("figure").first.locator(".legendtext").all_text_contents() == ["A (n = 60)", "B (n = 60)"]
    lines = page.evaluate("document.querySelectorAll('figure')[2].querySelector('.chart').data.map((one) => one.name)")
    assert lines[:4] == ["A largest", "A median", "B largest", "B median"]


def test_stalls_of_the_reference_stand_out_and_another_run_can_be_chosen(open_page, report):
    page = drawn(open_page(report("pass")))
    chart = "document.querySelectorAll('figure')[2].querySelector('.chart')"
    largest = page.evaluate(f"{chart}.data.map((one) => Math.max(...one.y))")
    assert largest[0] < 10
    assert largest[2] > 200
    page.select_option("figure select", "2")
    page.wait_for_timeout(100)
    assert page.evaluate("document.querySelector('figure select').selectedOptions[0].text") == "run 3, seed 2"


def test_hovering_says_the_value(open_page, report):
    page = drawn(open_page(report("pass")))
    box = page.locator("figure .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
    page.wait_for_selector(".hoverlayer .hovertext")
    assert re.search(r"[AB]: [\d.]+ % up to [\d.]+ ms", page.locator(".hoverlayer").first.text_content())


def test_filters_and_search_show_matching_tests(open_page, report):
    page = open_page(report(*STATES))
    shown = page.locator("details.test:not([hidden])")
    page.click(".filter[data-verdict=FAIL]")
    assert shown.count() == 1
    page.click(".filter[data-verdict='']")
    page.fill("#search", "ends inconclusive")
    assert shown.count() == 1
    page.fill("#search", "no such test")
    assert shown.count() == 0
    assert page.locator("#none").is_visible()


def test_the_scheme_can_be_turned_and_charts_follow(open_page, report):
    page = drawn(open_page(report("pass")))
    colour = "document.querySelector('figure .chart').layout.font.color"
    before = page.evaluate(colour)
    page.click("#scheme")
    page.wait_for_function(DRAWN)
    assert page.evaluate(colour) != before
    assert page.evaluate("document.querySelectorAll('figure').length") == 3


def test_report_lists_worst_test_first_and_opens_tests_that_did_not_pass(open_page, report):
    page = open_page(report(*STATES))
    badges = page.locator("details.test > summary > .badge").all_inner_texts()
    assert badges == ["ERROR", "FAIL", "INCONCLUSIVE", "PASS"]
    assert page.locator("details.test[open]").count() == 3
