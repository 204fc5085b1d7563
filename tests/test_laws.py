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
from drcil.methods.objectives import cross_entropy
from drcil.methods.replay import Replay
from drcil.nets.output import Output, Readout
from drcil.stages import Batch, Engine, Losses, Stage, Term
from drcil.streams.stream import Task
from drcil.testing import BrokenLaw, check_method


class MeddlesWithItsTeacher(Replay):
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


class Guesses(Replay):
    """Has no finite score for the first class."""

    def readouts(self) -> Mapping[str, Readout]:
        def scores(output: Output) -> Tensor:
            return output.logits.fused.index_fill(1, torch.tensor([0]), -torch.inf)

        return {"classifier": Readout(self.net, scores)}


class ForgetsToSave(Replay):
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


class AnswersDifferentlyOnceLoaded(Replay):
    """Reads its scores with a number that is not saved."""

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
def outsiders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that break a law each, known for the length of a test."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS.items()))
    for kind in (MeddlesWithItsTeacher, Guesses, ForgetsToSave, AnswersDifferentlyOnceLoaded, Fails):
        method(kind.__name__, paper="none", year=2026, recipe="replay")(kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "law", "sentence"),
    [
        ("MeddlesWithItsTeacher", "frozen parts", "stage 'later' changed a teacher"),
        ("Guesses", "predictions", "after task 1 readout 'classifier' has scores that are not finite"),
        ("ForgetsToSave", "resuming", "differs after resuming"),
        ("Fails", "memory", "ZeroDivisionError: nothing to divide by"),
        ("AnswersDifferentlyOnceLoaded", "saving", "readout 'classifier' of the loaded model answers differently"),
    ],
)
def test_a_broken_law_is_named_in_a_sentence(name: str, law: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenLaw, match=sentence):
        check_method(name, [law], directory=tmp_path)


def test_the_command_tells_of_every_law_and_fails_if_one_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "Guesses", "--law", "memory", "--law", "predictions"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "memory: holds"
    assert told[1].startswith("predictions: BROKEN: after task 1 readout 'classifier'")
    assert main(["check", "replay", "--law", "predictions"]) == 0


def test_what_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="unknown law 'memry'; did you mean 'memory'"):
        check_method("replay", ["memry"])
    assert main(["check", "replai"]) == 2
    assert "did you mean 'replay'" in capsys.readouterr().err
