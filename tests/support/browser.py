"""A page in a real browser: what it complains of and asks for is written down."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or ""
SCREENSHOTS = os.environ.get("DRCIL_SCREENSHOTS")
"""A directory to leave pictures of pages in."""

in_a_browser = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: apt install chromium")]


class WatchedPage:
    """A page; ``seconds``: how long anything on it may take."""

    def __init__(self, browser: Any, seconds: float, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(1000 * seconds)
        self.seconds = seconds
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda one: self.requests.append(one.url))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def until(self, truth: str, argument: Any = None) -> None:
        """Wait; the policy of our pages forbids what playwright does for that."""
        end = time.monotonic() + self.seconds
        while not self.page.evaluate(truth, argument):
            assert time.monotonic() < end, truth
            self.page.wait_for_timeout(50)

    def require_sound(self) -> None:
        """No complaint, nothing wider than the window."""
        assert self.complaints == []
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def shoot(self, name: str, whole: bool = False) -> None:
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(exist_ok=True)
            self.page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=whole)
