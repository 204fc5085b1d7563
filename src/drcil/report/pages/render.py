"""From data to one file: templates, style and scripts, with nothing that would have to be fetched."""

from __future__ import annotations

import functools
import importlib.util
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_LIBRARY = ("bokeh.min.js", "bokeh-api.min.js")
"""The parts of Bokeh's JavaScript that draw; no widgets, no tables."""


def render(template: str, **data: Any) -> str:
    """A page from its template. What is named in data is text, and is escaped."""
    # Imported where a page is written only: a command that writes none starts faster.
    from markupsafe import Markup

    scripts = [*_library(), _text("charts.js"), _text(template.replace(".html", ".js"))]
    inlined = {"style": Markup(_text("style.css")), "scripts": [Markup(script) for script in scripts]}
    return _environment().get_template(template).render(**inlined, **data)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


@functools.cache
def _library() -> tuple[str, ...]:
    """Bokeh's own files. They are found without importing the package, which takes longer than the page."""
    spec = importlib.util.find_spec("bokeh")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("bokeh", name="bokeh")
    place = Path(spec.submodule_search_locations[0]) / "server" / "static" / "js"
    return tuple((place / name).read_text(encoding="utf-8") for name in _LIBRARY)


def _text(name: str) -> str:
    return (resources.files(__package__) / "files" / name).read_text(encoding="utf-8")
