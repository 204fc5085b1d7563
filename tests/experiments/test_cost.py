"""Costs: rehearsed work times seconds per image that were measured here, kept for the next time, and added up."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drcil.cli import main
from drcil.data.dataset import placeholder_dataset
from drcil.data.datasets.cifar100 import load_cifar100
from drcil.data.datasets.digits import load_digits
from drcil.experiments.cost import (
    CostEstimator,
    Estimate,
    PaperCosts,
    SpeedCache,
    interpolate,
    is_new_size,
    step_pace,
    threads,
)
from drcil.experiments.jobs import Datasets, Job, Jobs
from drcil.experiments.published import published_table, trained
from drcil.files import read_checksummed_json, write_checksummed_json
from drcil.methods import METHODS
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from drcil.train.progress import rough
from support.engine import make_engine, make_net, make_stage
from support.reports import record

TICK = 0.001
"""Seconds."""


@pytest.fixture(autouse=True)
def _quick(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and a clock that goes on by a tick whenever it is read: each step takes one."""
    ticks = itertools.count()
    monkeypatch.setattr("drcil.experiments.cost._now", lambda device: TICK * next(ticks))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("drcil.experiments.cost._ENOUGH", 0.005)
    monkeypatch.setattr("drcil.experiments.cost._STEP", 0.005)
    monkeypatch.chdir(tmp_path)


def run(method: str = "replay", **options: Any) -> RunSettings:
    return complete(RunSettings(**{"method": method, "stream": "digits-b0-5", "tasks": 2, **options}))


def seconds(costs: CostEstimator, settings: RunSettings) -> float:
    found = costs.of(settings)
    assert found is not None and len(found) == (settings.tasks or 5) and all(own > 0 for own in found)
    return sum(found)


# Arithmetic


def test_every_epoch_more_costs_the_same() -> None:
    """What is looked at once a task does not grow with the epochs, and is little."""
    costs = CostEstimator(SpeedCache())
    one, two, three = (
        seconds(costs, run(settings={"first.epochs": 40 * times, "later.epochs": 40 * times})) for times in (1, 2, 3)
    )
    assert two - one == pytest.approx(three - two)
    assert 1.8 * one < two <= 2 * one


def test_what_does_not_change_the_work_does_not_change_the_cost() -> None:
    costs = CostEstimator(SpeedCache())
    measured: list[object] = []
    first = CostEstimator(SpeedCache(), measured.append)
    assert seconds(first, run()) == seconds(first, run(seed=7, order_seed=3)) and measured
    assert seconds(costs, run(tasks=3)) > seconds(costs, run(tasks=2))


@pytest.mark.parametrize(
    ("seconds", "parallel", "whole"),
    [((10.0, 20.0, 30.0), 1, 60.0), ((10.0, 20.0, 30.0, 20.0), 2, 40.0), ((10.0, 20.0, 90.0), 3, 90.0), ((), 2, 0.0)],
)
def test_runs_at_a_time_share_the_time_but_for_the_longest(
    seconds: tuple[float, ...], parallel: int, whole: float
) -> None:
    assert Estimate(seconds, (True,) * len(seconds), parallel, ()).whole() == whole


