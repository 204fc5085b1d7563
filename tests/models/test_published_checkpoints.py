"""The authors' published weights become models that answer as theirs did; anything else is refused in a sentence."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import drcil
from drcil.cli import main
from drcil.data.datasets.cifar100 import load_cifar100
from drcil.errors import UserError
from drcil.experiments.published import published_table
from drcil.heads import DynamicResidualHead
from drcil.models.model_directory import save_model
from drcil.models.published_checkpoints import UNUSED, import_all, import_checkpoint, read_checkpoint
from drcil.nets.parts import Number
from drcil.settings import MemoryBudget
from drcil.streams.protocols import class_order
from drcil.streams.stream import make_stream
from support.published_program import PublishedNet, random_checkpoint

pytestmark = pytest.mark.numerical

PUBLISHED = (934, 1660, 2428, 3070, 3707, 4278, 4843, 5236, 5713, 6206)
"""Test images that the published weights get right after each task, of 1,000 per task."""


def images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def theirs(path: Path) -> PublishedNet:
    tensors = read_checkpoint(path).tensors
    net = PublishedNet(len(tensors["fc.weight"]))
    net.load_state_dict(tensors)
    return net.eval()


@pytest.mark.parametrize("task", range(1, 11))
def test_a_model_answers_as_the_published_network_does(task: int, tmp_path: Path) -> None:
    """At task 1 by the new branch alone, later by the sum of both; after any of the ten tasks, folded or not."""
    path = tmp_path / "c.pth.tar"
    random_checkpoint(path, task, classes=10 * task)
    learner = import_checkpoint(path)
    assert learner.sizes == (10,) * task
    old, new, _ = theirs(path)(images())
    expected = new if task == 1 else old + new
    with torch.no_grad():
        assert torch.allclose(learner.method.net(images()).logits.fused, expected, rtol=1e-4, atol=1e-4)
        assert torch.allclose(learner.method.net.fold()(images()).logits.fused, expected, rtol=1e-4, atol=1e-4)


def test_a_model_is_the_method_that_made_it_on_the_order_of_its_seed(tmp_path: Path) -> None:
    path = tmp_path / "c.pth.tar"
    random_checkpoint(path, 10, classes=100, seed=7)
    save_model(import_checkpoint(path), tmp_path / "model")
    learner = drcil.load(tmp_path / "model")
    state = json.loads((tmp_path / "model" / "state.json").read_text())
    assert state["method"] == "mafdrc"
    assert state["parts"]["net"]["backbone"] == {
        "name": "resnet32",
        "channels_in": 3,
        "shortcut": "padded",
        "last_relu": True,
    }
    assert (learner.model.data.mean, learner.model.data.std) == ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    head = learner.method.net.head
    assert isinstance(head, DynamicResidualHead)
    assert (head.branch, head.fusion) == ("bn", "sum")
    assert learner.method.parameters() == 470_260
    assert sorted(learner.classes)[:2] == ["apple", "aquarium_fish"]
    assert learner.classes[class_order(100, 7).index(0)] == "apple"
    assert learner.memory.budget == MemoryBudget.parse("2000")
    assert learner.memory.images is None


def test_at_task_1_the_untrained_branch_is_no_past_but_is_kept_for_the_teacher_of_task_2(tmp_path: Path) -> None:
    random_checkpoint(tmp_path / "c", 1, classes=10)
    method = import_checkpoint(tmp_path / "c").method
    head = method.net.head
    assert isinstance(head, DynamicResidualHead)
    assert head.branches.old() is None
    untrained = method.parts["untrained"]
    assert isinstance(untrained, Number)
    assert float(untrained.value) == pytest.approx(0.1336)


def test_the_layer_that_nobody_calls_may_be_missing(tmp_path: Path) -> None:
    unused: dict[str, Any] = dict.fromkeys(UNUSED)
    random_checkpoint(tmp_path / "c", 2, classes=20, **unused)
    assert "net.fc.weight" not in import_checkpoint(tmp_path / "c").method.state().tensors


def test_several_checkpoints_become_models_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "b", tmp_path / "a"]
    for path, task in zip(paths, (3, 1), strict=True):
        random_checkpoint(path, task, classes=2 * task)
    assert main(["import", *map(str, paths), "--out", str(tmp_path / "m")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "m" / name) for name in ("task03", "task01")]
    assert drcil.load(tmp_path / "m" / "task03").sizes == (2, 2, 2)
    assert main(["import", str(paths[1]), "--out", str(tmp_path / "one")]) == 0
    assert drcil.load(tmp_path / "one").sizes == (2,)
    with pytest.raises(UserError, match="is itself a model"):
        import_all(paths, tmp_path / "one")
    with pytest.raises(UserError, match="several checkpoints are of task01"):
        import_all([paths[1], paths[1]], tmp_path / "twice")
    assert not (tmp_path / "twice").exists()


def test_nothing_is_written_unless_all_can_be_read(tmp_path: Path) -> None:
    random_checkpoint(tmp_path / "good", 1, classes=2)
    (tmp_path / "bad").write_bytes(b"")
    with pytest.raises(UserError, match="bad"):
        import_all([tmp_path / "good", tmp_path / "bad"], tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_model_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    random_checkpoint(tmp_path / "good", 1, classes=2)
    import_all([tmp_path / "good"], tmp_path / "m")
    with pytest.raises(UserError, match="already exists"):
        import_all([tmp_path / "good"], tmp_path / "m")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def one_byte_wrong(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    content = bytearray(path.read_bytes())
    # Past the local header and its padding there is nothing but the tensor's bytes.
    content[largest.header_offset + 4000] ^= 1
    path.write_bytes(content)


def other_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter.txt", "dear reader")


def saved(content: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


def with_entry(name: str, value: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        torch.save({**content, name: value}, path)

    return change


def with_tensors(**changed: Any) -> Callable[[Path], None]:
    return lambda path: random_checkpoint(path, 2, classes=20, **changed)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def compressed(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def behind_a_pickle(path: Path) -> None:
    """Both a zip archive, which is found from its end, and what stands before it."""
    path.write_bytes(pickle.dumps(print) + path.read_bytes())


def nested(levels: int) -> list[Any]:
    """Two to the power of so many entries, in a few bytes."""
    value: list[Any] = [1]
    for _ in range(levels):
        value = [value, value]
    return value


def bytes_of_storage(path: Path) -> None:
    """One tensor claims a thousand times the bytes that are there."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name.endswith("data.pkl"):
                short, long = b"M" + (20 * 64).to_bytes(2, "little"), b"J" + (20 * 64 * 10**6).to_bytes(4, "little")
                assert short in content
                content = content.replace(short, long)
            archive.writestr(name, content)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (replaced(os.mkfifo), "cannot read .*: it is a named pipe, not a file"),
        (replaced(os.mkdir), "cannot read .*: it is a directory, not a file"),
        (replaced(lambda path: path.symlink_to("/dev/zero")), "cannot read .*: it is a device, not a file"),
        (replaced(lambda path: path.symlink_to(path.name)), "cannot read .*: Too many levels of symbolic links"),
        (lambda path: os.truncate(path, 2**40), "cannot read .*: it has 1099511627776 bytes"),
        (compressed, "its content is compressed"),
        (behind_a_pickle, "it is not a complete zip archive"),
        (bytes_of_storage, "is not a checkpoint|fc.weight has shape|cannot read"),
        (with_entry("task", nested(60)), "its 'task' is of type list"),
        (with_entry("task", 2**70), "its 'task' is of type int, or too large"),
        (with_entry("task", True), "its 'task' is of type bool"),
        (with_entry("task", float("nan")), "its 'task' is nan"),
        (saved({"state_dict": {("a", "b"): torch.ones(2)}, "task": 0, "seed": 1}), "no 'state_dict' of tensors"),
        (with_tensors(**{"x" * 10**6: torch.ones(2)}), "xxx is not expected$"),
        (with_tensors(**{"fc.bias": torch.full((20,), torch.nan)}), "fc.bias has values that no training leaves"),
        (with_tensors(**{"BHN.running_var": -torch.ones(64)}), "BHN.running_var has values that no training leaves"),
        (with_tensors(**{"fc.bias": torch.ones(20, dtype=torch.int8)}), "fc.bias is not a plain tensor of float32"),
        (with_tensors(**{"fc.bias": torch.ones(20).to_sparse()}), "fc.bias is not a plain tensor of float32"),
        (with_tensors(**{"fc.bias": torch.ones(20, device="meta")}), "fc.bias is not a plain tensor of float32"),
        (with_tensors(**{"fc.weight": torch.ones(1, 1).expand(2 * 10**12, 64)}), "CIFAR-100 has only 100"),
        (lambda path: path.unlink(), "cannot read .*: No such file"),
        (lambda path: path.write_bytes(b""), "is not a checkpoint, or it is truncated"),
        (lambda path: path.write_text("weights"), "is not a checkpoint, or it is truncated"),
        (cut_short, "truncated"),
        (one_byte_wrong, "is damaged: the checksum of .* is wrong"),
        (other_archive, "zip archive of something else"),
        (saved({"state_dict": {}, "args": argparse.Namespace()}), "is refused: it holds Python objects"),
        (saved([1, 2]), "it has no 'state_dict' of tensors"),
        (saved({"weights": torch.ones(2)}), "it has no 'state_dict' of tensors"),
        (saved({"state_dict": {"fc.weight": 3}, "task": 0, "seed": 1}), "it has no 'state_dict' of tensors"),
        (saved({"state_dict": {"fc": torch.ones(2)}, "task": 0, "seed": 1}), "fc.weight is missing"),
        (with_entry("task", None), "its 'task' is None"),
        (with_entry("task", -1), "its 'task' is -1"),
        (with_entry("seed", "1993"), "its 'seed' is '1993'"),
        (with_entry("seed", 2**32), "order seed .*4294967296"),
        (with_entry("task", 2), "has 20 classes, which cannot be the classes of 3 tasks"),
        (with_entry("task", 0), "says that it is of task 1, but its old branch .* has been trained"),
        (with_tensors(**{"BHO.bias": None}), "BHO.bias is missing"),
        (with_tensors(**{"BHO.bias": None, "fc.bias": None}), r"fc.bias \(and 1 more\) are missing"),
        (with_tensors(**{"convnet.stage_1.0.conv_a.weight": None}), "convnet.stage_1.0.conv_a.weight is missing"),
        (with_tensors(**{"convnet.bn_2.bias": torch.ones(3)}), "convnet.bn_2.bias is not expected"),
        (with_tensors(**{"fc.bias": torch.ones(19)}), r"fc.bias has shape \[19\], but \[20\] is expected"),
        (with_tensors(**{"fc.weight": torch.ones(20, 512)}), r"fc.weight has shape \[20, 512\], but \[20, 64\]"),
        (with_tensors(**{"fc.weight": torch.tensor(1.0)}), "has 0 classes"),
        (with_tensors(**{"BHO.running_var": torch.ones(64)}), "BHO.running_var and BHN.running_var differ"),
        (lambda path: random_checkpoint(path, 2, classes=102), "has 102 classes, but CIFAR-100 has only 100"),
    ],
)
def test_what_is_not_a_published_checkpoint_is_refused_in_a_sentence(
    change: Callable[[Path], None], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.pth.tar"
    random_checkpoint(path, 2, classes=20)
    change(path)
    with pytest.raises(UserError, match=told):
        import_checkpoint(path)
    assert main(["import", str(path), "--out", str(tmp_path / "m")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "m").exists()


@pytest.mark.data
def test_class_names_are_those_of_cifar100(data_dir: Path, tmp_path: Path) -> None:
    random_checkpoint(tmp_path / "c", 10, classes=100)
    names = load_cifar100(data_dir).classes
    assert import_checkpoint(tmp_path / "c").classes == tuple(names[label] for label in class_order(100, 1993))


@pytest.mark.data
def test_published_accuracy_on_cifar100(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All ten checkpoints get right what was published: Table 2 has 73.97 as their average, 62.04 after the last task.

    The engine folds a model before it looks; the net as it is, and the authors' own, see the same.
    """
    paths = [published_checkpoint(data_dir, task) for task in range(1, 11)]
    assert main(["import", *map(str, paths), "--out", str(tmp_path / "m")]) == 0
    capsys.readouterr()
    stream, accuracies = make_stream("cifar100-b0-10", data_dir=data_dir), []
    for task, path in enumerate(paths, start=1):
        model = tmp_path / "m" / f"task{task:02d}"
        assert main(["evaluate", str(model), "cifar100-b0-10", "--data", str(data_dir), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["total"] == 1000 * task
        assert abs(found["correct"] - PUBLISHED[task - 1]) <= 2
        accuracies.append(found["accuracy"])
        learner = drcil.load(model)
        test = stream.task(task).test
        few = test.subset(range(0, len(test), 10 * task))
        folded = learner.rank(few, best=1)["classifier"].classes[:, 0]
        with torch.no_grad():
            looked = learner.engine.inference.normalised(few.read())
            old, new, _ = theirs(path)(looked)
            assert torch.equal(learner.method.net.eval()(looked).logits.fused.argmax(dim=1), folded)
            assert torch.equal((new if task == 1 else old + new).argmax(dim=1), folded)
    average, last = (
        cell.value
        for cell in published_table("T2").cells.values()
        if (cell.row, cell.column.stream) == ("MAFDRC", "cifar100-b0-10")
    )
    assert average is not None and last is not None
    assert abs(sum(accuracies) / 10 - average) < 0.01
    assert abs(accuracies[-1] - last) < 0.05


def published_checkpoint(data_dir: Path, task: int) -> Path:
    path = data_dir / "drc-cil-checkpoints" / f"checkpoint_cifar100_1993_task{task}.pth.tar"
    if not path.is_file():
        pytest.skip(f"needs the authors' checkpoints: {path} is not there")
    return path
