"""A model that carries the images of its memory: it learns on wherever it is, without the originals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import drcil
from drcil import Learner, UserError
from drcil.data.decoding import short_side
from drcil.data.file_source import FileList, FileSource
from drcil.data.source_refs import KeptRef
from drcil.models.exemplars import kept_files, save_exemplar_file
from support.model_edits import edit_state

SIZE = 32
TURNED = Image.Exif()
TURNED[0x0112] = 6


def photograph(path: Path, seed: int, size: tuple[int, int] = (48, 40), **how: object) -> Path:
    """Smooth, so that it survives being compressed again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, **how)  # type: ignore[arg-type]
    return path


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat", "dog", "fox", "owl")):
        for one in range(3):
            photograph(tmp_path / "photographs" / name / f"{one}.jpg", 10 * number + one)
    return tmp_path / "photographs"


def taught(folder: Path, *classes: str, learner: Learner | None = None) -> Learner:
    learner = learner or Learner(
        "replay", backbone="resnet-digits", memory="2/class", augment="crop", epochs_scale=0.005, device="cpu"
    )
    paths = [path for name in classes for path in sorted((folder / name).iterdir())]
    learner.learn(paths, [path.parent.name for path in paths])
    return learner


def test_it_learns_on_elsewhere_when_the_originals_are_gone(photographs: Path, tmp_path: Path) -> None:
    learner = taught(photographs, "cat", "dog")
    learner.save(tmp_path / "model", exemplars="images")
    taught(photographs, "fox", "owl", learner=learner)

    moved = shutil.move(tmp_path / "model", tmp_path / "elsewhere")
    for name in ("cat", "dog"):
        shutil.rmtree(photographs / name)
    again = drcil.load(moved, device="cpu")
    taught(photographs, "fox", "owl", learner=again)
    assert again.classes == ("cat", "dog", "fox", "owl") and len(again.memory.labels) == 8
    for name, tensor in learner.method.state().tensors.items():
        assert torch.equal(tensor, again.method.state().tensors[name]), "small files are kept as they are"
    # What it carries and what is new are kept together by the next.
    again.save(tmp_path / "next", exemplars="images")
    assert len(list((tmp_path / "next" / "exemplars").iterdir())) == 8
    shutil.rmtree(photographs)
    shutil.rmtree(moved)
    assert drcil.load(tmp_path / "next", device="cpu").memory.images is not None


def test_what_a_model_carries_is_carried_on_however_it_is_saved(photographs: Path, tmp_path: Path) -> None:
    learner = taught(photographs, "cat", "dog")
    for number, name in enumerate(("cat", "dog"), start=1):
        for one in range(10, 30):
            photograph(photographs / name / f"{one}.jpg", 100 * number + one)
    more = [path for name in ("cat", "dog") for path in sorted((photographs / name).glob("??.jpg"))]
    learner.refresh(more, [path.parent.name for path in more], validation=0.1)
    learner.save(tmp_path / "model", exemplars="images")
    shutil.rmtree(photographs / "cat")
    shutil.rmtree(photographs / "dog")

    drcil.load(tmp_path / "model", device="cpu").save(tmp_path / "model")
    itself = drcil.load(tmp_path / "model", device="cpu")
    taught(photographs, "fox", learner=itself)
    itself.save(tmp_path / "copy")
    shutil.rmtree(tmp_path / "model")
    copy = drcil.load(tmp_path / "copy", device="cpu")
    taught(photographs, "owl", learner=copy)
    assert copy.memory.images is not None and copy.memory.images.counts(4).tolist() == [2] * 4
    assert copy.model.held.images is not None and copy.model.held.images.counts(2).tolist() == [2, 2]
    # Others are referred to, as before.
    assert len(list((tmp_path / "copy" / "exemplars").iterdir())) == 8
    shutil.rmtree(photographs / "fox")
    with pytest.raises(UserError, match=r"the exemplars of .*copy cannot be used"):
        drcil.load(tmp_path / "copy", device="cpu").memory.images  # noqa: B018


def test_without_that_a_model_says_what_is_missing(photographs: Path, tmp_path: Path) -> None:
    taught(photographs, "cat", "dog").save(tmp_path / "model")
    shutil.rmtree(photographs / "cat")
    with pytest.raises(UserError, match=r"the exemplars of .*model cannot be used"):
        drcil.load(tmp_path / "model", device="cpu").memory.images  # noqa: B018 - looked up when asked for


