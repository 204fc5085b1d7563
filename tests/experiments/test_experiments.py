"""Suites: each run once whatever shows it, measured beside published, and what cannot be run named and left out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from drcil.cli import main
from drcil.errors import UserError
from drcil.experiments.experiment import Common, Experiment, PlotPlan, checked_requests, read_suite
from drcil.experiments.jobs import Datasets, Job, Jobs, run_key
from drcil.experiments.published import figures, paper_experiment, published, published_table, trained
from drcil.experiments.runner import experiment_report
from drcil.experiments.scheduler import RemainingTime
from drcil.experiments.summary import Mean, mean_of, noise_of_means
from drcil.runs.evidence import RunRecord
from drcil.runs.plan import complete
from drcil.runs.result import RunResult
from drcil.settings import RunSettings
from support.reports import result as made_up

TINY = """
title = "Alpha on digits"
methods = ["maf+drc", "mafdrc"]
streams = ["digits-b0-5"]
tasks = 2
epochs_scale = 0.02
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("DRCIL_DATA", raising=False)


def written(content: str, name: str = "mine.toml") -> Path:
    Path(name).write_text(content)
    return Path(name)


def keys(suite: Experiment) -> set[str]:
    return {one.key for one in suite.requests()}


# Plans


def test_a_run_of_several_tables_is_one_run() -> None:
    """As many as the paper's list of runs says, with the options of a profile as without."""
    names = ["T4", "T5", "T6", "T7", "T8"]
    expected = len(trained([published_table(name) for name in names]))
    for common in (Common(), Common(profile="cpu", tasks=3)):
        assert len(keys(paper_experiment(names, common))) == expected
    assert len(keys(paper_experiment(names, Common(seeds=2)))) == 2 * expected


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"memory": "2000", "augment": "auto", "backbone": "resnet32", "tasks": 10}, True),
        ({"settings": {"alpha": 0.2}}, True),
        ({"memory": "20/class"}, False),
        ({"augment": "basic"}, False),
        ({"backbone": "resnet18"}, False),
        ({"tasks": 9}, False),
        ({"settings": {"alpha": 0.3}}, False),
    ],
)
def test_what_a_run_would_have_anyway_does_not_make_it_another(options: dict[str, Any], same: bool) -> None:
    own, usual = (complete(RunSettings(method="mafdrc", stream="cifar100-b0-10", **more)) for more in (options, {}))
    assert (run_key(own) == run_key(usual)) is same


def test_tables_over_class_orders_have_three_runs_of_a_cell() -> None:
    (table,) = paper_experiment(["s12"], Common()).tables
    for cell in table.cells.values():
        assert [one.settings.order_seed for one in cell.runs] == [1993, 1994, 1995]
        assert cell.published is not None and cell.error is not None


def test_every_table_has_a_column_for_each_of_the_paper() -> None:
    for name in ("T2", "T3", "S6", "S10"):
        (plan,) = paper_experiment([name], Common()).tables
        assert len({column for _, column in plan.cells}) == len(published_table(name).columns)
        assert len(plan.cells) == sum(cell.value is not None for cell in published_table(name).cells.values())


def test_figures_share_their_runs_with_tables() -> None:
    """A sweep passes through the value that the recipe has: that run is the plain one."""
    assert list(figures()) == ["F1", "F5", "F6", "F7", "F8"]
    assert len(keys(paper_experiment(["F7"], Common()))) == 5 + 5 - 1
    assert keys(paper_experiment(["F6"], Common())) <= keys(paper_experiment(["T2"], Common()))
    assert keys(paper_experiment(["F8"], Common())) == keys(paper_experiment(["S9"], Common()))
    assert not keys(paper_experiment(["F1"], Common()))
    for name in figures():
        assert name not in published()


