"""Random views belong to places in an epoch: an image taken three times is seen through three crops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor

from drcil.data import loader
from drcil.data.augment import build_augment
from drcil.data.dataset import DIGITS_SPEC
from drcil.data.file_source import FileList, FileSource
from drcil.data.image_set import ArraySource, ImageSet, Int64
from drcil.nets.net import Output
from drcil.seeding import numpy_generator
from drcil.stages import Batch, Losses
from drcil.train import EngineSettings, SnapshotStore, TrainingEngine, make_inference
from drcil.train.events import Event, silence
from support.engine import SCHEDULE, cross_entropy, fit, make_net, make_stage, stopped_and_resumed

IMAGES, TIMES, BATCH, SIZE = 7, 3, 4, 32
CROPPED = replace(DIGITS_SPEC, crop="resized")
"""Random resized crops are the only augmentation, and hardly any two of noise are alike."""

View = tuple[int, bytes]
"""The id of an image, and what a net saw of it."""


def noise(index: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(index).integers(0, 256, (height, width), dtype=np.uint8)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, ImageSet]:
    paths = [tmp_path / f"{index}.png" for index in range(IMAGES)]
    for index, path in enumerate(paths):
        Image.fromarray(noise(index, 60, 48)).save(path)
    pixels = torch.from_numpy(np.stack([noise(index, SIZE, SIZE) for index in range(IMAGES)]))[:, None]
    files = ImageSet.unlabelled(FileSource(FileList.of_paths(paths), SIZE, channels=1))
    arrays = ImageSet.unlabelled(ArraySource(pixels))
    return {"files": files, "arrays": arrays, "both": files.join(arrays)}


def three_times(labels: Int64, key: int) -> Int64:
    return numpy_generator(key).permutation(np.repeat(np.arange(len(labels)), TIMES))


def train(
    images: ImageSet,
    batch_size: int = BATCH,
    journal: SnapshotStore | None = None,
    listener: Callable[[Event], None] = silence,
    seen: list[View] | None = None,
    **options: Any,
) -> list[View]:
    """What a net sees in two epochs that take every image three times; ``seen`` has it also if they are left early."""
    views = [] if seen is None else seen
    shown: list[Tensor] = []

    def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
        views.extend((row, view.numpy().tobytes()) for row, view in zip(batch.rows.tolist(), shown[-1], strict=True))
        return cross_entropy(output, teachers, batch)

    net = make_net()
    net.register_forward_pre_hook(lambda module, inputs: shown.append(inputs[0].clone()))
    settings = EngineSettings.model_validate({"device": "cpu", "workers": 0, **options})
    stage = make_stage(
        net,
        data=images.relabel(np.arange(len(images)) % 10),
        objective=objective,
        schedule=SCHEDULE.model_copy(update={"batch_size": batch_size}),
        sampler=three_times,
    )
    inference = make_inference(settings, CROPPED.mean, CROPPED.std)
    augment = build_augment("crop", CROPPED, images.shape.in_memory)
    fit(TrainingEngine(settings, inference, augment, 3, journal, listener), stage)
    return views


@pytest.mark.parametrize("kind", ["files", "arrays", "both"])
def test_an_image_is_seen_through_another_crop_each_time_it_is_taken(kind: str, sources: dict[str, ImageSet]) -> None:
    images = sources[kind]
    views = train(images)
    epoch = TIMES * len(images)
    assert len(views) == 2 * epoch
    for taken in (views[:epoch], views[epoch:], views):
        assert {image for image, _ in taken} == set(images.ids.tolist())
        assert len(set(taken)) == len(taken)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "arrays", "both"])
@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 2}, {"cache": "1MB"}, {"workers": 2, "cache": "1MB"}])
def test_neither_workers_nor_a_cache_change_a_view(
    kind: str, options: dict[str, Any], sources: dict[str, ImageSet]
) -> None:
    assert train(sources[kind], **options) == train(sources[kind])


@pytest.mark.parametrize("kind", ["files", "arrays", "both"])
def test_an_epoch_that_was_interrupted_goes_on_with_the_same_views(
    kind: str, sources: dict[str, ImageSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "CHUNK_BYTES", 2 * BATCH * SIZE**2)
    sessions: list[list[View]] = []

    def make(journal: SnapshotStore, listener: Callable[[Event], None]) -> None:
        sessions.append([])
        train(sources[kind], journal=journal, listener=listener, seen=sessions[-1])

    stopped_and_resumed(make, tmp_path / "snapshot", [3, 2])
    whole, start = train(sources[kind]), 0
    assert [len(session) for session in sessions[:2]] == [3 * BATCH, 2 * BATCH]
    for session in sessions:
        assert whole[start : start + len(session)] == session
        start += len(session) - BATCH  # The step that was stopped is taken again.
    assert start == len(whole) - BATCH


@pytest.mark.parametrize("kind", ["files", "both"])
@pytest.mark.parametrize("batch_size", [3, 5, 100])
def test_crops_of_files_do_not_depend_on_how_an_epoch_is_cut(
    kind: str, batch_size: int, sources: dict[str, ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do crops of arrays beside files: one learner may have both."""
    views = train(sources[kind])
    monkeypatch.setattr(loader, "CHUNK_BYTES", 1)
    assert train(sources[kind], batch_size) == views
