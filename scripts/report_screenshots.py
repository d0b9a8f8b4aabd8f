"""Screenshots of HTML reports in headless Chromium: light, dark, and 420 px wide.

    python scripts/report_screenshots.py OUT NAME=REPORT.html …
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

VIEWS = (("light", 1280), ("dark", 1280), ("light", 420), ("dark", 420))
OPEN = "(count) => document.querySelectorAll('details.test').forEach((test, at) => { test.open = at < count; })"
TALLEST = 6000  # pixels of a screenshot


def take(browser: Browser, report: Path, out: Path, name: str, opened: int) -> None:
    """One screenshot per view, the first `opened` tests opened in full; prints how long the page took to load."""
    for scheme, width in VIEWS:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(report.resolve().as_uri())
        load_ms = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        page.evaluate(OPEN, opened)
        page.wait_for_timeout(700)
        wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        height = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
        page.set_viewport_size({"width": width, "height": height})
        page.screenshot(path=out / f"{name}-{scheme}-{width}.png")
        print(f"{name} {scheme} {width}: loaded in {load_ms:.0f} ms{', too wide' if wide else ''}")
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("reports", nargs="+", metavar="NAME=REPORT")
    parser.add_argument("--opened", type=int, default=1, help="how many tests are opened")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for named in arguments.reports:
            name, _, report = named.partition("=")
            take(browser, Path(report), arguments.out, name, arguments.opened)


if __name__ == "__main__":
    main()
