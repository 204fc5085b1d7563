"""``mafdrc`` computes what the authors' program computed, and ``mafdrc-text`` what their paper says.

One optimiser step of adaptation and one of fusion are replayed against a slow transcription of the program (the file
``published.py`` beside this one), and facts about the published weights are explained by our code.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drcil import Learner
from drcil.data.dataset import CIFAR_SPEC
from drcil.data.image_set import ArraySource, ImageSet
from drcil.heads import DynamicResidualHead
from drcil.methods import METHODS
from drcil.methods.catalog import resolve_settings
from drcil.methods.maf import Maf, MafSettings, decayed
from drcil.models.model import new_model
from drcil.models.published_checkpoints import import_checkpoint, published_name, read_checkpoint
from drcil.nets.net import Net, Output
from drcil.settings import MemoryBudget, ModelSettings
from drcil.stages import Batch, Stage, Term
from drcil.streams.stream import Stream, Task, make_stream
from drcil.train import EngineSettings
from drcil.train.events import EpochDone, Event
from support.published_program import WEIGHTS, PublishedNet, adaptation_loss, fusion_losses, random_checkpoint

pytestmark = pytest.mark.numerical

PROGRAM, TEXT = "mafdrc", "mafdrc-text"
STEPS = 40
"""Per epoch: 5,000 images in batches of 128."""
UNTRAINED, SHRUNK = 0.13363, 0.49262
"""What is left of a scale of 1 in the published files: of the old branch after task 1, of B'_1 after task 2."""
BRIEF = {"first.epochs": 1, "adaptation.epochs": 1, "fusion.epochs": 1}


@dataclass
class Seen:
    """A stage as the engine was given it, before and after training, and its losses."""

    stage: Stage
    before: Net
    after: Net
    losses: Mapping[str, float] = field(default_factory=dict)


def watched(learner: Learner) -> dict[str, Seen]:
    """Fills with every stage the learner's engine trains from now on."""
    seen: dict[str, Seen] = {}
    fit = learner.engine.fit

    def remember(stage: Stage) -> None:
        before = copy.deepcopy(stage.net)
        losses: dict[str, float] = {}

        def listen(event: Event) -> None:
            if isinstance(event, EpochDone):
                losses.update(event.losses)

        learner.engine.listener = listen
        fit(stage)
        after = copy.deepcopy(stage.net)
        assert isinstance(before, Net) and isinstance(after, Net)
        seen[stage.name] = Seen(stage, before, after, losses)

    learner.engine.fit = remember  # type: ignore[method-assign]
    return seen


# One step of each stage, replayed -----------------------------------------------------------------------------------


def replay(checkpoint: Path, task: Task) -> None:
    """Learn a task in one step of adaptation and one of fusion, here and in the transcription, and compare them.

    Both compute in float64: in float32 another memory layout alone moves the first layers' gradients by a percent.
    """
    known = import_checkpoint(checkpoint)
    whole = {"adaptation.batch_size": len(task.new), "fusion.batch_size": len(task.new) + len(task.memory)}
    one_step = {**whole, "adaptation.epochs": 1, "fusion.epochs": 1}
    settings = ModelSettings(method=PROGRAM, augment="none", settings=one_step)
    learner = Learner.from_model(
        new_model(settings, task.spec, known.shape, known.memory.budget), EngineSettings(device="cpu")
    )
    learner.method.restore(known.method.state())
    learner.method.net.double()
    learner.engine.inference.normalised = normalised  # type: ignore[method-assign,assignment]
    seen = watched(learner)
    with learner.engine.task(task.number):
        learner.method.learn(task, learner.engine)
    adapted = compare_adaptation(checkpoint, task, seen["adaptation"])
    compare_fusion(checkpoint, task, adapted, seen["fusion"])


def compare_adaptation(path: Path, task: Task, ours: Seen) -> PublishedNet:
    """The previous model, its branches merged, on the new images: the whole network moves but for the old branch."""
    fresh = ours.before.head.get_submodule("classifier").get_parameter("weight")[task.old :].detach()
    assert fresh.abs().max() <= math.sqrt(3 / 64) and fresh.std() == pytest.approx(1 / 8, rel=0.1)
    net = loaded(path)
    net.grow(fresh)
    net.merge(task.number)
    before = copy.deepcopy(net.state_dict())
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1, momentum=0.9, weight_decay=5e-4)
    loss = adaptation_loss(net.train(), pixels(task.new), torch.from_numpy(task.new.labels), task.old)
    loss.backward()
    optimizer.step()
    assert ours.losses == pytest.approx({"adaptation": loss.item(), "total": loss.item()}, rel=1e-6)
    assert_same_step(ours, before, net.state_dict())
    return net.eval()


