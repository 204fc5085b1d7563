"""The engine's laws: what it trains and what it leaves alone, checked against plain loops."""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drcil.data import loader as loader
from drcil.data.dataset import DIGITS_SPEC
from drcil.data.datasets import digits
from drcil.data.image_set import ArraySource, ImageSet
from drcil.errors import UserError
from drcil.heads import DynamicResidualHead
from drcil.inference import Inference
from drcil.nets.backbone import WHOLE, backbone_for
from drcil.nets.net import Net, Output
from drcil.objectives import distillation
from drcil.process import keep_freed_memory, make_repeatable
from drcil.seeding import derive_seed, generator, seeded_torch
from drcil.stages import Batch, Losses, Objective, ParamGroup, Schedule, Step, StepHook, Term
from drcil.streams.samplers import shuffle
from drcil.train import SnapshotStore, TrainingEngine
from drcil.train.events import EpochDone, Event, StepDone
from drcil.train.loop import LossMeter
from support.engine import (
    FEW,
    SCHEDULE,
    assert_close,
    assert_equal,
    cross_entropy,
    fit,
    in_double,
    in_order,
    make_engine,
    make_net,
    make_stage,
    state,
    stopped_and_resumed,
)

pytestmark = pytest.mark.numerical


class TestTraining:
    def test_it_agrees_with_a_plain_loop(self) -> None:
        """Order, groups, rates, momentum and decay: two epochs of eight lines of torch."""
        with in_double():
            net, plain, engine = make_net(), make_net(), make_engine()
            head, backbone = list(net.head.parameters()), list(net.backbone.parameters())
            groups = [ParamGroup(backbone), ParamGroup(head, lr_factor=0.1, weight_decay=0.5, first_lr_factor=0.4)]
            fit(engine, make_stage(net, groups=groups, schedule=SCHEDULE))

            optimizer = torch.optim.SGD(
                [
                    {"params": list(plain.backbone.parameters()), "weight_decay": 1e-3},
                    {"params": list(plain.head.parameters()), "weight_decay": 0.5},
                ],
                lr=0.1,
                momentum=0.9,
            )
            for epoch in range(2):
                rate = 0.05 * (1 + math.cos(math.pi * epoch / 2))
                optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = rate, (0.1 if epoch else 0.4) * rate
                order = shuffle(FEW.labels, derive_seed(3, "task", 1, 0, "test", "epoch", epoch, "order"))
                for start in range(0, len(FEW), 32):
                    batch = FEW.subset(order[start : start + 32])
                    images = engine.inference.normalised(batch.read())
                    optimizer.zero_grad()
                    F.cross_entropy(plain(images).logits.fused, torch.from_numpy(batch.labels)).backward()
                    optimizer.step()
        assert_close(state(net), state(plain))

    def test_images_are_normalised_by_mean_and_deviation(self) -> None:
        pixels = FEW.read()
        expected = (pixels.double() / 255 - DIGITS_SPEC.mean[0]) / DIGITS_SPEC.std[0]
        found = make_engine().inference.normalised(pixels)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)

    def test_what_is_not_trained_is_left_alone(self) -> None:
        net = make_net()
        net.backbone.requires_grad_(False)
        before = state(net)
        groups = [ParamGroup(list(net.head.parameters()))]
        fit(make_engine(), make_stage(net, groups=groups, frozen=[net.backbone]))
        after = state(net)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {"head.classifier.weight", "head.classifier.bias"}

    def test_without_groups_all_that_requires_a_gradient_is_trained_and_statistics_follow_the_mode(self) -> None:
        net = make_net()
        for parameter in net.head.parameters():
            parameter.requires_grad_(False)
        before = state(net)
        fit(make_engine(), make_stage(net))
        after = state(net)
        unchanged = {name for name in before if torch.equal(before[name], after[name])}
        assert unchanged == {"head.classifier.weight", "head.classifier.bias"}

    def test_it_leaves_flags_and_gradients_as_they_were_and_the_net_in_evaluation_mode(self) -> None:
        net = make_net()
        flags = [parameter.requires_grad for parameter in net.parameters()]
        fit(make_engine(), make_stage(net, groups=[ParamGroup(list(net.head.parameters()))]))
        assert [parameter.requires_grad for parameter in net.parameters()] == flags
        assert all(parameter.grad is None for parameter in net.parameters())
        assert not any(module.training for module in net.modules())

    def test_frozen_parts_are_in_evaluation_mode_while_the_rest_trains(self) -> None:
        net = make_net()
        modes = []

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            modes.append((net.training, net.head.training, net.backbone.training))
            return cross_entropy(output, teachers, batch)

        fit(make_engine(), make_stage(net, objective=objective, frozen=[net.backbone]))
        assert set(modes) == {(True, True, False)}

    def test_a_teacher_does_not_change_not_even_if_it_is_the_student(self) -> None:
        net, other = make_net(), make_net()
        before = state(other)
        answers: dict[str, list[Tensor]] = {"self": [], "other": []}

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            for name, answer in teachers.items():
                assert not answer.logits.fused.requires_grad
                answers[name].append(answer.logits.fused)
            return cross_entropy(output, teachers, batch)

        stage = make_stage(net, objective=objective, teachers={"self": net, "other": other}, sampler=in_order)
        fit(make_engine(), stage)
        steps = len(answers["self"]) // 2
        for mine, others in zip(answers["self"], answers["other"], strict=True):
            assert torch.equal(mine, others)
        for first, second in zip(answers["self"][:steps], answers["self"][steps:], strict=True):
            assert torch.equal(first, second)
        assert_equal(before, state(other))
        assert other.training

    def test_folded_teachers_teach_what_unfolded_ones_do(self) -> None:
        class Plain(nn.Module):
            """A net that cannot be folded."""

            def __init__(self, net: Net) -> None:
                super().__init__()
                self.net = net

            def forward(self, images: Tensor) -> Output:
                output: Output = self.net(images)
                return output

        losses: dict[bool, list[float]] = {True: [], False: []}

        def objective_for(folded: bool) -> Objective:
            def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
                kept = distillation(output.logits.fused, teachers["teacher"].logits.fused, 2.0)
                losses[folded].append(float(kept.detach()))
                return {"distillation": Term(kept)}

            return objective

        schedule = SCHEDULE.model_copy(update={"epochs": 5, "lr": 0.02, "batch_size": 25})
        with in_double():
            teacher = make_net()
            fit(make_engine(), make_stage(teacher))
            for folded in (True, False):
                taught = {"teacher": teacher if folded else Plain(teacher)}
                stage = make_stage(make_net(), objective=objective_for(folded), teachers=taught, schedule=schedule)
                fit(make_engine("crop"), stage)
        assert len(losses[True]) == 20
        assert losses[True] == pytest.approx(losses[False], rel=1e-7)
        assert losses[True][-1] < losses[True][0]

    @pytest.mark.parametrize("together", [1, 3])
    def test_images_are_augmented_several_steps_together_by_the_key_of_the_first(
        self, together: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the net saw, against image-by-image padding and cutting."""
        monkeypatch.setattr(loader, "CHUNK_BYTES", together * 32 * 8 * 8)
        net = make_net()
        seen: list[Tensor] = []
        net.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
        batches: list[Tensor] = []

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            batches.append(batch.rows)
            return cross_entropy(output, teachers, batch)

        fit(make_engine("crop"), make_stage(net, objective=objective))
        assert [len(images) for images in seen] == [len(rows) for rows in batches] == [32, 32, 32, 4] * 2
        for epoch in range(2):
            for first in range(0, 4, together):
                steps = slice(4 * epoch + first, 4 * epoch + min(4, first + together))
                rows, images = torch.cat(batches[steps]).numpy(), torch.cat(seen[steps])
                draws = generator(3, "task", 1, 0, "test", "epoch", epoch, first, "augment")
                top, left = torch.randint(3, (2, len(rows)), generator=draws)
                for place, pixels in enumerate(FEW.source.read(rows)):
                    padded = F.pad(pixels[0], (1, 1, 1, 1))
                    cut = padded[top[place] : top[place] + 8, left[place] : left[place] + 8]
                    expected = (cut.double() / 255 - DIGITS_SPEC.mean[0]) / DIGITS_SPEC.std[0]
                    assert torch.allclose(images[place, 0].double(), expected, atol=1e-6)

    def test_every_image_is_seen_once_an_epoch_and_orders_differ(self) -> None:
        batches: list[Tensor] = []

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            assert torch.equal(batch.labels, torch.from_numpy(digits.load_digits().train.labels)[batch.rows])
            batches.append(batch.rows)
            return cross_entropy(output, teachers, batch)

        fit(make_engine(), make_stage(make_net(), objective=objective))
        first, second = torch.cat(batches[:4]), torch.cat(batches[4:])
        assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(FEW.rows.tolist())
        assert not torch.equal(first, second)
        assert [len(rows) for rows in batches[:4]] == [32, 32, 32, 4]

    def test_hooks_come_before_and_after_the_optimiser_with_the_moment(self) -> None:
        net = make_net()
        weight = net.head.get_parameter("classifier.weight")
        calls: list[tuple[str, int, int, float, float]] = []
        steps: list[Tensor] = []

        class Spy(StepHook):
            def before_step(self, moment: Step) -> None:
                assert weight.grad is not None
                self.before = weight.clone()
                calls.append(("before", moment.epoch, moment.step, moment.lr, _draw(moment)))

            def after_step(self, moment: Step) -> None:
                steps.append(self.before - weight)
                calls.append(("after", moment.epoch, moment.step, moment.lr, _draw(moment)))

        def _draw(moment: Step) -> float:
            return float(torch.rand((), generator=moment.generator))

        fit(make_engine(), make_stage(net, hooks=[Spy()]))
        moments = [(epoch, step, SCHEDULE.rate(epoch)) for epoch in range(2) for step in range(4)]
        assert [call[:4] for call in calls] == [(when, *moment) for moment in moments for when in ("before", "after")]
        assert len({call[4] for call in calls}) == len(calls), "every draw is its own"
        assert all(step.abs().max() > 0 for step in steps)

    def test_a_hook_can_change_gradients(self) -> None:
        net = make_net()
        before = state(net)

        class Forget(StepHook):
            def before_step(self, moment: Step) -> None:
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    parameter.grad.zero_()

        schedule = SCHEDULE.model_copy(update={"weight_decay": 0.0})
        fit(make_engine(), make_stage(net, hooks=[Forget()], schedule=schedule))
        for name, parameter in net.named_parameters():
            assert torch.equal(parameter, before[name])

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_loss_that_is_no_number_ends_the_stage_with_a_sentence(self, value: float) -> None:
        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            return {"bad": Term(output.logits.fused.sum() * 0 + value)}

        with pytest.raises(UserError, match=rf"stage 'test' of task 1 is {value} after epoch 1; a smaller .* than 0.1"):
            fit(make_engine(), make_stage(make_net(), objective=objective))

    def test_it_tells_every_step_and_the_averages_of_every_epoch(self) -> None:
        events: list[Event] = []
        values: list[float] = []

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            terms = cross_entropy(output, teachers, batch)
            values.append(float(terms["classification"].value.detach()) * len(batch.labels))
            return {**terms, "double": Term(terms["classification"].value, 2.0)}

        fit(make_engine(listener=events.append), make_stage(make_net(), objective=objective))
        assert [event.images for event in events if isinstance(event, StepDone)] == [32, 32, 32, 4] * 2
        epochs = [event for event in events if isinstance(event, EpochDone)]
        for number, epoch in enumerate(epochs):
            average = sum(values[4 * number : 4 * number + 4]) / 100
            assert epoch.losses == pytest.approx(
                {"classification": average, "double": average, "total": 3 * average}, rel=1e-5
            )
            assert (epoch.epoch, epoch.lr) == (number, SCHEDULE.rate(number))


def test_augmentation_that_grows_shows_each_image_plain_or_as_it_would_be_shown() -> None:
    """None in the first epoch, half of them in the second, then all."""

    def views(augment: str = "crop", growth: float = 0.5) -> Tensor:
        net, images = make_net(), list[Tensor]()
        net.backbone.register_forward_pre_hook(lambda _, inputs: images.append(inputs[0].clone()))
        schedule = SCHEDULE.model_copy(update={"epochs": 4, "augment_growth": growth})
        fit(make_engine(augment), make_stage(net, schedule=schedule))
        return torch.cat(images).view(4, 100, -1)

    plain, full, growing = views("none"), views("crop", 0.0), views()
    is_plain, is_full = (growing == plain).all(dim=2), (growing == full).all(dim=2)
    assert (is_plain | is_full).all()
    assert is_plain[0].all() and is_full[2:].all()
    # A shift by nothing is rare, so that an image that is not plain was augmented.
    assert 25 < (~is_plain[1]).sum() < 75
    assert (~is_plain[2:]).float().mean() > 0.8


QUICK = Schedule(
    epochs=4,
    lr=0.1,
    batch_size=32,
    weight_decay=1e-3,
    nesterov=True,
    curve="linear",
    changes="step",
    warmup_share=0.2,
)


def test_a_stage_with_a_rate_for_every_step_agrees_with_a_plain_loop() -> None:
    with in_double():
        net, plain, engine = make_net(), make_net().train(), make_engine()
        fit(engine, make_stage(net, schedule=QUICK, sampler=in_order))
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
        labels = torch.from_numpy(FEW.labels)
        images = engine.inference.normalised(FEW.read())
        for epoch, start in itertools.product(range(4), range(0, 100, 32)):
            optimizer.param_groups[0]["lr"] = QUICK.rate(epoch, start // 32, 4)
            optimizer.zero_grad()
            F.cross_entropy(plain(images[start : start + 32]).logits.fused, labels[start : start + 32]).backward()
            optimizer.step()
    assert_close(state(net), state(plain))


class Sixteen(TrainingEngine):
    """Half precision with a scaled loss, which works on a CPU but is slow."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.inference.precision = "16-mixed"
        self.make_scaler()

    def make_scaler(self) -> torch.amp.GradScaler:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        return self.scaler


def test_every_stage_begins_with_a_fresh_scale_of_the_loss() -> None:
    engine = make_engine("crop", kind=Sixteen)
    assert isinstance(engine, Sixteen)
    with engine.task(1):
        for name in ("one", "two"):
            engine.fit(make_stage(make_net(), name=name))
            assert engine.scaler.get_scale() == 256 * 2**2, "eight steps double it twice"


class Dropping(nn.Module):
    """A net with dropout, which is keyed by the step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, images: Tensor) -> Output:
        features = self.net.backbone(images)
        return Output(self.net.head(F.dropout(features.last, training=self.training)), features)


def frozen_net() -> Net:
    """A net of which the head alone is trained, on cached features."""
    net = make_net()
    net.backbone.frozen = WHOLE
    return net


GROWING = SCHEDULE.model_copy(update={"epochs": 4, "augment_growth": 0.5})
SMALL = digits.load_digits(image_size=4).train.subset(np.arange(0, 97))
RESUMED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], dict[str, Any], int]] = {
    # Name: net, options of the stage and of the engine, batches that are augmented together.
    **{f"dropout, {together} batches at once": (Dropping, {}, {}, together) for together in (1, 2, 3, 100)},
    "growing augmentation": (make_net, {"schedule": GROWING}, {}, 2),
    "a rate for every step": (make_net, {"schedule": QUICK}, {"augment": "none"}, 2),
    "a scaled loss": (make_net, {}, {"kind": Sixteen}, 2),
    "cached features": (frozen_net, {}, {"augment": "none"}, 2),
    "a last image that joins a batch": (make_net, {"data": SMALL}, {"augment": "none"}, 2),
    "parts of batches": (make_net, {}, {"accumulate": 2}, 2),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_stage_resumes_bit_for_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between batches that are augmented together, and at the end of an epoch."""
    new_net, stage_options, engine_options, together = RESUMED[name]
    monkeypatch.setattr(loader, "CHUNK_BYTES", together * 32 * 8 * 8)
    nets: list[nn.Module] = []

    def train(snapshots: SnapshotStore, listener: Callable[[Event], None]) -> None:
        nets.append(new_net())
        engine = make_engine(**{"augment": "crop", "journal": snapshots, "listener": listener, **engine_options})
        with engine.task(1):
            for stage in ("first", "second"):
                engine.fit(make_stage(nets[-1], name=stage, **stage_options))

    train(SnapshotStore(), lambda event: None)
    # At the first step of an epoch, in its midst, and in the second stage.
    stopped_and_resumed(train, tmp_path, [4, 2, 1, 6])
    assert_equal(state(nets[0]), state(nets[-1]))


def test_hooks_see_gradients_as_the_objective_made_them_also_if_the_loss_is_scaled() -> None:
    norms: dict[type[TrainingEngine], float] = {}

    for kind in (TrainingEngine, Sixteen):
        net = make_net()

        class Spy(StepHook):
            def before_step(self, moment: Step, net: Net = net, kind: type[TrainingEngine] = kind) -> None:
                gradient = net.head.get_parameter("classifier.weight").grad
                assert gradient is not None
                norms.setdefault(kind, float(gradient.norm()))

        fit(make_engine(kind=kind), make_stage(net, hooks=[Spy()]))
    assert norms[Sixteen] == pytest.approx(norms[TrainingEngine], rel=0.02)


@pytest.mark.parametrize("kind", [TrainingEngine, Sixteen])
def test_the_optimiser_gets_gradients_of_at_most_the_norm_that_was_asked_for(kind: type[TrainingEngine]) -> None:
    """Hooks see them before: what they add is clipped too. All are shortened alike, by what is in excess."""
    net = make_net()
    before, after = [], []

    class Longer(StepHook):
        def before_step(self, moment: Step) -> None:
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(3)
            before.append({name: own.grad.clone() for name, own in net.named_parameters() if own.grad is not None})

        def after_step(self, moment: Step) -> None:
            after.append({name: own.grad.clone() for name, own in net.named_parameters() if own.grad is not None})

    clip = 9.0
    fit(make_engine(kind=kind), make_stage(net, hooks=[Longer()], schedule=SCHEDULE.model_copy(update={"clip": clip})))
    norms = [float(torch.cat([one.flatten() for one in step.values()]).norm()) for step in before]
    assert min(norms) < clip < max(norms), "else nothing is tested"
    for norm, whole, clipped in zip(norms, before, after, strict=True):
        for name, gradient in clipped.items():
            torch.testing.assert_close(gradient, whole[name] * min(1, clip / norm), rtol=1e-4, atol=1e-6)


def test_clipping_agrees_with_a_plain_loop() -> None:
    with in_double():
        net, plain, engine = make_net(), make_net(), make_engine()
        schedule = SCHEDULE.model_copy(update={"lr": 0.02, "batch_size": 50, "epochs": 1, "clip": 0.5})
        fit(engine, make_stage(net, schedule=schedule, sampler=in_order))
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
        for start in range(0, len(FEW), 50):
            batch = FEW.subset(np.arange(start, start + 50))
            images = engine.inference.normalised(batch.read())
            optimizer.zero_grad()
            F.cross_entropy(plain(images).logits.fused, torch.from_numpy(batch.labels)).backward()
            norm = torch.cat([own.grad.flatten() for own in plain.parameters() if own.grad is not None]).norm()
            assert norm > 0.5
            for parameter in plain.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5 / norm)
            optimizer.step()
    assert_close(state(net), state(plain))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_of_weights_spares_biases_norms_positions_and_gates(optimizer: str) -> None:
    """With a loss that has no gradient, decay is all that happens."""
    with seeded_torch("test"):
        net = Net(backbone_for("convit-digits", 1, 8), DynamicResidualHead(48, branch="bn"))
        net.head.grow(10)

    def nothing(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
        return {"nothing": Term(output.logits.fused.sum() * 0)}

    options = {"decay": "weights", "optimizer": optimizer, "weight_decay": 0.1, "epochs": 1}
    groups = [ParamGroup([own for name, own in net.named_parameters() if name != "head.classifier.bias"])]
    groups.append(ParamGroup([net.head.get_parameter("classifier.bias")], weight_decay=0.2))
    torch.nn.init.ones_(net.head.get_parameter("classifier.bias"))
    before = state(net)
    fit(make_engine(), make_stage(net, objective=nothing, groups=groups, schedule=SCHEDULE.model_copy(update=options)))
    changed = {name for name, own in net.named_parameters() if not torch.equal(own, before[name])}
    layers = ("attention.content", "attention.value", "attention.position", "attention.out")
    assert changed == {
        "backbone.patches.weight",
        *(f"backbone.blocks.{block}.{layer}.weight" for block in range(2) for layer in layers),
        *(f"backbone.blocks.{block}.perceptron.{layer}.weight" for block in range(2) for layer in ("widen", "narrow")),
        "head.classifier.weight",
        "head.classifier.bias",
    }, "and a group with a decay of its own keeps it"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "cuda"}, "no CUDA device found on this machine"),
        ({"device": "mps"}, "no MPS device found on this machine"),
        ({"device": "cpu", "precision": "16-mixed"}, "--precision 16-mixed needs a GPU"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="has a GPU")
