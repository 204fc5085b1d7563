"""DyTox: its loss against slow formulas, what each stage trains, and what a task leaves behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import drcil
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.methods import METHODS
from drcil.methods.catalog import resolve_settings
from drcil.methods.dytox import Dytox
from drcil.nets.task_attention import TaskNet
from drcil.streams.samplers import repeated, shuffle
from drcil.streams.stream import Stream, make_stream
from support import reference_losses as reference
from support.stage_recorder import Seen, losses, recorded

pytestmark = pytest.mark.numerical

OF_A_TASK = ("decoder.tokens.", "head.classifiers.")


@pytest.fixture(scope="module")
def digits() -> Stream:
    """Tasks of different sizes: by them losses are weighted."""
    return make_stream("digits-2/3")


@pytest.fixture(scope="module")
def learner() -> Learner:
    settings = {"later.batch_size": 64, "first.batch_size": 64, "repeats": 3}
    return Learner("dytox", epochs_scale=0.02, memory="40", device="cpu", settings=settings)


@pytest.fixture(scope="module")
def tasks(learner: Learner, digits: Stream) -> list[list[Seen]]:
    """The stages of two tasks."""
    return [recorded(learner, task) for task in digits[:2]]


def test_the_stages_are_those_of_the_paper(tasks: list[list[Seen]]) -> None:
    assert [[seen.stage.name for seen in task] for task in tasks] == [["first"], ["later", "finetuning"]]


@pytest.mark.parametrize("kind", ["cifar", "imagenet"])
def test_the_recipe_is_that_of_the_authors_on_one_gpu(kind: str) -> None:
    """Rates are 5e-4 and 5e-5 for 512 images."""
    settings = resolve_settings(METHODS["dytox"], kind, {})
    assert settings.augment is None
    assert settings.model_dump(include={"divergence", "repeats"}) == {"divergence": 0.1, "repeats": 3}
    for name, schedule in settings.schedules().items():
        assert (schedule.optimizer, schedule.weight_decay, schedule.decay) == ("adamw", 1e-6, "weights")
        assert (schedule.batch_size, schedule.clip) == (128, None)
        if name == "finetuning":
            assert (schedule.epochs, schedule.lr, schedule.curve) == (20, 5e-5 / 4, "constant")
        else:
            rates = (schedule.lr, schedule.lr_end, schedule.warmup_lr)
            assert (schedule.epochs, schedule.warmup, schedule.curve) == (500, 5, "cosine")
            assert rates == (5e-4 / 4, 1e-5, 1e-6)


@torch.no_grad()
def test_the_loss_of_a_later_task_is_that_of_the_paper(tasks: list[list[Seen]]) -> None:
    stage = tasks[1][0].stage
    net = stage.net
    assert isinstance(net, TaskNet)
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 4, 1])
    net.diverge(4)
    try:
        terms, output = losses(stage, images, labels), net(images)
    finally:
        net.divergence = None
    taught = stage.teachers["previous"](images).logits.fused
    logits = output.logits.fused
    expected = {
        "classification": (3 / 5, reference.binary_cross_entropy(logits, labels)),
        "distillation": (2 / 5, reference.kl_distillation(taught, logits[:, :2]) / 2),
        "divergence": (
            0.1,
            reference.binary_cross_entropy(output.logits.extras["divergence"], torch.tensor([0, 0, 1, 2, 3, 0])),
        ),
    }
    assert terms.keys() == expected.keys()
    for name, (weight, value) in expected.items():
        assert terms[name].weight == pytest.approx(weight)
        assert terms[name].value.item() == pytest.approx(value, rel=1e-4)


def test_old_tokens_and_classifiers_stay_bit_for_bit_while_a_task_is_learnt(tasks: list[list[Seen]]) -> None:
    later = tasks[1][0]
    old = {name for name in later.before if name.startswith(tuple(f"{own}0" for own in OF_A_TASK))}
    assert len(old) == 5
    assert later.changed() == later.trained == later.before.keys() - old


def test_fine_tuning_trains_all_but_the_encoder(tasks: list[list[Seen]]) -> None:
    first, (later, finetuning) = tasks[0][0], tasks[1]
    assert finetuning.frozen == {"backbone"}
    encoder = {name for name in finetuning.before if name.startswith("backbone.")}
    assert encoder
    assert finetuning.trained == finetuning.before.keys() - encoder
    assert not finetuning.changed() & encoder
    assert finetuning.changed() >= {name for name in finetuning.before if name.startswith(OF_A_TASK)}
    assert not first.frozen and not later.frozen
    assert not finetuning.stage.teachers and finetuning.stage.schedule.curve == "constant"


def test_fine_tuning_sees_equally_many_images_of_all_classes_in_random_order(tasks: list[list[Seen]]) -> None:
    stage = tasks[1][1].stage
    assert stage.data.counts(5).tolist() == [20] * 5
    assert stage.sampler is shuffle


def test_training_takes_copies_of_a_third_of_the_images(tasks: list[list[Seen]]) -> None:
    for seen in (tasks[0][0], tasks[1][0]):
        positions = seen.stage.sampler(seen.stage.data.labels, 1)
        assert np.array_equal(positions, repeated(seen.stage.data.labels, 1, repeats=3))


def test_the_divergence_head_is_there_for_one_stage(tasks: list[list[Seen]], learner: Learner) -> None:
    for seen in (stage for task in tasks for stage in task):
        has = any(name.startswith("divergence") for name in seen.before)
        assert has == (seen.stage.name == "later")
    assert not any("divergence" in name for name in learner.method.state().tensors)


def test_exemplars_are_chosen_by_the_embeddings_of_all_tasks(
    tasks: list[list[Seen]], learner: Learner, digits: Stream
) -> None:
    net = learner.method.herding_net()
    assert learner.engine.features(net, digits[0].new.subset(np.arange(3))).shape == (3, 2 * 48)


def test_a_saved_model_answers_alike(tasks: list[list[Seen]], learner: Learner, digits: Stream, tmp_path: Path) -> None:
    learner.save(tmp_path / "model")
    state = (tmp_path / "model" / "state.json").read_text()
    assert '"task-attention"' in state
    predicted = drcil.load(tmp_path / "model", device="cpu").rank(digits[1].test)["classifier"]
    assert torch.equal(predicted.scores, learner.rank(digits[1].test)["classifier"].scores)


def test_without_a_memory_there_is_nothing_to_fine_tune_on(digits: Stream) -> None:
    learner = Learner(
        "dytox", epochs_scale=0.01, memory="0", device="cpu", settings={"repeats": 1, "later.batch_size": 64}
    )
    learner.learn(digits[0])
    stages = [seen.stage for seen in recorded(learner, digits[1])]
    assert [stage.name for stage in stages] == ["later"]
    assert stages[0].sampler is shuffle


def test_a_net_without_tokens_is_refused_in_a_sentence(digits: Stream) -> None:
    learner = Learner("dytox", backbone="resnet-digits", epochs_scale=0.01, device="cpu")
    with pytest.raises(UserError, match="needs a transformer backbone, but 'resnet-digits' is a convolutional one"):
        learner.learn(digits[0])


@pytest.mark.slow
@pytest.mark.data
def test_two_tasks_of_cifar100(data_dir: Path) -> None:
    """A few epochs of small images, far from what it can: but all of it happens, and something is learnt."""
    schedules = {"first": {"epochs": 3}, "later": {"epochs": 2}, "finetuning": {"epochs": 2}}
    faster = {"lr": 1e-3, "batch_size": 64, "warmup": 0}
    settings = {f"{stage}.{key}": value for stage, own in schedules.items() for key, value in {**faster, **own}.items()}
    stream = make_stream("cifar100-b0-10", data_dir=data_dir, image_size=16)
    learner = Learner("dytox", backbone="convit-small", augment="randaugment", settings=settings, device="cpu")
    for task in stream[:2]:
        learner.learn(task)
    method = learner.method
    assert isinstance(method, Dytox)
    assert method.net.head.tasks == [10, 10]
    assert learner.evaluate(stream[1].test) > 10, "twice as much as by chance"
