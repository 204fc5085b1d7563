"""How a suite as a whole is getting on: runs done, under way and left, and the time that they will take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ..report.progress import duration
from .entries import Entry


class Outlook:
    """Counts the runs of a suite. A run that is left takes as long as the others on its stream did, or will.

    Where none of these is known, as long as all others; before any is known there is no forecast.
    """

    def __init__(self, entries: Sequence[Entry], jobs: int) -> None:
        self._entries, self._jobs = entries, jobs

    def words(self, under_way: Sequence[tuple[Entry, float | None]]) -> str:
        """In a line; ``under_way``: these runs, with the seconds that each still takes, where that is known."""
        done = sum(one.result is not None for one in self._entries)
        failed = sum(one.failure is not None for one in self._entries)
        left = len(self._entries) - done - failed - len(under_way)
        parts = [f"{done} of {len(self._entries)} runs done"]
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{len(under_way)} under way", f"{left} left"]
        seconds = self.seconds_left(under_way)
        return ", ".join(parts) + (f", about {duration(seconds)} left in all" if seconds else "")

    def seconds_left(self, under_way: Sequence[tuple[Entry, float | None]]) -> float | None:
        """Of the whole suite, with so many runs at a time; None before anything is known."""
        known = [(one.settings.stream, float(one.result["seconds"])) for one in self._entries if one.result is not None]
        known += [(one.settings.stream, left) for one, left in under_way if left is not None]
        if not known:
            return None
        busy = {id(one) for one, _ in under_way}
        waiting = [one for one in self._entries if one.result is None and one.failure is None and id(one) not in busy]
        unsure = [one for one, left in under_way if left is None]
        alone = [left for _, left in under_way if left is not None]
        alone += [_expected(one, known) for one in (*unsure, *waiting)]
        # No less than the longest of them takes by itself.
        return max(max(alone, default=0.0), sum(alone) / self._jobs)


def _expected(entry: Entry, known: Sequence[tuple[str, float]]) -> float:
    alike = [seconds for stream, seconds in known if stream == entry.settings.stream]
    return fmean(alike or [seconds for _, seconds in known])
