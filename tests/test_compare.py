"""Comparisons: what is finished is not trained again, what fails harms nothing else, and means are means."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from drcil.cli import main
from drcil.data.identity import DataIdentity, data_identity
from drcil.disk import write_sealed
from drcil.errors import UserError
from drcil.reading import read_sealed
from drcil.report.comparison import comparison_table, markdown, runs_csv, summarise, summary_csv
from drcil.report.figures import Shown
from drcil.report.outcomes import Outcome, figure
from drcil.report.plots import mean_curves, plot_comparison
from drcil.runs.begin import begin_run
from drcil.runs.plan import load_stream
from drcil.runs.run import Run
from drcil.runs.settings import RunSettings, make_settings
from drcil.suites.carrying import carry_out, ensure_begun
from drcil.suites.children import Child
from drcil.suites.comparison import COMPARISON, write_comparison
from drcil.suites.datasets import Datasets
from drcil.suites.engines import Request
from drcil.suites.engines.local import Local
from drcil.suites.entries import Entry, Wanted, share_cores
from drcil.suites.entries import plan_entries as plan_all
from drcil.suites.follow import Follower
from drcil.suites.reuse import KnownRuns, is_finished
from test_resume import assert_same, outcome

TINY = {"stream": "digits-b0-5", "tasks": 2, "epochs_scale": 0.02, "threads": 1, "engine": {"device": "cpu"}}
TINY_OPTIONS = ["--tasks", "2", "--epochs-scale", "0.02", "--threads", "1"]


def tiny(method: str = "replay", **options: Any) -> RunSettings:
    return make_settings(method=method, **{**TINY, **options})


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRCIL_DATA", raising=False)


def plan_entries(chosen: Sequence[tuple[str, RunSettings]], parent: Path) -> list[Entry]:
    return list(plan_all([Wanted(*one) for one in chosen], parent, KnownRuns(parent), Datasets()).values())


def present() -> DataIdentity:
    return data_identity(load_stream(tiny()).dataset)


# Figures


def test_the_standard_error_by_hand() -> None:
    # Deviations -2, -1, 3 from the mean 3: s² = 14 / 2, and s / √3 = √(7 / 3).
    assert figure([1.0, 2.0, 6.0]).mean == 3
    assert figure([1.0, 2.0, 6.0]).error == pytest.approx((7 / 3) ** 0.5)
    assert figure([5.0]).error is None


@given(st.lists(st.floats(0, 100), min_size=2, max_size=9), st.floats(-50, 50), st.floats(0.1, 10))
def test_the_standard_error_ignores_shifts_and_follows_scales(values: list[float], shift: float, scale: float) -> None:
    moved = figure([scale * value + shift for value in values])
    error = figure(values).error
    assert error is not None
    assert moved.error == pytest.approx(scale * error, rel=1e-6, abs=1e-6)
    assert moved.mean == pytest.approx(scale * figure(values).mean + shift, rel=1e-6, abs=1e-6)


def answer(curve: Sequence[float], readout: str = "classifier", **figures: Any) -> dict[str, Any]:
    own = {"avg": fmean(curve), "last": curve[-1], "forgetting": 4.0, "parameters": 1234567, "curve": list(curve)}
    own["matrix"] = [[90.0], [60.0, 80.0]]
    about = {"method": "maf", "stream": "digits-b0-5", "metric": "avg", "seed": 0, "order_seed": 1993}
    about |= {"settings": {"memory": "30", "backbone": "resnet-digits"}, "seconds": 10.0, "tasks": [2, 3]}
    return {**about, "readout": readout, "readouts": {readout: {**own, **figures}}, **figures}


OUTCOMES = [
    Outcome("replay", 0, "runs/a", answer([90.0, 70.0], forgetting=1.0)),
    Outcome("icarl", 0, "runs/b", answer([95.0, 91.0], "nme")),
    Outcome("broken", 0, "runs/c", None, "no | such thing"),
    Outcome("replay", 1, "runs/d", answer([80.0, 60.0], forgetting=3.0)),
    Outcome("icarl", 1, "runs/e", None, "ended by SIGKILL"),
    Outcome("broken", 1, "runs/f", None, "no | such thing"),
]


def test_a_row_is_the_mean_over_the_seeds_that_finished() -> None:
    replay, icarl, broken = summarise(OUTCOMES)
    assert [one.method for one in (replay, icarl, broken)] == ["replay", "icarl", "broken"]
    assert replay.figures["avg"] == figure([80.0, 70.0]) and replay.curve == [figure([90, 80]), figure([70, 60])]
    assert replay.seen == [2, 5]
    assert icarl.figures["last"] == figure([91.0]) and icarl.readout == "nme"
    assert broken.figures["avg"] is None and broken.curve == []
    assert (replay.note, icarl.note) == ("", "seed 1 failed: ended by SIGKILL")
    assert broken.note == "failed: no | such thing"


def test_the_table_in_markdown() -> None:
    header, rule, replay, icarl, broken = markdown(summarise(OUTCOMES)).splitlines()
    assert header == "| method | Avg | Last | forgetting | parameters | seconds | note |"
    assert replay == "| replay | 75.00 ±5.00 | 65.00 ±5.00 | 2.00 ±1.00 | 1,234,567 | 10 |  |"
    assert icarl == "| icarl, nme | 93.00 | 91.00 | 4.00 | 1,234,567 | 10 | seed 1 failed: ended by SIGKILL |"
    assert broken == "| broken | – | – | – | – | – | failed: no / such thing |"
    assert {line.count("|") for line in (header, rule, replay, icarl, broken)} == {8}
    plain = markdown(summarise([OUTCOMES[0], OUTCOMES[3]])).splitlines()
    assert plain[0] == "| method | Avg | Last | forgetting | parameters | seconds |"


def test_the_table_fits_a_window_of_80_columns() -> None:
    figures = {"avg": 71.111, "last": 60.0, "forgetting": 22.222, "parameters": 11_220_132, "seconds": 123_456.0}
    outcomes = [
        Outcome("mafdrc-text", 0, "", answer([90.0, 60.0], "compressed", **figures)),
        Outcome("mafdrc-text", 1, "", answer([90.0, 60.0], "compressed", **{**figures, "avg": 30.0})),
    ]
    window = Console(file=io.StringIO(), width=80)
    window.print(comparison_table(summarise(outcomes)))
    assert isinstance(window.file, io.StringIO)
    shown = window.file.getvalue()
    assert "…" not in shown
    assert all(part in shown for part in ("mafdrc-text,", "compressed", "50.56 ±20.56", "11,220,132", "123,456"))


def test_another_metric_leads_the_tables_and_the_curves(tmp_path: Path) -> None:
    """On a long-tailed stream the shots stand beside it, and all fits the window."""
    tail = {"task_avg": 40.0, "task_curve": [50.0, 30.0], "many_shot": 70.0, "medium_shot": None, "few_shot": 5.0}
    outcomes = [Outcome("maf+two-stage", seed, "", answer([90.0, 60.0 + seed], **tail)) for seed in (0, 1)]
    summaries = summarise(outcomes, Shown("task_avg", long_tailed=True))
    header, _, row = markdown(summaries).splitlines()
    assert header.startswith("| method | task avg | Avg | Last | many | medium | few | forgetting |")
    assert row.startswith("| maf+two-stage | 40.00 ±0.00 | 75.25 ±0.25 | 60.50 ±0.50 | 70.00 | – | 5.00 | 4.00 ±0.00 |")
    assert [point.mean for point in summaries[0].curve] == [50.0, 30.0]
    assert mean_curves(summaries)[0].average == 40.0
    assert next(csv.DictReader(io.StringIO(runs_csv(summaries))))["few_shot"] == "5.0"
    plot_comparison(summaries, "cifar100-lt-shuffled-b50-5", tmp_path / "curves.png")
    window = Console(file=io.StringIO(), width=80)
    window.print(comparison_table(summaries))
    assert isinstance(window.file, io.StringIO)
    shown = window.file.getvalue()
    assert "…" not in shown and all(part in shown for part in ("maf+two-stage", "task avg", "few"))


def test_the_tables_for_programs() -> None:
    summaries = summarise(OUTCOMES)
    runs = list(csv.DictReader(io.StringIO(runs_csv(summaries))))
    assert [(row["method"], row["seed"]) for row in runs[:2]] == [("replay", "0"), ("replay", "1")]
    assert (runs[1]["avg"], runs[1]["curve_2"], runs[1]["curve_5"]) == ("70.0", "80.0", "60.0")
    assert runs[3]["failure"] == "ended by SIGKILL" and runs[3]["avg"] == ""
    means = {row["method"]: row for row in csv.DictReader(io.StringIO(summary_csv(summaries)))}
    assert (means["replay"]["avg"], means["replay"]["avg_error"], means["replay"]["runs"]) == ("75.0", "5.0", "2")
    assert (means["icarl"]["avg"], means["icarl"]["avg_error"], means["icarl"]["runs"]) == ("93.0", "", "1")


def test_curves_of_many_methods_are_listed_as_they_end(tmp_path: Path) -> None:
    outcomes = [
        Outcome(f"m{rank}", seed, "", answer([90.0, 30.0 + rank + seed])) for rank in range(15) for seed in (0, 1)
    ]
    lines = mean_curves(summarise([*outcomes, OUTCOMES[2]]))
    assert [line.label for line in lines] == [f"m{rank}" for rank in reversed(range(15))]
    assert lines[0].accuracy == [90.0, 44.5] and lines[0].error == [0.0, pytest.approx(0.5)]
    plot_comparison(summarise(outcomes), "digits-b0-5", tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as image:
        assert image.width > image.height > 600


# Runs that are there


def test_a_run_is_found_whatever_it_is_called_and_only_if_it_is_the_same(tmp_path: Path) -> None:
    run = begin_run(tiny(data="/elsewhere"), tmp_path / "runs" / "mine")
    found = KnownRuns(tmp_path / "runs").find(tiny(threads=2), present)
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
        assert KnownRuns(tmp_path / "runs").find(tiny(**other), present) is None, other
    assert KnownRuns(tmp_path / "runs").find(tiny("icarl"), present) is None
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "config.toml").write_text("format =")
    assert KnownRuns(tmp_path / "runs").find(tiny(), present) is not None


def test_a_finished_run_goes_before_one_that_was_stopped_and_is_not_touched(tmp_path: Path) -> None:
    begin_run(tiny(), tmp_path / "runs" / "a-stopped")
    run = begin_run(tiny(), tmp_path / "runs" / "finished")
    result = run.go()
    before = {file: file.stat().st_mtime_ns for file in run.directory.rglob("*")}
    (entry,) = plan_entries([("replay", tiny())], tmp_path / "runs")
    assert (entry.directory, entry.result) == (run.directory, result)
    assert {file: file.stat().st_mtime_ns for file in run.directory.rglob("*")} == before
    # What was learnt with another recipe than today's is another run.
    begun = read_sealed(run.directory / "beginning.json")
    begun["resolved"]["first"]["momentum"] = 0.8
    write_sealed(run.directory / "beginning.json", begun)
    (entry,) = plan_entries([("replay", tiny())], tmp_path / "runs")
    assert entry.directory.name == "a-stopped" and entry.result is None


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_result_that_is_damaged_is_made_again(content: str, tmp_path: Path) -> None:
    run = begin_run(tiny(), tmp_path / "runs" / "mine")
    whole = run.go()
    (run.directory / "result.json").write_text(content)
    (entry,) = plan_entries([("replay", tiny())], tmp_path / "runs")
    assert (entry.directory, entry.begun, entry.result) == (run.directory, True, whole)
    assert run.go() == whole
    assert read_sealed(run.directory / "result.json")["avg"] == whole["avg"]


def test_a_directory_of_another_run_is_left_alone(tmp_path: Path) -> None:
    begin_run(tiny(memory="20"))
    (entry,) = plan_entries([("replay", tiny())], Path("runs"))
    assert not entry.begun and entry.directory == Path("runs/replay-digits-b0-5-seed0-2")


def test_a_run_that_was_killed_before_its_first_result_goes_on(tmp_path: Path) -> None:
    run = begin_run(tiny(), tmp_path / "run")
    whole = run.go()
    (run.directory / "result.json").unlink()
    assert main(["resume", str(run.directory)]) == 0
    assert run.result() == whole


# Readouts


def test_methods_that_train_the_same_share_a_run(tmp_path: Path) -> None:
    names = ["foster", "icarl", "foster:boosted", "foster-b4", "icarl:classifier"]
    chosen = [(name, tiny(name, seed=seed)) for seed in (0, 1) for name in names]
    first, second, third, fourth = plan_entries(chosen, tmp_path / "runs")
    assert first.directory == tmp_path / "runs" / "foster-digits-b0-5-seed0"
    assert first.readings == {"foster": None, "foster:boosted": "boosted", "foster-b4": "boosted"}
    assert second.readings == {"icarl": None, "icarl:classifier": "classifier"}
    assert second.name == "icarl and icarl:classifier, seed 0"
    assert (third.readings, fourth.readings) == (first.readings, second.readings)


@pytest.mark.parametrize(("begun_as", "asked"), [("icarl:classifier", "icarl"), ("icarl", "icarl:classifier")])
def test_a_finished_run_serves_every_readout(begun_as: str, asked: str, tmp_path: Path) -> None:
    run = begin_run(tiny(begun_as), tmp_path / "runs" / "mine")
    result = run.go()
    (entry,) = plan_entries([(asked, tiny(asked))], tmp_path / "runs")
    assert entry.directory == run.directory
    found = entry.outcome(asked).result
    assert found is not None and found["readout"] != result["readout"]
    own = result["readouts"][found["readout"]]
    assert (found["avg"], found["curve"], found["parameters"]) == (own["avg"], own["curve"], own["parameters"])


@pytest.mark.slow
def test_readouts_of_one_training_are_rows_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["foster", "replay", "foster:boosted", "foster-b4"]
    assert main(["compare", *names, "digits-b0-5", *TINY_OPTIONS, "--json"]) == 0
    output = capsys.readouterr()
    rows = json.loads(output.out)["methods"]
    assert [row["method"] for row in rows] == names
    compressed, _, boosted, b4 = rows
    result = Run.open(tmp_path / "runs" / "foster-digits-b0-5-seed0").result()
    for row, readout in ((compressed, "compressed"), (boosted, "boosted"), (b4, "boosted")):
        (run,) = row["runs"]
        assert run["directory"] == "runs/foster-digits-b0-5-seed0"
        assert row["readout"] == readout
        assert row["avg"]["mean"] == result["readouts"][readout]["avg"]
        assert row["parameters"]["mean"] == result["readouts"][readout]["parameters"]
        assert row["seconds"]["mean"] == result["seconds"]
        assert f"{row['method']}, seed 0: done, avg {row['avg']['mean']:.2f}" in output.err
    assert boosted["parameters"]["mean"] > 1.9 * compressed["parameters"]["mean"]
    assert {file.name for file in (tmp_path / "runs").iterdir()} == {
        "foster-digits-b0-5-seed0",
        "replay-digits-b0-5-seed0",
    }
    table = (tmp_path / "comparisons" / "digits-b0-5" / "table.md").read_text()
    for row in ("foster, compressed", "replay", "foster:boosted", "foster-b4, boosted"):
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
    run = begin_run(settings, parent / "first")
    run.go()
    assert plan_entries([("icarl", settings)], parent)[0].result == run.result()
    change(pictures / split)
    (entry,) = plan_entries([("icarl", settings)], parent)
    assert not entry.begun and entry.result is None


def test_a_copy_of_the_images_is_the_same_data(pictures: Path, tmp_path: Path) -> None:
    settings, parent = of_pictures(pictures), tmp_path / "runs"
    result = begin_run(settings, parent / "first").go()
    shutil.copytree(pictures, tmp_path / "copy", copy_function=shutil.copyfile)
    shutil.rmtree(pictures)
    (tmp_path / "copy").rename(pictures)
    assert plan_entries([("icarl", settings)], parent)[0].result == result


def test_without_its_images_a_finished_run_is_still_compared(pictures: Path, tmp_path: Path) -> None:
    settings, parent = of_pictures(pictures), tmp_path / "runs"
    result = begin_run(settings, parent / "first").go()
    shutil.rmtree(pictures)
    assert plan_entries([("icarl", settings)], parent)[0].result == result


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

    def open(self, places: Sequence[Path]) -> int:
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

    def say(self, line: str) -> None:
        self.said.append(line)

    step = say

    def show(self, lines: Sequence[str]) -> None:
        self.shown.append(list(lines))


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drcil.suites.carrying._GLANCE", 0.0)


@pytest.mark.usefixtures("_at_once")
@given(jobs=st.integers(1, 4), looks=st.lists(st.integers(1, 5), min_size=6, max_size=6))
def test_never_more_at_a_time_than_asked(jobs: int, looks: list[int]) -> None:
    names = ["icarl", "replay", "wa"]
    entries = [Entry(tiny(name, seed=seed), Path("nowhere"), False, {name: None}) for seed in (0, 1) for name in names]
    display = Listing()
    played = Played(Script(pace, "it was only played") for pace in looks)
    carry_out(entries, jobs, lambda entry: None, played, Path("logs"), display)
    assert [entry.failure for entry in entries] == ["it was only played"] * 6
    assert max(map(len, display.shown)) <= jobs + 1
    assert display.shown[-1] == ["0 of 6 runs done, 6 failed, 0 under way, 0 left"]


@pytest.mark.usefixtures("_at_once")
def test_all_are_asked_to_stop_before_any_is_waited_for() -> None:
    workers = [Script(1000), Script(1000)]

    class Impatient(Listing):
        def show(self, lines: Sequence[str]) -> None:
            raise KeyboardInterrupt

    entries = [Entry(tiny(seed=seed), Path("nowhere"), False, {"replay": None}) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        carry_out(entries, 2, lambda entry: None, Played(workers), Path("logs"), Impatient())
    assert all(worker.stopped and worker.closed for worker in workers)


def test_cores_are_shared_unless_it_is_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    free = tiny("replay", stream="cifar100-b0-10", threads=None)
    allowed = [Local(Request(jobs=jobs)).threads for jobs in (None, 1, 3, 20)]
    assert [share_cores(free, threads).threads for threads in allowed] == [None, None, 2, 1]
    assert share_cores(tiny(threads=5), 4).threads == 5


def test_a_run_is_followed_through_its_events(tmp_path: Path) -> None:
    run = begin_run(tiny(tasks=2), tmp_path / "run")
    with pytest.raises(RuntimeError):
        run.go(listener=_fail)
    follower = Follower(run.directory)
    assert (follower.finished(), str(follower)) == ([], "starting"), "what an earlier process did is not news"
    run.go()
    first, second = follower.finished()
    assert first.startswith("task 1/2 done") and second.startswith("task 2/2 done")
    assert str(follower).startswith("task 2/2 later, epoch 1/1")
    with open(run.directory / "events.jsonl", "a") as log:
        log.write('{"time": 1, "event": "TaskDone", "ta')
    assert follower.finished() == []


def _fail(event: object) -> None:
    raise RuntimeError


QUESTION = {"stream": "digits-b0-5", "memory": None, "methods": ["replay", "icarl"], "seeds": 2}


def test_a_question_has_one_place(tmp_path: Path) -> None:
    first = COMPARISON.find_place(tmp_path / "digits", QUESTION)
    with COMPARISON.opened(first, QUESTION):
        pass
    assert COMPARISON.find_place(tmp_path / "digits", QUESTION) == first == tmp_path / "digits"
    assert COMPARISON.find_place(tmp_path / "digits", {**QUESTION, "seeds": 3}) == tmp_path / "digits-2"
    (tmp_path / "mine").mkdir()
    assert COMPARISON.find_place(tmp_path / "mine", QUESTION) == tmp_path / "mine-2"


def test_an_answer_stays_until_there_is_another(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with COMPARISON.opened(place, QUESTION):
        assert json.loads((place / "comparison.json").read_text()) == {"question": QUESTION, "methods": []}
        write_comparison(place, QUESTION, summarise(OUTCOMES))
    before = (place / "comparison.json").read_bytes()
    more = {**QUESTION, "methods": ["joint", "icarl", "replay"], "seeds": 3}
    for question in (QUESTION, more):
        with COMPARISON.opened(place, question):
            assert (place / "comparison.json").read_bytes() == before


@pytest.mark.parametrize(
    "other", [{"methods": ["replay", "joint"]}, {"seeds": 1}, {"memory": "20"}, {"stream": "digits-b0-2"}]
)
def test_an_answer_to_another_question_is_not_touched(other: dict[str, Any], tmp_path: Path) -> None:
    place = tmp_path / "place"
    with COMPARISON.opened(place, QUESTION):
        write_comparison(place, QUESTION, summarise(OUTCOMES))
    before = {file: file.read_bytes() for file in place.iterdir()}
    sentence = "place holds another comparison, of replay, icarl; choose another --out"
    with pytest.raises(UserError, match=sentence), COMPARISON.opened(place, {**QUESTION, **other}):
        pass
    assert {file: file.read_bytes() for file in place.iterdir()} == before


def test_a_directory_of_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "table.md").write_text("mine")
    for place in (tmp_path / "letters", tmp_path / "letters" / "table.md"):
        sentence = "is not an empty directory; choose another --out"
        with pytest.raises(UserError, match=sentence), COMPARISON.opened(place, QUESTION):
            pass
    assert [file.name for file in (tmp_path / "letters").iterdir()] == ["table.md"]
    (tmp_path / "place" / "runs" / "one").mkdir(parents=True)
    for _ in range(2):
        with COMPARISON.opened(tmp_path / "place", QUESTION):
            (tmp_path / "place" / "table.md").touch()
            assert (tmp_path / "place" / "comparison.json").exists()
        # Whoever loses it gets it again.
        (tmp_path / "place" / "comparison.json").unlink()


def test_where_there_is_nothing_to_draw_no_old_curves_are_left(tmp_path: Path) -> None:
    write_comparison(tmp_path, QUESTION, summarise(OUTCOMES))
    assert (tmp_path / "curves.png").exists()
    write_comparison(tmp_path, QUESTION, summarise([OUTCOMES[2]]))
    assert not (tmp_path / "curves.png").exists()


def told_by_another_process(act: Callable[[], object]) -> str:
    """What an act is refused with when it is done by another process than this one."""
    reading, writing = os.pipe()
    other = os.fork()
    if other == 0:
        try:
            act()
        except UserError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(other, 0)
    with open(reading) as pipe:
        return pipe.read()


def test_two_processes_cannot_answer_one_question(tmp_path: Path) -> None:
    def ask() -> None:
        with COMPARISON.opened(tmp_path / "place", QUESTION):
            pass

    with COMPARISON.opened(tmp_path / "place", QUESTION):
        told = told_by_another_process(ask)
    assert told == f"{tmp_path / 'place'} is in use by another comparison; wait for it or stop it"
    assert told_by_another_process(ask) == ""


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
    finetuned = begin_run(tiny("finetune"))
    finetuned.go()
    command = ["compare", "icarl", "replay", "finetune", "digits-b0-5", "--memory", "none", *TINY_OPTIONS]
    assert main([*command, "--json", "--jobs", "2"]) == 1
    output = capsys.readouterr()
    icarl, replay, finetune = json.loads(output.out)["methods"]
    why = "'icarl' needs an exemplar of every class, but a memory of 'none' has none for each of 4 classes"
    assert icarl["runs"][0]["failure"].startswith(why) and icarl["avg"] is None
    assert replay["avg"] == finetune["avg"] == {"mean": finetuned.result()["avg"], "error": None}
    assert finetune["runs"][0]["directory"] == str(finetuned.directory)
    assert "finetune, seed 0: reused from runs/finetune-digits-b0-5-seed0\n" in output.err
    assert "replay, seed 0: task 2/2 done" in output.err
    place = tmp_path / "comparisons" / "digits-b0-5"
    names = {"comparison.json", "table.md", "summary.csv", "runs.csv", "curves.png", "report.html", "logs", ".lock"}
    assert {file.name for file in place.iterdir()} == names
    assert f"failed: {why}" in (place / "table.md").read_text()
    assert json.loads((place / "comparison.json").read_text()) == json.loads(output.out)
    assert not (tmp_path / "runs" / "icarl-digits-b0-5-seed0").exists()


@pytest.mark.slow
def test_a_comparison_begins_runs_that_anyone_can_resume(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their settings are on disk before a process is started, which does no more than resume them."""
    settings = of_pictures(pictures)
    (pictures / "train" / "class0" / "broken.png").write_bytes(b"no picture")
    (entry,) = plan_entries([("icarl", settings)], tmp_path / "runs")
    ensure_begun(entry, Datasets())
    child = Local(Request()).start(entry.directory, tmp_path / "logs" / f"{entry.directory.name}.log")
    assert child.failure() is None
    child.close()
    assert entry.begun and Run.open(entry.directory).settings == settings
    assert is_finished(Run.open(entry.directory))
    assert "1 unreadable file skipped" in (tmp_path / "logs" / f"{entry.directory.name}.log").read_text()
    before = (entry.directory / "result.json").read_bytes()
    assert main(["resume", str(entry.directory), "--quiet"]) == 0
    assert (entry.directory / "result.json").read_bytes() == before
    assert capsys.readouterr().err.startswith("drcil: warning: 1 unreadable file skipped")


