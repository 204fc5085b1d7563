"""Comparisons: what is finished is not trained again, what fails harms nothing else, and means are means."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from drcil.cli import main
from drcil.errors import UserError
from drcil.experiments.backends import BackendRequest, ChildProcess, Local
from drcil.experiments.experiment import checked_requests, comparison
from drcil.experiments.jobs import Datasets, Job, KnownRuns, RunRequest, plan_jobs
from drcil.experiments.runner import find_directory, open_directory, write_reports
from drcil.experiments.scheduler import LogFollower, run_jobs, start_job
from drcil.experiments.summary import COUNTS, MetricColumns, mean_of
from drcil.experiments.tables import Cell, Heading, Report, Table, task_plot
from drcil.experiments.writers import report_markdown, report_tables, runs_csv
from drcil.files import read_checksummed_json, write_checksummed_json
from drcil.runs.evidence import RunRecord
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from support.processes import FORKS, last_process, wait_for_end, wait_until
from support.reports import record
from support.runs import assert_same, outcome

TINY = {"stream": "digits-b0-5", "tasks": 2, "epochs_scale": 0.02, "threads": 1, "engine": {"device": "cpu"}}
TINY_OPTIONS = ["--tasks", "2", "--epochs-scale", "0.02", "--threads", "1"]


def tiny(method: str = "replay", **options: Any) -> RunSettings:
    return complete(RunSettings(method=method, **{**TINY, **options}))


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRCIL_DATA", raising=False)


def cells_of(content: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of the only table of a report, by row and metric."""
    (table,) = content["tables"]
    return {(cell["row"], cell["metric"]): cell for cell in table["cells"]}


def plan(labels: Sequence[tuple[str, RunSettings]], parent: Path) -> list[Job]:
    requests = [RunRequest(label, settings) for label, settings in labels]
    return plan_jobs(requests, parent, KnownRuns(parent), Datasets()).all


def find(parent: Path, settings: RunSettings) -> Run | None:
    return KnownRuns(parent).find(settings, Datasets())


# Figures


def test_the_standard_error_by_hand() -> None:
    # Deviations -2, -1, 3 from the mean 3: s² = 14 / 2, and s / √3 = √(7 / 3).
    assert mean_of([1.0, 2.0, 6.0]).mean == 3
    assert mean_of([1.0, 2.0, 6.0]).error == pytest.approx((7 / 3) ** 0.5)
    assert mean_of([5.0]).error is None


@given(st.lists(st.floats(0, 100), min_size=2, max_size=9), st.floats(-50, 50), st.floats(0.1, 10))
def test_the_standard_error_ignores_shifts_and_follows_scales(values: list[float], shift: float, scale: float) -> None:
    moved = mean_of([scale * value + shift for value in values])
    error = mean_of(values).error
    assert error is not None
    assert moved.error == pytest.approx(scale * error, rel=1e-6, abs=1e-6)
    assert moved.mean == pytest.approx(scale * mean_of(values).mean + shift, rel=1e-6, abs=1e-6)


FIRST: dict[str, Any] = {"curve": [90.0, 70.0], "forgetting": 1.0}
SECOND: dict[str, Any] = {"curve": [80.0, 60.0], "forgetting": 3.0}
RUNS = (
    record("replay", **FIRST),
    record("icarl", curve=[95.0, 91.0], readout="nme"),
    record("broken", failure="no | such thing"),
    record("replay", 1, **SECOND),
    record("icarl", 1, failure="ended by SIGKILL"),
    record("broken", 1, failure="no | such thing"),
)


def compared(records: Sequence[RunRecord] = RUNS, columns: MetricColumns | None = None) -> Report:
    """The report of a comparison with these runs."""
    columns = columns or MetricColumns()
    rows: dict[str, tuple[RunRecord, ...]] = {}
    for run in records:
        rows[run.settings.method] = (*rows.get(run.settings.method, ()), run)
    headings = [Heading("digits-b0-5", name) for name in (*columns.names, *COUNTS)]
    cells = {(row, heading): Cell(heading.metric, runs) for row, runs in rows.items() for heading in headings}
    plot = task_plot("digits-b0-5", "", columns, rows, next(iter(rows)))
    assert plot is not None
    return Report("Compared", "", (Table("digits-b0-5", "", cells),), (plot,))


