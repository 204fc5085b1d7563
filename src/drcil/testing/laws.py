"""The laws: what every method owes to its users, each with the sentence that says how it was broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from ..disk import read_tensors
from ..errors import UserError, unknown
from ..learner import Learner, load_learner
from ..methods import METHODS
from ..runs.plan import load_stream
from ..runs.record import PREDICTIONS
from ..runs.run import RESULT, Run
from ..streams.budget import Budget
from ..streams.memory import first_of_each_class
from ..streams.stream import make_stream
from .trial import STOPS, Trial


class BrokenLaw(AssertionError):
    """A law that a method does not keep."""


Law = Callable[[Trial], None]
LAWS: dict[str, Law] = {}


def law(check: Law) -> Law:
    LAWS[check.__name__.replace("_", " ")] = check
    return check


def check_method(
    method: str,
    laws: Iterable[str] | None = None,
    *,
    directory: Path | None = None,
    told: Callable[[str, BrokenLaw | None], None] | None = None,
    **options: Any,
) -> None:
    """Check laws (None: all) on a registered method; raises the first ``BrokenLaw`` when all have been tried.

    ``told`` hears of every law as it is checked. ``options`` are those of a run: ``stream``, ``backbone``,
    ``epochs_scale``, ``settings`` and so on. Runs are made in ``directory`` (None: a temporary one).
    """
    chosen = list(LAWS if laws is None else laws)
    for name in chosen:
        if name not in LAWS:
            raise unknown("law", name, LAWS)
    broken: list[BrokenLaw] = []
    with TemporaryDirectory() if directory is None else nullcontext(directory) as place:
        trial = Trial(method, Path(place), **options)
        for name in chosen:
            failure: BrokenLaw | None = None
            try:
                LAWS[name](trial)
            except (UserError, BrokenLaw) as error:
                failure = BrokenLaw(str(error))
            except Exception as error:
                failure = BrokenLaw(f"{type(error).__name__}: {error}")
                failure.__cause__ = error
            if failure is not None:
                broken.append(failure)
            if told is not None:
                told(name, failure)
    if broken:
        raise broken[0]


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise BrokenLaw(sentence)


@law
def frozen_parts(trial: Trial) -> None:
    """What a stage does not train stays as it is, bit for bit: frozen modules, teachers, parameters in no group."""
    trial.whole  # noqa: B018 - the stages are watched while it runs
    require(not trial.changed, ", ".join(dict.fromkeys(trial.changed)))


@law
def memory(trial: Trial) -> None:
    """After every task the memory holds what the budget allows of every class, under the right labels."""
    run = trial.whole
    budget = Budget.parse(METHODS[trial.method].build.memory or str(trial.budget))
    label_of: dict[int, int] = {}
    for task, directory in zip(load_stream(run.settings), run.finished_tasks(), strict=False):
        label_of |= dict(zip(task.new.rows.tolist(), task.new.labels.tolist(), strict=True))
        there, quota = np.bincount(list(label_of.values())), budget.quota(task.total)
        expected = there if quota is None else np.minimum(there, quota)
        exemplars = load_learner(directory, device="cpu").memory
        kept = np.bincount(exemplars.labels, minlength=task.total)
        sentence = (
            f"after task {task.number} the memory has {kept.tolist()} images of the classes, not {expected.tolist()}"
        )
        require(kept.tolist() == expected.tolist(), sentence)
        labels = [label_of.get(row) for row in exemplars.rows.tolist()]
        require(labels == exemplars.labels.tolist(), f"after task {task.number} exemplars have wrong labels")


@law
def predictions(trial: Trial) -> None:
    """Every readout ranks exactly the classes seen, best first, by finite scores."""
    run = trial.whole
    for task, directory in zip(load_stream(run.settings), run.finished_tasks(), strict=False):
        tensors, _ = read_tensors(directory / PREDICTIONS)
        ranked = torch.arange(task.total)[:10]
        for name in run.result()["readouts"]:
            classes, scores = tensors[f"{name}.classes"], tensors[f"{name}.scores"]
            where = f"after task {task.number} readout '{name}'"
            require(classes.shape == (len(task.test), len(ranked)), f"{where} ranks {classes.shape[1]} classes")
            within = bool(((classes >= 0) & (classes < task.total)).all())
            require(within, f"{where} names classes that were not seen")
            distinct = all(len(set(row)) == len(row) for row in classes.tolist())
            require(distinct, f"{where} names a class twice")
            require(bool(torch.isfinite(scores).all()), f"{where} has scores that are not finite")
            require(bool((scores.diff(dim=1) <= 0).all()), f"{where} does not rank by score")


@law
def readouts(trial: Trial) -> None:
    """``readouts`` gives what ``readout_names`` says, in its order, so that one can be chosen before training."""
    given, declared = tuple(trial.whole.result()["readouts"]), METHODS[trial.method].build.readout_names
    sentence = f"the readouts are {', '.join(given)}, but readout_names says {', '.join(declared)}"
    require(given == declared, sentence)


@law
def saving(trial: Trial) -> None:
    """A saved model that is loaded answers bit for bit as it did when it was saved."""
    run = trial.whole
    for task, directory in zip(load_stream(run.settings), run.finished_tasks(), strict=False):
        tensors, _ = read_tensors(directory / PREDICTIONS)
        for name, ranking in load_learner(directory, device="cpu").rank(task.test).items():
            same = torch.equal(ranking.classes, tensors[f"{name}.classes"])
            same = same and torch.equal(ranking.scores, tensors[f"{name}.scores"])
            require(same, f"after task {task.number} readout '{name}' of the loaded model answers differently")


@law
def resuming(trial: Trial) -> None:
    """A run that was stopped anywhere ends bit for bit as one that was not, and repeats at most a step each time."""
    whole, stopped = outcome(trial.whole), outcome(trial.stopped)
    require(whole.keys() == stopped.keys(), "the resumed run wrote other files than the undisturbed one")
    for file in whole.keys() - {RESULT}:
        require(whole[file].keys() == stopped[file].keys(), f"{file} has other tensors after resuming")
        for name, tensor in whole[file].items():
            require(torch.equal(tensor, stopped[file][name]), f"'{name}' in {file} differs after resuming")
    require(whole[RESULT] == stopped[RESULT], f"{RESULT} differs after resuming")
    most = trial.undisturbed.steps + len(STOPS)
    took = trial.interrupted.steps
    require(took <= most, f"the resumed run took {took} steps where {most} would do: finished work was repeated")


@law
def small_tasks(trial: Trial) -> None:
    """Tasks of one class, and small tasks after a large one, are learnt."""
    for name in ("digits-b0-10", "digits-6/2"):
        memory = None if trial.budget is None else "3/class"
        learner = Learner(trial.method, epochs_scale=0.01, memory=memory, device="cpu")
        for task in make_stream(name)[:3]:
            learner.learn(replace(task, new=first_of_each_class(task.new, 8)))
            for readout, ranking in learner.rank(task.test).items():
                finite = bool(torch.isfinite(ranking.scores).all())
                require(
                    finite, f"after task {task.number} of {name} readout '{readout}' has scores that are not finite"
                )


def outcome(run: Run) -> dict[str, Any]:
    """All that a run leaves behind, but for clocks and versions: every tensor by file, and the result."""
    result = run.result()
    for entry in (result, *result["per_task"]):
        for clock in ("seconds", "learning_seconds", "versions"):
            entry.pop(clock, None)
    files = sorted(file for task in run.finished_tasks() for file in task.glob("*.safetensors"))
    return {RESULT: result, **{str(file.relative_to(run.directory)): read_tensors(file)[0] for file in files}}
