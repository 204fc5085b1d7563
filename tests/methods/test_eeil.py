"""EEIL: distillation task by task, and fine-tuning on a balanced set that keeps what was just learnt."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import drcil
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.methods.eeil import GradientNoise
from drcil.nets.net import Output
from drcil.objectives import distillation, taskwise_distillation
from drcil.seeding import generator
from drcil.stages import Batch, Step
from drcil.streams.stream import Stream
from support.engine import make_net
from support.stage_recorder import Seen, losses, recorded

pytestmark = pytest.mark.numerical

Form = Literal["binary", "softmax"]
seeds = st.integers(0, 1000)
task_lists = st.lists(st.integers(1, 4), min_size=1, max_size=4)
forms = st.sampled_from(["binary", "softmax"])


def draw(name: str, seed: int, classes: int) -> Tensor:
    return 3 * torch.randn(5, classes, generator=generator(name, seed), dtype=torch.float64)


class TestTaskwiseDistillation:
    @pytest.mark.parametrize("form", ["binary", "softmax"])
    def test_by_hand(self, form: Form) -> None:
        """At T = 2, teacher (0, 2 ln 3 | 0, 0) is (1/4, 3/4 | 1/2, 1/2); the student has its tasks the other way."""
        high = 2 * math.log(3)
        teacher, student = torch.tensor([[0.0, high, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.0, high]])
        first, second = math.log(2), -(math.log(1 / 4) + math.log(3 / 4)) / 2
        expected = (first + second) / 2 if form == "binary" else first + second
        assert taskwise_distillation(student, teacher, [2, 2], 2.0, form).item() == pytest.approx(expected, abs=1e-5)

    @given(seed=seeds, tasks=task_lists, form=forms, shift=st.floats(-20, 20))
    def test_raising_all_logits_of_a_task_changes_nothing(
        self, seed: int, tasks: list[int], form: Form, shift: float
    ) -> None:
        """Tasks are taught by themselves; how they compare is left to cross-entropy."""
        student, teacher = draw("student", seed, sum(tasks)), draw("teacher", seed, sum(tasks))
        raised = student.clone()
        raised[:, : tasks[0]] += shift
        values = [taskwise_distillation(one, teacher, tasks, 2.0, form) for one in (student, raised)]
        torch.testing.assert_close(*values)

    @given(seed=seeds, tasks=task_lists, form=forms)
    def test_it_is_least_where_student_and_teacher_agree(self, seed: int, tasks: list[int], form: Form) -> None:
        teacher = draw("teacher", seed, sum(tasks))
        student = teacher.clone().requires_grad_()
        least = taskwise_distillation(student, teacher, tasks, 2.0, form)
        (slope,) = torch.autograd.grad(least, student)
        assert slope.abs().max() < 1e-6
        assert taskwise_distillation(draw("student", seed, sum(tasks)), teacher, tasks, 2.0, form) >= least

    def test_softmax_over_one_task_is_plain_distillation(self) -> None:
        student, teacher = draw("student", 0, 4), draw("teacher", 0, 4)
        torch.testing.assert_close(
            taskwise_distillation(student, teacher, [4], 2.0, "softmax"), distillation(student, teacher, 2.0)
        )

    def test_certainty_is_finite_and_so_is_its_slope(self) -> None:
        student = torch.tensor([[0.0, 900.0]], requires_grad=True)
        loss = taskwise_distillation(student, torch.tensor([[900.0, 0.0]]), [2])
        (slope,) = torch.autograd.grad(loss, student)
        assert torch.isfinite(loss)
        # Downhill is towards the teacher.
        assert slope[0, 0] < 0 < slope[0, 1]
        assert slope.abs().max() < 1


@pytest.fixture(scope="module")
def digits() -> Stream:
    return drcil.stream("digits-b0-5")


@pytest.fixture(scope="module")
def run(digits: Stream) -> tuple[Learner, list[Seen]]:
    """Three tasks, briefly, and the stages of the third."""
    learner = Learner("eeil", epochs_scale=0.03, device="cpu")
    for task in digits[:2]:
        learner.learn(task)
    return learner, recorded(learner, digits[2])


def test_fine_tuning_is_balanced_and_trains_everything(digits: Stream, run: tuple[Learner, list[Seen]]) -> None:
    later, finetuning = run[1]
    task = digits[2]
    assert finetuning.stage.data.counts(6).tolist() == [7] * 6
    trained = {name for name, _ in finetuning.stage.net.named_parameters()}
    assert trained <= finetuning.changed()
    assert later.stage.data.counts(6).tolist() == [7] * 4 + task.new.counts(6)[4:].tolist()


def test_the_teacher_of_fine_tuning_is_what_the_stage_before_left(run: tuple[Learner, list[Seen]]) -> None:
    later, finetuning = run[1]
    teacher = finetuning.stage.teachers["teacher"].state_dict()
    assert all(torch.equal(tensor, later.after[name]) for name, tensor in teacher.items())


@pytest.mark.parametrize(("position", "tasks"), [(0, 2), (1, 3)])
def test_every_old_task_is_distilled_and_in_fine_tuning_the_newest_too(
    position: int, tasks: int, run: tuple[Learner, list[Seen]]
) -> None:
    """The slope of the distillation term says which tasks it teaches: the most recent old one is among them."""
    stage = run[1][position].stage
    images = torch.randn(5, 1, 8, 8, generator=generator("images"))
    output: Output = stage.net(images)
    logits = output.logits.fused.detach() + torch.randn(5, 6, generator=generator("moved"))
    logits.requires_grad_()
    moved = output._replace(logits=output.logits._replace(fused=logits))
    taught = {name: teacher(images) for name, teacher in stage.teachers.items()}
    terms = stage.objective(moved, taught, Batch(torch.arange(5), torch.arange(5)))
    (slope,) = torch.autograd.grad(terms["distillation"].value, logits)
    assert (slope.view(5, 3, 2).abs().amax(dim=(0, 2)) > 1e-6).tolist() == [number < tasks for number in range(3)]
    plain = losses(stage, images, torch.arange(5))
    assert [term.weight for term in plain.values()] == [1.0, 1.0]


@pytest.mark.parametrize(("epoch", "deviation"), [(0, 0.3), (3, 0.3 / 4**0.55)])
def test_noise_falls_from_epoch_to_epoch_and_is_repeated_by_its_key(epoch: int, deviation: float) -> None:
    net = make_net()
    drawn = []
    for _ in range(2):
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, 5.0)
        GradientNoise(net, 0.3, 0.55).before_step(Step(epoch, 0, 0.1, generator("noise")))
        drawn.append(torch.cat([one.grad.flatten() for one in net.parameters() if one.grad is not None]))
    assert torch.equal(*drawn)
    # 77,000 numbers: the deviation of their deviation is a quarter of a percent.
    assert drawn[0].std().item() == pytest.approx(deviation, rel=0.02)
    assert drawn[0].mean().item() == pytest.approx(5, abs=0.01)


def test_noise_is_for_every_stage_and_only_on_request(digits: Stream, run: tuple[Learner, list[Seen]]) -> None:
    assert not any(seen.stage.hooks for seen in run[1])
    learner = Learner("eeil", epochs_scale=0.01, device="cpu", settings={"noise": 0.1})
    stages = [seen.stage for task in digits[:2] for seen in recorded(learner, task)]
    assert [[type(hook) for hook in stage.hooks] for stage in stages] == [[GradientNoise]] * 3


def test_without_a_memory_it_is_refused(digits: Stream) -> None:
    with pytest.raises(UserError, match="'eeil' needs an exemplar of every class"):
        Learner("eeil", memory="none", device="cpu").learn(digits[0])
