"""Weights from a file: what fits is taken bit for bit, what does not is named, and a run knows its own again."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import drcil
from drcil.cli import main
from drcil.data.dataset import DIGITS_SPEC
from drcil.errors import UserError
from drcil.models.store import add_version
from drcil.nets.backbone import Backbone, build_backbone
from drcil.nets.initial_weights import find_weights, start_from, unmatched_tensors
from drcil.seeding import seeded_torch

Tensors = dict[str, Tensor]


def fresh(name: str = "resnet32", key: str = "fresh") -> Backbone:
    with seeded_torch("test", "weights", key):
        return build_backbone(name, 3).eval()


@pytest.fixture
def trained() -> Backbone:
    """A backbone whose statistics are not those of a fresh one."""
    backbone = fresh(key="trained").train()
    with torch.no_grad(), seeded_torch("test", "images"):
        backbone(torch.randn(4, 3, 32, 32))
    return backbone.eval()


def save(tensors: Tensors, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def same(one: nn.Module, other: nn.Module) -> bool:
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return torch.equal(one(images).pooled, other(images).pooled)


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


WRAPPINGS: dict[str, Any] = {
    "a.safetensors": lambda tensors: tensors,
    "b.pth": lambda tensors: tensors,
    "c.pth.tar": lambda tensors: {"epoch": 7, "state_dict": prefixed(tensors, "module.")},
    "best.pth": lambda tensors: {"epoch": 7, "best_acc1": torch.tensor(71.5), "state_dict": tensors},
    "d.pth": lambda tensors: {"model": prefixed(tensors, "encoder.net."), "optimizer": {"lr": 0.1}},
    "e.safetensors": lambda tensors: {
        **prefixed(tensors, "net.backbone."),
        "net.head.classifier.weight": torch.ones(3),
    },
    "f.pth": lambda tensors: {**tensors, "fc.weight": torch.ones(10, 64), "fc.bias": torch.ones(10)},
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_weights_of_our_own_backbone_give_its_features_bit_for_bit(
    name: str, trained: Backbone, tmp_path: Path
) -> None:
    weights = find_weights(save(WRAPPINGS[name](trained.state_dict()), tmp_path / name))
    other = fresh()
    assert not same(other, trained)
    start_from(other, weights)
    assert same(other, trained)
    assert unmatched_tensors(fresh, weights) == ""


def test_what_old_torch_wrote_is_read(trained: Backbone, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    other = fresh()
    start_from(other, find_weights(tmp_path / "old.pth"))
    assert same(other, trained)


def test_misfits_are_named_and_counted(trained: Backbone, tmp_path: Path) -> None:
    tensors = dict(trained.state_dict())
    for name in [name for name in tensors if name.startswith("stages.2.4.second")]:
        del tensors[name]
    tensors |= {"stages.0.0.first.conv.weight": torch.ones(16, 8, 3, 3), "extra.weight": torch.ones(2)}
    weights = find_weights(save(tensors, tmp_path / "w.pth"))
    told = unmatched_tensors(fresh, weights)
    assert "5 missing (stages.2.4.second.conv.weight, stages.2.4.second.norm.weight," in told
    assert "and 2 more)" in told
    assert "1 not expected (extra.weight)" in told
    assert "1 of another shape (stages.0.0.first.conv.weight: [16, 8, 3, 3] instead of [16, 16, 3, 3])" in told
    other, before = fresh(), fresh()
    start_from(other, weights)
    kept = "stages.2.4.second.conv.weight"
    assert torch.equal(other.state_dict()[kept], before.state_dict()[kept]), "what the file lacks stays random"


def test_names_of_another_program_are_refused(trained: Backbone, tmp_path: Path) -> None:
    renamed = {f"layer{number}.{name.rpartition('.')[2]}": one for number, (name, one) in enumerate(named(trained))}
    with pytest.raises(UserError, match=r"do not fit backbone 'resnet32': 0% of its tensors are there; .* missing"):
        start_from(fresh(), find_weights(save(renamed, tmp_path / "w.pth")))


def named(backbone: Backbone) -> list[tuple[str, Tensor]]:
    return [(name, one) for name, one in backbone.state_dict().items() if not name.endswith("num_batches_tracked")]


def test_what_stands_beside_the_backbone_is_named(trained: Backbone, tmp_path: Path) -> None:
    """All but classifiers: nobody expects these."""
    tensors = {
        **prefixed(trained.state_dict(), "student.backbone."),
        "student.projector.weight": torch.ones(2),
        "student.head.weight": torch.ones(2),
        "queue": torch.ones(3),
    }
    weights = find_weights(save(tensors, tmp_path / "w.pth"))
    assert unmatched_tensors(fresh, weights).endswith("; 2 of other parts left out (student.projector.weight, queue)")


def test_less_than_half_is_refused(tmp_path: Path) -> None:
    weights = find_weights(save(fresh("resnet20").state_dict(), tmp_path / "w.pth"))
    assert "missing" in unmatched_tensors(lambda: fresh("resnet32"), weights), (
        "the smaller net is more than half of the larger"
    )
    with pytest.raises(UserError, match="do not fit backbone 'resnet18'"):
        unmatched_tensors(lambda: fresh("resnet18"), weights)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"no weights", r"not a complete zip archive; weights are a file of \.safetensors, one that torch\.save wrote"),
        (b"", r"w\.pth cannot be used: the file is empty"),
        ({"epoch": 3}, "there are no tensors by name in it, nor under 'state_dict', .*; it has 'epoch'"),
        ({"state_dict": {"stem.conv.weight": torch.tensor([float("nan")])}}, "'stem.conv.weight' has values that are"),
        ({"args": Path("x")}, "holds Python objects other than tensors"),
    ],
)
def test_a_file_of_something_else_is_told(content: Any, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(UserError, match=sentence):
        start_from(fresh(), find_weights(path))


def test_a_place_without_weights_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.pth: No such file"):
        find_weights(tmp_path / "none.pth")
    with pytest.raises(UserError, match=r"is a directory without method\.safetensors; give a file of weights, a model"):
        find_weights(tmp_path)


DIGITS = ["run", "replay", "digits-b0-5", "--epochs-scale", "0.02", "--quiet", "--memory", "20"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt a task of the digits."""
    path = tmp_path_factory.mktemp("weights") / "model"
    learner = drcil.Learner("replay", epochs_scale=0.02, seed=5)
    learner.learn(drcil.stream("digits-b0-5")[0])
    learner.save(path)
    return path