def test_a_suite_counts_what_is_left_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing for what is finished, and apart what cannot be started."""
    finished, waiting = run(seed=1), run(seed=2)
    absent = complete(RunSettings(method="replay", stream="cifar100-b0-10", data="nowhere"))
    entries = {
        str(number): Job(own, Path(f"r{number}"), False, {"replay": None})
        for number, own in enumerate((finished, waiting, absent))
    }
    entries["0"].finished = record("replay")
    monkeypatch.setattr(CostEstimator, "of", lambda self, own, dataset=None: (60.0, 120.0) if own.tasks else (5e5,))
    estimate = Estimate.of(Jobs(entries, Datasets()), CostEstimator(SpeedCache()), 2)
    assert estimate.seconds == (0.0, 180.0, 5e5)
    assert (estimate.whole(), estimate.whole(possible=False)) == (180.0, 5e5)
    first, second = estimate.sentences()
    assert first.startswith("estimate: about 3 min, 2 runs at a time on this machine (cpu, precision 32, 1 thread")
    assert second == "runs whose data was not found would take about 6 days"


def test_a_run_of_two_tables_is_paid_once() -> None:
    tables = [published_table(name) for name in ("T4", "T5")]
    runs = [trained([table]) for table in tables]
    costs = PaperCosts("", {run: 1.0 for table in runs for run in table})
    assert [costs.total(table) for table in runs] == [8.0, 6.0]
    assert costs.total([*runs[0], *runs[1]]) == len(trained(tables)) < 14.0
    assert PaperCosts("", {**costs.seconds, runs[0][0]: None}).total(runs[0]) is None


def test_growing_nets_are_measured_when_they_have_doubled() -> None:
    known: dict[int, float] = {}
    for size in range(1, 21):
        if is_new_size(size, known):
            known[size] = 3.0 + size
        assert interpolate(size, known) == pytest.approx(3.0 + size if len(known) > 1 or size == 1 else 4.0)
    assert sorted(known) == [1, 2, 4, 8, 16]
    assert interpolate(9, {3: 2.0}) == 2.0
    # Noise does not make larger nets faster.
    assert interpolate(20, {1: 2.0, 2: 1.9}) == 1.9


@pytest.mark.parametrize(
    ("given", "told"),
    [(0.2, "1 s"), (89, "89 s"), (91, "2 min"), (5399, "90 min"), (5401, "2 h"), (86400 * 2, "2 days"),
     (86400 * 123, "120 days"), (86400 * 365.25 * 3, "3 years"), (86400 * 365.25 * 123.4, "120 years")],
)  # fmt: skip
def test_estimates_are_no_finer_than_they_are_known(given: float, told: str) -> None:
    assert rough(given) == told


# Measuring


def test_measuring_leaves_a_net_as_it_was() -> None:
    net, engine = make_net(), make_engine()
    stage = make_stage(net)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    torch.manual_seed(3)
    drawn = torch.get_rng_state()
    # Five steps after the first one, of 100 images in batches of 32.
    assert step_pace(engine, stage) == pytest.approx(5 * TICK / (32 + 32 + 4 + 32 + 32))
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in net.parameters())


def test_the_threads_of_a_process_stay_what_they_are() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "name", ["mafdrc", "der", *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != "mafdrc")]
)
def test_every_method_has_a_cost(name: str) -> None:
    measured: list[str] = []
    costs = CostEstimator(SpeedCache(), measured.append)
    seconds(costs, run(name, tasks=5))
    if name == "der":
        assert sum("trains, ExpandedNet" in kind for kind in measured) == 2, "with two backbones and with four"
    # Another process knows all of it.
    again = CostEstimator(SpeedCache(), lambda kind: pytest.fail(f"measured again: {kind}"))
    # Nets that grow were foretold by what was known by then.
    assert again.of(run(name, tasks=5)) == pytest.approx(costs.of(run(name, tasks=5)), rel=0.5)


def test_an_outline_has_as_many_images_as_the_data() -> None:
    real, outline = load_digits(), placeholder_dataset("digits")
    assert outline is not None
    assert (len(outline.train), len(outline.test)) == (len(real.train), len(real.test))
    assert len(outline.classes) == len(real.classes) and outline.train.source.size == real.train.source.size
    assert np.ptp(outline.train.counts(10)) <= 1
    assert placeholder_dataset("folder:somewhere") is None


@pytest.mark.data
def test_the_outline_of_cifar_is_that_of_its_files(data_dir: Path) -> None:
    real, outline = load_cifar100(data_dir), placeholder_dataset("cifar100")
    assert outline is not None
    for one, other in ((real.train, outline.train), (real.test, outline.test)):
        assert np.array_equal(one.counts(100), other.counts(100))


def test_what_is_not_there_can_be_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """ImageNet: a thousand classes, photographs that are decoded from files."""
    kinds: list[str] = []
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setattr("drcil.experiments.cost.step_pace", lambda engine, stage: 0.01)
    monkeypatch.setattr("drcil.experiments.cost.look_pace", lambda *given: 0.0)
    monkeypatch.setattr("drcil.experiments.cost.view_pace", lambda *given: 0.001)
    monkeypatch.setattr("drcil.experiments.cost.decoding_pace", lambda *given: 0.002 * 3)
    settings = complete(
        RunSettings(method="finetune", stream="imagenet1000-b0-10", settings={"later.epochs": 1}, tasks=2)
    )
    found = CostEstimator(SpeedCache(), kinds.append).of(settings)
    # 100 classes are learnt, and the test images of 200 are read.
    assert found is not None and found[1] == pytest.approx(128_117 * 0.013 + 10_000 * 0.002, rel=1e-4)
    assert any("decodes to 224 pixels" in kind for kind in kinds)
    unknown = complete(RunSettings(method="finetune", stream="folder:nowhere-b0-2"))
    assert CostEstimator(SpeedCache()).of(unknown) is None


# The cache


def test_what_was_measured_is_kept_apart_by_conditions() -> None:
    paces = SpeedCache()
    paces.learn("cpu, 1 thread", "trains", 2, 0.5)
    paces.save()
    assert SpeedCache().measured("cpu, 1 thread", "trains") == {2: 0.5} and not SpeedCache().measured(
        "cpu, 2 threads", "trains"
    )
    assert paces.path.parent == Path(os.environ["XDG_CACHE_HOME"]) / "drcil"
    assert not list(Path().iterdir())


def test_two_processes_keep_what_both_have_measured() -> None:
    one, other = SpeedCache(), SpeedCache()
    one.learn("here", "trains", 1, 0.5)
    one.save()
    other.learn("here", "trains", 2, 0.7)
    other.save()
    assert SpeedCache().measured("here", "trains") == {1: 0.5, 2: 0.7}


@pytest.mark.parametrize("damage", ["cut", "another machine", "negative", "no table"])
def test_a_cache_file_that_does_not_fit_is_measured_anew(damage: str) -> None:
    paces = SpeedCache()
    paces.learn("here", "trains", 1, 0.5)
    paces.save()
    stored = read_checksummed_json(paces.path)
    if damage == "cut":
        paces.path.write_bytes(paces.path.read_bytes()[:-20])
    elif damage == "another machine":
        write_checksummed_json(paces.path, {**stored, "machine": {**stored["machine"], "cores": 1000}})
    else:
        wrong = {"here": {"trains": {"1": -1.0}}} if damage == "negative" else [1]
        write_checksummed_json(paces.path, {**stored, "paces": wrong})
    paces = SpeedCache()
    assert not paces.measured("here", "trains")
    paces.learn("here", "trains", 1, 0.25)
    paces.save()
    assert SpeedCache().measured("here", "trains") == {1: 0.25}


def test_a_cache_that_cannot_be_used_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert seconds(CostEstimator(SpeedCache()), run()) > 0
    assert (tmp_path / "file").read_text() == "here"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "pipes"))
    SpeedCache().path.parent.mkdir(parents=True)
    os.mkfifo(SpeedCache().path)
    assert not SpeedCache().measured("here", "trains")


def test_a_relative_cache_directory_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the convention has it."""
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "/home/someone")
    assert SpeedCache().path.parent == Path("/home/someone/.cache/drcil")


