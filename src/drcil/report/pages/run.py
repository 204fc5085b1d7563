"""The page of a single run."""

from __future__ import annotations

from typing import Any

from ..about import About
from ..tables import summary_cells, task_cells, title
from .charts import accuracy_map, confusion_map, curve_chart, forgetting_map
from .facts import facts, settings_of
from .losses import loss_charts
from .render import render


def run_page(result: dict[str, Any], about: About) -> str:
    """Curves, heat maps, losses and settings of a run, in one file that needs no network."""
    confusion = confusion_map(result)
    losses = loss_charts(about.events)
    charts = {
        "curve": curve_chart(result).data(),
        "accuracy": accuracy_map(result).data(),
        "forgetting": forgetting_map(result).data(),
        **({"confusion": confusion.data()} if confusion else {}),
        **{f"loss-{number}": chart.data() for number, chart in enumerate(losses, start=1)},
    }
    name, _, rest = title(result).partition(", seed ")
    return render(
        "run.html",
        title=name,
        subtitle=f"Seed {rest}",
        result=result,
        summary=summary_cells(result),
        tasks=task_cells(result),
        charts=charts,
        losses=len(losses),
        facts=facts(result, about),
        settings=settings_of(result),
    )
