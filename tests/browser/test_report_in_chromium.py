"""The report in a browser: the page loads fast, no element overflows, all text has enough contrast, charts appear."""

import re
import time

import pytest

pytestmark = pytest.mark.browser
STATES = ("pass", "regression", "error", "inconclusive")
DRAWN = "[...document.querySelectorAll('details.test[open] .rest')].every((one) => one.dataset.drawn === 'yes')"
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
    return found;
}"""


def until(page, condition, limit_s=60):
    """Waits from outside: the page's own policy forbids a script that Playwright would poll within it."""
    end = time.monotonic() + limit_s
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"not true within {limit_s} s: {condition}"
        time.sleep(0.01)


def drawn(page):
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    until(page, DRAWN)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("state", STATES)
def test_report_page_has_readable_contrast_and_no_overflow(open_page, report, tmp_path, state, scheme, width):
    page = drawn(open_page(report(state), scheme=scheme, width=width))
    page.screenshot(path=tmp_path / f"{state}-{scheme}-{width}.png", full_page=True)
    assert page.evaluate(OVERFLOW) == []
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 5
    assert [(round(ratio, 2), what) for ratio, what in contrasts if ratio < 4.5] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_hundred_tests_load_within_a_second_of_cpu_time(open_page, report, tmp_path, scheme):
    page = open_page(report(*(STATES[number % 4] for number in range(200))), scheme=scheme)
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})  # a busy machine makes the wall time longer
    page.reload()
    cpu_s = {metric["name"]: metric["value"] for metric in tools.send("Performance.getMetrics")["metrics"]}
    assert 0 < cpu_s["TaskDuration"] < 1
    assert page.locator("details.test").count() == 200
    page.screenshot(path=tmp_path / f"200-{scheme}.png")
    assert page.evaluate(OVERFLOW) == []


def test_charts_of_both_sides_are_drawn(open_page, report):
    page = drawn(open_page(report("pass")))
    captions = page.locator("figcaption").evaluate_all("(all) => all.map((one) => one.firstChild.textContent)")
    assert captions == ["Time to first token", "Gaps between chunks (ITL)", "Timeline"]
    assert page.locator("figure").first.locator(".key").all_inner_texts() == ["A (n = 60)", "B (n = 60)"]
    timeline = page.locator("figure").nth(2)
    assert timeline.locator(".run").first.locator(".plot").first.locator(".key").all_inner_texts() == [
        "A largest", "A median", "B largest", "B median"]  # fmt: skip


def test_another_run_can_be_chosen(open_page, report):
    page = drawn(open_page(report("pass")))
    shown = "[...document.querySelectorAll('figure .run')].map((run) => run.checkVisibility())"
    assert page.evaluate(shown) == [True, False, False]
    page.select_option("figure select", index=2)
    assert page.evaluate(shown) == [False, False, True]
    assert page.evaluate("document.querySelector('figure select').selectedOptions[0].text") == "run 3, seed 2"


def test_pointer_and_arrow_keys_read_values_of_all_lines(open_page, report):
    page = drawn(open_page(report("pass")))
    plot = page.locator("figure .plot").first
    plot.locator(".box").hover()
    assert re.fullmatch(r"[\d.]+ ms · A \(n = 60\): [\d.]+ · B \(n = 60\): [\d.]+ % of values",
                        plot.locator(".reading").inner_text())
    plot.focus()
    page.keyboard.press("End")
    assert re.search(r"A \(n = 60\): 100 · B \(n = 60\): 100 %", plot.locator(".reading").inner_text())
    page.keyboard.press("Home")
    assert not re.search(r": 100", plot.locator(".reading").inner_text())


def test_keyboard_alone_opens_a_test_and_filters(open_page, report):
    page = open_page(report(*STATES))
    focused, seen = "document.activeElement.matches({!r})", []
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.className || document.activeElement.id"))
        if page.evaluate(focused.format(".filter[data-verdict=PASS]")):
            page.keyboard.press("Enter")
    assert {"scheme", "filter", "search", "copy"} <= set(seen)
    assert page.locator("details.test:not([hidden])").count() == 1
    page.locator("details.test:not([hidden]) > summary").focus()
    page.keyboard.press("Enter")
    until(page, DRAWN)
    assert page.locator("details.test[open]:not([hidden]) figure").count() == 3


def test_overview_is_copied_as_csv(open_page, report):
    page = open_page(report(*STATES))
    page.click("#copy")
    until(page, "document.getElementById('copy').textContent === 'Copied'")
    page.evaluate("document.getElementById('search').focus()")
    page.evaluate("document.getElementById('search').type = 'text'")
    page.keyboard.press("Control+V")
    pasted = page.evaluate("document.getElementById('search').value")  # one line: an input drops the ends of lines
    assert pasted.startswith("test,verdict,metric,measured,limit,headroom,interval,before,after,reason")
    assert pasted.count("suites/test_it.py::") == 4
    assert "itl_p99(b) / itl_p99(a),6.4×,≥ 2×,+220 %" in pasted


@pytest.mark.parametrize("state", STATES)
def test_no_number_is_hidden_at_420_pixels(open_page, report, state):
    page = drawn(open_page(report(state), width=420))
    places = "td, .cell, .tiles dd, .reading, .key, .xs span, .ys span"
    numbers = """(places) => [...document.querySelectorAll(places)].filter(
        (one) => /\\d/.test(one.textContent) && one.checkVisibility() && (one.getBoundingClientRect().right > 421
            || one.getBoundingClientRect().left < -1 || one.scrollWidth > one.clientWidth + 1 && one.clientWidth)
    ).map((one) => one.outerHTML.slice(0, 120))"""
    assert page.evaluate(numbers, places) == []


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
    colour = "getComputedStyle(document.querySelector('.plot path[data-name]')).stroke"
    light = page.evaluate(colour)
    page.click("#scheme")
    assert page.evaluate(colour) != light


def test_report_lists_worst_test_first_and_opens_tests_that_did_not_pass(open_page, report):
    page = open_page(report(*STATES))
    badges = page.locator("details.test > summary > .badge").all_text_contents()
    assert badges == ["ERROR", "FAIL", "INCONCLUSIVE", "PASS"]
    assert page.locator("h1").inner_text() == "1 ERROR, 1 FAIL, 1 INCONCLUSIVE of 4 · emulated H200 · vLLM"
    assert page.locator("details.test[open]").count() == 3
