"""Pages: complete in themselves, whatever names are in them, and true to what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drcil.report.colours import colours
from drcil.report.pages import About, run_page
from drcil.report.pages.losses import loss_charts
from drcil.runs.command import command_of
from drcil.runs.commit import source_commit
from drcil.runs.settings import make_settings
from page_reading import Page
from test_report import result

EVIL = "</script><script>alert('x')</script><b>&\"'"


def measured(method: str = "maf", readouts: tuple[str, ...] = ("classifier",), seed: int = 0) -> dict[str, Any]:
    """The result of a run of two tasks."""
    own = result(method, readouts, seed)
    for figures in own["readouts"].values():
        figures |= {"matrix": [[90.0], [60.0, 80.0]], "confusion": [[75.0, 25.0], [5.0, 95.0]]}
    own["settings"] |= {"image_size": 8, "epochs_scale": 0.5, "augment": "basic", "method": {"first": {"lr": 0.1}}}
    return {**own, "profile": "cpu", "complete": True, "versions": {"drcil": "1"}}


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
    about = About("drcil run maf digits-b0-5", {"commit": "0123456789" * 4, "threads": 1}, events())
    page = Page(run_page(measured("icarl", ("nme", "classifier")), about))
    page.require_complete()
    assert page.count("h1") == 1 and page.count("figure") == 5 and page.count("table") == 2
    for shown in ("icarl on digits-b0-5", "70.00", "drcil run maf digits-b0-5", "0123456789", "1971-01-01", "first.lr"):
        assert shown in page.text
    assert [line["name"] for line in page.data["curve"]["series"]] == ["nme", "classifier"]
    assert page.data["accuracy"]["values"] == [[90.0], [60.0, 80.0]]
    assert page.data["forgetting"]["values"] == [[0.0], [30.0, 0.0]]
    assert page.data["confusion"]["values"] == [[75.0, 25.0], [5.0, 95.0]]


def test_names_are_text_whatever_they_hold() -> None:
    own = measured(EVIL, (EVIL,))
    own |= {"stream": f"folder:{EVIL}-b0-5", "versions": {EVIL: EVIL}}
    own["settings"] |= {"method": {EVIL: EVIL}, "augment": EVIL}
    page = Page(run_page(own, About(EVIL, {"commit": EVIL, "platform": EVIL}, events(EVIL))))
    page.require_complete()
    # Bokeh, its interface and two scripts of ours, and the data.
    assert page.count("script") == 5 and page.count("b") == 0 and EVIL in page.text


def test_losses_are_those_of_the_epochs_that_count() -> None:
    (chart,) = loss_charts(events())
    total = {line.name: line for line in chart.series}["total"]
    assert total.along == (4.0, 2.0, None, 3.0), "the epoch trained again replaces the other; a task ends with a gap"
    assert chart.places == ("task 1, epoch 1", "task 1, epoch 2", "task 2, epoch 1")
    assert loss_charts([]) == []


@pytest.mark.parametrize("count", [1, 7, 12, 30, 50])
def test_no_colour_is_used_twice(count: int) -> None:
    assert len({*colours(count)}) == count


def test_the_command_of_a_run_has_what_its_profile_does_not_bring() -> None:
    assert command_of(make_settings(method="maf", stream="digits-b0-5")) == "drcil run maf digits-b0-5"
    given = {"seed": 1, "order_seed": 7, "memory": "3/class", "tasks": 2, "settings": {"later.epochs": 3, "tro": 0.5}}
    own = make_settings(method="icarl:classifier", stream="cifar100-b0-10", profile="cpu", image_size=20, **given)
    assert command_of(own) == (
        "drcil run icarl:classifier cifar100-b0-10 --profile cpu --seed 1 --order-seed 7 --memory 3/class --tasks 2 "
        "--image-size 20 --set later.epochs=3 --set tro=0.5"
    )
    quick = make_settings(method="maf", stream="digits-b0-5", schedule="fast")
    assert command_of(quick) == "drcil run maf digits-b0-5 --schedule fast"
    fast = {"method": "maf", "stream": "digits-b0-5", "profile": "fast"}
    assert command_of(make_settings(**fast)) == "drcil run maf digits-b0-5 --profile fast"
    assert command_of(make_settings(**fast, schedule="recipe")).endswith("--profile fast --schedule recipe")


def test_the_commit_is_read_where_there_is_a_repository(tmp_path: Path) -> None:
    one, other = "1" * 40, "2" * 40
    assert source_commit(tmp_path) is None
    git = tmp_path / ".git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert source_commit(tmp_path) is None, "a repository without a commit"
    (git / "packed-refs").write_text(f"# pack-refs\n{one} refs/heads/main\n{other} refs/heads/side\n")
    assert source_commit(tmp_path) == one
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(f"{other}\n")
    assert source_commit(tmp_path) == other
    (git / "HEAD").write_text(f"{one}\n")
    assert source_commit(tmp_path) == one
    # A worktree: its own HEAD, the branches of the repository.
    own, tree = git / "worktrees" / "side", tmp_path / "side"
    own.mkdir(parents=True)
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text("../..\n")
    assert source_commit(tree) == other
