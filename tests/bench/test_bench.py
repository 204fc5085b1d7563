"""The references of the benchmarks compute what drcil computes, and rows are judged by their values."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import BENCHMARKS, Benchmark, Measurement, alternate, measure_rows, select
from benchmarks.__main__ import main
from benchmarks.references import (
    Choice,
    PlainFusion,
    augmented,
    draw_choice,
    draw_operations,
    painted,
    photograph,
    pillow_images,
)
from benchmarks.training import as_net, plain_fusion, profile_epoch, step_flops
from benchmarks.workload import Untrained, Workload, activations, learner_before, photographs, stages_of
from drcil.data.augment import build_augment
from drcil.data.augment.pipelines import JITTER
from drcil.data.augment.policies import CIFAR10, IMAGENET, OPERATIONS, AutoAugment
from drcil.data.dataset import CIFAR_SPEC, Dataset
from drcil.data.decoding import random_crop
from drcil.data.image_set import ArraySource, ImageSet
from drcil.errors import UserError
from drcil.stages import Batch, Stage
from support.engine import assert_equal, state

pytestmark = pytest.mark.numerical


class SmallWorkload(Workload):
    """A few generated images."""

    def __init__(self) -> None:
        self.directory, self.is_real = Path("nowhere"), False
        pixels = torch.from_numpy(photographs(200, 32, 32)).permute(0, 3, 1, 2).contiguous()
        rows = np.arange(200, dtype=np.int64)
        images = ImageSet.of(ArraySource(pixels), rows, rows % 100)
        self.dataset = Dataset("generated", tuple(map(str, range(100))), images, images, CIFAR_SPEC)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return SmallWorkload()


Fusion = tuple[Stage, PlainFusion]


@pytest.fixture(scope="module")
def fusion(workload: Workload) -> Fusion:
    """The fusion stage of task 2, and the plain program with the same weights."""
    learner, task = learner_before(workload.few(2), "mafdrc-text", 2, "10")
    stage = stages_of(learner, task)["fusion"]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for net in (stage.net, *stage.teachers.values()):
            for parameter in net.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return stage, plain_fusion(learner, task, stage)


@pytest.mark.parametrize(
    ("better", "target", "value", "is_met"),
    [
        ("higher", 2.5, 2.5, True),
        ("higher", 2.5, 2.49, False),
        ("lower", 1.1, 1.1, True),
        ("lower", 1.1, 1.11, False),
        ("higher", 0.9, math.nan, False),
        ("lower", 0.9, math.nan, False),
    ],
)
def test_a_row_is_met_if_its_value_reaches_the_target(
    workload: Workload, better: Any, target: float, value: float, is_met: bool
) -> None:
    entry = Benchmark("name", "a benchmark", target, better, "×", lambda workload: Measurement(value, "30 against 10"))
    (row,) = measure_rows([entry], workload)
    assert row.is_met is is_met and row.as_json()["pass"] is is_met
    assert row.as_json()["detail"] == "30 against 10" and row.as_json()["better"] == better


@pytest.mark.parametrize("error", [UserError("not here"), OSError("not here"), RuntimeError("not here\nat all")])
def test_a_row_that_cannot_be_measured_is_missed_and_the_others_follow(workload: Workload, error: Exception) -> None:
    def fail(workload: Workload) -> Measurement:
        raise error

    failing = Benchmark("failing", "a benchmark", 1.0, "lower", "s", fail)
    working = Benchmark("working", "a benchmark", 1.0, "lower", "s", lambda workload: Measurement(0.5, ""))
    first, second = measure_rows([failing, working], workload)
    assert (first.is_met, second.is_met) == (False, True)
    entry = json.loads(json.dumps(first.as_json(), allow_nan=False))
    assert (entry["value"], entry["detail"]) == (None, "not measured: not here")


def test_works_take_turns_and_the_best_time_of_each_counts() -> None:
    turns: list[str] = []
    times = {"ours": iter([3.0, 1.0, 2.0]), "reference": iter([4.0, 6.0, 5.0])}

    def work(name: str) -> float:
        turns.append(name)
        return next(times[name])

    assert alternate(3, lambda: work("ours"), lambda: work("reference")) == [1.0, 4.0]
    assert turns == ["ours", "reference"] * 3


def test_rows_are_selected_by_name_in_the_order_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert [entry.name for entry in select(["read-small", "step-flops"])] == ["step-flops", "read-small"]
    assert [entry.name for entry in select([])] == list(BENCHMARKS)
    assert main(["--rows", "fusion-sped"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("drcil: unknown row 'fusion-sped'; did you mean 'fusion-speed'?")


def test_the_command_prints_a_table_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drcil.py").write_text("raise RuntimeError('the current directory is not searched')")
    assert main(["--json", "--rows", "import-seconds,drc-inference", "--data", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == {"rows", "machine", "images"}
    assert result["images"] == "generated images of CIFAR-100's shape" and result["machine"]["cores"] >= 1
    inference, start = result["rows"]
    assert (inference["name"], inference["value"], inference["pass"]) == ("drc-inference", 0.0, True)
    assert re.fullmatch(r"\d\.\d+ against \d\.\d+ s, best of \d", start["detail"])
    # A system without /proc and without a load average.
    monkeypatch.setattr("benchmarks.memory._STATUS", Path("nowhere"))
    monkeypatch.delattr(os, "getloadavg", raising=False)
    assert main(["--rows", "memory,drc-inference", "--data", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "load unknown" in err and "1/2 memory" in err
    assert " – (target ≤ 300): not measured: peak memory is read from nowhere" in " ".join(err.split())
    lines = [line.split() for line in out.splitlines()]
    assert ["memory", "–", "≤", "300", "no", "not", "measured:"] in [line[:7] for line in lines]
    assert ["drc-inference", "0", "tensors", "≤", "0", "yes"] in [line[:6] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ("memory", r"peak \d+, of which images \d+, nets \d+, activations \d+, torch \d+"),
        ("serving-growth", r"\d+ requests, median \d+ ms, .*"),
        ("bytes-sent", r"[\d,]+ against 1,875,600 bytes a step"),
    ],
)
def test_rows_that_need_other_processes_are_measured(
    row: str, detail: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", "--rows", row, "--data", str(tmp_path)]) == 0
    (measured,) = json.loads(capsys.readouterr().out)["rows"]
    assert measured["value"] is not None and re.fullmatch(detail, measured["detail"])


def batch_of(stage: Stage) -> tuple[torch.Tensor, torch.Tensor]:
    """Old and new images of a stage as the input of a net, in float64."""
    view = pillow_images(stage.data, CIFAR_SPEC.padding, CIFAR_SPEC.mean, CIFAR_SPEC.std)
    labels = torch.from_numpy(stage.data.labels)
    assert 0 < (labels < 10).sum() < len(labels)
    return torch.stack([view[index][0] for index in range(len(view))]).double(), labels


def test_the_plain_program_has_the_loss_and_the_gradients_of_the_stage(fusion: Fusion) -> None:
    stage, plain = fusion
    images, labels = batch_of(stage)
    net, plain = copy.deepcopy(as_net(stage.net)).double().train(), copy.deepcopy(plain)
    plain.student.double().train()
    for teacher in (plain.previous, plain.adapted):
        teacher.double().eval()
    with torch.no_grad():
        teachers = {name: copy.deepcopy(net).double().eval()(images) for name, net in stage.teachers.items()}
    terms = stage.objective(net(images), teachers, Batch(labels, torch.arange(len(labels))))
    loss = torch.stack([term.weight * term.value for term in terms.values()]).sum()
    plain_loss = plain.loss(images, labels)
    assert len(terms) == 4 and plain_loss.item() == pytest.approx(loss.item(), rel=1e-6)
    loss.backward()
    plain_loss.backward()
    stem = net.backbone.normalised_convolutions()[0][0]
    expected = plain.student.conv.weight.grad
    assert expected is not None
    gradient = net.backbone.get_submodule(stem).weight.grad
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-7 * float(expected.abs().max()))


def test_the_plain_program_trains_the_student_only_also_in_another_process(fusion: Fusion) -> None:
    stage, plain = fusion
    view = pillow_images(stage.data, CIFAR_SPEC.padding, CIFAR_SPEC.mean, CIFAR_SPEC.std)
    sent, images = pickle.loads(pickle.dumps((plain, view)))
    assert sent.epoch(images) > 0
    assert not torch.equal(sent.student.fc.weight, plain.student.fc.weight)
    assert torch.equal(sent.previous.fc.weight, plain.previous.fc.weight)


def test_pillow_augments_like_the_engine(workload: Workload) -> None:
    images = workload.dataset.train.source.read(np.arange(100))
    result = build_augment("auto", CIFAR_SPEC, in_memory=True)(images, torch.Generator().manual_seed(5))
    close = []
    for pixels, choice, ours in zip(images, choices_of_engine(100, seed=5), result, strict=True):
        expected = augmented(pixels.permute(1, 2, 0).contiguous().numpy(), choice, CIFAR_SPEC.padding)
        close.append((np.abs(expected.transpose(2, 0, 1).astype(int) - ours.numpy()) <= 1).mean())
    # One level of autocontrast or shear may cross a threshold of the operation after it.
    assert min(close) > 0.95 and np.mean(close) > 0.999


def choices_of_engine(count: int, seed: int) -> list[Choice]:
    """What drcil's augmentation draws for each image of a batch."""
    generator = torch.Generator().manual_seed(seed)
    top, left = torch.randint(9, (2, count), generator=generator).tolist()
    mirrored = (torch.rand(count, generator=generator) < 0.5).tolist()
    factors = torch.empty(count, dtype=torch.float64).uniform_(1 - JITTER, 1 + JITTER, generator=generator).tolist()
    numbers, values = (tensor.tolist() for tensor in AutoAugment(CIFAR10).draw(count, generator))
    hole_y, hole_x = (torch.randint(32, (count,), generator=generator).tolist() for _ in range(2))
    operations = [
        tuple((OPERATIONS[n], v) for n, v in zip(numbers[i], values[i], strict=True) if n >= 0) for i in range(count)
    ]
    return [Choice(*choice) for choice in zip(top, left, mirrored, factors, operations, hole_y, hole_x, strict=True)]


