"""Pages: complete in themselves, whatever names are in them, and true to what was measured."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drcil.experiments.pages import loss_charts, run_page
from drcil.runs.evidence import RunRecord
from drcil.runs.plan import command_of, complete
from drcil.runs.run_files import source_commit
from drcil.settings import RunSettings
from support.html_reader import Page
from support.reports import EVIL, result


def events(stage: str = "first") -> list[dict[str, Any]]:
    def begun(task: int, first: int) -> dict[str, Any]:
        return {"event": "StageStarted", "time": 1.0, "task": task, "stage": stage, "first_epoch": first}

    def epoch(task: int, number: int, loss: float) -> dict[str, Any]:
        losses = {"new": loss / 2, "old": loss / 2, "total": loss}
        return {"event": "EpochDone", "time": 2.0, "task": task, "stage": stage, "epoch": number, "losses": losses}

    done = {"event": "TaskDone", "time": 86400.0 * 365, "task": 2, "seconds": 1.0}
    # The second epoch was told of twice: the run was stopped after it, and resumed from a snapshot before it.
    return [begun(1, 0), epoch(1, 0, 4.0), epoch(1, 1, 9.0), begun(1, 1), epoch(1, 1, 2.0), begun(2, 0),
            epoch(2, 0, 3.0), done]  # fmt: skip


def test_the_page_of_a_run_has_its_figures_and_fetches_nothing() -> None:
    settings = RunSettings(method="icarl", stream="digits-b0-5")
    chosen = {"memory": "30", "backbone": "resnet-digits", "method": {"first": {"lr": 0.1}}}
    environment = {"commit": "0123456789" * 4, "threads": 1}
    trained = result(settings, ("nme", "classifier"), trained_with=chosen)
    text = run_page(RunRecord(settings, trained, environment=environment, finished=86400.0 * 365), events())
    assert len(text.encode()) < 50_000
    page = Page(text)
    page.require_complete()
    assert page.count("h1") == 1 and page.count("figure") == 5 and page.count("table") == 2
    for shown in (
        "icarl on digits-b0-5",
        "70.00",
        "drcil run icarl digits-b0-5",
        "0123456789",
        "1971-01-01",
        "first.lr",
    ):
        assert shown in page.text
    assert [line["name"] for line in page.data["curve"]["series"]] == ["nme", "classifier"]
    assert page.data["accuracy"]["values"] == [[90.0], [60.0, 80.0]]
    assert page.data["forgetting"]["values"] == [[0.0], [30.0, 0.0]]
    assert page.data["confusion"]["values"] == [[75.0, 25.0], [5.0, 95.0]]


def test_names_are_text_whatever_they_hold() -> None:
    settings = RunSettings(method=EVIL, stream=f"folder:{EVIL}-b0-5")
    chosen = {"memory": EVIL, "backbone": EVIL, "method": {EVIL: EVIL}, "augment": EVIL}
    trained = result(settings, (EVIL,), trained_with=chosen, versions={EVIL: EVIL})
    page = Page(run_page(RunRecord(settings, trained, environment={"platform": EVIL}), events(EVIL)))
    page.require_complete()
    # The script of charts, and the data.
    assert page.count("script") == 2 and page.count("b") == 0 and EVIL in page.text


def test_losses_are_those_of_the_epochs_that_count() -> None:
    (chart,) = loss_charts(events())
    total = {line.name: line for line in chart.series}["total"]
    assert total.y == (4.0, 2.0, None, 3.0), "the epoch trained again replaces the other; a task ends with a gap"
    assert chart.x_names == ("task 1, epoch 1", "task 1, epoch 2", "task 2, epoch 1")
    assert loss_charts([]) == []


def test_the_command_of_a_run_has_what_its_profile_does_not_bring() -> None:
    assert command_of(complete(RunSettings(method="maf", stream="digits-b0-5"))) == "drcil run maf digits-b0-5"
    given: dict[str, Any] = {
        "seed": 1,
        "order_seed": 7,
        "memory": "3/class",
        "tasks": 2,
        "settings": {"later.epochs": 3, "tro": 0.5},
    }
    own = complete(
        RunSettings(method="icarl:classifier", stream="cifar100-b0-10", profile="cpu", image_size=20, **given)
    )
    assert command_of(own) == (
        "drcil run icarl:classifier cifar100-b0-10 --seed 1 --memory 3/class --image-size 20 --order-seed 7 "
        "--tasks 2 --profile cpu --set later.epochs=3 --set tro=0.5"
    )
    quick = complete(RunSettings(method="maf", stream="digits-b0-5", schedule="fast"))
    assert command_of(quick) == "drcil run maf digits-b0-5 --schedule fast"
    fast: dict[str, Any] = {"method": "maf", "stream": "digits-b0-5", "profile": "fast"}
    assert command_of(complete(RunSettings(**fast))) == "drcil run maf digits-b0-5 --profile fast"
    assert command_of(complete(RunSettings(**fast, schedule="recipe"))).endswith("--schedule recipe --profile fast")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_that_of_the_source_and_of_no_repository_around_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert source_commit(tmp_path) is None, "a repository without a commit"
    git("commit", "--allow-empty", "--message", "First")
    assert source_commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "site-packages").mkdir()
    assert source_commit(tmp_path / "site-packages") is None
