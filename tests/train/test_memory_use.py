"""Memory that does not grow with the number of images, but for their features and rankings."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drcil.data.image_set import CropDraw, ImageSet, Int64, Source
from drcil.data.loader import PictureCache
from drcil.heads.head import Logits
from drcil.inference import FeatureBank, Inference
from drcil.methods.nearest_mean import NearestMean
from drcil.nets.backbone import Features
from drcil.nets.net import Output, Readout
from drcil.settings import MemoryBudget
from drcil.streams.memory import Memory
from support.allocations import Allocations

CLASSES, EACH, WIDTH = 40, 250, 64
FEATURES = CLASSES * EACH * WIDTH * 4
"""Bytes of the features of all images, in single precision: 2.6 MB."""
SLACK = 0.25
"""What batches, the copies of one class and the numbers of all images may take beside, by the features."""


class Drawn(Source):
    """Images that are made when they are read, so that none is held."""

    in_memory, channels, size = True, 1, 4

    def __len__(self) -> int:
        return CLASSES * EACH

    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> Tensor:
        noise = np.outer(rows * 2654435761 % 2**31, np.arange(1, 17)) % 251
        return torch.from_numpy(noise.astype(np.uint8)).reshape(-1, 1, 4, 4)


class Wide(nn.Module):
    """Features and logits by one matrix each."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.features = nn.Parameter(torch.randn(16, WIDTH, generator=generator), requires_grad=False)
        self.classifier = nn.Parameter(torch.randn(WIDTH, CLASSES, generator=generator), requires_grad=False)

    def forward(self, images: Tensor) -> Output:
        pooled = (images.flatten(1) @ self.features).relu()
        return Output(Logits(fused=pooled @ self.classifier), Features((), pooled[:, None], pooled))


@pytest.fixture
def images() -> ImageSet:
    """Rows in an order of their own, as the classes of a stream are."""
    labels = np.repeat(np.arange(CLASSES), EACH)
    rows = np.random.default_rng(0).permutation(CLASSES).repeat(EACH) * EACH + np.tile(np.arange(EACH), CLASSES)
    return ImageSet.of(Drawn(), rows, labels)


@pytest.fixture
def inference() -> Inference:
    return Inference(torch.device("cpu"), (0.5,), (0.5,), batch=100, workers=0)


def peak_of(work: Callable[[], Any]) -> int:
    """The most bytes that existed at once beyond those there were: of tensors, and of arrays and Python's objects."""
    with Allocations():
        torch.zeros(1)  # The first use imports modules of torch, which are not to be counted.
    gc.collect()
    with Allocations() as tensors:
        tracemalloc.start()
        kept = work()
        others = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    del kept
    return int(tensors.peak + others)


def test_the_measure_sees_a_second_copy() -> None:
    """Otherwise the tests below would tell nothing."""
    one = 4 * 10**6
    assert one <= peak_of(lambda: torch.zeros(10**6)) < 1.1 * one
    assert 2 * one <= peak_of(lambda: torch.zeros(10**6) + 1) < 2.1 * one
    parts = 8
    assert 2 * one <= peak_of(lambda: torch.cat([torch.zeros(10**6 // parts) for _ in range(parts)])) < 2.1 * one
    assert peak_of(lambda: [torch.zeros(10**6).sum() for _ in range(parts)]) < 1.1 * one
    assert 3 * one <= peak_of(lambda: np.ones(10**6, dtype=np.float32).astype(np.float64)) < 3.1 * one


def test_features_are_held_once(images: ImageSet, inference: Inference) -> None:
    assert FEATURES <= peak_of(lambda: inference.features(Wide(), images)) < (1 + SLACK) * FEATURES


def test_herding_and_class_means_hold_them_once(images: ImageSet, inference: Inference) -> None:
    """As after a task: exemplars chosen, and the means of these and of older ones from the same features."""
    memory = Memory(MemoryBudget.parse("20/class"))
    old, new = images.subset(images.labels < 4), images.subset(images.labels >= 4)
    net = Wide()
    memory.update(old, 4, lambda images: inference.features(net, images))

    def finish() -> Tensor:
        bank = FeatureBank(lambda images: inference.features(net, images))
        memory.update(new, CLASSES, bank)
        exemplars = memory.images
        assert exemplars is not None
        return NearestMean.of(bank(exemplars), torch.from_numpy(exemplars.labels), CLASSES).means

    chosen = CLASSES * 20 * WIDTH * 4
    assert peak_of(finish) < (1 + SLACK) * FEATURES + 2 * chosen
    assert memory.images is not None
    assert len(memory.images) == CLASSES * 20


def test_rankings_take_what_they_keep(images: ImageSet, inference: Inference) -> None:
    """Ten classes and scores of each image; never the scores of all classes, nor features."""
    net = inference.frozen(Wide())
    readouts = {"classifier": Readout(net), "nme": Readout(net, NearestMean(torch.ones(CLASSES, WIDTH)))}
    ranked = len(readouts) * len(images) * 10 * (8 + 4)
    assert ranked <= peak_of(lambda: inference.rank(readouts, images)) < (1 + SLACK) * ranked


def test_what_the_bank_gives_again_is_no_copy(images: ImageSet, inference: Inference) -> None:
    bank = FeatureBank(lambda images: inference.features(Wide(), images))
    first = bank(images)
    assert bank(images).data_ptr() == first.data_ptr()
    assert torch.equal(bank(images.subset([3, 1, 3])), first[[3, 1, 3]])
    assert torch.equal(first, inference.features(Wide(), images))