def test_pillow_draws_as_many_operations_as_the_engine() -> None:
    draws = random.Random(0)
    counts = [len(draw_choice(draws, 32, 4).operations) for _ in range(4000)]
    operations, _ = AutoAugment(CIFAR10).draw(4000, torch.Generator().manual_seed(0))
    expected = (operations >= 0).sum(1).double().mean()
    assert np.mean(counts) == pytest.approx(float(expected), abs=0.06)


def test_pillow_crops_photographs_like_the_reader() -> None:
    pixels = photographs(1, 90, 120)[0]
    for seed in range(20):
        draws = random.Random(seed)
        crop = Image.fromarray(np.ascontiguousarray(random_crop(pixels, 48, draws)))
        mirrored, factor = draws.random() < 0.5, draws.uniform(1 - JITTER, 1 + JITTER)
        ours = np.asarray(painted(crop, mirrored, factor, draw_operations(draws, IMAGENET))).astype(int)
        theirs = photograph(Image.fromarray(pixels), 48, random.Random(seed)).astype(int)
        # One level of the crop may cross a threshold of an operation.
        assert np.mean(np.abs(ours - theirs) <= 8) > 0.97


def test_a_learner_before_task_ten_has_its_classes_memory_and_stages(workload: Workload) -> None:
    learner, task = learner_before(workload.few(2), "mafdrc", 10, "90")
    assert learner.sizes == (10,) * 9
    assert learner.memory.images is not None and len(learner.memory.images) == 90
    assert as_net(learner.method.net).head.classes == 90
    stages = stages_of(learner, task)
    assert list(stages) == ["adaptation", "fusion"]
    assert len(stages["fusion"].data) == 20 + 90 and stages["fusion"].schedule.epochs == 1


