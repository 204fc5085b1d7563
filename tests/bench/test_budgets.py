"""Accuracy against what was spent on it: points are means over seeds, and count what was really trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drcil.errors import UserError
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete
from drcil.runs.run_files import log_entry
from drcil.settings import RunSettings
from tools.budgets import Spent, images_trained, lines_of, main, points_of, spent_by, table


def spent(schedule: str, share: float, seed: int, avg: float, seconds: float = 60.0) -> Spent:
    return Spent("icarl", schedule, share, seed, "digits-b0-5, 5 tasks", {"memory": "30"}, 2_000_000, seconds, avg)


RUNS = [spent("recipe", 0.08, 1, 52.0, 180.0), spent("recipe", 0.16, 0, 60.0), spent("recipe", 0.08, 0, 50.0)]


def test_seeds_share_a_point() -> None:
    few, many = points_of(RUNS)
    assert (few.share, few.seeds, few.minutes, few.avg.mean, few.avg.error) == (0.08, (0, 1), 2.0, 51.0, 1.0)
    assert (many.share, many.seeds, many.avg.mean, many.avg.error) == (0.16, (0,), 60.0, None)


def test_a_line_goes_from_few_epochs_to_many() -> None:
    lines = lines_of(points_of([*RUNS, spent("fast", 0.08, 0, 58.0)]), "minutes")
    assert list(lines) == ["icarl, fast", "icarl, recipe"]
    assert [(across, value.mean) for across, value in lines["icarl, recipe"]] == [(2.0, 51.0), (1.0, 60.0)]


def test_the_table_has_a_row_for_every_point() -> None:
    *_, few, many = table(points_of(RUNS)).splitlines()
    assert few == "| icarl, recipe | 8 % | 0, 1 | 2000 | 2.0 | 51.00 ±1.00 |"
    assert many == "| icarl, recipe | 16 % | 0 | 2000 | 1.0 | 60.00 |"


def test_two_runs_of_one_seed_are_refused() -> None:
    with pytest.raises(UserError, match=r"icarl, recipe with 16 % of the epochs have the same seed"):
        points_of([RUNS[1], RUNS[1]])


def test_runs_that_differ_in_more_than_their_seeds_share_no_point() -> None:
    other = replace(RUNS[2], seed=2, rest={"memory": "60"})
    with pytest.raises(UserError, match=r"icarl, recipe with 8 % of the epochs differ in more than their seeds"):
        points_of([*RUNS, other])


def test_a_resumed_stage_counts_once() -> None:
    began = {"event": "StageStarted", "task": 1, "stage": "first", "epochs": 4, "first_epoch": 0, "images": 100}
    later = {**began, "task": 2, "stage": "later", "epochs": 3, "images": 50}
    assert images_trained([began, {**began, "first_epoch": 2}, {"event": "Started"}, later]) == 4 * 100 + 3 * 50


def test_runs_are_read_drawn_and_refused_where_they_do_not_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"method": "replay", "tasks": 2, "epochs_scale": 0.02, "engine": {"device": "cpu"}}
    for stream in ("digits-b0-5", "digits-b0-2"):
        create_run(complete(RunSettings(stream=stream, **options)), tmp_path / stream).train()
    own = spent_by(tmp_path / "digits-b0-5")
    assert (own.method, own.schedule, own.share, own.seed) == ("replay", "recipe", 0.02, 0)
    assert own.stream == "digits-b0-5, 2 tasks" and own.avg > 0 and own.seconds > 0
    first, later = Run.read(tmp_path / "digits-b0-5").result().to_json()["per_task"]
    # One epoch a task.
    assert own.images == first["new_images"] + first["memory_images"] + later["new_images"]

    with pytest.raises(UserError, match=r"digits-b0-5\.time is to have two numbers"):
        spent_by(tmp_path / "digits-b0-5", processor=True)
    (tmp_path / "digits-b0-5.time").write_text("90.5 4.5\n")
    assert spent_by(tmp_path / "digits-b0-5", processor=True).seconds == 95.0

    log_entry(tmp_path / "digits-b0-5", "Started", process=1, work=[])
    with pytest.raises(UserError, match="was interrupted, and does not know how long it took"):
        spent_by(tmp_path / "digits-b0-5")

    out = tmp_path / "out"
    assert main([str(tmp_path / "digits-b0-5"), "--out", str(out), "--processor"]) == 0
    assert (out / "table.md").read_text() == capsys.readouterr().out
    assert {path.name for path in out.iterdir()} >= {"table.md", "minutes.png", "images.png"}

    (tmp_path / "digits-b0-2.time").write_text("1 1")
    both = [str(tmp_path / "digits-b0-5"), str(tmp_path / "digits-b0-2")]
    assert main([*both, "--out", str(out), "--processor"]) == 1
    assert "digits-b0-2, 2 tasks; digits-b0-5, 2 tasks" in capsys.readouterr().err