def test_rows_and_columns_are_named_as_the_paper_does_or_as_drcil_does() -> None:
    suite = paper_experiment(["T5", "F7"], Common())
    part = suite.select("MAFRC,mafdrc", ["cifar100"])
    (table,) = part.tables
    assert {row for row, _ in table.cells} == {"MAFRC", "MAFDRC"}
    assert {one.settings.stream for one in part.requests()} == {"cifar100-b0-10"}
    assert [drawing.name for drawing in part.plots if drawing.kind == "sweep"] == [
        "F7, alpha, Avg",
        "F7, alpha, Last",
        "F7, old_distillation, Avg",
        "F7, old_distillation, Last",
    ]
    (table,) = suite.select(None, ["imagenet100-b0-10"]).tables
    assert len(table.cells) == 6
    for rows, columns, told in (
        ("mafrd", [], "unknown row 'mafrd'; known: MAF, MAFDRC, MAFRC"),
        (None, ["cifar10"], "unknown column 'cifar10'"),
    ):
        with pytest.raises(UserError, match=told):
            suite.select(rows, columns)


def test_a_file_has_every_combination_of_its_grid(tmp_path: Path) -> None:
    content = TINY + 'seeds = 2\norders = 3\n[grid]\nalpha = [0.1, 0.2]\nmemory = ["20", "40"]\nlater.lr = [0.1]\n'
    with pytest.raises(UserError, match=r"unknown setting of 'maf\+drc' 'later.lr'"):
        read_suite(written(content), Common())
    suite = read_suite(written(content.replace("later.lr", "adaptation.lr")), Common())
    (table,) = suite.tables
    assert len(keys(suite)) == 2 * 4 * 2 * 3 and len(table.cells) == 2 * 4 * 2
    assert ("mafdrc, alpha=0.1, memory=20, adaptation.lr=0.1") in {row for row, _ in table.cells}
    assert suite.seeds == 2 and read_suite(Path("mine.toml"), Common(seeds=1)).seeds == 1
    # What the recipe has anyway is the plain run.
    assert {len(one.settings.settings) for one in suite.requests() if "alpha=0.2" in one.details} == {1}
    assert len(keys(read_suite(Path("mine.toml"), Common(seeds=1)))) == 2 * 4 * 3


def test_rows_are_chosen_as_they_are_shown_commas_and_all() -> None:
    suite = read_suite(written(TINY + "[grid]\nalpha = [0.1, 0.3]\nmemory = [20, 40]\n"), Common())

    def rows(given: str) -> list[str]:
        (table,) = suite.select(given, []).tables
        return list(dict.fromkeys(row for row, _ in table.cells))

    assert rows("mafdrc, alpha=0.1, memory=40") == ["mafdrc, alpha=0.1, memory=40"]
    assert rows("MAFDRC,alpha=0.1,memory=40, mafdrc, alpha=0.3, memory=20") == [
        "mafdrc, alpha=0.1, memory=40",
        "mafdrc, alpha=0.3, memory=20",
    ]
    assert len(rows("mafdrc")) == 4 and len(rows("mafdrc, maf+drc, alpha=0.1, memory=20")) == 5
    with pytest.raises(UserError, match=r"unknown row 'alpha=0.2'; .*mafdrc, alpha=0.1, memory=20"):
        suite.select("mafdrc, alpha=0.2", [])


def test_a_method_without_a_memory_is_one_row_and_one_run_at_all_of_them() -> None:
    content = TINY.replace('"maf+drc", "mafdrc"', '"finetune", "replay"') + "[sweep]\nmemory = [20, 40]\n"
    suite = read_suite(written(content), Common())
    (table,) = suite.tables
    assert list(dict.fromkeys(row for row, _ in table.cells)) == ["finetune", "replay, memory=20", "replay, memory=40"]
    assert len(keys(suite)) == 3
    found = {"finetune": result(20.0, 10.0), "memory=20": result(60.0, 50.0), "memory=40": result(70.0, 60.0)}
    sweep = experiment_report(suite, answered(suite, found), "", Path("logs")).plots[-1]
    lines = {name: [(x, y.mean) for x, y in points] for name, points in sweep.lines.items()}
    assert lines == {"finetune": [(20.0, 20.0), (40.0, 20.0)], "replay": [(20.0, 60.0), (40.0, 70.0)]}


