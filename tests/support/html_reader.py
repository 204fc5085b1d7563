"""A page as a program reads it: its elements, what it would fetch, and the data of its charts."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

_EMPTY = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Refuses markup that does not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._data: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            attributes = self.elements[-1][1]
            if attributes.get("type") == "application/json":
                name = str(attributes["id"])
                self._data[name] = self._data.get(name, "") + data
        elif self.open[-1:] != ["style"]:
            self.text += data

    @property
    def data(self) -> Any:
        """What the charts are drawn from."""
        return json.loads(self._data["charts"])

    @property
    def details(self) -> Any:
        """The runs of the cells."""
        return json.loads(self._data["details"])

    def count(self, tag: str, **attributes: str) -> int:
        return sum(own == tag and attributes.items() <= has.items() for own, has in self.elements)

    def require_complete(self) -> None:
        """Nothing is fetched, and every chart has its data."""
        for tag, attributes in self.elements:
            places = [attributes.get(name) or "" for name in ("src", "href", "srcset", "action", "data")]
            assert all(place.startswith(("data:", "#")) for place in places if place), (tag, places)
        shown = [has["data-chart"] for _, has in self.elements if has.get("data-chart")]
        assert set(shown) <= set(self.data)