def in_80_columns(report: Report) -> str:
    window = Console(file=io.StringIO(), width=80)
    for _, table in report_tables(report.tables[0]):
        window.print(table)
    assert isinstance(window.file, io.StringIO)
    return window.file.getvalue()


def test_a_row_is_the_mean_over_the_seeds_that_finished() -> None:
    report = compared()
    cells = {(row, column.metric): cell for (row, column), cell in report.tables[0].cells.items()}
    assert cells["replay", "avg"].measured == mean_of([80.0, 70.0])
    assert cells["icarl", "last"].measured == mean_of([91.0])
    assert cells["broken", "avg"].measured is None and cells["broken", "avg"].missing == "failed"
    (plot,) = report.plots
    assert plot.lines["replay"] == ((2.0, mean_of([90, 80])), (5.0, mean_of([70, 60])))
    assert list(plot.lines) == ["replay", "icarl"] and plot.highlight == "replay"


def test_the_table_in_markdown() -> None:
    lines = report_markdown(compared(), {}).splitlines()
    assert "| method | Avg | Last | forgetting | parameters | seconds |" in lines
    assert "| replay | 75.00 ±5.00 | 65.00 ±5.00 | 2.00 ±1.00 | 1,000 | 7 |" in lines
    assert "| icarl | 93.00 | 91.00 | 12.50 | 1,000 | 7 |" in lines
    assert "| broken | failed | failed | failed | failed | failed |" in lines


def test_the_table_fits_a_window_of_80_columns() -> None:
    figures: dict[str, Any] = {"last": 60.0, "forgetting": 22.222, "parameters": 11_220_132, "seconds": 123_456.0}
    runs = [record("mafdrc-text-compressed", seed, avg=avg, **figures) for seed, avg in ((0, 71.111), (1, 30.0))]
    shown = in_80_columns(compared(runs))
    assert "…" not in shown
    assert all(part in shown for part in ("mafdrc-text", "50.56 ±20.56", "11,220,132", "123,456"))


def test_another_metric_leads_the_tables_and_the_curves() -> None:
    """On a long-tailed stream the shots stand beside it, and all fits the window."""
    tail: dict[str, Any] = {
        "task_avg": 40.0,
        "task_curve": [50.0, 30.0],
        "many_shot": 70.0,
        "medium_shot": None,
        "few_shot": 5.0,
    }
    runs = [record("maf+two-stage", seed, curve=[90.0, 60.0 + seed], **tail) for seed in (0, 1)]
    report = compared(runs, MetricColumns("task_avg", long_tailed=True))
    text = report_markdown(report, {})
    assert "\n| method | task avg | Avg | Last | many | medium | few | forgetting |" in text
    assert "\n| maf+two-stage | 40.00 ±0.00 | 75.25 ±0.25 | 60.50 ±0.50 | 70.00 | – | 5.00 | 12.50 ±0.00 |" in text
    assert [mean.mean for _, mean in report.plots[0].lines["maf+two-stage"]] == [50.0, 30.0]
    assert next(csv.DictReader(io.StringIO(runs_csv(report))))["few_shot"] == "5.0"
    shown = in_80_columns(report)
    assert "…" not in shown and all(part in shown for part in ("maf+two-stage", "task avg", "few"))


def test_the_table_of_runs() -> None:
    runs = list(csv.DictReader(io.StringIO(runs_csv(compared()))))
    assert [(row["method"], row["seed"]) for row in runs[:2]] == [("replay", "0"), ("replay", "1")]
    assert (runs[1]["avg"], runs[1]["task_1"], runs[1]["task_2"]) == ("70.0", "80.0", "60.0")
    assert runs[3]["failure"] == "ended by SIGKILL" and runs[3]["avg"] == ""


# Runs that are there


def test_a_run_is_found_whatever_it_is_called_and_only_if_it_is_the_same(tmp_path: Path) -> None:
    run = create_run(tiny(data="/elsewhere"), tmp_path / "runs" / "mine")
    found = find(tmp_path / "runs", tiny(threads=2))
    assert found is not None and found.directory == run.directory
    for other in (
        {"seed": 1},
        {"order_seed": 1},
        {"tasks": 3},
        {"memory": "20"},
        {"epochs_scale": 0.03},
        {"settings": {"first.lr": 0.2}},
        {"augment": "none"},
        {"validation": 0.1},
        {"engine": {"precision": "bf16-mixed"}},
    ):
        assert find(tmp_path / "runs", tiny(**other)) is None, other
    assert find(tmp_path / "runs", tiny("icarl")) is None
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "config.toml").write_text("format =")
    assert find(tmp_path / "runs", tiny()) is not None