def test_a_learner_starts_from_the_backbone_of_a_model(model: Path) -> None:
    """With a learning rate of zero a task leaves the backbone's parameters as they were in the file."""
    still = {"first.lr": 1e-30, "first.weight_decay": 0.0}
    learner = drcil.Learner("replay", weights=model, epochs_scale=0.01, settings=still)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.learn(drcil.stream("digits-b0-5", order_seed=3)[0])
    before = dict(drcil.load(model).method.net.backbone.named_parameters())
    for name, parameter in learner.method.net.backbone.named_parameters():
        assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("form", ["model", "file", "run", "versions"])
def test_a_model_is_normalised_as_the_one_was_whose_weights_it_starts_from(
    form: str, model: Path, tmp_path: Path
) -> None:
    """Whatever the images of its own, and whichever the form in which a model lies on disk."""
    place = {"model": model, "file": model / "method.safetensors"}.get(form, tmp_path / form)
    if form == "run":
        shutil.copytree(model, place / "tasks" / "01")
    if form == "versions":

        def fill(directory: Path) -> None:
            shutil.copytree(model, directory, dirs_exist_ok=True)

        add_version(place, fill)
    learner = drcil.Learner("replay", weights=place, epochs_scale=0.01)
    light = np.random.default_rng(0).integers(200, 256, (8, 8, 8), dtype=np.uint8)
    learner.learn(light, [0, 1] * 4)
    assert (learner.model.data.mean, learner.model.data.std) == (DIGITS_SPEC.mean, DIGITS_SPEC.std)


def test_a_learner_warns_of_misfits(model: Path, tmp_path: Path) -> None:
    tensors = drcil.load(model).method.net.backbone.state_dict()
    tensors.pop("stem.conv.weight")
    learner = drcil.Learner("replay", weights=save(tensors, tmp_path / "w.pth"), epochs_scale=0.01)
    with pytest.warns(UserWarning, match=r"1 missing \(stem\.conv\.weight\)"):
        learner.learn(drcil.stream("digits-b0-5")[0])


def test_weights_are_part_of_what_a_run_is(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where they are may change between runs, what they are may not; after the first task nobody asks for them."""
    tensors = drcil.load(model).method.net.backbone.state_dict()
    file, out = save(tensors, tmp_path / "w.pth"), tmp_path / "run"
    assert main([*DIGITS, "--tasks", "1", "--weights", str(file), "--out", str(out)]) == 0
    seal = find_weights(file).seal
    assert json.loads((out / "beginning.json").read_text())["settings"]["weights"] == seal.checksum
    config = (out / "config.toml").read_text()
    file.write_bytes(b"something else")
    (out / "config.toml").write_text(config.replace("tasks = 1", "tasks = 2"))
    assert main(["resume", str(out), "--quiet"]) == 0, capsys.readouterr().err
    assert len(list((out / "tasks").iterdir())) == 2
    (out / "config.toml").write_text(config.replace(seal.checksum, "0" * 64))
    assert main(["resume", str(out), "--quiet"]) == 2
    assert "'weights' in config.toml has changed since the run began" in capsys.readouterr().err


def test_a_run_that_has_not_finished_its_first_task_needs_the_weights_that_it_began_with(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from drcil.runs.execution import create_run
    from drcil.runs.plan import complete
    from drcil.settings import RunSettings

    file = save(drcil.load(model).method.net.backbone.state_dict(), tmp_path / "w.pth")
    chosen = complete(RunSettings(method="replay", stream="digits-b0-5", epochs_scale=0.01, tasks=1, weights=str(file)))
    run = create_run(chosen, tmp_path / "run")
    save(fresh("resnet-digits").state_dict(), file)
    assert main(["resume", str(run.directory)]) == 2
    assert "are not those that were named at first: the file has changed; restore it" in capsys.readouterr().err
    file.unlink()
    assert main(["resume", str(run.directory)]) == 2
    assert "w.pth are needed to begin, but there is no such file; restore it" in capsys.readouterr().err


def test_the_command_line_names_what_does_not_fit(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = drcil.load(model).method.net.backbone.state_dict()
    tensors.pop("stem.conv.weight")
    file = save(tensors, tmp_path / "w.pth")
    command = [*DIGITS, "--tasks", "1", "--weights", str(file)]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    assert "drcil: warning: of the weights" in capsys.readouterr().err
    assert main([*command, "--backbone", "resnet56", "--out", str(tmp_path / "other")]) == 2
    assert "do not fit backbone 'resnet56'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