def test_an_untrained_engine_does_not_change_nets(workload: Workload) -> None:
    learner, task = learner_before(workload.few(2), "icarl", 2, "20")
    learner.engine = Untrained(learner.engine)
    before = state(as_net(learner.method.net).backbone)
    learner.learn(task)
    assert_equal(before, state(as_net(learner.method.net).backbone))
    assert learner.rank(task.test.subset(np.arange(3)))["nme"].classes.shape == (3, 10)


def test_flops_and_activations_are_those_of_resnet32(fusion: Fusion) -> None:
    stage, _ = fusion
    # 69 M multiplications and additions forward, twice as many backward, except for the gradient of the images.
    assert step_flops(as_net(stage.net)) / 128 == pytest.approx(3 * 2 * 69.1e6, rel=0.02)
    # Each of the 31 convolutions saves its input, and so does its normalisation.
    maps = 4 * 32 * 32 * (16 * 11 + 32 * 10 / 4 + 64 * 10 / 16)
    assert 2 * maps < activations(stage, 4) / 4 < 3 * maps


def test_generated_photographs_are_smooth_and_nearly_grey() -> None:
    pictures = photographs(8, 64, 96).astype(float)
    assert pictures.shape == (8, 64, 96, 3)
    neighbours = np.corrcoef(pictures[:, :, 1:].ravel(), pictures[:, :, :-1].ravel())[0, 1]
    channels = np.corrcoef(pictures[..., 0].ravel(), pictures[..., 1].ravel())[0, 1]
    assert neighbours > 0.85 and channels > 0.8


@pytest.mark.slow
def test_a_profile_divides_the_time_of_an_epoch(workload: Workload) -> None:
    figures = profile_epoch(workload)
    shares = {name: value for name, value in figures.items() if name.endswith(", %")}
    assert sum(shares.values()) == pytest.approx(100)
    assert shares["convolution, %"] > 0 and shares["augmentation, %"] > 0 and shares["optimiser, %"] > 0
    assert figures["images/s"] > 0 and figures["limit by arithmetic, images/s"] > 0