def test_devices_that_are_not_there_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_engine(**options)


def test_chained_images_in_memory_go_to_the_device() -> None:
    device = torch.device("meta")
    again = ImageSet.of(ArraySource(FEW.read()), np.arange(len(FEW)), FEW.labels)
    near = Inference(device, DIGITS_SPEC.mean, DIGITS_SPEC.std).reader(FEW.join(again)).images
    assert len(near.sources) == 2
    assert near.read(np.array([0, 150])).device == device
    assert np.array_equal(near.labels, np.concatenate([FEW.labels, FEW.labels]))


def test_cuda_is_told_to_repeat_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        make_repeatable()
        assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        kernels = torch.backends.cuda
        assert kernels.math_sdp_enabled() and not kernels.flash_sdp_enabled()
        assert not kernels.mem_efficient_sdp_enabled() and not kernels.cudnn_sdp_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        for name in ("flash", "mem_efficient", "cudnn"):
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(True)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG")


@pytest.mark.slow
def test_a_compiled_stage_learns_what_a_plain_one_does() -> None:
    losses: list[list[float]] = [[], []]

    def objective_for(index: int) -> Objective:
        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            kept = distillation(output.logits.fused, teachers["teacher"].logits.fused, 2.0)
            losses[index].append(float(kept.detach()))
            return {**cross_entropy(output, teachers, batch), "distillation": Term(kept)}

        return objective

    schedule = SCHEDULE.model_copy(update={"lr": 0.02})
    with in_double():
        nets = [make_net(), make_net()]
        for index, net in enumerate(nets):
            stage = make_stage(net, objective=objective_for(index), teachers={"teacher": make_net()}, schedule=schedule)
            fit(make_engine("crop", compile=bool(index)), stage)
    assert losses[0] == pytest.approx(losses[1], rel=1e-7)
    assert_close(state(nets[0]), state(nets[1]))


