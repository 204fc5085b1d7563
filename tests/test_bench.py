"""The bench measures what it says: its references compute what drcil computes, and its verdicts follow its numbers."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.profiler import record_function

from benchmarks import BENCHMARKS, Benchmark, Row, Scene, chosen, measure
from benchmarks.command import main
from benchmarks.footprint import activations
from benchmarks.pictures import photographs
from benchmarks.pillow import Choice, augmented, deal, dealt_operations, painted, photograph
from benchmarks.profile import AUGMENTATION, OPTIMISER, OTHER, ProfiledEpoch, kind_of
from benchmarks.reference import PlainFusion, pillow_images
from benchmarks.rows import Measurement
from benchmarks.scene import Untrained, learner_before, stages_of
from benchmarks.timing import EpochClock, alternate
from benchmarks.training import as_net, fresh_process, fusion_before, plain_fusion, step_flops, timed_epoch
from drcil.data.augment import build_augment
from drcil.data.augment.pipeline import JITTER
from drcil.data.augment.policy import CIFAR10, IMAGENET, OPERATIONS, AutoAugment
from drcil.data.datasets.cifar100 import SPEC
from drcil.data.datasets.dataset import Dataset
from drcil.data.sources.decode import random_crop
from drcil.data.sources.imageset import ArraySource, ImageSet
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.stages import Batch, Stage
from drcil.streams.stream import Task
from small_engine import assert_equal, state

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {
    "fusion-speed": ("higher", 2.5),
    "step-flops": ("higher", 0.5),
    "data-share": ("lower", 6.0),
    "task-growth": ("lower", 1.1),
    "augment-speed": ("higher", 10.0),
    "after-task": ("lower", 1.3),
    "memory": ("lower", 300.0),
    "drc-inference": ("lower", 0.0),
    "help-seconds": ("lower", 0.5),
    "import-seconds": ("lower", 0.1),
    "read-small": ("higher", 0.6),
    "read-large": ("higher", 1.0),
    "views-small": ("higher", 3.0),
    "views-large": ("higher", 3.0),
    "epoch-memory": ("lower", 1.25),
    "listing-seconds": ("lower", 1.0),
    "listing-memory": ("lower", 10.0),
    "two-processes": ("lower", 1.5),
    "bytes-sent": ("lower", 1.1),
}


class SmallScene(Scene):
    """Generated images, few of them."""

    def __init__(self) -> None:
        self.directory, self.real = Path("nowhere"), False
        pixels = torch.from_numpy(photographs(200, 32, 32)).permute(0, 3, 1, 2).contiguous()
        rows = np.arange(200, dtype=np.int64)
        images = ImageSet(ArraySource(pixels, {"kind": "generated", "split": "train"}), rows, rows % 100)
        self.dataset = Dataset("generated", tuple(map(str, range(100))), images, images, SPEC)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return SmallScene()


Fusion = tuple[Learner, Task, Stage, PlainFusion]


@pytest.fixture(scope="module")
def fusion(scene: Scene) -> Fusion:
    """The fusion stage of task 2, and its plain counterpart with the same weights."""
    learner, task = learner_before(scene.few(2), "mafdrc-text", 2, "10")
    stage = stages_of(learner, task)["fusion"]
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for net in (stage.net, *stage.teachers.values()):
            for parameter in net.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))
    return learner, task, stage, plain_fusion(learner, task, stage)


def test_every_target_is_there() -> None:
    assert {name: (one.better, one.target) for name, one in BENCHMARKS.items()} == TARGETS


def benchmark_of(better: Any, target: float, value: float = 0.0) -> Benchmark:
    return Benchmark("one", "a benchmark", target, better, "×", lambda scene: Measurement(value, "by hand"))


@pytest.mark.parametrize(
    ("better", "target", "value", "met"),
    [
        ("higher", 2.5, 2.5, True),
        ("higher", 2.5, 2.49, False),
        ("lower", 1.1, 1.1, True),
        ("lower", 1.1, 1.11, False),
        ("lower", 0.0, 0.0, True),
        ("lower", 0.0, 1.0, False),
        ("higher", 0.9, math.nan, False),
        ("lower", 0.9, math.nan, False),
    ],
)
def test_a_benchmark_that_misses_is_reported_as_missed(
    scene: Scene, better: Any, target: float, value: float, met: bool
) -> None:
    (row,) = measure([benchmark_of(better, target, value)], scene)
    assert row.met is met
    assert row.as_json()["pass"] is met


@pytest.mark.parametrize(
    "error",
    [UserError("no such thing here"), OSError("no such thing here"), RuntimeError("no such thing here\nat all")],
)
def test_a_benchmark_that_cannot_be_measured_is_a_row_and_the_others_follow(scene: Scene, error: Exception) -> None:
    def fails(scene: Scene) -> Measurement:
        raise error

    failing = Benchmark("other", "a benchmark", 1.0, "lower", "s", fails)
    first, second, third = measure([benchmark_of("lower", 1.0), failing, benchmark_of("lower", 1.0)], scene)
    assert (first.met, second.met, third.met) == (True, False, True)
    told = second.as_json()
    assert (told["value"], told["pass"], told["detail"]) == (None, False, "not measured: no such thing here")
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_systems_that_tell_neither_memory_nor_load_get_the_other_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.footprint._STATUS", Path("nowhere"))
    monkeypatch.delattr(os, "getloadavg", raising=False)
    assert main(["--rows", "memory,drc-inference", "--data", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "load unknown" in err
    why = "not measured: peak memory is read from nowhere, which this system does not have"
    assert f" – (target ≤ 300): {why} " in " ".join(err.split())
    lines = [line.split() for line in out.splitlines()]
    assert ["memory", "–", "≤", "300", "no", "not", "measured:"] in [line[:7] for line in lines]
    assert ["drc-inference", "0", "tensors", "≤", "0", "yes"] in [line[:6] for line in lines]


def test_the_best_of_each_work_is_taken_and_they_take_turns() -> None:
    turns: list[str] = []
    times = {"ours": iter([3.0, 1.0, 2.0]), "reference": iter([4.0, 6.0, 5.0])}

    def work(name: str) -> float:
        turns.append(name)
        return next(times[name])

    assert alternate(3, lambda: work("ours"), lambda: work("reference")) == [1.0, 4.0]
    assert turns == ["ours", "reference"] * 3


def test_rows_are_chosen_by_name_and_shown_in_order() -> None:
    assert [one.name for one in chosen(["read-small", "step-flops"])] == ["step-flops", "read-small"]
    assert [one.name for one in chosen([])] == list(BENCHMARKS)


def test_an_unknown_row_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "fusion-sped"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("drcil: unknown row 'fusion-sped'; did you mean 'fusion-speed'?")
    assert err.count("\n") == 1


def test_json_has_a_row_for_each_name_wherever_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drcil.py").write_text("raise RuntimeError('not this one')")
    assert main(["--json", "--rows", "import-seconds,drc-inference", "--data", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == {"rows", "machine", "images"}
    assert result["images"] == "generated images of CIFAR-100's shape"
    assert result["machine"]["cores"] >= 1
    inference, imported = result["rows"]
    assert inference == {
        "name": "drc-inference",
        "value": 0.0,
        "target": 0.0,
        "pass": True,
        "unit": "tensors",
        "better": "lower",
        "what": BENCHMARKS["drc-inference"].what,
        "detail": "Linear of (100, 64), (100,)",
    }
    assert imported["name"] == "import-seconds"
    assert 0 < imported["value"] < 5


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--json", "--rows", "memory", "--data", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (row,) = json.loads(ended.stdout)["rows"]
    assert 0 < row["value"] < 1000
    assert re.fullmatch(r"peak \d+, of which images \d+, nets \d+, activations \d+, torch \d+", row["detail"])


def test_the_table_says_what_was_met(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--rows", "drc-inference", "--data", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[1:] == ["1/1 drc-inference", "    0 tensors (target ≤ 0): Linear of (100, 64), (100,)"]
    (line,) = [line for line in out.splitlines() if "drc-inference" in line]
    assert line.split()[:6] == ["drc-inference", "0", "tensors", "≤", "0", "yes"]


def test_the_reference_has_the_losses_of_the_stage(fusion: Fusion) -> None:
    learner, task, stage, plain = fusion
    images, labels = some_batch(stage)
    for net in (stage.net, plain.student):
        net.train()
    for net in (*stage.teachers.values(), plain.previous, plain.adapted):
        net.eval()
    with torch.no_grad():
        teachers = {name: net(images) for name, net in stage.teachers.items()}
        terms = stage.objective(stage.net(images), teachers, Batch(labels, torch.arange(len(labels))))
        ours = sum(term.weight * term.value for term in terms.values())
        reference = plain.loss(images, labels)
    assert len(terms) == 4
    assert float(reference) == pytest.approx(float(ours), rel=1e-4)


def some_batch(stage: Stage) -> tuple[torch.Tensor, torch.Tensor]:
    """Old and new images of a stage, as a net sees them."""
    view = pillow_images(stage.data, SPEC.padding, SPEC.mean, SPEC.std)
    images = torch.stack([view[index][0] for index in range(len(view))])
    labels = torch.from_numpy(stage.data.labels)
    assert 0 < (labels < 10).sum() < len(labels)
    return images, labels


def test_the_reference_has_the_gradients_of_the_stage(fusion: Fusion) -> None:
    learner, task, stage, plain = fusion
    images, labels = some_batch(stage)
    stage.net.train()
    plain.student.train()
    for net in (plain.previous, plain.adapted):
        net.eval()
    with torch.no_grad():
        teachers = {name: net.eval()(images) for name, net in stage.teachers.items()}
    terms = stage.objective(stage.net(images), teachers, Batch(labels, torch.arange(len(labels))))
    torch.stack([term.weight * term.value for term in terms.values()]).sum().backward()
    plain.loss(images, labels).backward()
    stem = as_net(stage.net).backbone.normalised_convolutions()[0][0]
    ours = as_net(stage.net).backbone.get_submodule(stem).weight.grad
    reference = plain.student.conv.weight.grad
    assert reference is not None
    # By the size of the largest: what is nearly zero is a sum of terms that are not.
    assert torch.allclose(ours, reference, rtol=1e-3, atol=1e-4 * float(reference.abs().max()))


def test_the_reference_augments_as_the_engine_does(scene: Scene) -> None:
    images = scene.dataset.train.source.read(np.arange(100))
    result = build_augment("auto", SPEC, in_memory=True)(images, torch.Generator().manual_seed(5))
    close = []
    for pixels, choice, ours in zip(images, dealt_by_the_batch(100, seed=5), result, strict=True):
        expected = augmented(pixels.permute(1, 2, 0).contiguous().numpy(), choice, SPEC.padding)
        close.append((np.abs(expected.transpose(2, 0, 1).astype(int) - ours.numpy()) <= 1).mean())
    # One level of autocontrast or shear may cross a threshold of the operation after it.
    assert min(close) > 0.95
    assert np.mean(close) > 0.999


def test_photographs_of_pillow_are_cropped_as_the_reader_crops_them() -> None:
    pixels = photographs(1, 90, 120)[0]
    for seed in range(20):
        draws = random.Random(seed)
        crop = Image.fromarray(np.ascontiguousarray(random_crop(pixels, 48, draws)))
        mirrored, factor = draws.random() < 0.5, draws.uniform(1 - JITTER, 1 + JITTER)
        ours = np.asarray(painted(crop, mirrored, factor, dealt_operations(draws, IMAGENET))).astype(int)
        theirs = photograph(Image.fromarray(pixels), 48, random.Random(seed)).astype(int)
        # One level of the crop may cross a threshold of an operation.
        assert np.mean(np.abs(ours - theirs) <= 8) > 0.97


def dealt_by_the_batch(count: int, seed: int) -> list[Choice]:
    """What drcil's augmentation deals to each image of a batch."""
    draw = torch.Generator().manual_seed(seed)
    top, left = torch.randint(9, (2, count), generator=draw).tolist()
    mirrored = (torch.rand(count, generator=draw) < 0.5).tolist()
    factors = torch.empty(count, dtype=torch.float64).uniform_(1 - JITTER, 1 + JITTER, generator=draw).tolist()
    numbers, values = (tensor.tolist() for tensor in AutoAugment(CIFAR10).draw(count, draw))
    hole_y, hole_x = (torch.randint(32, (count,), generator=draw).tolist() for _ in range(2))
    return [
        Choice(
            top[i],
            left[i],
            mirrored[i],
            factors[i],
            tuple((OPERATIONS[n], v) for n, v in zip(numbers[i], values[i], strict=True) if n >= 0),
            hole_y[i],
            hole_x[i],
        )
        for i in range(count)
    ]