# What is printed


def test_a_plan_tells_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text('methods = ["replay", "finetune"]\nstreams = ["digits-b0-5"]\ntasks = 2\n')
    assert main(["reproduce", "mine.toml", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    each = [one["seconds"] for one in plan["runs"]]
    assert plan["jobs"] == 1 and plan["seconds"] == pytest.approx(sum(each)) and min(each) > 0
    assert plan["on"] == ["cpu, precision 32, 1 thread"]
    assert main(["reproduce", "mine.toml", "--dry-run", "--jobs", "2"]) == 0
    shown = capsys.readouterr()
    assert "estimate: about" in shown.out and "2 runs at a time on this machine" in shown.out
    assert "measuring" not in shown.err, "the threads are the same, so all is known"
    assert [path.name for path in Path().iterdir()] == ["mine.toml"]


def test_the_paper_is_estimated_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ([], ["T5"], ["F7"]):
        assert main(["paper", *arguments]) == 0
        assert "add --cost to estimate their time here" in capsys.readouterr().out
    assert main(["paper", "T5", "--json"]) == 0
    assert {cell["seconds"] for cell in json.loads(capsys.readouterr().out)} == {None}
    monkeypatch.setattr(CostEstimator, "of", lambda self, own, dataset=None: (60.0,) * 10)
    number = torch.get_num_threads()
    here = f"cpu, precision 32, {number} thread{'' if number == 1 else 's'}"
    assert main(["paper", "T5", "--cost", "--device", "cpu"]) == 0
    assert f"6 runs, about 60 min one at a time on this machine ({here})" in capsys.readouterr().out
    assert main(["paper", "T5", "--cost", "--json"]) == 0
    assert {cell["seconds"] for cell in json.loads(capsys.readouterr().out)} == {600.0}
    assert main(["paper", "--cost"]) == 0
    shown = capsys.readouterr().out
    assert next(line for line in shown.splitlines() if line.startswith(" T5")).split()[-3:] == ["6", "60", "min"]
    monkeypatch.setattr(CostEstimator, "of", lambda self, own, dataset=None: None)
    assert main(["paper", "T5", "--cost"]) == 0
    assert "the time of some of them cannot be estimated" in capsys.readouterr().out


def test_a_run_that_is_begun_costs_what_is_left_of_it(tmp_path: Path) -> None:
    costs, settings = CostEstimator(SpeedCache()), run(tasks=3)
    whole = costs.of(settings)
    assert whole is not None
    (tmp_path / "begun" / "tasks" / "01").mkdir(parents=True)
    entry = Job(settings, tmp_path / "begun", True, {"replay": None})
    (left,) = Estimate.of(Jobs({"": entry}, Datasets()), costs, 1).seconds
    assert left == pytest.approx(sum(whole[1:]))
    entry = replace(entry, exists=False)
    (afresh,) = Estimate.of(Jobs({"": entry}, Datasets()), costs, 1).seconds
    assert left is not None and afresh is not None and afresh > left