def test_captions_name_the_budget() -> None:
    small = TINY + "image_size = 8\nprofile = 'cpu'\n"
    (table,) = read_suite(written(small), Common()).tables
    assert table.caption.endswith("measured with profile cpu, 2 % of the epochs, images of 8 pixels, the first 2 tasks")
    # What a grid varies is in the names of rows.
    varied = TINY.replace("epochs_scale = 0.02\n", "[grid]\nepochs_scale = [0.02, 0.03]\n")
    (table,) = read_suite(written(varied), Common()).tables
    assert table.caption.endswith("measured with the first 2 tasks")
    assert {row for row, _ in table.cells} >= {"mafdrc, epochs_scale=0.03"}


def test_settings_are_weighed_against_the_schedule_of_the_profile() -> None:
    """On CIFAR-100 batches of 128 are in the recipe of maf, but not in the fast schedule."""
    content = TINY.replace("digits-b0-5", "cifar100-b0-10").replace("digits-b0-2", "cifar100-b0-20")
    given = content + "profile = 'fast'\n[settings]\nfirst.batch_size = 128\n"
    assert {str(one.settings.settings) for one in read_suite(written(given), Common()).requests()} == {
        "{'first.batch_size': 128}"
    }
    plain = given.replace("profile = 'fast'", "schedule = 'recipe'")
    assert {str(one.settings.settings) for one in read_suite(written(plain), Common()).requests()} == {"{}"}


def test_a_grid_may_vary_the_schedule() -> None:
    suite = read_suite(written(TINY + "[grid]\nschedule = ['recipe', 'fast']\n"), Common())
    assert {one.settings.schedule for one in suite.requests()} == {None, "fast"}
    (table,) = read_suite(written(TINY + "schedule = 'fast'\n"), Common()).tables
    assert "2 % of the epochs, schedule fast" in table.caption


def test_the_suite_of_the_documents_is_one() -> None:
    document = Path(__file__).resolve().parents[2] / "docs" / "reproducing.md"
    (example,) = re.findall(r"```toml\n(# suite.toml.*?)```", document.read_text(), re.DOTALL)
    suite = read_suite(written(example), Common())
    assert len(keys(suite)) == 2 * 2 * 2 * 3 and len(suite.tables[0].cells) == 2 * 2 * 3 * 2
    checked_requests(suite, 1)
    assert len(keys(suite.select("mafdrc", []))) == 2 * 2 * 3


# Reports


def result(avg: float, last: float) -> RunResult:
    return made_up(avg=avg, last=last, curve=[2 * avg - last, last], tasks=[10, 10], seconds=100.0)


def answered(suite: Experiment, results: dict[str, Any], datasets: Datasets | None = None) -> Jobs:
    """Every run with its result, or with a failure, by a word in the run's name."""
    jobs: dict[str, Job] = {}
    for request in suite.requests():
        if request.key in jobs:
            jobs[request.key].readouts[request.label] = request.settings.readout
            continue
        job = Job(request.settings, Path("runs") / f"r{len(jobs)}", True, {request.label: None}, request.details)
        found = next((own for word, own in results.items() if word in job.name), None)
        job.failure = found if isinstance(found, str) else None
        job.finished = RunRecord(request.settings, found) if isinstance(found, RunResult) else None
        jobs[request.key] = job
    return Jobs(jobs, datasets or Datasets())


def test_measured_stands_beside_published() -> None:
    suite = paper_experiment(["T5"], Common(profile="cpu", tasks=3)).select(None, ["cifar100"])
    answers = answered(suite, {"maf,": result(60.0, 50.0), "mafrc,": "it broke", "mafdrc,": result(70.0, 55.0)})
    report = experiment_report(suite, answers, "drcil reproduce T5", Path("logs"))
    (table,) = report.tables
    assert "with profile cpu, the first 3 tasks; published values are of the full budget, so that" in table.caption
    avg, last = table.columns
    assert (avg.metric, last.metric) == ("avg", "last") and table.rows == ("MAF", "MAFRC", "MAFDRC")
    assert table.cells["MAF", avg].measured == mean_of([60.0])
    assert table.cells["MAF", avg].published == 69.61
    assert table.cells["MAFDRC", last].difference == pytest.approx(55.0 - 62.04)
    assert table.cells["MAFRC", avg].measured is None
    # A smaller budget is not expected to reach what was published, so that nothing is called noise.
    assert "smaller runs are called neither within nor outside noise." in table.caption
    assert {cell.verdict for cell in table.cells.values()} == {None}
    (gain,) = table.row_differences()
    assert gain.name == "MAFDRC − MAF" and gain.points[avg] == pytest.approx((10.0, 73.97 - 69.61))
    (failure,) = report.failures
    assert failure == "mafrc, cifar100-b0-10, seed 0: it broke (log: logs/r1.log)"