@given(st.integers(0, 2**32), st.integers(8, 64), st.integers(1, 8))
def test_what_is_dealt_is_within_the_image(seed: int, size: int, padding: int) -> None:
    choice = deal(random.Random(seed), size, padding)
    assert 0 <= choice.top <= 2 * padding
    assert 0 <= choice.left <= 2 * padding
    assert 0 <= choice.hole_y < size
    assert 0 <= choice.hole_x < size
    assert {name for name, _ in choice.operations} <= set(OPERATIONS)


def test_the_reference_deals_operations_as_often_as_the_engine() -> None:
    draws = random.Random(0)
    counts = [len(deal(draws, 32, 4).operations) for _ in range(4000)]
    operations, _ = AutoAugment(CIFAR10).draw(4000, torch.Generator().manual_seed(0))
    expected = (operations >= 0).sum(1).double().mean()
    assert np.mean(counts) == pytest.approx(float(expected), abs=0.06)


def test_the_reference_learns_wherever_it_is_sent(fusion: Fusion) -> None:
    learner, task, stage, plain = fusion
    view = pillow_images(stage.data, SPEC.padding, SPEC.mean, SPEC.std)
    sent, images = pickle.loads(pickle.dumps((plain, view)))
    assert sent.epoch(images) > 0
    assert not torch.equal(sent.student.fc.weight, plain.student.fc.weight)
    assert torch.equal(sent.previous.fc.weight, plain.previous.fc.weight)