def test_a_finished_run_goes_before_one_that_was_stopped_and_is_not_touched(tmp_path: Path) -> None:
    create_run(tiny(), tmp_path / "runs" / "a-stopped")
    run = create_run(tiny(), tmp_path / "runs" / "finished")
    result = run.train()
    before = {file: file.stat().st_mtime_ns for file in run.directory.rglob("*")}
    (entry,) = plan([("replay", tiny())], tmp_path / "runs")
    assert (entry.directory, entry.result) == (run.directory, result)
    assert {file: file.stat().st_mtime_ns for file in run.directory.rglob("*")} == before
    # What was learnt with another recipe than today's is another run.
    begun = read_checksummed_json(run.directory / "beginning.json")
    begun["resolved"]["first"]["momentum"] = 0.8
    write_checksummed_json(run.directory / "beginning.json", begun)
    (entry,) = plan([("replay", tiny())], tmp_path / "runs")
    assert entry.directory.name == "a-stopped" and entry.result is None


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_result_that_is_damaged_is_made_again(content: str, tmp_path: Path) -> None:
    run = create_run(tiny(), tmp_path / "runs" / "mine")
    whole = run.train()
    (run.directory / "result.json").write_text(content)
    (entry,) = plan([("replay", tiny())], tmp_path / "runs")
    assert (entry.directory, entry.exists, entry.result) == (run.directory, True, whole)
    assert run.train() == whole
    assert read_checksummed_json(run.directory / "result.json")["avg"] == whole.figure("avg")


def test_a_directory_of_another_run_is_left_alone(tmp_path: Path) -> None:
    create_run(tiny(memory="20"))
    (entry,) = plan([("replay", tiny())], Path("runs"))
    assert not entry.exists and entry.directory == Path("runs/replay-digits-b0-5-seed0-2")


def test_a_run_that_was_killed_before_its_first_result_goes_on(tmp_path: Path) -> None:
    run = create_run(tiny(), tmp_path / "run")
    whole = run.train()
    (run.directory / "result.json").unlink()
    assert main(["resume", str(run.directory)]) == 0
    assert run.result() == whole


# Readouts


def test_methods_that_train_the_same_share_a_run(tmp_path: Path) -> None:
    names = ["foster", "icarl", "foster:boosted", "foster-b4", "icarl:classifier"]
    chosen = [(name, tiny(name, seed=seed)) for seed in (0, 1) for name in names]
    first, second, third, fourth = plan(chosen, tmp_path / "runs")
    assert first.directory == tmp_path / "runs" / "foster-digits-b0-5-seed0"
    assert first.readouts == {"foster": None, "foster:boosted": "boosted", "foster-b4": "boosted"}
    assert second.readouts == {"icarl": None, "icarl:classifier": "classifier"}
    assert second.name == "icarl and icarl:classifier, seed 0"
    assert (third.readouts, fourth.readouts) == (first.readouts, second.readouts)


@pytest.mark.parametrize(("begun_as", "asked"), [("icarl:classifier", "icarl"), ("icarl", "icarl:classifier")])
def test_a_finished_run_serves_every_readout(begun_as: str, asked: str, tmp_path: Path) -> None:
    run = create_run(tiny(begun_as), tmp_path / "runs" / "mine")
    result = run.train()
    (entry,) = plan([(asked, tiny(asked))], tmp_path / "runs")
    assert entry.directory == run.directory
    found = entry.record(tiny(asked)).result
    assert found is not None and found.readout != result.readout
    assert found.figure("curve") == result.readouts[found.readout]["curve"]


