"""Evidence: small files that stand for runs, reports of any runs, and a page of what was verified and what was not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drcil.cli import main
from drcil.errors import UserError
from drcil.experiments.jobs import current_method_settings
from drcil.experiments.published import published, trained
from drcil.experiments.tables import group_runs, report_runs
from drcil.runs.evidence import RunRecord, find_records, read_record, write_evidence
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from support.html_reader import Page
from support.reports import result
from tools.verified import verified_page

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--tasks", "2", "--epochs-scale", "0.01", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two readouts."""
    place = tmp_path_factory.mktemp("runs")
    assert main(["run", "icarl", "digits-b0-5", *QUICK, "--out", str(place / "icarl")]) == 0
    return place


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evidence(
    settings: RunSettings, avg: float = 70.0, readouts: tuple[str, ...] = ("classifier",), **figures: Any
) -> RunRecord:
    """A run that was never made: with the settings that it would have, and made-up figures."""
    trained_with = {
        "memory": settings.memory or "2000",
        "backbone": settings.backbone or "resnet32",
        "epochs_scale": settings.epochs_scale,
        "method": figures.pop("method", current_method_settings(settings)),
    }
    figures = {"curve": [90.0, 50.0], "tasks": [10, 10], "seconds": 120.0, **figures}
    trained = result(settings, readouts, trained_with=trained_with, avg=avg, task_avg=avg, **figures)
    for number, readout in enumerate(readouts):
        trained.readouts[readout]["avg"] = avg - number
    directory = f"runs/{settings.name}-{settings.order_seed}"
    return RunRecord(settings, trained, None, directory, {"commit": "0123456789" * 4}, 86400.0 * 365)


# Stored


def test_a_stored_run_tells_what_the_run_told(runs: Path) -> None:
    ((found,), _) = find_records([runs])
    path = write_evidence(found, Path("evidence"))
    assert path.stat().st_size < 8000
    stored = read_record(path)
    assert stored.figure("avg") == pytest.approx(found.figure("avg"), abs=1e-4)
    assert stored.day == found.day != "" and stored.commit == found.commit
    assert stored.command == found.command and stored.settings.identity() == found.settings.identity()
    # Reports are the same but for where it was read.
    first, second = (report_runs([record]) for record in (found, stored))
    for cell, same in zip(first.tables[0].cells.values(), second.tables[0].cells.values(), strict=True):
        assert cell.values == pytest.approx(same.values, abs=1e-4)
    assert first.plots[0].lines.keys() == second.plots[0].lines.keys()
    # Stored again it is the same file.
    before = path.read_bytes()
    assert write_evidence(stored, Path("evidence")) == path and path.read_bytes() == before


def test_evidence_outlives_metrics_that_come_later(runs: Path) -> None:
    ((found,), _) = find_records([runs])
    assert found.result is not None
    for figures in found.result.readouts.values():
        figures.pop("top5_avg")
    stored = read_record(write_evidence(found, Path("evidence")))
    assert stored.figure("top5_avg") is None and stored.figure("avg") is not None