def test_all_tasks_of_a_stream_are_the_full_budget() -> None:
    for tasks, verdict in ((10, "one run"), (9, None)):
        suite = paper_experiment(["T5"], Common(tasks=tasks)).select("MAF", ["cifar100"])
        (table,) = experiment_report(suite, answered(suite, {"maf": result(60.0, 50.0)}), "", Path("logs")).tables
        assert {cell.verdict for cell in table.cells.values()} == {verdict}
        assert ("full budget" in table.caption) is (verdict is None)


def test_three_class_orders_are_a_mean_with_its_error() -> None:
    suite = paper_experiment(["S12"], Common()).select("MAFDRC", ["cifar100-b0-10"])
    found = {"order 1994": result(72.0, 60.0), "order 1995": result(76.0, 60.0), "mafdrc": result(74.0, 60.0)}
    (table,) = experiment_report(suite, answered(suite, found), "", Path("logs")).tables
    (cell,) = (cell for (_, column), cell in table.cells.items() if column.metric == "avg")
    assert cell.measured == mean_of([74.0, 72.0, 76.0]) and len(cell.records) == 3
    assert table.caption.endswith(". Mean over 3 class orders, with the standard error over class orders.")
    # Published as the mean of three too, which the degrees of freedom depend on.
    assert cell.noise == pytest.approx(noise_of_means((4 / 3) ** 0.5, 3, cell.published_error or 0, 3))


def test_seeds_of_a_class_order_are_no_further_class_orders() -> None:
    """Orders differ by ten points and seeds by two: the error is that of two values, not of four."""
    suite = read_suite(written(TINY + "seeds = 2\norders = 2\n"), Common()).select("mafdrc", [])
    order = "mafdrc, digits-b0-5, order 1994, seed"
    found = {f"{order} 0": result(70.0, 0.0), f"{order} 1": result(72.0, 0.0), "seed 0": result(80.0, 0.0)}
    found |= {"seed 1": result(82.0, 0.0)}
    report = experiment_report(suite, answered(suite, found), "", Path("logs"))
    (table,) = report.tables
    (cell,) = (cell for (_, column), cell in table.cells.items() if column.metric == "avg")
    assert cell.measured == mean_of([71.0, 81.0]) and cell.values == [81.0, 71.0]
    assert "Mean over 2 class orders, 2 seeds each, with the standard error over class orders" in table.caption
    assert report.plots[0].lines["mafdrc"][-1][1] == mean_of([0.0, 0.0])
    # With one order finished there is a mean, and no error, however many seeds it has.
    half = {order: "it broke", "seed 0": result(80.0, 0.0), "seed 1": result(82.0, 0.0)}
    (table,) = experiment_report(suite, answered(suite, half), "", Path("logs")).tables
    assert next(iter(table.cells.values())).measured == Mean(81.0, None)
    assert "Mean over one class order, 2 seeds (2 of 4 runs)." in table.caption


def test_cells_whose_data_is_missing_say_so() -> None:
    suite = paper_experiment(["T5"], Common())
    answers = answered(suite, {"maf, imagenet100": result(60.0, 50.0)})
    (table,) = experiment_report(suite, answers, "", Path("logs")).tables
    notes = {(row, column.group.partition(",")[0]): cell.note for (row, column), cell in table.cells.items()}
    # One that is finished needs no data.
    assert notes["MAF", "imagenet100-b0-10"] == "" and notes["MAFRC", "imagenet100-b0-10"] == "data not found"
    assert [why.partition(":")[0] for why in answers.missing()] == ["CIFAR-100 not found", "ImageNet not found"]


