"""How long a suite will take on this machine, before it is begun."""

from __future__ import annotations

from dataclasses import dataclass

from ..report.progress import rough
from ..runs.run import Run
from .answer import Answers
from .cost import Costs, together
from .entries import Entry


@dataclass(frozen=True)
class Estimate:
    """The seconds that each run of a suite still takes, in its order; None: that cannot be foretold."""

    seconds: tuple[float | None, ...]
    startable: tuple[bool, ...]
    """Whether the run's data is there."""
    jobs: int
    conditions: tuple[str, ...]

    @classmethod
    def of(cls, answers: Answers, costs: Costs, jobs: int) -> Estimate:
        entries, able = list(answers.entries.values()), {id(entry) for entry in answers.startable()}
        return cls(
            seconds=tuple(_seconds_left(entry, answers, costs) for entry in entries),
            startable=tuple(id(entry) in able for entry in entries),
            jobs=jobs,
            conditions=tuple(dict.fromkeys(costs.conditions(entry.settings) for entry in entries)),
        )

    def whole(self, startable: bool = True) -> float:
        """Of all runs whose data is there; or of all others."""
        own = zip(self.seconds, self.startable, strict=True)
        return together([seconds for seconds, able in own if able is startable and seconds is not None], self.jobs)

    def sentences(self) -> list[str]:
        """For people."""
        there, missing = self.whole(), self.whole(startable=False)
        at_a_time = "one run" if self.jobs == 1 else f"{self.jobs} runs"
        where = f"{at_a_time} at a time on this machine ({'; '.join(self.conditions)}), if it is idle"
        told = [f"estimate: about {rough(there)}, {where}"] if there else []
        if missing:
            told.append(
                f"runs whose data was not found would take about {rough(missing)}{'' if there else f', {where}'}"
            )
        unknown = sum(seconds is None for seconds in self.seconds)
        return [*told, f"{unknown} of the runs cannot be estimated and are not counted"] if unknown else told


def _seconds_left(entry: Entry, answers: Answers, costs: Costs) -> float | None:
    """Tasks that are finished take nothing."""
    if entry.result is not None:
        return 0.0
    tasks = costs.of(entry.settings, answers.datasets.at_hand(entry.settings))
    done = len(Run(entry.directory, entry.settings).finished_tasks()) if entry.begun else 0
    return None if tasks is None else sum(tasks[done:])