def compare_fusion(path: Path, task: Task, adapted: PublishedNet, ours: Seen) -> None:
    """The adapted model with fresh branch statistics, taught by the previous and the adapted model."""
    student = copy.deepcopy(adapted)
    student.BHO.reset_running_stats()
    student.BHN.reset_running_stats()
    before = copy.deepcopy(student.state_dict())
    images = torch.cat([pixels(task.new), pixels(task.memory)])
    labels = torch.from_numpy(np.concatenate([task.new.labels, task.memory.labels]))
    optimizer = torch.optim.SGD([p for p in student.parameters() if p.requires_grad], 0.1, momentum=0.9)
    terms = fusion_losses(student.train(), loaded(path).eval(), adapted, images, labels, task.old)
    loss = sum((WEIGHTS[name] * term for name, term in terms.items()), start=torch.zeros(()).double())
    loss.backward()
    optimizer.step()
    told = {name: term.item() for name, term in terms.items()}
    assert ours.losses == pytest.approx({**told, "total": loss.item()}, rel=1e-6)
    assert_same_step(ours, before, student.state_dict())


def assert_same_step(ours: Seen, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Every tensor of the net, batch statistics included, moved from the same place by the same amount."""
    start, end = ours.before.state_dict(), ours.after.state_dict()
    assert torch.equal(after["BHO.running_var"], after["BHN.running_var"])
    for name in start:
        theirs = published_name(name)
        origin, expected = before[theirs].double(), (after[theirs] - before[theirs]).double()
        change = (end[name] - start[name]).squeeze(0)
        assert (start[name].squeeze(0) - origin).norm() <= 1e-6 * origin.norm(), name
        assert (change - expected).norm() <= 1e-6 * expected.norm(), name


def loaded(path: Path) -> PublishedNet:
    """The published file in the transcribed network, whose layers have the names of the file."""
    tensors = read_checkpoint(path).tensors
    net = PublishedNet(len(tensors["fc.weight"]))
    net.load_state_dict(tensors)
    return net.double()


def pixels(images: ImageSet) -> Tensor:
    return normalised(images.read())


def normalised(raw: Tensor) -> Tensor:
    mean, std = (torch.tensor(numbers).double().view(1, 3, 1, 1) for numbers in (CIFAR_SPEC.mean, CIFAR_SPEC.std))
    return (raw.double() / 255 - mean) / std


def portion(images: ImageSet, first: int, counts: tuple[int, ...]) -> ImageSet:
    """The first so many images of each class."""
    chosen = [np.flatnonzero(images.labels == first + index)[:count] for index, count in enumerate(counts)]
    return images.subset(np.concatenate(chosen))


@pytest.mark.parametrize("number", [2, 3])
def test_a_step_of_each_stage_from_random_weights(number: int, tmp_path: Path) -> None:
    """Task 2 copies the branch and has the untrained one as a teacher; task 3 merges. Old and new images alternate."""
    checkpoint, old = tmp_path / "random.pth.tar", 4 * (number - 1)
    random_checkpoint(checkpoint, task=number - 1, classes=old)
    noise = torch.randint(256, (20, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = np.array([0, 1, 1, 2, 3, old - 1, *(old + np.arange(14) * 4 // 14)], dtype=np.int64)
    images = ImageSet.of(ArraySource(noise), np.arange(20, dtype=np.int64), labels)
    task = Task(
        number=number,
        classes=("a", "b", "c", "d"),
        sizes=(4,) * number,
        new=images.subset(labels >= old),
        test=images,
        validation=None,
        memory=images.subset(labels < old),
        budget=MemoryBudget.parse("8"),
        spec=CIFAR_SPEC,
    )
    replay(checkpoint, task)


@pytest.mark.data
def test_a_step_of_each_stage_from_the_published_weights(data_dir: Path) -> None:
    """96 new images and 32 exemplars, unequally many of each class, so that logit adjustment matters in every term."""
    stream = make_stream("cifar100-b0-10", data_dir=data_dir)
    new = portion(stream.task(2).new, 10, (6, 7, 8, 8, 9, 10, 11, 12, 12, 13))
    memory = portion(stream.task(1).new, 0, (5, 4, 4, 3, 3, 3, 3, 3, 2, 2))
    replay(published(data_dir, 1), replace(stream.task(2), new=new, memory=memory))


def published(data_dir: Path, number: int) -> Path:
    return data_dir / "drc-cil-checkpoints" / f"checkpoint_cifar100_1993_task{number}.pth.tar"


# What the published weights tell --------------------------------------------------------------------------------------


def test_weight_decay_explains_the_two_shrunken_branches() -> None:
    """Step by step as the optimiser does it; to half a percent by the closed form exp(-decay Σ lr / (1 - momentum))."""
    settings = resolve_settings(METHODS[PROGRAM], "cifar", {})
    assert isinstance(settings, MafSettings)
    for schedule, left in ((settings.first, UNTRAINED), (settings.adaptation, SHRUNK)):
        assert decayed(1.0, schedule, STEPS) == pytest.approx(left, rel=2e-5)
        rates = STEPS * sum(schedule.rate(epoch) for epoch in range(schedule.epochs))
        assert math.exp(-schedule.weight_decay * rates / (1 - schedule.momentum)) == pytest.approx(left, rel=5e-3)


@pytest.mark.data
def test_the_published_branches_are_merged_and_shrunken_as_we_say(data_dir: Path) -> None:
    first, second, third = (read_checkpoint(published(data_dir, number)).tensors for number in (1, 2, 3))
    assert first["BHO.weight"].tolist() == pytest.approx([UNTRAINED] * 64, rel=2e-5)
    assert not first["BHO.bias"].any()
    for ours, theirs in (("scale", "weight"), ("shift", "bias")):
        ratio = second[f"BHO.{theirs}"] / first[f"BHN.{theirs}"]
        assert ratio.tolist() == pytest.approx([SHRUNK] * 64, rel=2e-5)
        head = import_checkpoint(published(data_dir, 1)).method.net.head
        assert isinstance(head, DynamicResidualHead)
        head.grow(10)
        assert torch.equal(head.branches.stacks()[ours][0], first[f"BHN.{theirs}"])
        head = import_checkpoint(published(data_dir, 2)).method.net.head
        assert isinstance(head, DynamicResidualHead)
        head.grow(10)
        assert torch.equal(head.branches.stacks()[ours][0], third[f"BHO.{theirs}"])


@pytest.mark.parametrize("decaying", [False, True])
def test_the_past_decays_in_the_adaptation_of_task_2_where_that_is_asked_for(decaying: bool) -> None:
    stream = make_stream("digits-b0-5")
    learner = learnt(PROGRAM, stream, 1, decaying_past=decaying, **{"adaptation.epochs": 3})
    seen = watched(learner)
    for number in (2, 3):
        learner.learn(stream.task(number))
        before, after = seen["adaptation"].before.head, seen["adaptation"].after.head
        assert isinstance(before, DynamicResidualHead) and isinstance(after, DynamicResidualHead)
        schedule = seen["adaptation"].stage.schedule
        steps = math.ceil(len(stream.task(number).new) / schedule.batch_size)
        left = decayed(1.0, schedule, steps) if decaying and number == 2 else 1.0
        assert (left < 0.999) == (decaying and number == 2)
        for name, old in before.branches.stacks().items():
            assert torch.allclose(after.branches.stacks()[name], left * old, rtol=0 if left == 1 else 1e-5, atol=0)


# What is computed where the two differ --------------------------------------------------------------------------------


def learnt(method: str, stream: Stream, tasks: int, **settings: Any) -> Learner:
    learner = Learner(method, augment="none", device="cpu", settings={**BRIEF, **settings})
    for number in range(1, tasks + 1):
        learner.learn(stream.task(number))
    return learner


def terms_of(stage: Stage, images: Tensor, labels: Tensor) -> tuple[Output, dict[str, Output], dict[str, Term]]:
    """What a stage's net and teachers make of a batch, and the terms of its loss."""
    with torch.no_grad():
        output = stage.net.eval()(images)
        teachers = {name: teacher.eval()(images) for name, teacher in stage.teachers.items()}
        return output, teachers, dict(stage.objective(output, teachers, Batch(labels, labels)))


def test_mafdrc_text_computes_the_losses_of_the_paper() -> None:
    """Adaptation: CE of the mean logits over the new classes. Fusion: the paper's four sums, each over the batch."""
    stream = make_stream("digits-b0-5")
    learner = learnt(TEXT, stream, 1)
    seen = watched(learner)
    learner.learn(stream.task(2))
    images, labels, old = torch.randn(12, 1, 8, 8), torch.tensor([0, 1, 2, 3] * 3), 2
    output, _, terms = terms_of(seen["adaptation"].stage, images, new_labels := torch.tensor([2, 3] * 6))
    assert output.logits.old is not None and output.logits.new is not None
    mean = (output.logits.new + output.logits.old) / 2
    rows = zip(mean[:, old:], new_labels - old, strict=True)
    expected = -sum(torch.log_softmax(row, 0)[label] for row, label in rows) / 12
    assert terms.keys() == {"adaptation"}
    assert terms["adaptation"].value.item() == pytest.approx(float(expected), rel=1e-5)

    output, teachers, terms = terms_of(seen["fusion"].stage, images, labels)
    new, past = output.logits.new, output.logits.old
    assert new is not None and past is not None
    data = seen["fusion"].stage.data.labels
    shares = [float(np.mean(data < old))] * 2 + [float(np.mean(data >= old))] * 2
    shift = 1.2 * torch.tensor(shares).log()
    sums = dict.fromkeys(("fusion", "branch", "old", "new"), 0.0)
    for index, label in enumerate(labels.tolist()):
        mean = (new[index] + past[index]) / 2
        sums["fusion"] -= torch.log_softmax(mean + shift, 0)[label].item()
        sums["branch"] -= torch.log_softmax(new[index], 0)[label].item()
        if label < old:
            sums["branch"] -= torch.log_softmax(past[index, :old], 0)[label].item()
        sums["old"] += divergence(teachers["previous"].logits.fused[index], mean[:old])
        sums["new"] += divergence(teachers["adapted"].logits.fused[index, old:], mean[old:])
    assert {name: term.value.item() for name, term in terms.items()} == pytest.approx(
        {name: total / 12 for name, total in sums.items()}, rel=1e-4
    )
    assert {name: term.weight for name, term in terms.items()} == {"fusion": 0.8, "branch": 0.2, "old": 4.0, "new": 4.0}


def divergence(teacher: Tensor, student: Tensor) -> float:
    """KL( p(teacher) ‖ p(student) )."""
    target = torch.softmax(teacher, 0)
    return float(sum(p * (p.log() - q) for p, q in zip(target, torch.log_softmax(student, 0), strict=True)))


@pytest.mark.parametrize("method", [TEXT, PROGRAM])
def test_at_test_time_nothing_is_adjusted(method: str) -> None:
    """The scores are the fused logits as they are, although training shifted them by several units."""
    stream = make_stream("digits-b0-5")
    learner = learnt(method, stream, 1)
    seen = watched(learner)
    learner.learn(stream.task(2))
    assert isinstance(learner.method, Maf)
    shift = learner.method.adjustment(stream.task(2), seen["fusion"].stage.data).vector
    assert shift.max() - shift.min() > 1
    test = stream.task(2).test
    with torch.no_grad():
        logits = learner.method.net.eval()(learner.engine.inference.normalised(test.read())).logits
    fused = logits.new + logits.old
    expected = (fused if method == PROGRAM else fused / 2).topk(4, dim=1)
    ranking = learner.rank(test, best=4)["classifier"]
    assert torch.allclose(ranking.scores, expected.values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "stream", "task", "weight"),
    [
        (PROGRAM, "digits-6/2", 2, 5 * math.sqrt(8 / 2)),
        (PROGRAM, "digits-6/2", 3, 5 * math.sqrt(10 / 2)),
        (PROGRAM, "digits-b0-5", 3, None),
        (PROGRAM, "digits-b0-4", 4, None),
        ("maf", "digits-6/2", 2, 5 * math.sqrt(8 / 2)),
        (TEXT, "digits-6/2", 2, None),
    ],
)
def test_pod_weighs_5_times_the_root_of_all_over_new_classes(
    method: str, stream: str, task: int, weight: float | None
) -> None:
    """After a large base only: a last task that happens to be small is none of its business."""
    tasks = make_stream(stream)
    learner = learnt(method, tasks, task - 1)
    seen = watched(learner)
    learner.learn(tasks.task(task))
    output, teachers, terms = terms_of(seen["fusion"].stage, torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
    assert ("pod" in terms) == (weight is not None)
    if weight is not None:
        assert terms["pod"].weight == pytest.approx(weight)
        distances = []
        for ours, theirs in zip(output.features.stages, teachers["previous"].features.stages, strict=True):
            distances.append((profile(ours) - profile(theirs)).norm(dim=1).mean())
        assert terms["pod"].value.item() == pytest.approx(float(sum(distances) / 3), rel=1e-4)


def profile(maps: Tensor) -> Tensor:
    """Energy along height and width, flattened, of length one."""
    energy = torch.cat([(maps**2).sum(3).flatten(1), (maps**2).sum(2).flatten(1)], dim=1)
    length: Tensor = energy.norm(dim=1, keepdim=True)
    return energy / length
