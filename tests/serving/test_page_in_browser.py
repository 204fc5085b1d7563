"""The page in a real browser: from an image that is dropped to a class that is taught, on a desk and on a phone."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest

from drcil.cli import main
from support.browser import WatchedPage, in_a_browser
from support.updates import SMALL, STREAM, folder

for needed in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
    pytest.importorskip(needed, reason="needs the extra: pip install 'drcil[serve]'")

from support.http_client import HOST, Client, serving  # noqa: E402

NAMES = {"2": "swan", "4": "sailing boat", "6": "snail"}

pytestmark = in_a_browser

UNLABELLED = """() => [...document.querySelectorAll("input, button, progress, img, ul[aria-label]")].filter((one) => {
  const named = one.labels?.length || one.getAttribute("aria-label") || one.getAttribute("aria-labelledby");
  const text = one.matches("button") && one.textContent.trim();
  return !(named || text || one.matches("img") && one.alt);
}).map((one) => one.outerHTML)"""
CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const own = channels(getComputedStyle(one).backgroundColor);
      if (own.length === 3 || own[3] > 0) return own;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const one of document.querySelectorAll("h1, h2, h3, p, small, summary, label, button, li, a, span")) {
    if (!one.textContent.trim() || !one.offsetParent || one.closest(":disabled")) continue;
    const [a, b] = [light(channels(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faint.push(`${one.outerHTML.slice(0, 80)} ${ratio.toFixed(2)}`);
  }
  return faint;
}"""
REMEMBER = """() => {
  const text = document.querySelector("#progress-text");
  window.remembered = [];
  new MutationObserver(() => remembered.push(text.textContent)).observe(text, { childList: true });
}"""
SMALL_TARGETS = """() => [...document.querySelectorAll("button, summary, .drop, input:not([type=file])")]
  .filter((one) => one.offsetParent && one.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page")
    folder(place / "old", 0, 1)
    folder(place / "new", 2)
    for number, name in NAMES.items():
        (place / "old" / number).rename(place / "old" / name)
    options = ["--method", "replay", "--backbone", "resnet-digits", "--image-size", "8", "--memory", "5/class"]
    quick = ["--augment", "crop", "--epochs-scale", "0.3", "--set", "first.batch_size=16"]
    assert main(["learn", str(place / "birds"), str(place / "old"), *options, *quick, *SMALL, "--quiet"]) == 0
    return place


class Served(WatchedPage):
    """The page of a server."""

    def __init__(self, browser: Any, client: Client, **options: Any) -> None:
        super().__init__(browser, 600.0, **options)
        self.client = client

    def open(self, path: str = "/") -> Any:
        self.page.goto(f"http://{HOST}:{self.client.port}{path}")
        return self.page

    def require_sound(self) -> None:
        """No other host either, and everything named and legible."""
        super().require_sound()
        hosts = {url.split("/")[2] for url in self.requests if url.startswith("http")}
        assert hosts == {f"{HOST}:{self.client.port}"}
        for check in (UNLABELLED, CONTRAST, SMALL_TARGETS):
            assert self.page.evaluate(check) == []


def drop(page: Any, target: str, files: list[Path]) -> None:
    """Let go of files over an element, as a hand would."""
    given = [[file.name, base64.b64encode(file.read_bytes()).decode()] for file in files]
    data = page.evaluate_handle(
        """(given) => {
          const data = new DataTransfer();
          for (const [name, content] of given) {
            const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
            data.items.add(new File([bytes], name, { type: "image/png" }));
          }
          return data;
        }""",
        given,
    )
    page.dispatch_event(target, "drop", {"dataTransfer": data})


def test_from_a_dropped_image_to_a_taught_class(place: Path, tmp_path: Path, browser: Any) -> None:
    model = Path(shutil.copytree(place / "birds", tmp_path / "birds"))
    new = sorted(STREAM[2].classes)[0]
    images = sorted((place / "new" / new).iterdir())
    with serving(model, teach=True) as (client, _):
        watched = Served(browser, client, viewport={"width": 900, "height": 900})
        page = watched.open()
        page.wait_for_selector("#teach:visible")
        assert page.inner_text("h1") == "birds" and "4 classes" in page.inner_text("#about")
        watched.shoot("1-empty", whole=True)
        drop(page, "#classify .drop", [sorted((place / "old" / "swan").iterdir())[0], images[0]])
        watched.until("document.querySelectorAll('#results .exemplars img').length >= 6")
        card = page.locator("#results > li").last
        assert card.locator(".bars li").count() == 3 and "00.png" in card.inner_text()
        shares = [float(text.split()[0]) for text in card.locator(".share").all_inner_texts()]
        assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 100.1
        watched.require_sound()
        # A wrong answer is corrected, with the keyboard alone.
        page.locator("#results > li").first.locator("summary").focus()
        page.keyboard.press("Enter")
        watched.until("document.activeElement.matches('.correct input')")
        page.keyboard.type("lighthouse")
        watched.shoot("2-answers", whole=True)
        page.keyboard.press("Enter")
        page.wait_for_selector("#collected:visible")
        assert "lighthouse" in page.inner_text("#corrections")
        # A new class is named, its images are dropped, and it is learnt.
        page.fill("#name", "heron")
        drop(page, "#learn-form .drop", images)
        assert page.locator("#selected-images img").count() == len(images)
        watched.shoot("3-lesson", whole=True)
        page.evaluate(REMEMBER)
        page.click("#learn")
        watched.until("remembered.some((text) => text.startsWith('Learning “heron” from 24 images'))")
        watched.shoot("4-learning", whole=True)
        watched.require_sound()
        page.wait_for_selector("#outcome.success")
        assert any("%" in text for text in page.evaluate("remembered")), "how far it has come was shown"
        assert "Learnt: “heron”" in page.inner_text("#outcome")
        watched.until("document.querySelector('#about').textContent.includes('5 classes')")
        assert "heron" in page.locator("#classes").text_content()
        # The image is asked again, by the new model; and it can be tried.
        drop(page, "#classify .drop", [images[5]])
        watched.until("document.querySelectorAll('#results > li').length === 3")
        watched.until("!document.querySelector('[aria-busy]')")
        answers = page.locator("#results > li").first.locator(".name").all_inner_texts()
        assert len(answers) == 3
        page.click("#known-classes summary")
        watched.shoot("5-learnt", whole=True)
        watched.require_sound()
        assert "heron" in [one["class"] for one in client.get("/classes").json["classes"]]
        # The corrected image is taught too.
        page.click("#learn-corrections")
        watched.until("document.querySelector('#outcome').textContent.includes('lighthouse')")
        page.wait_for_selector("#collected", state="hidden")
        assert "lighthouse" in [one["class"] for one in client.get("/classes").json["classes"]]
        page.close()


def test_on_a_phone_in_the_dark_with_a_token(place: Path, browser: Any) -> None:
    with serving(place / "birds", token="a-long-enough-token", teach=True) as (client, _):
        phone = {"width": 360, "height": 740}
        watched = Served(
            browser, client, viewport=phone, is_mobile=True, has_touch=True, color_scheme="dark", device_scale_factor=2
        )
        page = watched.open()
        page.wait_for_selector("#token-form:visible")
        assert page.evaluate("document.activeElement.id") == "token" and not page.is_visible("#classify")
        watched.shoot("6-token", whole=True)
        page.keyboard.type("a-long-enough-token")
        page.keyboard.press("Enter")
        page.wait_for_selector("#classify:visible")
        page.set_input_files("#classify-files", sorted((place / "old" / "sailing boat").iterdir())[:2])
        watched.until("document.querySelectorAll('#results .exemplars img').length >= 6")
        page.locator("#results summary").first.tap()
        watched.shoot("7-phone", whole=True)
        watched.require_sound()
        assert "%" in page.inner_text("#announcement"), "read out to those who cannot see it"
        assert page.evaluate("performance.getEntriesByType('resource').every((one) => !one.name.includes('token'))")
        watched.open("/docs")
        page.wait_for_selector(".endpoint")
        assert "POST /learn" in page.inner_text("main") and "GET /metrics" in page.inner_text("main")
        watched.shoot("8-programs", whole=True)
        watched.require_sound()
        page.close()


def test_what_goes_wrong_is_said_on_the_page(place: Path, tmp_path: Path, browser: Any) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with serving(place / "birds", teach=True) as (client, _):
        watched = Served(browser, client)
        page = watched.open()
        page.wait_for_selector("#teach:visible")
        page.set_input_files("#classify-files", tmp_path / "broken.png")
        page.wait_for_selector("#results .problem")
        assert "not an image" in page.inner_text("#results")
        page.fill("#name", "swan")
        page.click("#learn")
        assert "Select images" in page.inner_text("#outcome")
        page.set_input_files("#learn-files", tmp_path / "broken.png")
        page.click("#learn")
        watched.until("document.querySelector('#outcome').textContent.includes('cannot be read')")
        page.click("#clear")
        assert page.locator("#results > li").count() == 0
        page.close()