def test_versions_share_what_they_both_carry(photographs: Path, tmp_path: Path) -> None:
    taught(photographs, "cat", "dog").save(tmp_path / "one", exemplars="images")
    drcil.load(tmp_path / "one", device="cpu").save(tmp_path / "two", exemplars="images")
    files = sorted((tmp_path / "two" / "exemplars").iterdir())
    assert len(files) == 4
    for file in files:
        assert file.samefile(tmp_path / "one" / "exemplars" / file.name)


def test_a_changed_or_missing_copy_is_told(photographs: Path, tmp_path: Path) -> None:
    taught(photographs, "cat", "dog").save(tmp_path / "model", exemplars="images")
    first, second, *_ = sorted((tmp_path / "model" / "exemplars").iterdir())
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(UserError, match="is not the image that the model remembers"):
        drcil.load(tmp_path / "model", device="cpu").memory.images  # noqa: B018
    first.write_bytes(kept)
    second.unlink()
    with pytest.raises(UserError, match=r"the exemplars of .* cannot be used: .*No such file"):
        drcil.load(tmp_path / "model", device="cpu").memory.images  # noqa: B018


@pytest.mark.parametrize("name", ["../../secret.png", "/etc/passwd", "x" * 32 + ".jpg", "0" * 32 + ".exe!"])
def test_names_of_copies_lead_nowhere_else(name: str, photographs: Path, tmp_path: Path) -> None:
    taught(photographs, "cat", "dog").save(tmp_path / "model", exemplars="images")

    def mislead(state: dict[str, Any]) -> None:
        state["memory"]["source"]["files"][0] = name

    edit_state(tmp_path / "model", mislead)
    with pytest.raises(UserError, match="does not describe a model"):
        drcil.load(tmp_path / "model", device="cpu")


@pytest.mark.parametrize(
    ("name", "size", "how"),
    [
        ("large.jpg", (1600, 1200), {"quality": 100, "subsampling": 0}),
        ("turned.jpg", (1600, 1200), {"quality": 100, "exif": TURNED}),
        ("small.bmp", (48, 40), {}),
    ],
)
def test_a_large_picture_is_kept_smaller_and_looks_the_same(
    name: str, size: tuple[int, int], how: dict[str, object], tmp_path: Path
) -> None:
    path = photograph(tmp_path / name, 0, size, **how)
    if name == "large.jpg":
        rough = np.random.default_rng(1).integers(0, 20, (1200, 1600, 3), dtype=np.uint8)
        Image.fromarray(np.asarray(Image.open(path)) // 2 + rough).save(path, **how)  # type: ignore[arg-type]
    original = FileSource(FileList.of_paths([path]), SIZE)
    kept = save_exemplar_file(original, 0, tmp_path / "kept")
    copy = kept_files(tmp_path / "kept", KeptRef(size=SIZE, resize=short_side(SIZE), channels=3, files=(kept,)))
    row = np.zeros(1, dtype=np.int64)
    assert (copy.read(row).int() - original.read(row).int()).abs().float().mean() < 4
    if size[0] > 1000 and path.stat().st_size > 2**18:
        with Image.open(tmp_path / "kept" / kept) as picture:
            assert min(picture.size) == 2 * SIZE
    assert save_exemplar_file(original, 0, tmp_path / "kept") == kept, "the same picture has one name"


def test_what_exemplars_may_be_is_told(photographs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown exemplars 'copies'"):
        taught(photographs, "cat", "dog").save(tmp_path / "model", exemplars="copies")  # type: ignore[arg-type]


def test_a_folder_and_a_table_have_class_names_of_their_own(photographs: Path) -> None:
    (photographs / "cat" / "broken.jpg").write_bytes(b"no picture")
    rows = [f"{name}/{one}.jpg,{name}" for name in ("eel", "bat") for one in range(2)]
    for row in rows:
        photograph(photographs.parent / row.partition(",")[0], 99)
    (photographs.parent / "more.csv").write_text("\n".join(["file,label", *rows]))
    learner = Learner("replay", backbone="resnet-digits", image_size=16, epochs_scale=0.005, device="cpu")
    with pytest.warns(UserWarning, match=r"broken\.jpg cannot be read as an image and is left out"):
        learner.learn(photographs)
    learner.learn(photographs.parent / "more.csv")
    assert learner.classes == ("cat", "dog", "fox", "owl", "eel", "bat")
    assert str(learner.model.shape) == "3 x 16 x 16"
    by_name = sorted(photographs.rglob("?.jpg"))
    assert learner.evaluate(photographs) == learner.evaluate(by_name, [path.parent.name for path in by_name])
    (photographs / "cat" / "broken.jpg").unlink()
    with pytest.raises(UserError, match="class 'cat' has already been learnt"):
        learner.learn(photographs)