@pytest.mark.slow
def test_readouts_of_one_training_are_rows_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["foster", "replay", "foster:boosted", "foster-b4"]
    assert main(["compare", *names, "digits-b0-5", *TINY_OPTIONS, "--json"]) == 0
    output = capsys.readouterr()
    cells = cells_of(json.loads(output.out))
    assert list(dict.fromkeys(row for row, _ in cells)) == names
    result = Run.open(tmp_path / "runs" / "foster-digits-b0-5-seed0").result()
    for row, readout in (("foster", "compressed"), ("foster:boosted", "boosted"), ("foster-b4", "boosted")):
        assert cells[row, "avg"]["runs"] == ["runs/foster-digits-b0-5-seed0"]
        figures = {**result.readouts[readout], "seconds": result.seconds}
        for metric in ("avg", "parameters", "seconds"):
            assert cells[row, metric]["measured"]["mean"] == figures[metric]
        assert f"{row}, seed 0: done, avg {figures['avg']:.2f}" in output.err
    assert result.figure("parameters", "boosted") > 1.9 * result.figure("parameters", "compressed")
    assert {file.name for file in (tmp_path / "runs").iterdir()} == {
        "foster-digits-b0-5-seed0",
        "replay-digits-b0-5-seed0",
    }
    table = (tmp_path / "comparisons" / "digits-b0-5" / "report.md").read_text()
    for row in names:
        assert f"| {row} | " in table


# Images that change


PICTURES = {"image_size": 16, "backbone": "resnet-digits", "memory": "4", "epochs_scale": 0.005}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four classes of small pictures on disk."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for label in range(4):
            directory = tmp_path / "pictures" / split / f"class{label}"
            directory.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(directory / f"{number}.png")
    return tmp_path / "pictures"


def of_pictures(folder: Path, method: str = "icarl") -> RunSettings:
    batches = {"first.batch_size": 8, "later.batch_size": 8}
    return tiny(method, **PICTURES, stream=f"folder:{folder}-b0-2", settings=batches)


def add_one(folder: Path) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class0" / "new.png")


def rename_one(folder: Path) -> None:
    (folder / "class0" / "0.png").rename(folder / "class0" / "renamed.png")


@pytest.mark.parametrize(("change", "split"), [(add_one, "train"), (rename_one, "train"), (add_one, "test")])
def test_what_was_learnt_from_other_images_is_not_used_again(
    change: Callable[[Path], None],
    split: str,
    pictures: Path,
    tmp_path: Path,
) -> None:
    settings, parent = of_pictures(pictures), tmp_path / "runs"
    run = create_run(settings, parent / "first")
    run.train()
    assert plan([("icarl", settings)], parent)[0].result == run.result()
    change(pictures / split)
    (entry,) = plan([("icarl", settings)], parent)
    assert not entry.exists and entry.result is None


def test_a_copy_of_the_images_is_the_same_data(pictures: Path, tmp_path: Path) -> None:
    settings, parent = of_pictures(pictures), tmp_path / "runs"
    result = create_run(settings, parent / "first").train()
    shutil.copytree(pictures, tmp_path / "copy", copy_function=shutil.copyfile)
    shutil.rmtree(pictures)
    (tmp_path / "copy").rename(pictures)
    assert plan([("icarl", settings)], parent)[0].result == result


def test_without_its_images_a_finished_run_is_still_compared(pictures: Path, tmp_path: Path) -> None:
    settings, parent = of_pictures(pictures), tmp_path / "runs"
    result = create_run(settings, parent / "first").train()
    shutil.rmtree(pictures)
    assert plan([("icarl", settings)], parent)[0].result == result


# Many at a time


class Script:
    """A worker that takes so many looks and then has this to say."""

    def __init__(self, looks: int, failure: str | None = None) -> None:
        self.looks, self._failure, self.stopped, self.closed = looks, failure, False, False

    def running(self) -> bool:
        self.looks -= 1
        return self.looks > 0

    def failure(self) -> str | None:
        return self._failure

    def ask_to_stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


