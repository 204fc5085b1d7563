"""The page and its files, as they are served."""

from __future__ import annotations

from functools import cache
from importlib import resources

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PATHS = {"index.html": "/", "docs.html": "/docs"}


@cache
def assets() -> dict[str, tuple[str, bytes]]:
    """Kind and content by path. All of it is in the package, nothing on the network."""
    files = sorted((resources.files(__package__) / "page").iterdir(), key=lambda file: file.name)
    return {
        _PATHS.get(file.name, f"/page/{file.name}"): (_KINDS[kind], file.read_bytes())
        for file in files
        if (kind := file.name.rpartition(".")[2]) in _KINDS
    }
