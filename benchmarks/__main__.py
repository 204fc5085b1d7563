"""``python -m benchmarks``: measure, and print the rows."""

import typer

from .command import bench

typer.run(bench)