class Played:
    """An engine whose workers follow a script."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        self._scripts = iter(scripts)

    @property
    def threads(self) -> None:
        return None

    def open(self, directories: Sequence[Path]) -> int:
        return 1

    def start(self, directory: Path, log: Path) -> Script:
        return next(self._scripts)

    def close(self) -> None:
        pass


class Listing:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[list[str]] = []

    def print_line(self, line: str) -> None:
        self.said.append(line)

    print_step = print_line

    def show_running(self, lines: Sequence[str]) -> None:
        self.shown.append(list(lines))


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drcil.experiments.scheduler._POLL_SECONDS", 0.0)


@pytest.mark.usefixtures("_at_once")
@given(jobs=st.integers(1, 4), looks=st.lists(st.integers(1, 5), min_size=6, max_size=6))
def test_never_more_at_a_time_than_asked(jobs: int, looks: list[int]) -> None:
    names = ["icarl", "replay", "wa"]
    entries = [Job(tiny(name, seed=seed), Path("nowhere"), True, {name: None}) for seed in (0, 1) for name in names]
    display = Listing()
    played = Played(Script(pace, "it was only played") for pace in looks)
    run_jobs(entries, jobs, Datasets(), played, Path("logs"), display)
    assert [entry.failure for entry in entries] == ["it was only played"] * 6
    assert max(map(len, display.shown)) <= jobs + 1
    assert display.shown[-1] == ["0 of 6 runs done, 6 failed, 0 under way, 0 left"]


@pytest.mark.usefixtures("_at_once")
def test_all_are_asked_to_stop_before_any_is_waited_for() -> None:
    workers = [Script(1000), Script(1000)]

    class Impatient(Listing):
        def show_running(self, lines: Sequence[str]) -> None:
            raise KeyboardInterrupt

    entries = [Job(tiny(seed=seed), Path("nowhere"), True, {"replay": None}) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        run_jobs(entries, 2, Datasets(), Played(workers), Path("logs"), Impatient())
    assert all(worker.stopped and worker.closed for worker in workers)


def test_a_finished_run_is_told_by_the_metric_that_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a long-tailed stream that is the mean over tasks, not the average of the curve."""
    finished = record(metric="task_avg", task_avg=40.0, avg=80.0, last=70.0)
    monkeypatch.setattr("drcil.experiments.scheduler.Run.open", lambda directory: None)
    monkeypatch.setattr("drcil.experiments.scheduler.record_of", lambda run: finished)
    display = Listing()
    job = Job(tiny(), Path("nowhere"), True, {"replay": None})
    run_jobs([job], 1, Datasets(), Played([Script(1)]), Path("logs"), display)
    assert "replay, seed 0: done, task_avg 40.00, last 70.00" in display.said


def test_cores_are_shared_unless_it_is_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    allowed = [Local(BackendRequest(jobs=jobs)).threads for jobs in (None, 1, 3, 20)]
    assert allowed == [None, None, 2, 1]
    for threads, expected in ((None, 4), (5, 5)):
        experiment = comparison(["replay"], {"digits-b0-5": [tiny().model_copy(update={"threads": threads})]}, 1)
        assert {request.settings.threads for request in checked_requests(experiment, 4)} == {expected}


def test_a_run_is_followed_through_its_events(tmp_path: Path) -> None:
    run = create_run(tiny(tasks=2), tmp_path / "run")
    with pytest.raises(RuntimeError):
        run.train(listener=_fail)
    follower = LogFollower(run.directory)
    assert (follower.finished(), str(follower)) == ([], "starting"), "what an earlier process did is not news"
    run.train()
    first, second = follower.finished()
    assert first.startswith("task 1/2 done") and second.startswith("task 2/2 done")
    assert str(follower).startswith("task 2/2 later, epoch 1/1")
    with open(run.directory / "events.jsonl", "a") as log:
        log.write('{"time": 1, "event": "TaskDone", "ta')
    assert follower.finished() == []


def _fail(event: object) -> None:
    raise RuntimeError


REQUEST = {"stream": "digits-b0-5", "memory": None, "names": ["replay", "icarl"], "seeds": 2}


def test_a_question_has_one_place(tmp_path: Path) -> None:
    first = find_directory(tmp_path / "digits", REQUEST)
    with open_directory(first, REQUEST):
        pass
    assert find_directory(tmp_path / "digits", REQUEST) == first == tmp_path / "digits"
    assert find_directory(tmp_path / "digits", {**REQUEST, "seeds": 3}) == tmp_path / "digits-2"
    (tmp_path / "mine").mkdir()
    assert find_directory(tmp_path / "mine", REQUEST) == tmp_path / "mine-2"