def test_compiling_without_a_compiler_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: Any) -> Any:
        raise RuntimeError("No working C++ compiler found\nand much more")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(UserError, match=r"--compile cannot be used .* \(No working C\+\+ compiler found\); install a"):
        make_engine(compile=True)


@pytest.mark.parametrize(
    ("most", "asked"),
    [
        (1 << 40, [(-3, 1 << 30), (-1, 2**31 - 1), (-2, 1 << 26)]),
        (32 << 20, [(-3, 1 << 30), (-3, 32 << 20), (-1, 2**31 - 1), (-2, 1 << 26)]),
        (0, [(-3, 1 << 30), (-3, 32 << 20)]),
    ],
)
def test_a_c_library_that_keeps_only_small_blocks_is_asked_for_these(
    most: int, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that keeps none at all is left as it is."""
    calls: list[tuple[int, int]] = []

    def mallopt(option: int, size: int) -> int:
        calls.append((option, size))
        return int(option != -3 or size <= most)

    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    monkeypatch.setattr("os.name", "posix")
    keep_freed_memory()
    assert calls == asked


def test_a_single_last_image_joins_the_batch_before_it_only_where_it_must() -> None:
    steps: list[int] = []

    def listener(event: Event) -> None:
        if isinstance(event, StepDone):
            steps.append(event.images)

    fit(make_engine(listener=listener), make_stage(make_net(), data=SMALL))
    fit(make_engine(listener=listener), make_stage(make_net(), data=FEW.subset(np.arange(97))))
    assert steps == [32, 32, 33] * 2 + [32, 32, 32, 1] * 2


class TestLossMeter:
    STEPS = st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 7), st.integers(1, 9)), min_size=1, max_size=6)

    @given(STEPS)
    def test_terms_are_averaged_over_what_they_count(self, steps: list[tuple[float, int, int]]) -> None:
        meter = LossMeter()
        for value, count, size in steps:
            terms = {"part": Term(torch.tensor(value), 0.5), "all": Term(torch.tensor(value))}
            counts = torch.tensor([count, size])
            meter.add(terms, value * counts, counts)
        counted = sum(count for _, count, _ in steps)
        part = sum(value * count for value, count, _ in steps) / max(counted, 1)
        whole = sum(value * size for value, _, size in steps) / sum(size for _, _, size in steps)
        expected = {"part": part, "all": whole, "total": 0.5 * part + whole}
        assert meter.averages() == pytest.approx(expected, abs=1e-4)
        again = LossMeter()
        again.restore(meter.state(), torch.device("cpu"))
        assert again.averages() == meter.averages()

    def test_losses_are_fetched_only_now_and_then(self) -> None:
        meter = LossMeter(seconds=1000)
        meter.add({"a": Term(torch.tensor(1.0))}, torch.ones(1), torch.ones(1))
        assert meter.recent() is None
        meter.seconds = 0
        assert meter.recent() == {"a": 1.0, "total": 1.0}


def test_an_objective_without_a_term_is_refused() -> None:
    with pytest.raises(ValueError, match="no loss term"):
        fit(make_engine(), make_stage(make_net(), objective=lambda output, teachers, batch: {}))


def test_a_stage_is_recognised_by_what_it_begins_with(tmp_path: Path) -> None:
    """Finished stages are restored; not if the schedule, the data, a group's rate or the starting weights differ."""
    base = make_stage(make_net(), schedule=SCHEDULE.model_copy(update={"epochs": 1}))
    fit(make_engine("none", SnapshotStore(tmp_path / "kept", 0)), base)

    def restored(**changes: Any) -> bool:
        events: list[Event] = []
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "kept", tmp_path / "copy")
        engine = make_engine("none", SnapshotStore(tmp_path / "copy", 0), listener=events.append)
        fit(engine, replace(base, **{"net": make_net(), **changes}))
        return not any(isinstance(event, StepDone) for event in events)

    same, slower, late, other = make_net(), make_net(), make_net(), make_net()
    assert restored(net=same)
    assert_equal(state(base.net), state(same))
    assert not restored(schedule=SCHEDULE)
    assert not restored(data=FEW.subset(np.arange(99)))
    assert not restored(net=slower, groups=[ParamGroup(list(slower.parameters()), lr_factor=0.5)])
    assert not restored(net=late, groups=[ParamGroup(list(late.parameters()), first_lr_factor=0.5)])
    with torch.no_grad():
        other.head.get_parameter("classifier.bias")[0] += 1e-6
    assert not restored(net=other)
