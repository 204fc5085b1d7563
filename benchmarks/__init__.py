"""``make bench``: how fast and how lean drcil is, against plain programs that do the same work as others do it.

One file per group of benchmarks; each registers its own in `rows.BENCHMARKS`. `reference.py` and `pillow.py` are the
plain programs.
"""

from importlib import import_module

from .rows import BENCHMARKS, Benchmark, Row, chosen, measure
from .scene import Scene

# In the order in which they are shown and measured.
for _group in (
    "training",
    "augmentation",
    "after_task",
    "footprint",
    "inference",
    "startup",
    "jpeg",
    "listing",
    "processes",
):
    import_module(f"{__name__}.{_group}")

__all__ = ["BENCHMARKS", "Benchmark", "Row", "Scene", "chosen", "measure"]