def test_an_answer_stays_until_there_is_another(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with open_directory(place, REQUEST):
        assert json.loads((place / "report.json").read_text()) == {"request": REQUEST, "tables": []}
        write_reports(place, REQUEST, compared(), with_plots=False)
    before = (place / "report.json").read_bytes()
    more = {**REQUEST, "names": ["joint", "icarl", "replay"], "seeds": 3}
    for request in (REQUEST, more):
        with open_directory(place, request):
            assert (place / "report.json").read_bytes() == before


@pytest.mark.parametrize(
    "other", [{"names": ["replay", "joint"]}, {"seeds": 1}, {"memory": "20"}, {"stream": "digits-b0-2"}]
)
def test_an_answer_to_another_question_is_not_touched(other: dict[str, Any], tmp_path: Path) -> None:
    place = tmp_path / "place"
    with open_directory(place, REQUEST):
        write_reports(place, REQUEST, compared(), with_plots=False)
    before = {file: file.read_bytes() for file in place.iterdir()}
    sentence = "place holds another experiment, of replay, icarl; choose another --out"
    with pytest.raises(UserError, match=sentence), open_directory(place, {**REQUEST, **other}):
        pass
    assert {file: file.read_bytes() for file in place.iterdir()} == before


def test_a_directory_of_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "report.md").write_text("mine")
    for place in (tmp_path / "letters", tmp_path / "letters" / "report.md"):
        sentence = "is not an empty directory; choose another --out"
        with pytest.raises(UserError, match=sentence), open_directory(place, REQUEST):
            pass
    assert [file.name for file in (tmp_path / "letters").iterdir()] == ["report.md"]
    (tmp_path / "place" / "runs" / "one").mkdir(parents=True)
    for _ in range(2):
        with open_directory(tmp_path / "place", REQUEST):
            (tmp_path / "place" / "report.md").touch()
            assert (tmp_path / "place" / "report.json").exists()
        # Whoever loses it gets it again.
        (tmp_path / "place" / "report.json").unlink()


def ask(place: Path) -> None:
    with open_directory(place, REQUEST):
        pass