@pytest.mark.parametrize("damage", ["cut", "edited", "hollow", "foreign"])
def test_damaged_evidence_is_told_in_a_sentence(
    damage: str, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_evidence(read_record(runs / "icarl"), Path("evidence"))
    text = path.read_text()
    if damage == "cut":
        path.write_text(text[: len(text) // 2])
    elif damage == "edited":
        path.write_text(text.replace('"seed": 0', '"seed": 1'))
    else:
        from drcil.files import write_checksummed_json

        own = json.loads(text)
        del own["checksum"]
        write_checksummed_json(path, {**own, "result": {}} if damage == "hollow" else {"evidence": 1, "what": 2})
    assert main(["report", "evidence"]) == 2
    error = capsys.readouterr().err
    assert path.name in error and error.count("\n") == 1
    # Among others it is left out, and said to be.
    shutil.copytree(runs / "icarl", "evidence/icarl")
    assert main(["report", "evidence", "--out", "page.md"]) == 0
    assert "left out: " in capsys.readouterr().err and "Left out: " in Path("page.md").read_text()


# Reports of any runs


def test_runs_that_differ_in_seeds_are_a_mean_and_all_others_are_apart() -> None:
    def own(**options: Any) -> RunSettings:
        return complete(RunSettings(method="maf", stream="cifar100-b0-10", **options))

    records = [
        evidence(own(), 70.0),
        evidence(own(seed=1), 72.0),
        evidence(own(memory="500"), 50.0),
        evidence(own(settings={"alpha": 0.5}), 60.0),
        evidence(own(profile="cpu"), 40.0),
    ]
    ((_, _), full), ((_, budget), small) = group_runs(records).items()
    assert list(full) == ["maf", "maf, memory=500", "maf, alpha=0.5"] and list(small) == ["maf"]
    assert [one.settings.seed for one in full["maf"]] == [0, 1]
    assert "profile cpu" in budget
    report = report_runs(records, highlight="maf")
    measured = next(iter(report.tables[0].cells.values())).measured
    assert measured is not None and measured.mean == 71.0 and measured.error == pytest.approx(1.0)
    assert report.plots[0].highlight == "maf"
    with pytest.raises(UserError, match="unknown row 'mof'"):
        report_runs(records, highlight="mof")
    # What a run would have anyway does not make it another.
    (rows,) = group_runs(
        [evidence(own()), evidence(own(seed=1, memory="2000", augment="auto", backbone="resnet32"))]
    ).values()
    assert list(rows) == ["maf"]


def test_runs_of_before_a_setting_existed_share_a_row_with_those_of_today() -> None:
    own = complete(RunSettings(method="maf", stream="cifar100-b0-10"))
    old = current_method_settings(own)
    for stage in ("first", "adaptation", "fusion", "finetuning"):
        for setting in ("changes", "nesterov", "warmup_share"):
            del old[stage][setting]
    (rows,) = group_runs([evidence(own, method=old), evidence(own.model_copy(update={"seed": 1}))]).values()
    assert {name: len(runs) for name, runs in rows.items()} == {"maf": 2}


def test_unfinished_runs_have_rows_by_how_far_they_are() -> None:
    """The mean over fewer tasks is another figure; runs that are equally far are a mean."""
    own = complete(RunSettings(method="maf", stream="cifar100-b0-10", tasks=3))
    half = [evidence(own.model_copy(update={"seed": seed}), complete=False) for seed in (1, 2)]
    one_task = evidence(own.model_copy(update={"seed": 3}), complete=False, tasks=[10], curve=[90.0])
    three: dict[str, Any] = {
        "tasks": [10] * 3,
        "curve": [90.0, 70.0, 50.0],
        "matrix": [[90.0], [60.0, 80.0], [40.0, 50.0, 60.0]],
    }
    (rows,) = group_runs([evidence(own, **three), *half, one_task]).values()
    assert {name: len(runs) for name, runs in rows.items()} == {
        "maf": 1,
        "maf, 2 tasks so far": 2,
        "maf, 1 task so far": 1,
    }


def test_a_report_is_made_of_whatever_holds_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for places in ([runs], [runs / "icarl"], [runs, runs / "icarl"]):
        assert main(["report", *map(str, places)]) == 0
        page = Page(Path("report.html").read_text())
        page.require_complete()
        assert "1 run on digits-b0-5" in page.text and len(page.details["runs"]) == 1
    assert "icarl" in capsys.readouterr().out
    assert main(["report", str(runs), "--store", "evidence"]) == 0
    shutil.rmtree("report.html", ignore_errors=True)
    assert main(["report", "evidence", "--out", "from.csv"]) == 0
    assert Path("from.csv").read_text().splitlines()[1].startswith("digits-b0-5,icarl,")
    # The directory of a suite names runs that are elsewhere.
    Path("suites/mine").mkdir(parents=True)
    answer = {"request": {}, "tables": [{"cells": [{"runs": [str(runs / "icarl")]}]}]}
    Path("suites/mine/report.json").write_text(json.dumps(answer))
    assert [one.settings.method for one in find_records([Path("suites/mine")])[0]] == ["icarl"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "there is nothing at 'nowhere'"),
        (["empty"], "no runs found in 'empty'"),
        (["RUNS", "--out", "empty"], "--out is a file, and 'empty' is a directory"),
        (["RUNS", "--out", "page.pdf"], "--out ends in .html, .md, .csv, .json, not 'page.pdf'"),
        (["RUNS", "--store", "evidence", "--out", "page.html"], "--store only stores"),
        (["RUNS", "--store", "file"], "--store is a directory, and 'file' is a file"),
        (["RUNS", "--highlight", "maf"], "unknown row 'maf'; known: icarl"),
        (["file"], "file is not valid JSON"),
    ],
)
def test_what_cannot_be_reported(
    arguments: list[str], told: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("file").write_text("no run")
    assert main(["report", *(str(runs) if word == "RUNS" else word for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert sorted(path.name for path in Path().iterdir()) == ["empty", "file"]


def test_a_damaged_result_is_made_again_and_a_damaged_run_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "icarl", "runs/one")
    Path("runs/one/result.json").write_text("{")
    assert main(["report", "runs"]) == 0
    (state,) = Path("runs/one/tasks/02").glob("state.json")
    state.write_text("{}")
    capsys.readouterr()
    assert main(["report", "runs"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# Verified or not


def covering(method: str, stream: str, **options: Any) -> RunSettings:
    (asked, *_) = (one for one in trained(published().values()) if (one.method, one.stream) == (method, stream))
    return asked.run_settings(**options)


def test_only_a_whole_run_at_full_budget_covers_a_published_one() -> None:
    full = evidence(covering("mafdrc", "cifar100-b0-10", seed=3))
    page = verified_page([full])
    assert "1 of the 360 runs behind the published tables are here" in page
    line = next(line for line in page.splitlines() if line.startswith("| `mafdrc` |"))
    assert line == ("| `mafdrc` | 70.00 | 50.00 | 3 | 73.97 (T2) | 62.04 (T2) | 2.0 | 1971-01-01 | 0123456789 |")
    rest = page.partition("## Not verified at full budget")[2]
    lines = [line for line in rest.splitlines() if "`mafdrc`" in line and line.startswith("| cifar100 | default |")]
    assert lines and not any("b0-10," in line for line in lines)
    for less in (
        covering("mafdrc", "cifar100-b0-10", tasks=5),
        covering("mafdrc", "cifar100-b0-10", profile="cpu"),
        covering("mafdrc", "cifar100-b0-10", epochs_scale=0.5),
        covering("mafdrc", "cifar100-b0-10", settings={"alpha": 0.4}),
    ):
        assert verified_page([evidence(less)]).count("0 of the 360 runs") == 1


def shown(records: list[RunRecord], start: str = "| `mafdrc`") -> list[list[str]]:
    """The rows of a method: seeds, and what was published beside them."""
    lines = [line.split(" | ") for line in verified_page(records).splitlines() if line.startswith(start)]
    return [[line[3], line[4]] for line in lines]


def test_what_was_published_stands_beside_runs_that_it_is_of() -> None:
    """On any budget, which the heading names; not beside fewer tasks, other memories, settings, class orders or images
    held out."""

    def own(**options: Any) -> RunRecord:
        return evidence(
            complete(RunSettings(**{"method": "mafdrc", "stream": "cifar100-b0-10", "profile": "cpu"} | options))
        )

    for alike in ({}, {"memory": "2000"}, {"settings": {"alpha": 0.2}}, {"tasks": 10}, {"epochs_scale": 0.5}):
        assert shown([own(**alike)]) == [["0", "73.97 (T2)"]]
    for options in ({"settings": {"alpha": 0.5}}, {"settings": {"first.epochs": 3}}, {"validation": 0.1}):
        assert shown([own(**options)]) == [["0", "–"]], options
    assert shown([own(tasks=3)]) == [["0", "–"]]
    assert shown([own(order_seed=7)]) == [["0; class order 7", "–"]]
    # Other memories and augmentations have tables of their own.
    assert shown([own(memory="1000")]) == [["0", "71.62 (S6)"]] and shown([own(memory="500")]) == [["0", "–"]]
    assert shown([own(augment="basic")])[0][1] not in ("–", "73.97 (T2)")
    # What is a run's own stands in its row.
    for run, told in ((own(settings={"alpha": 0.5}), "alpha=0.5"), (own(backbone="resnet32"), "backbone=resnet32")):
        assert f"| `mafdrc`, {told} | 70.00 |" in verified_page([run])
    orders = [own(order_seed=1993 + number) for number in range(3)]
    assert shown(orders) == [["0; class order 1993, 1994, 1995", "73.85 ±0.16 (S12)"]]
    assert shown(orders[:2]) == [["0; class order 1993, 1994", "–"]]


def test_a_run_that_was_made_twice_is_one_run() -> None:
    full = covering("mafdrc", "cifar100-b0-10")
    pair = [evidence(full, 70.0), evidence(full, 72.0), evidence(full.model_copy(update={"seed": 1}), 75.0)]
    (line,) = (line for line in verified_page(pair).splitlines() if line.startswith("| `mafdrc` |"))
    # Means of 71 and 75.
    assert line.startswith("| `mafdrc` | 73.00 ±2.00 |") and " | 0, 1 | " in line


def test_a_commit_that_is_not_known_is_not_hidden_by_one_that_is() -> None:
    full = covering("mafdrc", "cifar100-b0-10")
    first, second = evidence(full), evidence(full.model_copy(update={"seed": 1}))
    first = replace(first, environment={})
    assert " | –, 0123456789 |" in verified_page([first, second])


def test_all_tasks_are_a_whole_run() -> None:
    page = verified_page([evidence(covering("mafdrc", "cifar100-b0-10", tasks=10, memory="2000"))])
    assert "1 of the 360 runs behind" in page


def test_a_run_of_an_earlier_recipe_is_marked_and_covers_nothing() -> None:
    settings = covering("mafdrc", "cifar100-b0-10")
    page = verified_page([evidence(settings, method={**current_method_settings(settings), "alpha": 0.9})])
    assert "0 of the 360 runs" in page and "| `mafdrc` † |" in page and "† Trained with settings" in page


def test_readouts_stand_beside_what_was_published_of_them() -> None:
    """FOSTER before compression is another row of the paper, and the same run."""
    page = verified_page([evidence(covering("foster", "cifar100-b0-10"), readouts=("compressed", "boosted"))])
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| `foster`")]
    assert [(line[0], line[1], line[4]) for line in lines] == [
        ("| `foster`", "70.00", "71.80 (T2)"),
        ("| `foster`, boosted", "69.00", "73.13 (T2)"),
    ]


def test_unfinished_runs_verify_nothing() -> None:
    page = verified_page([evidence(covering("mafdrc", "cifar100-b0-10"), complete=False)])
    assert "Nothing yet." in page
    with pytest.raises(UserError, match="is not finished, so there is no evidence"):
        write_evidence(evidence(covering("maf", "cifar100-b0-10"), complete=False), Path("evidence"))


def test_the_page_of_this_project_is_what_its_evidence_says() -> None:
    """When evidence is added: python tools/verified.py."""
    page = verified_page(find_records([ROOT / "evidence"])[0])
    assert page == (ROOT / "docs" / "verified.md").read_text(encoding="utf-8")
