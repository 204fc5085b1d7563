"""A rehearsal says which stages a run will train; the run then trains these. It reads no image and changes no draw."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drcil.data.datasets.digits import load_digits
from drcil.data.image_set import CropDraw, ImageSet, Int64, Source
from drcil.data.loader import PictureCache
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.methods import METHODS, Architecture, Method
from drcil.methods.catalog import register_preset, resolve_settings
from drcil.methods.dry_run import DryRunEngine, StageWork, dry_run, stage_names
from drcil.methods.replay import Replay, ReplaySettings
from drcil.nets.backbone import BACKBONES
from drcil.nets.resnet import resnet_digits
from drcil.runs.execution import create_run
from drcil.runs.plan import complete, plan_run
from drcil.settings import EngineSettings, MemoryBudget, RunSettings
from drcil.stages import Engine
from drcil.streams.stream import Stream, Task, make_stream
from drcil.train.events import EpochDone, Event, StageStarted, StepDone
from drcil.train.progress import Forecast
from support.engine import fit, make_engine, make_net, make_stage

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    *((name, {"remedies": ["la", remedy]}) for name in ("mafdrc", "mdt", "mec", "mecdrc") for remedy in ("bft", "wa")),
    ("lucir", {"balancing": True}),
    ("der", {"balancing": "retrain"}),
    ("bic", {"held_share": 0.5}),
]


class Closed(Source):
    """A source that knows its images but shows none."""

    in_memory = True

    def __init__(self, source: Source) -> None:
        self._length, self.channels, self.size = len(source), source.channels, source.size

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> torch.Tensor:
        raise AssertionError("an image was read")


def uneven(stream: str = "digits-b0-5", **options: Any) -> Stream:
    """A stream of digits with five to 41 images of a class."""
    digits = load_digits()
    chosen = [np.flatnonzero(digits.train.labels == label)[: 5 + 4 * label] for label in range(10)]
    return make_stream(stream, replace(digits, train=digits.train.subset(np.concatenate(chosen))), **options)


def closed(task: Task) -> Task:
    new = ImageSet.of(Closed(task.new.source), task.new.rows, task.new.labels)
    return replace(task, new=new)


def made(name: str, given: dict[str, Any], epochs_scale: float = 1.0) -> Method:
    spec = METHODS[name]
    return spec.build(resolve_settings(spec, "digits", given, epochs_scale), Architecture("resnet-digits", 1, 8))


def trained(learner: Learner, stages: list[StageWork], task: Task) -> list[StageWork]:
    """The stages that a learner whose events become ``stages`` trains for a task."""
    stages.clear()
    learner.learn(task)
    return list(stages)


def noting(stages: list[StageWork]) -> Any:
    """A listener that adds to ``stages`` what is trained: epochs and images are counted, not believed."""

    def listener(event: Event) -> None:
        if isinstance(event, StageStarted):
            stages.append(StageWork(event.stage, 0, 0))
        elif isinstance(event, StepDone) and event.epoch == 0:
            stages[-1] = stages[-1]._replace(images=stages[-1].images + event.images)
        elif isinstance(event, EpochDone):
            stages[-1] = stages[-1]._replace(epochs=stages[-1].epochs + 1)

    return listener


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["30", "3/class"])
@pytest.mark.parametrize(("name", "given"), VARIANTS, ids=lambda value: value if isinstance(value, str) else str(value))
def test_what_is_rehearsed_is_trained(name: str, given: dict[str, Any], memory: str) -> None:
    if METHODS[name].build.memory:
        memory = METHODS[name].build.memory or ""
    tasks = uneven()[:3]
    method = made(name, given)
    acting = method.settings.schedules().keys() - method.idle_settings(large_base=False).keys()
    given = {**given, **{f"{schedule}.batch_size": 64 for schedule in acting}}
    before = torch.get_rng_state()
    rehearsed = dry_run(made(name, given, 0.03), [closed(task) for task in tasks], MemoryBudget.parse(memory))
    assert torch.equal(before, torch.get_rng_state())
    stages: list[StageWork] = []
    learner = Learner(name, memory=memory, epochs_scale=0.03, settings=given, device="cpu", listener=noting(stages))
    assert rehearsed == [trained(learner, stages, task) for task in tasks]


def test_a_sampler_says_how_many_images_an_epoch_has() -> None:
    rehearsal, begun = DryRunEngine(), []
    stage = make_stage(make_net(), sampler=lambda labels, key: np.arange(len(labels)).repeat(3))
    rehearsal.fit(stage)
    assert rehearsal.stages == [StageWork("test", stage.schedule.epochs, 3 * len(stage.data))]
    fit(make_engine(listener=lambda event: begun.append(event) if isinstance(event, StageStarted) else None), stage)
    assert [event.images for event in begun] == [3 * len(stage.data)]


@pytest.mark.parametrize("memory", ["none", "30", "20/class", "all"])
def test_planned_work_counts_the_images_that_are_there(memory: str) -> None:
    stream = make_stream("digits-b0-5", memory=memory)
    epochs = {"first.epochs": 3, "later.epochs": 2}
    work = plan_run(complete(RunSettings(method="replay", stream="digits-b0-5", settings=epochs)), stream).work
    assert work[0] == [3 * len(stream[0].new)]
    for number in range(2, len(stream) + 1):
        before = [stream.task(earlier).new for earlier in range(1, number)]
        quota = MemoryBudget.parse(memory).quota(stream.task(number).old)
        sizes = [int(count) for images in before for count in images.counts(10) if count]
        kept = sum(size if quota is None else min(size, quota) for size in sizes)
        assert work[number - 1] == [2 * (len(stream.task(number).new) + kept)]


def test_planned_work_knows_methods_without_memory_and_runs_that_stop_early() -> None:
    stream = make_stream("digits-b0-5", memory="all")
    epochs = {"first.epochs": 1, "later.epochs": 1}
    run = complete(RunSettings(method="finetune", stream="digits-b0-5", settings=epochs, tasks=2))
    assert plan_run(run, stream).work == [[len(stream[0].new)], [len(stream[1].new)]]


def test_planned_work_knows_stages_that_see_only_some_of_the_images() -> None:
    epochs = {"adaptation.epochs": 2, "fusion.epochs": 3, "finetuning.epochs": 5}
    run = complete(RunSettings(method="maf+bft", stream="digits-b0-5", memory="30", tasks=2, settings=epochs))
    stream = make_stream("digits-b0-5", memory="30")
    new = len(stream[1].new)
    # Of the 30 exemplars the two old classes have 15 each, so the balanced set has 15 of each of four classes.
    assert plan_run(run, stream).work[1] == [2 * new, 3 * (new + 30), 5 * 60]


class Particular(Replay):
    """Replay that wants features to differ from image to image, from task 2 on."""

    Settings = ReplaySettings

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number > 1 and not engine.features(self.net, task.new).std(dim=0).any():
            raise ValueError("all features are equal")
        super().learn(task, engine)


class Refusing(Replay):
    """Replay that cannot learn a second task, and says so."""

    Settings = ReplaySettings

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number > 1:
            raise UserError("one task is enough")
        super().learn(task, engine)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods and a backbone of an outside author."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES))
    for name, build in (("particular", Particular), ("refusing", Refusing)):
        register_preset(name, build, summary=name, paper="None", year=2026, recipe="replay")
    BACKBONES.register("without-variants")(lambda channels_in: resnet_digits(channels_in))


@pytest.mark.usefixtures("outside")
def test_a_method_that_cannot_be_rehearsed_runs_without_a_forecast(tmp_path: Path) -> None:
    settings = complete(
        RunSettings(
            method="particular", stream="digits-b0-5", tasks=3, epochs_scale=0.01, engine=EngineSettings(device="cpu")
        )
    )
    stream = uneven()
    plan = plan_run(settings, stream)
    assert plan.work == [[len(stream[0].new)], [], []]
    forecast = Forecast(plan.work)
    left = []

    def listener(event: Event) -> None:
        forecast(event)
        left.append(forecast.seconds_left())

    assert create_run(settings, tmp_path / "run", plan).train(plan, listener).complete
    assert left
    assert set(left) == {None}
    started = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])
    assert started["work"] == plan.work


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": "refusing"}, "one task is enough"),
        ({"method": "lucir", "backbone": "without-variants"}, "backbone 'without-variants' has no variant with"),
    ],
)
def test_what_a_method_refuses_is_told_before_the_run(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        plan_run(complete(RunSettings(stream="digits-b0-5", **options)), uneven())


@pytest.mark.usefixtures("outside")
def test_a_method_is_listed_with_the_stages_it_has() -> None:
    assert stage_names(METHODS["mec"]) == ["first", "expansion", "compression"]
    assert stage_names(METHODS["maf+bft"]) == ["first", "adaptation", "fusion", "finetuning"]
    assert stage_names(METHODS["particular"]) == ["first"]
    assert stage_names(METHODS["refusing"]) == []
