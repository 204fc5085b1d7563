"""Freezing: what is frozen stays as it is in every stage of every method, and is looked at once."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import drcil
from drcil.cli import main
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.nets.backbone import (
    BACKBONES,
    Features,
    backbone_for,
    build_backbone,
    freeze,
    frozen_modules,
    frozen_parameters,
)
from drcil.nets.net import Net, Output
from drcil.nets.resnet import ResNet
from drcil.stages import Batch, Losses, ParamGroup, Stage, Term
from drcil.streams.memory import first_of_each_class
from drcil.streams.stream import Task, make_stream
from drcil.testing import LAWS, Trial
from drcil.train import SnapshotStore
from drcil.train.events import Event, StepDone
from drcil.train.optimizers import make_optimizer
from support.engine import (
    FEW,
    SCHEDULE,
    assert_close,
    assert_equal,
    fit,
    in_double,
    make_engine,
    make_net,
    make_stage,
    state,
    stopped_and_resumed,
)
from support.stage_recorder import recorded

pytestmark = pytest.mark.numerical


def frozen_net(upto: str = "backbone") -> Net:
    net = make_net()
    freeze(net.backbone, upto)
    return net


@contextmanager
def seen_images() -> Iterator[list[Tensor]]:
    """All that ResNets are shown within the block, but for images without content."""
    seen: list[Tensor] = []
    forward = ResNet.forward

    def watched(net: ResNet, images: Tensor) -> Features:
        if images.abs().max() > 0:
            seen.append(images.detach().clone())
        return forward(net, images)

    with mock.patch.object(ResNet, "forward", watched):
        yield seen


class TestParts:
    @pytest.mark.parametrize("name", BACKBONES)
    def test_every_backbone_says_its_parts_and_the_last_one_is_all_of_it(self, name: str) -> None:
        backbone = backbone_for(name, 3, 32)
        assert len(backbone.parts()) >= 3
        freeze(backbone, backbone.parts()[-1])
        assert backbone.frozen == "backbone"
        counts = []
        for part in backbone.parts()[:-1]:
            freeze(backbone, part)
            counts.append(sum(parameter.numel() for parameter in frozen_parameters(backbone)))
        assert counts == sorted({*counts}), "each part has parameters of its own"

    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("resnet32", ("stem", "stages.0", "stages.1", "stages.2")),
            ("convit-digits", ("patches", "blocks.0", "blocks.1")),
        ],
    )
    def test_parts_are_named_from_the_input_on(self, name: str, parts: tuple[str, ...]) -> None:
        assert backbone_for(name, 1, 8).parts() == parts

    def test_a_part_is_frozen_with_all_before_it(self) -> None:
        backbone = build_backbone("resnet-digits", 1)
        freeze(backbone, "stages.0")
        assert frozen_modules(backbone) == [backbone.get_submodule("stem"), backbone.get_submodule("stages.0")]
        learning = {*backbone.get_submodule("stages.1").parameters(), *backbone.get_submodule("stages.2").parameters()}
        assert {*backbone.parameters()} - learning == {*frozen_parameters(backbone)}

    @pytest.mark.parametrize("upto", ["backbone", "stages.2", "stages"])
    def test_the_last_part_and_a_name_for_several_stand_for_all(self, upto: str) -> None:
        backbone = build_backbone("resnet-digits", 1)
        freeze(backbone, upto)
        assert frozen_modules(backbone) == [backbone]
        assert frozen_parameters(backbone) == list(backbone.parameters())

    def test_parameters_of_no_part_are_frozen_with_any(self) -> None:
        backbone = build_backbone("resnet-digits", 1)
        backbone.positions = nn.Parameter(torch.zeros(3))
        freeze(backbone, "stem")
        assert backbone.positions in set(frozen_parameters(backbone))

    def test_an_unknown_part_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(UserError, match=r"no part 'stages.9' .* it has: stem, stages.0, stages.1, stages.2, back"):
            freeze(build_backbone("resnet-digits", 1), "stages.9")

    def test_a_copy_is_frozen_like_the_original(self) -> None:
        assert copy.deepcopy(frozen_net("stem")).backbone.frozen == "stem"


class TestStages:
    @pytest.mark.parametrize(("upto", "still"), [("stem", ("stem",)), ("backbone", ("stem", "stages"))])
    def test_what_is_frozen_is_in_no_group_and_does_not_change_whatever_the_method_asks(
        self, upto: str, still: tuple[str, ...]
    ) -> None:
        """Neither by gradient, nor by weight decay, nor by batch statistics; and the rest learns."""
        net = frozen_net(upto)
        net.requires_grad_(True)
        before = state(net)
        groups = [
            ParamGroup(list(net.backbone.parameters()), weight_decay=0.1),
            ParamGroup(list(net.head.parameters())),
        ]
        stage = make_stage(net, groups=groups)
        optimizer = make_optimizer(stage, fused=False)
        held = sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"])
        frozen = sum(parameter.numel() for parameter in frozen_parameters(net.backbone))
        assert held == sum(parameter.numel() for parameter in net.parameters()) - frozen
        fit(make_engine("crop"), stage)
        after = state(net)
        for name, tensor in before.items():
            assert torch.equal(tensor, after[name]) == name.startswith(tuple(f"backbone.{part}" for part in still)), (
                name
            )

    def test_a_stage_of_which_nothing_is_left_to_train_is_passed_over(self) -> None:
        net = frozen_net()
        before = state(net)
        fit(make_engine(), make_stage(net, groups=[ParamGroup(list(net.backbone.parameters()))]))
        assert_equal(before, state(net))

    def test_a_stage_with_other_parts_frozen_is_another_stage(self, tmp_path: Path) -> None:
        def steps(net: Net) -> int:
            events: list[Event] = []
            fit(make_engine("crop", SnapshotStore(tmp_path, 0), events.append), make_stage(net))
            return sum(isinstance(event, StepDone) for event in events)

        assert steps(frozen_net("stem")) == 8
        assert steps(frozen_net("stem")) == 0
        assert steps(frozen_net("stages.0")) == 8


class TestKeptFeatures:
    HALF = SCHEDULE.model_copy(update={"batch_size": 25, "epochs": 6})

    def trained(self, make: Callable[[Net], Stage], augment: str = "none", **options: Any) -> tuple[Net, int]:
        """A frozen net as a stage made it, and how many images its backbone saw."""
        net = frozen_net()
        with seen_images() as seen:
            fit(make_engine(augment, **options), make(net))
        return net, sum(map(len, seen))

    def test_each_image_is_looked_at_once_and_the_head_learns_the_same(self) -> None:
        """Also from a teacher with the same backbone."""
        with in_double(), torch.no_grad():
            teacher = frozen_net()
            teacher.head.get_parameter("classifier.weight").mul_(2)

        def make(net: Net) -> Stage:
            def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
                taught = teachers["teacher"].logits.fused.softmax(dim=1)
                loss = nn.functional.cross_entropy(output.logits.fused, taught)
                return {"distillation": Term(loss)}

            return make_stage(net, schedule=self.HALF, objective=objective, teachers={"teacher": teacher})

        with in_double():
            kept, once = self.trained(make)
            plain, often = self.trained(make, kept_features=0)
            start = make_net().head.get_parameter("classifier.weight")
        assert once == len(FEW)
        assert often == 2 * len(FEW) * self.HALF.epochs
        assert_close(state(plain), state(kept))
        assert (kept.head.get_parameter("classifier.weight") - start).abs().max() > 0.01

    def test_heads_that_read_maps_learn_the_same_too(self) -> None:
        learners = {}
        for kept in ("1GB", 0):
            with in_double():
                learner = Learner(
                    "mafdrc", freeze="backbone", augment="none", epochs_scale=0.05, memory=20, device="cpu",
                    kept_features=kept,
                )  # fmt: skip
                for task in small_tasks():
                    learner.learn(task)
            learners[kept] = state(learner.method.net)
        assert_close(learners["1GB"], learners[0])

    @pytest.mark.parametrize("method", ["replay", "icarl", "lucir", "maf"])
    def test_in_a_task_every_image_goes_through_the_backbone_once(self, method: str) -> None:
        """For all steps of all stages, and for what chooses exemplars."""
        learner = Learner(method, freeze="backbone", augment="none", epochs_scale=0.05, memory=20, device="cpu")
        for task in small_tasks():
            kept = 0 if learner.sizes == () else len(learner.memory.rows)
            with seen_images() as seen:
                learner.learn(task)
            assert len(torch.cat(seen)) == len(task.new) + kept

    def test_augmented_images_are_looked_at_at_every_step(self) -> None:
        assert self.trained(make_stage, "crop")[1] == 2 * len(FEW)
        assert self.trained(lambda net: make_stage(net, augment=False), "crop")[1] == len(FEW)

    def test_so_are_those_of_a_backbone_that_learns_and_for_objectives_that_read_maps(self) -> None:
        assert self.trained(lambda net: make_stage(net, reads_maps=True))[1] == 2 * len(FEW)
        with seen_images() as seen:
            fit(make_engine(), make_stage(frozen_net("stages.1")))
        assert sum(map(len, seen)) == 2 * len(FEW)

    def test_a_stage_that_freezes_its_backbone_itself_is_served_as_well(self) -> None:
        net = make_net()
        with seen_images() as seen:
            fit(make_engine(), make_stage(net, groups=[ParamGroup(list(net.head.parameters()))], frozen=[net.backbone]))
        assert sum(map(len, seen)) == len(FEW)

    def test_beyond_the_limit_features_are_computed_at_every_step(self) -> None:
        bytes_of_vector = 64 * 4
        assert self.trained(make_stage, kept_features=len(FEW) * bytes_of_vector)[1] == len(FEW)
        assert self.trained(make_stage, kept_features=len(FEW) * bytes_of_vector - 1)[1] == 2 * len(FEW)

    def test_interrupted_stages_end_bit_for_bit_as_undisturbed_ones(self, tmp_path: Path) -> None:
        """Two stages on images that overlap: the backbone sees the same batches although the first is restored."""
        nets: list[Net] = []
        batches: list[list[int]] = []

        def make(journal: SnapshotStore, listener: Callable[[Event], None]) -> None:
            nets.append(frozen_net())
            engine = make_engine("none", journal, listener, inference_batch=48)
            with engine.task(1), seen_images() as seen:
                engine.fit(make_stage(nets[-1], name="one", data=FEW.subset(np.arange(60))))
                engine.fit(make_stage(nets[-1], name="two"))
                batches.append([len(images) for images in seen])

        stopped_and_resumed(make, tmp_path / "whole", [])
        stopped_and_resumed(make, tmp_path / "stopped", [3, 2, 3])
        assert_equal(state(nets[0]), state(nets[-1]))
        assert batches == [[48, 12, 40]] * 2


def small_tasks() -> list[Task]:
    """Two tasks of digits, thirty images of each class."""
    return [replace(task, new=first_of_each_class(task.new, 30)) for task in make_stream("digits-b0-5")[:2]]


def kinds() -> Iterator[object]:
    """Methods that build, copy, freeze or group parameters in ways of their own, and parts to freeze."""
    for method in ("der", "foster", "mecdrc", "mafdrc", "eeil", "bic", "podnet", "wa", "eeil+two-stage"):
        yield pytest.param(method, "stages.0")
        yield pytest.param(method, "backbone", marks=() if method in ("mecdrc", "podnet") else pytest.mark.slow)


class TestMethods:
    @pytest.mark.parametrize(("method", "upto"), list(kinds()))
    def test_nothing_that_is_frozen_ever_changes(self, method: str, upto: str) -> None:
        """Every backbone that a method has, in every stage of two tasks, is as the first one was."""
        learner = Learner(method, freeze=upto, epochs_scale=0.01, memory=20, device="cpu")
        still = ("stem.", "stages.0.") if upto == "stages.0" else ("stem.", "stages.")
        first: dict[str, Tensor] = {}
        for task in small_tasks():
            for seen in recorded(learner, task):
                for name, tensor in seen.after.items():
                    path = name.split("members.")[-1].partition(".")[2] if "members." in name else name[9:]
                    if name.startswith("backbone.") and path.startswith(still):
                        assert torch.equal(tensor, first.setdefault(path, seen.before[name])), (seen.stage.name, name)
        assert first

    def test_a_loaded_model_goes_on_frozen(self, tmp_path: Path) -> None:
        one, two = small_tasks()
        learner = Learner("icarl", freeze="stages.0", epochs_scale=0.01, memory=20, device="cpu")
        learner.learn(one)
        learner.save(tmp_path / "model")
        before = state(learner.method.net.backbone)
        again = drcil.load(tmp_path / "model", device="cpu")
        again.learn(two)
        after = state(again.method.net.backbone)
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert same == {name for name in before if name.startswith(("stem.", "stages.0."))}

    @pytest.mark.parametrize("augment", ["none", pytest.param("crop", marks=pytest.mark.slow)])
    def test_it_keeps_the_laws(self, augment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "fsync", lambda handle: None)  # Only a power cut would feel the difference.
        trial = Trial("maf", tmp_path, freeze="backbone", augment=augment)
        for law in ("frozen parts", "saving", "resuming"):
            LAWS[law](trial)


class TestCommandLine:
    def test_a_run_says_that_random_weights_are_frozen_and_a_wrong_part_what_there_is(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        short = [
            "--epochs-scale",
            "0.01",
            "--tasks",
            "1",
            "--quiet",
            "--augment",
            "none",
            "--out",
            str(tmp_path / "run"),
        ]
        command = ["run", "replay", "digits-b0-5", *short, "--freeze"]
        assert main([*command, "stages.7"]) == 2
        assert "no part 'stages.7'" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()
        assert main([*command, "backbone"]) == 0
        assert "the backbone is frozen with random weights" in capsys.readouterr().err
        assert 'freeze = "backbone"' in (tmp_path / "run" / "config.toml").read_text()

    def test_a_check_of_an_unknown_part_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check", "replay", "--freeze", "head"]) == 2
        assert "no part 'head'" in capsys.readouterr().err
