"""Long-tailed streams from beginning to end: run, stopped and resumed, shown, evaluated and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drcil.cli import main
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete, plan_run
from drcil.settings import EngineSettings, RunSettings
from drcil.streams.stream import make_stream
from drcil.train.events import Event, StepDone
from support.long_tail import SIZES
from support.runs import assert_same, outcome

STREAM = "digits-lt-shuffled-b4-3"
OPTIONS = ["--tasks", "2", "--epochs-scale", "0.02", "--device", "cpu", "--threads", "1"]
ENGINE = EngineSettings(device="cpu", snapshot_seconds=0)
TABLE_3 = ["eeil", "lucir", "podnet", "eeil+two-stage", "lucir+two-stage", "podnet+two-stage", "maf", "mafdrc"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which ``drcil run`` has left a run."""
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["run", "replay", STREAM, *OPTIONS, "--quiet"]) == 0
    return place


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return Path("runs") / f"replay-{STREAM}-seed0"


def test_a_run_keeps_the_images_of_each_class_and_leads_with_the_mean_over_tasks(run: Path) -> None:
    result = Run.read(run).result().to_json()
    counts = make_stream(STREAM).counts().tolist()
    assert [task["class_images"] for task in result["per_task"]] == [counts[:4], counts[4:6]]
    assert (result["metric"], result["settings"]["memory"]) == ("task_avg", "20/class")
    figures = result["readouts"]["classifier"]
    assert figures["task_curve"][-1] == pytest.approx(sum(figures["matrix"][-1]) / 2)
    for shots, several in (("many_shot", range(101, 1000)), ("medium_shot", range(20, 101)), ("few_shot", range(20))):
        assert (figures[shots] is None) == (not any(count in several for count in counts[:6]))


def test_it_is_shown_by_both_metrics_or_by_another(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("task mean", "accuracy", "task avg", "Avg", "many", "few"))
    assert main(["show", str(run), "--metric", "avg"]) == 0
    assert "task mean" not in capsys.readouterr().out
    assert main(["show", str(run), "--metric", "class_avg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == "class_avg"


def test_it_is_evaluated_on_its_stream(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), STREAM, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == pytest.approx(Run.read(run).result().to_json()["last"], abs=0.01)
    assert found["total"] == len(make_stream(STREAM)[1].test)


@pytest.mark.parametrize(("options", "lead"), [([], "task avg"), (["--metric", "few_shot"], "few")])
def test_it_is_compared_by_the_metric_that_leads(
    run: Path, options: list[str], lead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "replay", STREAM, *OPTIONS, *options]) == 0
    assert "reused from" in capsys.readouterr().out
    lines = (Path("comparisons") / STREAM / "report.md").read_text().splitlines()
    header = next(line for line in lines if line.startswith("| method")).split(" | ")
    assert header[1] == lead and {"task avg", "Avg", "many"} <= set(header)


@pytest.mark.parametrize(
    ("metric", "told"), [("tail", "unknown metric 'tail'"), ("curve", "metric 'curve' returns a list, not one number")]
)
@pytest.mark.parametrize("verb", ["compare", "show"])
def test_a_metric_that_cannot_lead_is_told(
    verb: str, metric: str, told: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["replay", STREAM, *OPTIONS, "--out", "nowhere"] if verb == "compare" else [str(run)]
    assert main([verb, *arguments, "--metric", metric]) == 2
    assert told in capsys.readouterr().err
    assert not Path("nowhere").exists()


def test_stopped_anywhere_it_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    settings = complete(
        RunSettings(method="icarl", stream=STREAM, tasks=2, epochs_scale=0.02, validation=0.1, engine=ENGINE)
    )
    whole, stopped = (create_run(settings, tmp_path / name) for name in ("whole", "stopped"))
    whole.train()

    def stop(event: Event) -> None:
        if isinstance(event, StepDone) and event.task == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.train(listener=stop)
    Run.open(tmp_path / "stopped").train()
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "stopped"))


@pytest.mark.slow
@pytest.mark.parametrize("method", TABLE_3)
def test_the_methods_of_the_published_table_learn_such_a_stream(method: str, tmp_path: Path) -> None:
    settings = complete(
        RunSettings(method=method, stream=STREAM, tasks=2, epochs_scale=0.01, engine=EngineSettings(device="cpu"))
    )
    plan = plan_run(settings)
    assert all(plan.work), "every stage was rehearsed"
    result = create_run(settings, tmp_path / "run", plan).train(plan).to_json()
    assert result["complete"] and len(result["readouts"][result["readout"]]["task_curve"]) == 2


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("method", "scenario"), [*((method, "shuffled") for method in TABLE_3), ("mafdrc", "ordered")])
def test_they_learn_cifar100_with_a_long_tail(method: str, scenario: str, data_dir: Path, tmp_path: Path) -> None:
    """Images of 8 pixels and a small net: enough for several times what guessing gives, in seconds."""
    settings = complete(
        RunSettings(
            method=method,
            stream=f"cifar100-lt-{scenario}-b50-5",
            tasks=2,
            epochs_scale=0.02,
            image_size=8,
            backbone="resnet-digits",
            augment="basic",
            data=str(data_dir),
            engine=EngineSettings(device="cpu"),
        )
    )
    result = create_run(settings, tmp_path / "run").train().to_json()
    figures = result["readouts"][result["readout"]]
    assert [sum(task["class_images"]) for task in result["per_task"]] == SIZES["cifar100", scenario, 5][:2]
    assert figures["curve"][0] > 3 * 100 / 50
    assert figures["curve"][1] > 2 * 100 / 60
    assert 0 <= figures["few_shot"] <= 100 if scenario == "shuffled" else figures["few_shot"] is None