@pytest.mark.slow
def test_a_fresh_process_has_as_many_threads_and_can_train_the_reference(fusion: Fusion) -> None:
    learner, task, stage, plain = fusion
    view = pillow_images(stage.data, SPEC.padding, SPEC.mean, SPEC.std)
    with fresh_process() as elsewhere:
        assert elsewhere.submit(torch.get_num_threads).result() == torch.get_num_threads()
        assert elsewhere.submit(plain.epoch, view).result() > 0


def test_a_learner_before_task_ten_is_as_it_would_be(scene: Scene) -> None:
    learner, task = learner_before(scene.few(2), "mafdrc", 10, "90")
    assert learner.sizes == (10,) * 9
    assert learner.memory.images is not None
    assert len(learner.memory.images) == 90
    assert as_net(learner.method.net).head.classes == 90
    stages = stages_of(learner, task)
    assert list(stages) == ["adaptation", "fusion"]
    assert len(stages["fusion"].data) == 20 + 90
    assert stages["fusion"].schedule.epochs == 1


def test_an_untrained_engine_leaves_nets_alone(scene: Scene) -> None:
    learner, task = learner_before(scene.few(2), "icarl", 2, "20")
    learner.engine = Untrained(learner.engine)
    before = state(as_net(learner.method.net).backbone)
    learner.learn(task)
    assert_equal(before, state(as_net(learner.method.net).backbone))
    assert learner.rank(task.test.subset(np.arange(3)))["nme"].classes.shape == (3, 10)


