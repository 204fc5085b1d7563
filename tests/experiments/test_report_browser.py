"""The page of a suite in a real browser: nothing fetched, tables sorted, runs opened; on a desk, a phone, in print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drcil.experiments.pages import report_page
from support.browser import WatchedPage, in_a_browser
from support.reports import report

pytestmark = in_a_browser

COLUMN = """(column) => [...document.querySelector("table.sorted").tBodies[0].rows]
  .map((row) => row.cells[column].innerText.trim())"""
DRAWN = """(within) => {
    const charts = [...document.querySelectorAll(`${within} .chart`)];
    return charts.length > 0 && charts.every((chart) => chart.firstElementChild);
}"""


class Opened(WatchedPage):
    """The page of a suite."""

    def __init__(self, browser: Any, place: Path, **options: Any) -> None:
        super().__init__(browser, 600.0, **options)
        file = place / "report.html"
        file.write_text(report_page(report()), encoding="utf-8")
        self.address = file.as_uri()
        self.page.goto(self.address)
        self.until(DRAWN, "main")

    def require_sound(self) -> None:
        """No request either, but for the page itself."""
        super().require_sound()
        assert [url for url in self.requests if not url.startswith(("data:", "blob:"))] == [self.address]


def test_sorting_and_the_runs_behind_a_cell_with_mouse_and_keyboard(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, viewport={"width": 1200, "height": 900})
    page = opened.page
    assert page.evaluate(COLUMN, 0) == ["MAF", "iCaRL", "WA"]
    headings = page.locator("table.sorted").first.locator(".sort")
    headings.nth(0).click()
    assert page.evaluate(COLUMN, 0) == ["iCaRL", "MAF", "WA"]
    # Numbers: the largest first, then the smallest; what was not measured stays last.
    headings.nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate(COLUMN, 1) == ["80.00 ±0.58", "60.00", "failed"]
    page.keyboard.press("Enter")
    assert page.evaluate(COLUMN, 1) == ["60.00", "80.00 ±0.58", "failed"]
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("measured")
    opened.shoot("report-light")
    # The runs behind a cell; the second is drawn when it is opened.
    page.get_by_role("button", name="80.00 ±0.58").first.click()
    assert page.inner_text("#runs-title") == "MAF: Avg" and "the mean over 3 seeds" in page.inner_text("#runs-text")
    assert page.locator("dialog details").count() == 3
    opened.until(DRAWN, "dialog details[open]")
    assert page.locator("dialog .chart").count() == 4
    assert "drcil run maf digits-b0-5" in page.inner_text("dialog details[open]")
    page.locator("dialog summary").nth(1).click()
    opened.until("() => document.querySelectorAll('dialog .chart').length === 8")
    assert "--seed 1" in page.locator("dialog details").nth(1).inner_text()
    opened.shoot("report-runs")
    page.keyboard.press("Escape")
    assert not page.is_visible("dialog")
    # A cell that failed says why; with the keyboard alone.
    page.get_by_role("button", name="failed").focus()
    page.keyboard.press("Enter")
    assert "wa, seed 0: failed: it broke" in page.inner_text("dialog")
    page.get_by_role("button", name="Close").click()
    # The name of a line opens its runs.
    page.locator(".values summary").first.click()
    page.locator(".values").first.get_by_role("button", name="MAF").click()
    assert page.locator("dialog details").count() == 3
    opened.require_sound()
    page.close()


def test_values_at_the_pointer_and_lines_switched_off(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, viewport={"width": 1000, "height": 900})
    page = opened.page
    chart = page.locator("main .chart").first
    chart.scroll_into_view_if_needed()
    marker = chart.locator("[data-line=MAF] .marker").last
    marker.hover(force=True)
    assert chart.locator(".tip").inner_text() == "MAF\nclasses seen: 5\n70.00 ±0.00 %"
    opened.shoot("report-tip")
    switch = chart.get_by_role("button", name="MAF")
    switch.focus()
    page.keyboard.press("Enter")
    assert switch.get_attribute("aria-pressed") == "false"
    assert not chart.locator("[data-line=MAF]").is_visible() and chart.locator("[data-line=iCaRL]").is_visible()
    # Drawn again in another width, it is still switched off.
    page.set_viewport_size({"width": 700, "height": 900})
    opened.until("() => document.querySelector('main .chart svg').width.baseVal.value < 700")
    assert not chart.locator("[data-line=MAF]").is_visible()
    chart.get_by_role("button", name="MAF").click()
    assert chart.locator("[data-line=MAF]").is_visible()
    opened.require_sound()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(scheme: str, browser: Any, tmp_path: Path) -> None:
    phone = {"width": 390, "height": 800}
    opened = Opened(browser, tmp_path, viewport=phone, is_mobile=True, has_touch=True, color_scheme=scheme)
    page = opened.page
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 26)" if scheme == "dark" else "rgb(255, 255, 255)")
    opened.shoot(f"report-phone-{scheme}")
    page.locator("td .open").first.tap()
    opened.until(DRAWN, "dialog details[open]")
    widths = page.evaluate("[...document.querySelectorAll('dialog .chart')].map((one) => one.scrollWidth)")
    assert widths and max(widths) <= 390
    opened.shoot(f"report-phone-runs-{scheme}")
    opened.require_sound()
    page.close()


def test_in_print_tables_and_charts_remain(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, viewport={"width": 900, "height": 1200})
    opened.page.emulate_media(media="print")
    assert opened.page.is_visible("table.sorted") and opened.page.is_visible("main .chart")
    assert not opened.page.is_visible("dialog")
    assert len(opened.page.pdf(format="A4")) > 10_000
    opened.require_sound()
    opened.page.close()
