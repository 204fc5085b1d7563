"""Listeners by name: all are told everything and closed in the end; a table of losses that survives kills."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from drcil.train.events import EpochDone, Event, StageStarted
from drcil.train.listeners import LISTENERS, known_listeners, listening


def started(task: int, stage: str, first_epoch: int = 0) -> Event:
    return StageStarted(task, stage, 3, first_epoch, 10)


def epoch(task: int, stage: str, number: int) -> Event:
    losses = {"classification": task + number / 10, "total": task + number / 5}
    return EpochDone(task, stage, number, 0.1, losses, 1.0, None, "test")


WHOLE = [
    event
    for task, stage in ((1, "first"), (2, "adaptation"), (2, "fusion, then rest"))
    for event in (started(task, stage), *(epoch(task, stage, number) for number in range(3)))
]


def table(directory: Path) -> str:
    return (directory / "losses.csv").read_text(encoding="utf-8")


def write(directory: Path, events: list[Event]) -> None:
    directory.mkdir(exist_ok=True)
    with listening(["csv"], directory, lambda event: None) as tell:
        for event in events:
            tell(event)


def test_the_table_has_a_row_for_every_term_of_every_epoch(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    rows = list(csv.reader(table(tmp_path).splitlines()))
    assert rows[0] == ["task", "stage", "epoch", "lr", "term", "loss"]
    assert len(rows) == 1 + 3 * 3 * 2
    assert rows[-1] == ["2", "fusion, then rest", "2", "0.1", "total", "2.4"]


@pytest.mark.parametrize("trained", range(1, len(WHOLE) + 1))
@pytest.mark.parametrize("lost", [0, 3, 30])
def test_a_killed_run_ends_with_the_same_table(trained: int, lost: int, tmp_path: Path) -> None:
    """It goes on with the stage it was in, at an epoch before the one that was cut short in the table."""
    write(tmp_path / "whole", WHOLE)
    write(tmp_path / "killed", WHOLE[:trained])
    stage = (trained - 1) // 4 * 4
    again = max(0, trained - stage - 2 - lost // 30)
    cut = table(tmp_path / "killed").encode()
    if trained - stage > 1:  # Otherwise there is no row of this stage yet.
        (tmp_path / "killed" / "losses.csv").write_bytes(cut[: len(cut) - lost])
    begun = WHOLE[stage]
    assert isinstance(begun, StageStarted)
    write(tmp_path / "killed", [started(begun.task, begun.stage, again), *WHOLE[stage + 1 + again :]])
    assert table(tmp_path / "killed") == table(tmp_path / "whole")


def test_listeners_are_closed_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder:
        def __init__(self, directory: Path) -> None:
            self.directory, self.closed = directory, False
            made.append(self)

        def __call__(self, event: Event) -> None:
            heard.append(event)

        def close(self) -> None:
            self.closed = True

    made: list[Recorder] = []
    heard: list[Event] = []
    monkeypatch.setattr(LISTENERS, "_entries", dict(LISTENERS))
    LISTENERS.register("recorder")(Recorder)

    def work() -> None:
        with listening(["recorder", "csv"], tmp_path, heard.append) as tell:
            tell(WHOLE[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert heard == [WHOLE[0], WHOLE[0]] and (tmp_path / "losses.csv").exists()
    assert [(one.directory, one.closed) for one in made] == [(tmp_path, True)]


def test_a_listener_that_is_named_twice_listens_once() -> None:
    assert known_listeners(["csv", "csv"]) == ("csv",)
