"""A user's own images, and the datasets of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset

from drcil.data.dataset import load_dataset
from drcil.data.image_set import ArraySource, CropDraw, Source
from drcil.data.user_images import MapSource, infer_data_spec, load_images, wrap_dataset
from drcil.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
CHANNELS_FIRST = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy())
PICTURES = [Image.fromarray(image) for image in PIXELS]


def pixels(source: Source) -> torch.Tensor:
    return source.read(np.arange(len(source), dtype=np.int64))


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    names = [tmp_path / f"{number}.png" for number in range(len(PICTURES))]
    for picture, name in zip(PICTURES, names, strict=True):
        picture.save(name)
    return names


class TestImagesFrom:
    @pytest.mark.parametrize(
        "images",
        [
            PIXELS,
            CHANNELS_FIRST,
            CHANNELS_FIRST.float() / 255,
            PIXELS / 255,
            PICTURES,
            list(PIXELS),
            list(CHANNELS_FIRST),
        ],
        ids=["bytes", "tensor", "float tensor", "floats", "pictures", "arrays", "tensors"],
    )
    def test_every_form_of_an_image_gives_the_same_pixels(self, images: Any) -> None:
        assert torch.equal(pixels(load_images(images)), CHANNELS_FIRST)

    def test_paths_and_directories_too(self, paths: list[Path]) -> None:
        assert torch.equal(pixels(load_images(paths)), CHANNELS_FIRST)
        assert torch.equal(pixels(load_images([str(path) for path in paths], 32, 3)), CHANNELS_FIRST)
        assert torch.equal(pixels(load_images(paths[0].parent)), CHANNELS_FIRST)
        assert torch.equal(pixels(load_images(str(paths[2]))), CHANNELS_FIRST[2:3])

    def test_grey_arrays_have_one_channel(self) -> None:
        source = load_images(PIXELS[..., 0])
        assert source.channels == 1 and torch.equal(pixels(source), CHANNELS_FIRST[:, :1])
        assert torch.equal(pixels(load_images(PIXELS[..., 0], channels=3))[:, 2:], CHANNELS_FIRST[:, :1])
        grey = pixels(load_images(PIXELS, channels=1)).float()
        weights = torch.tensor([0.299, 0.587, 0.114])
        assert (grey[:, 0] - torch.einsum("nchw,c->nhw", CHANNELS_FIRST.float(), weights)).abs().max() <= 1

    def test_larger_arrays_are_averaged_as_a_dataset_in_memory_is(self) -> None:
        small = pixels(load_images(PIXELS, 16)).float()
        means = torch.nn.functional.avg_pool2d(CHANNELS_FIRST.double(), 2)
        assert (small - means).abs().max() <= 0.5

    def test_other_shapes_are_scaled_and_cropped(self) -> None:
        assert pixels(load_images(PIXELS[:, :20], 24)).shape == (5, 3, 24, 24)
        assert pixels(load_images(PIXELS, 100)).shape == (5, 3, 100, 100)
        assert load_images([Image.new("RGB", (500, 400))]).size == 224

    def test_a_users_picture_is_not_changed(self, tmp_path: Path) -> None:
        Image.new("RGB", (800, 600), "red").save(tmp_path / "x.jpg")
        with Image.open(tmp_path / "x.jpg") as picture:
            load_images([picture], 64)
            assert picture.size == (800, 600)

    @pytest.mark.parametrize(
        ("images", "sentence"),
        [
            ([], "no images were given"),
            (PIXELS[0, 0], r"cannot be read from a ndarray of shape \(32, 3\)"),
            (3, "cannot be read from a int"),
            ([3], "an image cannot be a int"),
            (PIXELS.astype(np.int32), "type int32 are not understood"),
            (PIXELS / 100, r"must lie in \[0, 1\], these range from 0 to 2.55"),
            (PIXELS[..., :2], "C must be 1, 3 or 4"),
            (CHANNELS_FIRST[0], r"must be \(N, C, H, W\)"),
            (["nowhere.png"], r"there is no image file .*nowhere\.png"),
        ],
    )
    def test_what_is_no_image_is_one_sentence(self, images: Any, sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            load_images(images)


class TestOwnSpec:
    def test_small_images_are_normalised_by_themselves(self) -> None:
        spec = infer_data_spec(load_images(PIXELS))
        unit = CHANNELS_FIRST.double() / 255
        assert spec.mean == pytest.approx(unit.mean((0, 2, 3)).tolist(), abs=1e-6)
        assert spec.std == pytest.approx(unit.std((0, 2, 3), correction=0).tolist(), abs=1e-6)
        assert (spec.kind, spec.padding, spec.flip) == ("cifar", 4, True)

    def test_photographs_are_treated_as_a_folder(self, paths: list[Path]) -> None:
        assert infer_data_spec(load_images(paths, 224)).kind == "imagenet"

    def test_digits_given_as_arrays_are_treated_as_digits(self) -> None:
        digits = load_dataset("digits")
        spec = infer_data_spec(load_images(digits.train.read()))
        assert (spec.kind, spec.padding, spec.flip) == ("digits", 1, False)
        assert spec.mean == pytest.approx(digits.spec.mean, abs=1e-4)


class Pairs:
    """A map-style dataset such as torchvision's."""

    def __init__(self, images: list[Any], labels: list[Any], targets: bool = True) -> None:
        self.images, self.answers = images, labels
        self.reads = 0
        if targets:
            self.targets = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.reads += 1
        return self.images[index], self.answers[index]


