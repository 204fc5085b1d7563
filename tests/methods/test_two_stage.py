"""Two-stage learning: what the second stage trains, what it leaves alone, and who sees the scales."""

from __future__ import annotations

import math

import pytest
import torch

import drcil
from drcil.cli import main
from drcil.errors import UserError
from drcil.heads import CosineHead, LinearHead
from drcil.learner import Learner
from drcil.methods import METHODS, method
from drcil.methods.catalog import entries_of, resolve_settings
from drcil.methods.nearest_mean import NearestMean
from drcil.methods.replay import Replay
from drcil.methods.two_stage import STAGE, ScalesPart, SecondStage, TwoStage
from drcil.nets.net import Output, Readout
from drcil.registry import needed_plugins
from drcil.streams.samplers import class_balanced
from support import reference_losses as reference
from support.stage_recorder import Seen, recorded
from support.two_tasks import ALL, BOTH, LABELS, OLD, Scene, answer, check_terms, few, two_tasks

pytestmark = pytest.mark.numerical

SCALES = "head.scales.values"


@pytest.fixture(scope="module")
def eeil() -> Scene:
    return two_tasks("eeil+two-stage")


@pytest.fixture(scope="module")
def lucir() -> Scene:
    return two_tasks("lucir+two-stage")


def second_stage(scene: Scene) -> Seen:
    return scene.stages[STAGE]


def test_the_second_stage_comes_last_in_every_task(eeil: Scene) -> None:
    assert list(eeil.stages) == ["first", STAGE, "later", "finetuning"]
    learner = Learner("eeil+two-stage", epochs_scale=0.01, device="cpu")
    tasks = list(map(few, drcil.stream("digits-4/2")[:2]))
    assert [seen.stage.name for seen in recorded(learner, tasks[0])] == ["first", STAGE]
    assert [seen.stage.name for seen in recorded(learner, tasks[1])] == ["later", "finetuning", STAGE]


def test_it_learns_from_new_images_and_memory_in_balance_by_cross_entropy_of_scaled_logits(eeil: Scene) -> None:
    stage = eeil.stage(STAGE)
    assert stage.data.counts(ALL).tolist() == BOTH
    assert stage.sampler is class_balanced and stage.augment and not stage.teachers
    assert stage.schedule == eeil.learner.method.settings.schedules()[STAGE]
    scales = second_stage(eeil).after[SCALES]
    logits = scales * answer(eeil.learner.method.net).logits.fused
    check_terms(stage, classification=(1, reference.cross_entropy(logits, LABELS)))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("eeil", {"classifier.weight", "classifier.bias"}),
        ("lucir", {"new_rows"}),
        ("podnet", {"new_rows"}),
        ("mafdrc", {"classifier.weight", "classifier.bias"}),
    ],
)
def test_only_the_newest_rows_and_the_scales_change(name: str, rows: set[str], request: pytest.FixtureRequest) -> None:
    scene = request.getfixturevalue(name) if name in ("eeil", "lucir") else two_tasks(f"{name}+two-stage")
    seen = second_stage(scene)
    names = {f"head.head.{row}" for row in rows}
    assert seen.trained == seen.changed() == {*names, SCALES}
    assert seen.frozen == {"backbone", "head.head"}
    assert (seen.before[SCALES] != seen.after[SCALES]).all()
    for row in names:
        before, after = seen.before[row], seen.after[row]
        new = len(before) - (ALL - OLD)
        assert torch.equal(before[:new], after[:new])
        assert (before[new:] != after[new:]).flatten(1 if before.ndim > 1 else 0).any(dim=-1).all()


def test_scales_start_at_one_and_go_on_from_task_to_task() -> None:
    learner = Learner("replay+two-stage", epochs_scale=0.03, device="cpu")
    first, second = (recorded(learner, task)[-1] for task in map(few, drcil.stream("digits-4/2")[:2]))
    assert first.before[SCALES].tolist() == [1.0] * OLD
    assert torch.equal(second.before[SCALES], torch.cat([first.after[SCALES], torch.ones(ALL - OLD)]))


def test_the_next_task_and_its_teacher_see_the_net_without_scales(eeil: Scene) -> None:
    teacher = eeil.stage("later").teachers["teacher"]
    assert isinstance(teacher.get_submodule("head"), LinearHead)
    assert torch.equal(answer(teacher).logits.fused, eeil.taught.logits.fused)


def test_only_logits_are_scaled_and_all_readouts_share_a_pass(lucir: Scene) -> None:
    learnt = lucir.learner.method
    readouts = learnt.readouts()
    assert tuple(readouts) == learnt.readout_names == ("classifier", "nme")
    assert readouts["classifier"].net is readouts["nme"].net
    plain, scaled = answer(learnt.net), answer(readouts["classifier"].net)
    scales = second_stage(lucir).after[SCALES]
    assert torch.equal(readouts["classifier"].scores(scaled), scales * plain.logits.fused)
    means = learnt.parts["means"]
    assert isinstance(means, NearestMean)
    assert torch.equal(readouts["nme"].scores(scaled), means(plain))
    assert isinstance(learnt.net.head, CosineHead)
    assert learnt.parameters() == learnt.net.size() + ALL


