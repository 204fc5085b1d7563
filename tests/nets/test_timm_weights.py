"""Real weights, learnt from ImageNet by others, tell photographs apart that they were not learnt from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from drcil.data.dataset import load_dataset
from drcil.data.image_set import ImageSet
from drcil.heads import LinearHead
from drcil.inference import Inference
from drcil.methods.nearest_mean import NearestMean
from drcil.nets.backbone import backbone_for, preprocessing_of
from drcil.nets.initial_weights import find_weights, start_from, unmatched_tensors
from drcil.nets.net import Net
from support.timm_weights import PUBLISHED, published

EACH = 10
"""Images of a class: half to learn from, half to be told."""


@pytest.mark.data
@pytest.mark.parametrize("name", PUBLISHED)
def test_class_means_of_real_features_classify_photographs(name: str, data_dir: Path, tmp_path: Path) -> None:
    weights = find_weights(published(name, tmp_path))
    photographs = load_dataset(f"folder:{data_dir / 'photos'}").train
    classes = int(photographs.labels.max()) + 1
    assert classes == 24
    backbone, wanted = backbone_for(f"timm:{name}", 3, 224), preprocessing_of(f"timm:{name}")
    assert wanted is not None
    assert unmatched_tensors(lambda: backbone_for(f"timm:{name}", 3, 224), weights) == ""
    start_from(backbone, weights)
    inference = Inference(torch.device("cpu"), wanted.mean, wanted.std, workers=0, batch=40)

    def features(images: ImageSet) -> torch.Tensor:
        return inference.features(Net(backbone, LinearHead(backbone.channels)), images)

    known, asked = (some(photographs, classes, start) for start in (0, EACH // 2))
    means = NearestMean.of(features(known), torch.from_numpy(known.labels), classes).means
    told_apart = (torch.nn.functional.normalize(features(asked)) @ means.T).argmax(dim=1).numpy() == asked.labels
    assert told_apart.mean() > 0.75, f"{told_apart.mean():.1%} of {len(asked)} photographs are classified right"


def some(images: ImageSet, classes: int, start: int) -> ImageSet:
    """So many images of every class, from the n-th on."""
    chosen = [np.flatnonzero(images.labels == label)[start : start + EACH // 2] for label in range(classes)]
    return images.subset(np.concatenate(chosen))
