"""The images that a model remembers, class by class, as one page that needs nothing else."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator

import numpy as np

from ..data.sources.encode import png
from ..data.sources.imageset import ImageSet
from ..models.model import Model

_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
small { font-weight: normal; opacity: .7; }
div { display: flex; flex-wrap: wrap; gap: .4rem; }
img { width: 6rem; height: 6rem; object-fit: cover; border-radius: .3rem; }
"""


def gallery(model: Model, title: str) -> str:
    """A heading for each class, and its exemplars below it."""
    memory = model.memory.images
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for label, name in enumerate(model.classes):
        own = memory.subset(np.flatnonzero(memory.labels == label)) if memory else None
        count = len(own) if own else 0
        parts.append(f"<h2>{html.escape(name)} <small>{count} image{'' if count == 1 else 's'}</small></h2><div>")
        parts += [f'<img alt="{html.escape(name)}" src="{one}">' for one in _pictures(own)] if own else []
        parts.append("</div>")
    return "\n".join([*parts, "</body></html>", ""])


def _pictures(images: ImageSet) -> Iterator[str]:
    """What the net sees of each image, as an address that holds it."""
    for pixels in images.source.read(images.rows).permute(0, 2, 3, 1).numpy():
        yield f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"