def test_an_epoch_is_timed_whole(scene: Scene) -> None:
    clock = EpochClock()
    learner, _, stage = fusion_before(scene, clock)
    seconds = timed_epoch(learner, replace(stage, data=stage.data.subset(np.arange(8))), clock)
    assert len(clock.ends) == 1
    assert seconds >= clock.ends[0] - clock.begun > 0


def test_flops_and_activations_are_those_of_resnet32(fusion: Fusion) -> None:
    net = as_net(fusion[2].net)
    # 69 M multiplications and additions forward, twice as many backward, save for the gradient of the images.
    assert step_flops(net) / 128 == pytest.approx(3 * 2 * 69.1e6, rel=0.02)
    # Each of the 31 convolutions keeps its input, and its normalisation keeps its own.
    maps = 4 * 32 * 32 * (16 * 11 + 32 * 10 / 4 + 64 * 10 / 16)
    assert 2 * maps < activations(fusion[2], 4) / 4 < 3 * maps


def test_photographs_are_smooth_and_nearly_grey() -> None:
    pictures = photographs(8, 64, 96).astype(float)
    assert pictures.shape == (8, 64, 96, 3)
    neighbours = np.corrcoef(pictures[:, :, 1:].ravel(), pictures[:, :, :-1].ravel())[0, 1]
    channels = np.corrcoef(pictures[..., 0].ravel(), pictures[..., 1].ravel())[0, 1]
    assert neighbours > 0.85
    assert channels > 0.8


