"""Pages: what runs have measured, as files that a browser shows without a network."""

from ..about import About
from .run import run_page
from .suite import suite_page

__all__ = ["About", "run_page", "suite_page"]
