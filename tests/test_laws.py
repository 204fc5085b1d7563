"""The laws of all methods catch the methods that break them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from drcil import UserError
from drcil.cli import main
from drcil.heads import LinearHead
from drcil.methods import METHODS, method
from drcil.methods.rebalancing import classifier_of
from drcil.methods.replay import Replay
from drcil.nets.net import Output, Readout
from drcil.objectives import cross_entropy
from drcil.stages import Batch, Engine, Losses, Stage, Step, StepHook, Term
from drcil.streams.stream import Task
from drcil.testing import BrokenLaw, Trial, check_method
from drcil.train.events import EpochDone, StageDone, StepDone, TaskDone


class ChangesTeacher(Replay):
    """Changes its teacher while it learns."""

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number == 1:
            self.first_task(task, engine, LinearHead)
            return
        teacher = copy.deepcopy(self.net)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            with torch.no_grad():
                next(teacher.parameters()).add_(1e-3)
            return cross_entropy(output, teachers, batch)

        self.net.head.grow(len(task.classes))
        data = task.new.join(task.memory)
        engine.fit(Stage("later", self.net, data, objective, self.settings.later, teachers={"previous": teacher}))


class NonFiniteScores(Replay):
    """Has no finite score for the first class."""

    def readouts(self) -> Mapping[str, Readout]:
        def scores(output: Output) -> Tensor:
            return output.logits.fused.index_fill(1, torch.tensor([0]), -torch.inf)

        return {"classifier": Readout(self.net, scores)}


class LosesCounter(Replay):
    """Keeps something beside its parts, which a resumed run does not know."""

    seen: ClassVar[list[int]] = []

    def learn(self, task: Task, engine: Engine) -> None:
        self.number = getattr(self, "number", 0) + 1

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            return {"classification": Term(cross_entropy(output, teachers, batch)["classification"].value, self.number)}

        if task.number > 1:
            self.net.head.grow(len(task.classes))
        net = self.begin(task, LinearHead) if task.number == 1 else self.net
        engine.fit(Stage("later", net, task.new.join(task.memory), objective, self.settings.later))


class Counter(StepHook):
    """Counts the steps of a stage."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()), persistent=persistent)

    def after_step(self, step: Step) -> None:
        self.get_buffer("steps").add_(1)


class UsesHook(Replay):
    """Two stages a task; after the second the biases depend on what a hook collected in the first."""

    persistent = True

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number > 1:
            self.net.head.grow(len(task.classes))
        net = self.begin(task, LinearHead) if task.number == 1 else self.net
        counter, data = Counter(self.persistent), task.new.join(task.memory)
        engine.fit(Stage("counted", net, data, cross_entropy, self.settings.later, hooks=[counter]))
        engine.fit(Stage("plain", net, data, cross_entropy, self.settings.later))
        with torch.no_grad():
            classifier_of(net).bias.add_(counter.get_buffer("steps"))


class LosesHookState(UsesHook):
    """The same with a hook whose state is not in snapshots."""

    persistent = False


class LosesReadoutFactor(Replay):
    """Its readout uses a number that is not saved."""

    factor = 1.0

    def learn(self, task: Task, engine: Engine) -> None:
        super().learn(task, engine)
        self.factor = 2.0

    def readouts(self) -> Mapping[str, Readout]:
        factor = self.factor
        return {"classifier": Readout(self.net, lambda output: factor * output.logits.fused)}


class Fails(Replay):
    """Cannot learn."""

    def learn(self, task: Task, engine: Engine) -> None:
        raise ZeroDivisionError("nothing to divide by")


@pytest.fixture(autouse=True)
def broken_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register methods that break a law each."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS.items()))
    for kind in (
        ChangesTeacher,
        NonFiniteScores,
        LosesCounter,
        LosesReadoutFactor,
        Fails,
        UsesHook,
        LosesHookState,
    ):
        method(kind.__name__, paper="none", year=2026, recipe="replay")(kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "law", "sentence"),
    [
        ("ChangesTeacher", "frozen parts", "stage 'later' changed a teacher"),
        ("NonFiniteScores", "predictions", "after task 1 readout 'classifier' has scores that are not finite"),
        ("LosesCounter", "resuming", "differs after resuming"),
        ("LosesHookState", "resuming", "differs after resuming"),
        ("Fails", "memory", "ZeroDivisionError: nothing to divide by"),
        ("LosesReadoutFactor", "saving", "readout 'classifier' of the loaded model answers differently"),
    ],
)
def test_a_broken_law_is_named_in_a_sentence(name: str, law: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenLaw, match=sentence):
        check_method(name, [law], directory=tmp_path)


def test_the_state_of_a_hook_is_restored(tmp_path: Path) -> None:
    check_method("UsesHook", ["resuming"], directory=tmp_path)


def test_a_run_is_stopped_in_and_after_every_stage_of_every_task(tmp_path: Path) -> None:
    trial = Trial("UsesHook", tmp_path)
    assert trial.interrupted_run.result().complete
    stops = [(stop.kind, stop.task, stop.stages) for stop in trial.stops]
    for task in (1, 2, 3):
        of_stages = [(kind, task, stage) for stage in (0, 1) for kind in (StepDone, EpochDone, StageDone)]
        assert [stop for stop in stops if stop[1] == task] == [*of_stages, (TaskDone, task, 2)]


def test_the_command_prints_every_law_and_fails_if_one_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "NonFiniteScores", "--law", "memory", "--law", "predictions"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "memory: holds"
    assert lines[1].startswith("predictions: BROKEN: after task 1 readout 'classifier'")
    assert main(["check", "replay", "--law", "predictions"]) == 0


def test_unknown_laws_and_methods_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="unknown law 'memry'; did you mean 'memory'"):
        check_method("replay", ["memry"])
    assert main(["check", "replai"]) == 2
    assert "did you mean 'replay'" in capsys.readouterr().err