class Operation:
    """As much of a profiler's event as is looked at."""

    def __init__(self, name: str, parent: Operation | None = None) -> None:
        self.name, self.cpu_parent = name, parent


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["aten::mkldnn_convolution"], "convolution"),
        (["aten::convolution_backward", "ConvolutionBackward0"], "convolution"),
        (["aten::native_batch_norm"], "batch normalisation"),
        (["aten::threshold_backward"], "ReLU, addition, shortcut"),
        (["aten::add_"], "ReLU, addition, shortcut"),
        (["aten::add_", "drcil: augmentation"], AUGMENTATION),
        (["aten::add_", "Optimizer.step#SGD.step"], OPTIMISER),
        (["aten::addmm"], OTHER),
        (["aten::log_softmax"], OTHER),
    ],
)
def test_work_is_told_apart(names: list[str], kind: str) -> None:
    event: Operation | None = None
    for name in reversed(names):
        event = Operation(name, event)
    assert kind_of(event) == kind


def test_a_profile_is_of_the_epoch_and_not_of_what_surrounds_it(
    fusion: Fusion, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, task, stage, _ = fusion
    watched = ProfiledEpoch()
    monkeypatch.setattr(learner.engine, "listener", watched)
    folding, frozen = [], learner.engine.inference.frozen

    def marked(net: torch.nn.Module) -> torch.nn.Module:
        with record_function("folding"):
            folding.append(frozen(net))
        return folding[-1]

    monkeypatch.setattr(learner.engine.inference, "frozen", marked)
    timed_epoch(learner, replace(stage, data=stage.data.subset(np.arange(4))), watched)
    assert len(folding) == 2, "a teacher each, when the stage is set up"
    assert "folding" not in {event.name for event in watched.record.events() or ()}  # type: ignore[no-untyped-call]
    shares = watched.shares()
    assert sum(shares.values()) == pytest.approx(100)
    assert all(0 <= share < 100 for share in shares.values())
    assert shares["convolution"] > shares[OPTIMISER] > 0


def test_a_row_prints_what_it_is_made_from() -> None:
    row = Row(benchmark_of("higher", 2.5), Measurement(3.0, "30 against 10 images/s"))
    assert row.as_json()["detail"] == "30 against 10 images/s"
    assert (row.as_json()["unit"], row.as_json()["better"]) == ("×", "higher")
