"""The weights that timm publishes: the file in this machine's cache, which is filled where there is a network."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import Any

from ..errors import UserError
from ..process import silenced
from .features import BACKBONES
from .timm_import import TIMM, import_timm
from .weights import Weights

_FILES = ("model.safetensors", "pytorch_model.bin")
"""What the repositories of the Hugging Face hub call the weights; the first that is there is taken."""


def named_weights(file: str | os.PathLike[str] | None, pretrained: bool, backbone: str | None) -> Weights | None:
    """The weights that a user asks for: those of a file, or the published ones of the backbone; None: none."""
    if not pretrained:
        return None if file is None else Weights.of(file)
    if file is not None:
        raise UserError("published weights and those of a file exclude each other; give --pretrained or --weights FILE")
    if backbone is None:
        raise UserError(f"--pretrained takes a backbone that has published weights; give --backbone {TIMM}NAME")
    return pretrained_weights(backbone)


def pretrained_weights(backbone: str) -> Weights:
    """The published weights of a backbone."""
    BACKBONES[backbone]
    if not backbone.startswith(TIMM):
        raise UserError(
            f"there are no published weights for backbone '{backbone}'; give those of a file with --weights FILE, or "
            f"choose a backbone of timm, such as '{TIMM}resnet18'"
        )
    config = import_timm().get_pretrained_cfg(backbone.removeprefix(TIMM))
    if config is None or not config.has_weights:
        raise UserError(f"timm has no weights for backbone '{backbone}'; give those of a file with --weights FILE")
    if config.custom_load == "hf" or (config.custom_load and not config.hf_hub_id):
        raise UserError(
            f"the weights of '{backbone}' have a format of their own; give those of a file with --weights FILE"
        )
    try:
        return Weights.of(_cached(config))
    except Exception as error:  # Networks fail in many ways.
        raise UserError(
            f"the weights of '{backbone}' are not cached and cannot be fetched ({type(error).__name__}); fetch the "
            "file on a machine with a network, and give it with --weights FILE"
        ) from error


def _cached(config: Any) -> str:
    """The file with the weights, fetched if it is not there."""
    if not config.hf_hub_id:
        return str(importlib.import_module("timm.models._hub").download_cached_file(config.url))
    hub = importlib.import_module("huggingface_hub")
    place, _, revision = config.hf_hub_id.partition("@")
    names = (config.hf_hub_filename,) if config.hf_hub_filename else _FILES
    for name in names:
        found = hub.try_to_load_from_cache(place, name, revision=revision or None)
        if isinstance(found, str):
            return found
    errors = importlib.import_module("huggingface_hub.errors")
    absent = getattr(errors, "RemoteEntryNotFoundError", errors.EntryNotFoundError)
    with silenced("huggingface_hub"):
        for name in names[:-1]:
            with suppress(absent):
                return str(hub.hf_hub_download(place, filename=name, revision=revision or None))
        return str(hub.hf_hub_download(place, filename=names[-1], revision=revision or None))