def test_why_a_process_ended(tmp_path: Path) -> None:
    refused = Child(["list", "method"], tmp_path / "logs" / "a.log")
    killed = Child(["list", "methods"], tmp_path / "logs" / "b.log")
    os.kill(killed._process.pid, signal.SIGKILL)
    assert str(refused.failure()).startswith("unknown list 'method'; did you mean 'methods'?")
    assert killed.failure() == "ended by SIGKILL, as the system does when memory runs out"
    for child in (refused, killed):
        child.close()


def test_only_its_own_words_are_quoted_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "logs" / "a.log"
    refused = Child(["list", "method"], log)
    assert str(refused.failure()).startswith("unknown list 'method'")
    (tmp_path / "broken" / "drcil").mkdir(parents=True)
    (tmp_path / "broken" / "drcil" / "__init__.py").write_text("raise RuntimeError('drcil: two\\n\\nlines')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    broken = Child(["list", "method"], log)
    assert broken.failure() == f"exit code 1; see {log}"
    assert "unknown list" in log.read_text() and "RuntimeError" in log.read_text()
    for child in (refused, broken):
        child.close()


@pytest.mark.slow
def test_what_lies_in_the_current_directory_is_not_imported(tmp_path: Path) -> None:
    for module in ("drcil", "json", "torch"):
        (tmp_path / f"{module}.py").write_text("raise RuntimeError('not this one')")
    child = Child(["list", "methods"], tmp_path / "log")
    assert child.failure() is None
    child.close()


LONGER = ["compare", "replay", "icarl", "digits-b0-5", "--tasks", "3", "--epochs-scale", "0.2", "--threads", "1"]


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on_and_ends_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a polite kill within the first run, then by one that leaves no time for anything."""
    for method in ("replay", "icarl"):
        begin_run(tiny(method, tasks=3, epochs_scale=0.2), tmp_path / "outright" / method).go()
    for number, code in ((signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)):
        events = tmp_path / "runs" / "replay-digits-b0-5-seed0" / "events.jsonl"
        before = events.stat().st_size if events.exists() else 0
        parent = os.fork()
        if parent == 0:
            os._exit(main([*LONGER, "--quiet"]))
        for _ in range(1200):
            time.sleep(0.1)
            if events.exists() and b"EpochDone" in events.read_bytes()[before:]:
                break
        os.kill(parent, number)
        assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == code
        child = _last_process(events)
        for _ in range(300):
            if not _alive(child):
                break
            time.sleep(0.1)
        assert not _alive(child), "a child outlived its parent"
        assert not is_finished(Run.open(events.parent)), "it was finished before it could be killed"
    assert main([*LONGER, "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    for method in found["methods"]:
        (run,) = method["runs"]
        assert_same(outcome(tmp_path / "outright" / method["method"]), outcome(Path(run["directory"])))
    assert len(list((tmp_path / "runs").iterdir())) == 2


def _last_process(events: Path) -> int:
    started = [line for line in events.read_text().splitlines() if '"Started"' in line]
    return int(json.loads(started[-1])["process"])


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