def test_two_processes_cannot_answer_one_question(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with ProcessPoolExecutor(1, FORKS) as other:
        with open_directory(place, REQUEST), pytest.raises(UserError) as refused:
            other.submit(ask, place).result()
        assert str(refused.value) == f"{place} is in use by another experiment; wait for it or stop it"
        other.submit(ask, place).result()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "digits-b0-5"], "METHOD"),
        (["compare", "icarl", "replya", "digits-b0-5"], "did you mean 'replay'?"),
        (["compare", "icarl", "icarl", "digits-b0-5"], "'icarl' is given 2 times"),
        (["compare", "icarl", "icarl:nne", "digits-b0-5"], "unknown readout of 'icarl' 'nne'; did you mean 'nme'?"),
        (["compare", "icarl", "digits-b0-5", "--seeds", "0"], "--seeds"),
        (["compare", "icarl", "replay", "digits-b0-5", "--set", "temperature=2"], "setting of 'replay' 'temperature'"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_runs(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# Processes


@pytest.mark.slow
def test_one_that_fails_leaves_the_others_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without memory replay does as well as fine-tuning, which is finished already, and iCaRL refuses."""
    finetuned = create_run(tiny("finetune"))
    finetuned.train()
    command = ["compare", "icarl", "replay", "finetune", "digits-b0-5", "--memory", "none", *TINY_OPTIONS]
    assert main([*command, "--json", "--jobs", "2"]) == 1
    output = capsys.readouterr()
    content = json.loads(output.out)
    cells = cells_of(content)
    why = "'icarl' needs an exemplar of every class, but a memory of 'none' has none for each of 4 classes"
    assert content["failures"][0].startswith(f"icarl, seed 0: {why}") and cells["icarl", "avg"]["measured"] is None
    expected = {"mean": finetuned.result().figure("avg"), "error": None}
    assert cells["replay", "avg"]["measured"] == cells["finetune", "avg"]["measured"] == expected
    assert cells["finetune", "avg"]["runs"] == [str(finetuned.directory)]
    assert "finetune, seed 0: reused from runs/finetune-digits-b0-5-seed0\n" in output.err
    assert "replay, seed 0: task 2/2 done" in output.err
    place = tmp_path / "comparisons" / "digits-b0-5"
    names = {"report.json", "report.md", "report.csv", "runs.csv", "report.html", "plots", "logs", ".lock"}
    assert {file.name for file in place.iterdir()} == names
    assert {file.name for file in (place / "plots").iterdir()} == {"digits-b0-5.png", "digits-b0-5.pdf"}
    assert why.partition("'none'")[0].partition("an ")[2] in (place / "report.md").read_text()
    assert json.loads((place / "report.json").read_text()) == content
    assert not (tmp_path / "runs" / "icarl-digits-b0-5-seed0").exists()


@pytest.mark.slow
def test_a_comparison_begins_runs_that_anyone_can_resume(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their settings are on disk before a process is started, which does no more than resume them."""
    settings = of_pictures(pictures)
    (pictures / "train" / "class0" / "broken.png").write_bytes(b"no picture")
    (entry,) = plan([("icarl", settings)], tmp_path / "runs")
    start_job(entry, Datasets())
    child = Local(BackendRequest()).start(entry.directory, tmp_path / "logs" / f"{entry.directory.name}.log")
    assert child.failure() is None
    child.close()
    assert entry.exists and Run.open(entry.directory).settings == settings
    assert Run.open(entry.directory).is_finished
    assert "1 unreadable file skipped" in (tmp_path / "logs" / f"{entry.directory.name}.log").read_text()
    before = (entry.directory / "result.json").read_bytes()
    assert main(["resume", str(entry.directory), "--quiet"]) == 0
    assert (entry.directory / "result.json").read_bytes() == before
    assert capsys.readouterr().err.startswith("drcil: warning: 1 unreadable file skipped")


def test_why_a_process_ended(tmp_path: Path) -> None:
    refused = ChildProcess(["list", "method"], tmp_path / "logs" / "a.log")
    killed = ChildProcess(["list", "methods"], tmp_path / "logs" / "b.log")
    os.kill(killed._process.pid, signal.SIGKILL)
    assert str(refused.failure()).startswith("unknown list 'method'; did you mean 'methods'?")
    assert killed.failure() == "ended by SIGKILL, as the system does when memory runs out"
    for child in (refused, killed):
        child.close()


def test_only_its_own_words_are_quoted_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "logs" / "a.log"
    refused = ChildProcess(["list", "method"], log)
    assert str(refused.failure()).startswith("unknown list 'method'")
    (tmp_path / "broken" / "drcil").mkdir(parents=True)
    (tmp_path / "broken" / "drcil" / "__init__.py").write_text("raise RuntimeError('drcil: two\\n\\nlines')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    broken = ChildProcess(["list", "method"], log)
    assert broken.failure() == f"exit code 1; see {log}"
    assert "unknown list" in log.read_text() and "RuntimeError" in log.read_text()
    for child in (refused, broken):
        child.close()


@pytest.mark.slow
def test_what_lies_in_the_current_directory_is_not_imported(tmp_path: Path) -> None:
    for module in ("drcil", "json", "torch"):
        (tmp_path / f"{module}.py").write_text("raise RuntimeError('not this one')")
    child = ChildProcess(["list", "methods"], tmp_path / "log")
    assert child.failure() is None
    child.close()


LONGER = ["compare", "replay", "icarl", "digits-b0-5", "--tasks", "3", "--epochs-scale", "0.2", "--threads", "1"]


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on_and_ends_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a polite kill within the first run, then by one that leaves no time for anything."""
    for method in ("replay", "icarl"):
        create_run(tiny(method, tasks=3, epochs_scale=0.2), tmp_path / "outright" / method).train()
    for number, code in ((signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)):
        events = tmp_path / "runs" / "replay-digits-b0-5-seed0" / "events.jsonl"
        before = events.stat().st_size if events.exists() else 0
        parent = subprocess.Popen([sys.executable, "-m", "drcil.cli", *LONGER, "--quiet"])
        wait_until(lambda: events.exists() and b"EpochDone" in events.read_bytes()[before:], parent)  # noqa: B023
        parent.send_signal(number)
        assert parent.wait() == code
        wait_for_end(last_process(events))
        assert not Run.open(events.parent).is_finished, "it was finished before it could be killed"
    assert main([*LONGER, "--json", "--quiet"]) == 0
    cells = cells_of(json.loads(capsys.readouterr().out))
    for method in ("replay", "icarl"):
        (directory,) = cells[method, "avg"]["runs"]
        assert_same(outcome(tmp_path / "outright" / method), outcome(Path(directory)))
    assert len(list((tmp_path / "runs").iterdir())) == 2
