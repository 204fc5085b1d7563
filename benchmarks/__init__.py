"""``drcil bench``: how fast and how lean drcil is, against plain programs that do the same work as others do it.

One file per group of figures; each registers its own in `rows.FIGURES`. `reference.py` and `pillow.py` are the plain
programs.
"""

from importlib import import_module

from .rows import FIGURES, Figure, Row, chosen, measure
from .scene import Scene

# In the order in which they are shown and measured.
for _group in ("training", "augmentation", "after_task", "footprint", "inference", "startup", "jpeg"):
    import_module(f"{__name__}.{_group}")

__all__ = ["FIGURES", "Figure", "Row", "Scene", "chosen", "measure"]
