"""The page of all options is made from the settings models."""

from __future__ import annotations

from tools.options import PAGE, page


def test_the_page_of_options_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew with 'python tools/options.py'"