def test_curves_and_sweeps_are_drawn_as_far_as_runs_are_finished() -> None:
    suite = read_suite(written(TINY + "[sweep]\nalpha = [0.1, 0.2, 0.3]\n"), Common())
    found = {"mafdrc, digits-b0-5, alpha=0.3": result(80.0, 70.0), "mafdrc, digits-b0-5, alpha=0.1": result(60.0, 50.0)}
    report = experiment_report(suite, answered(suite, found), "", Path("logs"))
    curves, sweep = report.plots
    assert list(curves.lines) == ["mafdrc, alpha=0.1", "mafdrc, alpha=0.3"]
    assert [(x, y.mean) for x, y in curves.lines["mafdrc, alpha=0.3"]] == [(10.0, 90.0), (20.0, 70.0)]
    assert (sweep.x_label, sweep.y_label) == ("alpha", "Avg (%)")
    assert [(x, y.mean) for x, y in sweep.lines["mafdrc"]] == [(0.1, 60.0), (0.3, 80.0)]
    assert sweep.caption == "alpha from 0.1 to 0.3 on digits-b0-5. One run of each."


def test_images_of_old_classes_get_fewer() -> None:
    run = complete(RunSettings(method="finetune", stream="digits-b0-5", memory="40"))
    experiment = Experiment("", ("F1",), plots=(PlotPlan("images", "F1", "", inspected=run),))
    (drawn,) = experiment_report(experiment, Jobs({}, Datasets()), "", Path("logs")).plots
    old = [(x, y.mean) for x, y in drawn.lines["an old class"]]
    assert old == [(2.0, 20.0), (3.0, 10.0), (4.0, 6.0), (5.0, 5.0)]
    assert all(y.mean > 100 for _, y in drawn.lines["a new class"])


# Progress