def test_exemplars_are_those_that_the_first_stage_would_choose() -> None:
    """The backbone is frozen in the second stage, so herding sees the same features."""
    task = few(drcil.stream("digits-4/2")[0])
    kept = []
    for one in ("replay", "replay+two-stage"):
        learner = Learner(one, epochs_scale=0.03, memory="3/class", device="cpu")
        learner.learn(task)
        kept.append(learner.memory.rows.tolist())
    assert kept[0] == kept[1]


def test_the_rate_of_rows_falls_as_a_cosine_and_that_of_scales_after_the_first_epoch_is_a_tenth(eeil: Scene) -> None:
    schedule = SecondStage()
    assert (schedule.epochs, schedule.momentum, schedule.optimizer) == (30, 0.9, "sgd")
    for epoch in range(30):
        assert schedule.rate(epoch) == pytest.approx(0.05 * (1 + math.cos(math.pi * epoch / 30)))
    rows, scales = eeil.stage(STAGE).groups or ()
    assert (rows.first_lr_factor or rows.lr_factor, rows.lr_factor) == (1.0, 1.0)
    assert (scales.first_lr_factor, scales.lr_factor) == (1.0, 0.1)
    assert rows.weight_decay is scales.weight_decay is None


@pytest.mark.parametrize(
    ("base", "kind", "decay", "batch"),
    [("eeil", "cifar", 1e-3, 128), ("lucir", "imagenet", 1e-4, 128), ("maf", "digits", 5e-4, 32)],
)
def test_decay_and_batches_are_those_of_the_first_task_unless_they_are_given(
    base: str, kind: str, decay: float, batch: int
) -> None:
    spec = METHODS[f"{base}+two-stage"]
    stage = resolve_settings(spec, kind, {}).schedules()[STAGE]
    assert (stage.weight_decay, stage.batch_size, stage.epochs) == (decay, batch, 30)
    given = {"two_stage.epochs": 1, "two_stage.weight_decay": 0.0, "first.batch_size": 7}
    stage = resolve_settings(spec, kind, given).schedules()[STAGE]
    assert (stage.weight_decay, stage.batch_size, stage.epochs) == (0.0, 7, 1)


def test_every_method_with_logits_takes_it_and_the_others_say_why_not() -> None:
    takers = {name for name, spec in METHODS.items() if "two-stage" in spec.addons}
    assert takers == set(METHODS) - {"icarl", "foster-b4", "simplecil", "ranpac"}
    spec = METHODS["mafdrc+two-stage"]
    assert issubclass(spec.build, TwoStage) and spec.build is METHODS["maf+two-stage+drc+la"].build
    assert spec.presets == METHODS["mafdrc"].presets
    for name, message in (
        ("icarl+two-stage", "'icarl' cannot be combined with 'two-stage': the second stage scales logits"),
        ("foster-b4+two-stage", "'foster-b4' cannot be combined with 'two-stage'"),
        ("eeil+two-stage+two-stage", r"'eeil\+two-stage' cannot be combined with 'two-stage': it has"),
        ("eeil+drc", "'eeil' cannot be combined with 'drc'; known: eeil\\+two-stage"),
    ):
        with pytest.raises(UserError, match=message):
            METHODS[name]


def test_a_method_with_its_own_readouts_must_declare_that_it_reads_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Halves(Replay):
        def readouts(self) -> dict[str, Readout]:
            def halved(output: Output) -> torch.Tensor:
                return output.logits.fused / 2

            return {"classifier": Readout(self.net, halved)}

    monkeypatch.setattr(METHODS, "_entries", dict(METHODS.items()))
    method("halves", paper="none", year=2026, recipe="replay")(Halves)
    with pytest.raises(UserError, match=r"'halves' cannot be combined with 'two-stage': .* the logits of its net"):
        METHODS["halves+two-stage"]
    monkeypatch.setattr(Halves, "reads_logits", True)
    assert needed_plugins(*entries_of("halves+two-stage")) == (__name__,)


def test_bad_settings_are_told_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["icarl+two-stage"], "does not classify by the logits"),
        (["eeil+two-stage", "--set", "two_stage.epochs=0"], "two_stage.epochs"),
        (["eeil+two-stage", "--set", "two_stage.scale_rate=0"], "two_stage.scale_rate"),
        (["eeil+two-stage", "--set", "two_stage=3"], "two_stage"),
        (["eeil", "--set", "two_stage.epochs=3"], "unknown setting of 'eeil'"),
    ):
        assert main(["run", *arguments, "digits-b0-5"]) == 2
        error = capsys.readouterr().err
        assert told in error and len(error.strip().splitlines()) <= 2


def test_scales_that_do_not_fit_are_refused(eeil: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eeil.learner.method.parts, "scales", ScalesPart(ALL - 1))
    with pytest.raises(UserError, match=f"there are scales for {ALL - 1} classes, but the net has {ALL}"):
        eeil.learner.method.readouts()
