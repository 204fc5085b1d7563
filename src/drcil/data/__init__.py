"""Images and where they come from. The public names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import Dataset, DataSpec, register_dataset
    from .image_set import ArraySource, ImageSet
    from .source_refs import DatasetRef
    from .user_images import infer_data_spec, wrap_dataset

__all__ = [
    "ArraySource",
    "DataSpec",
    "Dataset",
    "DatasetRef",
    "ImageSet",
    "infer_data_spec",
    "register_dataset",
    "wrap_dataset",
]
_MODULES = {
    "ArraySource": "image_set",
    "DataSpec": "dataset",
    "Dataset": "dataset",
    "DatasetRef": "source_refs",
    "ImageSet": "image_set",
    "infer_data_spec": "user_images",
    "register_dataset": "dataset",
    "wrap_dataset": "user_images",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