class Rows:
    """A dataset of columns such as Hugging Face's."""

    column_names = ("img", "fine_label")

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int | str) -> Any:
        return [4, 3, 2, 1, 0] if isinstance(index, str) else {"img": PICTURES[index], "fine_label": 4 - index}


class TestWrap:
    @pytest.mark.parametrize("images", [PICTURES, list(PIXELS), list(CHANNELS_FIRST)])
    def test_small_images_go_into_memory(self, images: list[Any]) -> None:
        wrapped = wrap_dataset(Pairs(images, [2, 0, 1, 1, 0]))
        assert isinstance(wrapped.source, ArraySource)
        assert torch.equal(wrapped.read(), CHANNELS_FIRST)
        assert wrapped.labels.tolist() == [2, 0, 1, 1, 0]

    def test_large_images_are_read_when_needed(self) -> None:
        dataset = Pairs([Image.new("RGB", (300, 200), (0, 90, 0))] * 6, [0, 1, 2, 0, 1, 2])
        wrapped = wrap_dataset(dataset, size=96)
        assert isinstance(wrapped.source, MapSource) and dataset.reads == 1
        views = wrapped.source.read(np.array([1, 4]), CropDraw(3, np.arange(2)))
        assert views.shape == (2, 3, 96, 96) and (views[:, 1] == 90).all()
        assert wrapped.source.is_embedded

    def test_labels_without_targets_come_from_the_items(self) -> None:
        assert wrap_dataset(Pairs(PICTURES, [2, 0, 1, 1, 0], targets=False)).labels.tolist() == [2, 0, 1, 1, 0]
        assert wrap_dataset(TensorDataset(CHANNELS_FIRST, torch.tensor([3, 1, 2, 0, 4]))).labels.tolist() == [
            3,
            1,
            2,
            0,
            4,
        ]

    def test_subsets_and_columns(self) -> None:
        assert wrap_dataset(Subset(Pairs(PICTURES, [2, 0, 1, 1, 0]), [4, 2])).labels.tolist() == [0, 1]  # type: ignore[arg-type]
        assert wrap_dataset(Rows()).labels.tolist() == [4, 3, 2, 1, 0]

    def test_names_as_labels(self) -> None:
        dataset = Pairs(PICTURES, ["dog", "cat", "dog", "dog", "cat"])
        assert wrap_dataset(dataset, classes=["cat", "dog"]).labels.tolist() == [1, 0, 1, 1, 0]
        with pytest.raises(UserError, match="labels are names, such as 'dog'"):
            wrap_dataset(dataset)
        with pytest.raises(UserError, match="label 'dog' is not among the 1 class names"):
            wrap_dataset(dataset, classes=["cat"])

    @pytest.mark.parametrize(
        ("dataset", "sentence"),
        [
            (iter(PICTURES), "cannot be wrapped"),
            (Pairs([], []), "a length above 0"),
            (PICTURES, r"must be \(image, label\)"),
            ([{"text": "hello"}], "needs one 'image' and one 'label'"),
            (Pairs(PICTURES, [0, 1, 2, 3, 9]), "labels range from 0 to 9, but must be 0 to 4"),
        ],
    )
    def test_what_cannot_be_wrapped_is_one_sentence(self, dataset: Any, sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            wrap_dataset(dataset, classes=list("abcde"))
