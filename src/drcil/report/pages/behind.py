"""The runs behind the cells of a page, as plain data; ``files/suite.js`` shows them when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...streams.protocols import ORDER_SEED
from ..about import About
from ..measured import outcome_key
from ..outcomes import Outcome
from ..tables import summary_cells
from .charts import accuracy_map, confusion_map, curve_chart, forgetting_map
from .facts import facts


class Behind:
    """The runs that a page shows, each once, and what opens them: cells of tables, lines of plots."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._runs: list[dict[str, Any]] = []
        self._opened: list[dict[str, Any]] = []

    def opener(self, title: str, words: str, outcomes: Iterable[Outcome]) -> int:
        """The number by which the page asks for these runs, under this title and with these words about them."""
        self._opened.append({"title": title, "words": words, "runs": [self._number(one) for one in outcomes]})
        return len(self._opened) - 1

    def data(self) -> dict[str, Any]:
        return {"runs": self._runs, "opened": self._opened}

    def _number(self, outcome: Outcome) -> int:
        key = outcome_key(outcome)
        if key not in self._numbers:
            self._numbers[key] = len(self._runs)
            self._runs.append(run_data(outcome))
        return self._numbers[key]


def run_data(outcome: Outcome) -> dict[str, Any]:
    """All that is shown of a run: facts, figures and charts; or why there are none."""
    result, about = outcome.result, outcome.about or About()
    order = "" if outcome.order_seed == ORDER_SEED else f", class order {outcome.order_seed}"
    name = f"{outcome.method}, seed {outcome.seed}{order}"
    if result is None:
        why = "not finished yet" if outcome.failure is None else f"failed: {outcome.failure}"
        return {"name": name, "why": why, "facts": [["directory", outcome.directory]]}
    confusion = confusion_map(result)
    return {
        "name": name,
        "facts": [*facts(result, about), ("directory", outcome.directory)],
        "figures": summary_cells(result),
        "charts": [
            ["Accuracy against the classes seen (%)", curve_chart(result).data()],
            ["Accuracy on each task, among all classes seen (%)", accuracy_map(result).data()],
            ["Forgetting: points below the best so far", forgetting_map(result).data()],
            *([["Confusion between tasks, after the last one (%)", confusion.data()]] if confusion else []),
        ],
    }