def test_the_time_left_is_that_of_runs_alike() -> None:
    suite = paper_experiment(["T4"], Common())
    entries = answered(suite, {"replay, cifar100": result(60.0, 50.0)}).all
    outlook = RemainingTime(entries, 2)
    (slow,) = (one for one in entries if one.name.startswith("replay, imagenet"))
    # Three more on CIFAR like the one that took 100 s; three on ImageNet like the one that takes 1000 s.
    assert outlook.seconds_left([(slow, 1000.0)]) == (3 * 100 + 4 * 1000) / 2
    assert outlook.text([(slow, 1000.0)]) == "1 of 8 runs done, 1 under way, 6 left, about 35:50 left in all"
    assert RemainingTime(entries[1:2], 2).seconds_left([]) is None


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["T9"], "unknown table or figure 'T9'"),
        (["T5", "t5"], "'T5' is given twice"),
        (["T5", "--rows", "maf,"], "--rows takes names with commas between them"),
        (["T5", "--rows", "DER"], "unknown row 'DER'"),
        (["T5", "--columns", "cifar"], "unknown column 'cifar'; did you mean 'cifar100'"),
        (["T5", "--tasks", "11"], "has 10 tasks, so a run cannot stop after 11"),
        (["T5", "--profile", "quick"], "unknown profile 'quick'"),
        (["T5", "--engine", "slurm"], "unknown engine 'slurm'"),
        (["T5", "--reuse", "nowhere"], "--reuse takes a directory that has runs, and there is none at 'nowhere'"),
        (["T5", "--rows", ""], "--rows must not be empty"),
        (["T5", "--tasks", "0"], "--tasks must be a whole number from 1"),
        (["T5", "--seeds", "0"], "--seeds must be a whole number from 1"),
        (["T5", "--jobs", "0"], "--jobs must be a whole number from 1"),
        (["T5", "--precision", "16-mixed", "--dry-run"], "--precision 16-mixed needs a GPU"),
        (["F1", "--rows", "MAF"], "F1 has no rows to choose from; leave out --rows"),
        (["T5"], "CIFAR-100 not found"),
        (["F1"], "CIFAR-100 not found"),
        (["T5", "F1"], "CIFAR-100 not found"),
        (["."], "unknown table or figure '.'"),
        (["nothing.toml"], "nothing.toml"),
        (["T5", "nothing.toml"], "'nothing.toml' is a suite by itself"),
    ],
)
def test_what_cannot_be_asked_for(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("metods = 3", "mine.toml: 'metods' is not known"),
        ("seeds = 0", "'seeds' cannot be 0"),
        ("[grid]\nalpha = []", "'grid.alpha'"),
        ("[grid]\nalpha = 3", "'grid.alpha' cannot be 3"),
        ("[sweep]\nalpha = ['a']", "'sweep.alpha': 'a' is no number"),
        ("[sweep]\nalpha = [true]", "'sweep.alpha': true is no number"),
        ("[sweep]\nalpha = [0.1, 0.1]", "'sweep.alpha': 0.1 is given twice"),
        ("[sweep]\nalpha = []", "'sweep.alpha'"),
        ("[grid]\nmemory = ['20', '20']", "'grid.memory': '20' is given twice"),
        ("seeds = true", "'seeds' cannot be True"),
        ("orders = 0", "'orders' cannot be 0"),
        ("metrics = []", "'metrics'"),
        ("profile = 'quick'", "unknown profile 'quick'"),
        ("[grid]\nalfa = [1]", "unknown setting of 'maf+drc' 'alfa'; did you mean 'alpha'"),
        ("[grid]\nalpha = [0.1]\n[sweep]\nalpha = [0.1]", "'alpha' is both in the grid and in the sweep"),
        ("metrics = ['acc']", "unknown metric 'acc'"),
        ("backbone = 'resnet'", "unknown backbone 'resnet'"),
        ("seeds =", "mine.toml"),
    ],
)
def test_what_a_file_cannot_say(more: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    written(TINY + more)
    assert main(["reproduce", "mine.toml"]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1, error
    assert [path.name for path in Path().iterdir()] == ["mine.toml"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "'methods' is missing"),
        ('methods = "maf"\nstreams = ["digits-b0-5"]', "'methods' cannot be 'maf'"),
        ('methods = []\nstreams = ["digits-b0-5"]', "'methods'"),
        ('methods = ["maf", "maf"]\nstreams = ["digits-b0-5"]', "'methods': 'maf' is given twice"),
        ('methods = ["maf"]\nstreams = ["digits-b0-5", "digits-b0-5"]', "'streams': 'digits-b0-5' is given twice"),
        ('methods = ["mav"]\nstreams = ["digits-b0-5"]', "unknown method 'mav'; did you mean 'maf'"),
        ('methods = ["maf"]\nstreams = ["digits"]', "stream 'digits' is not of the form"),
        ('methods = ["maf"]\nstreams = ["digits-b0-5"]\nmemory = true', "'memory"),
    ],
)
def test_what_is_no_suite(content: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    written(content)
    assert main(["reproduce", "mine.toml"]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1, error


def test_a_suite_is_a_file_whose_name_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    written(TINY, "mine.txt")
    Path("folder.toml").mkdir()
    for name, told in (("mine.txt", "'mine.txt' is no table or figure"), ("folder.toml", "it is a directory")):
        assert main(["reproduce", name]) == 2
        assert told in capsys.readouterr().err


def test_a_memory_may_be_a_number() -> None:
    suite = read_suite(written(TINY + "memory = 40\n"), Common())
    assert {one.settings.memory for one in suite.requests()} == {"40"}
    suite = read_suite(written(TINY + "[sweep]\nmemory = [20, 40]\n"), Common())
    assert {one.settings.memory for one in suite.requests()} == {"20", "40"}


def test_another_suite_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("there").mkdir()
    request = {"names": ["T5"], "seeds": 1, "rows": None}
    Path("there/report.json").write_text(json.dumps({"request": request}))
    written(TINY)
    assert main(["reproduce", "mine.toml", "--out", "there"]) == 2
    assert "there holds another experiment, of T5; choose another --out" in capsys.readouterr().err
    for place, told in (("mine.toml", "choose another --out"), ("/proc/suite", "/proc/suite")):
        assert main(["reproduce", "mine.toml", "--out", place]) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1


def test_a_plan_is_shown_and_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    written(TINY)
    assert main(["reproduce", "mine.toml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "mafdrc, digits-b0-5, seed 0" in out and "2 runs: 2 to be started" in out
    assert [path.name for path in Path().iterdir()] == ["mine.toml"]
