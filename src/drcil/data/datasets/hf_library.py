"""Hugging Face's ``datasets``: imported where it is needed, quiet, with its errors in one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ...errors import UserError, shortened
from ...process import silenced
from .place import expanded

INSTALL = "pip install 'drcil[hf]'"


def import_datasets() -> Any:
    """The package; an error with the command that installs it, if it is not there."""
    if importlib.util.find_spec("datasets") is None:
        raise UserError(f"datasets 'hf:NAME' need Hugging Face's datasets, which is not installed; {INSTALL} does it")
    try:
        return importlib.import_module("datasets")
    except Exception as error:
        why = shortened(f"{type(error).__name__}: {error}")
        raise UserError(f"Hugging Face's datasets cannot be imported: {why}; install it with {INSTALL}") from error


def local_path(name: str) -> Path | None:
    """The directory that a name leads to; None: it is a name of the hub."""
    path = expanded(name)
    if os.path.isdir(path):
        return path.absolute()
    if name.startswith((".", "/", "~")) or os.path.lexists(path):
        raise UserError(
            f"hf:{shortened(name)} is not a directory; give the name of a dataset of the Hugging Face hub, or the "
            "directory of one on disk"
        )
    return None


def load_splits(name: str, config: str | None, revision: str | None, shown: bool = False) -> dict[str, Any]:
    """The splits of a dataset, by name; a dataset that was saved without splits is ``train``.

    ``shown``: the library may show its progress.

    From the hub, or from this machine's cache of it; or from a directory, where ``save_to_disk`` wrote it, or
    with files of a format that the library knows. Code of a dataset is never run.
    """
    library, path = import_datasets(), local_path(name)
    with nullcontext() if shown else _quietly(library):
        try:
            if path is not None and _is_saved(path):
                found = library.load_from_disk(str(path))
            else:
                found = library.load_dataset(name if path is None else str(path), config, revision=revision)
        except Exception as error:  # Networks, formats and caches fail in many ways.
            raise UserError(f"hf:{shortened(name)} {_why(library, error, path)}") from error
    return dict(found) if isinstance(found, dict) else {"train": found}


def _is_saved(path: Path) -> bool:
    """Whether ``save_to_disk`` wrote this directory."""
    return any(os.path.isfile(path / name) for name in ("dataset_dict.json", "state.json"))


def _why(library: Any, error: Exception, path: Path | None) -> str:
    told = shortened(" ".join(str(error).split()) or type(error).__name__)
    if path is not None:
        return f"is not a dataset that can be loaded: {told}"
    if isinstance(error, ConnectionError):
        return (
            "is not in this machine's cache, and the Hugging Face hub cannot be reached; is this machine online? The "
            "directory of a dataset that is on disk can be given, too"
        )
    if isinstance(error, library.exceptions.DatasetNotFoundError):
        return f"cannot be had from the Hugging Face hub: {told}"
    return f"cannot be loaded: {told}"


@contextmanager
def _quietly(library: Any) -> Iterator[None]:
    """Within the block there are no progress bars and no messages of the library."""
    bars = (library.utils, importlib.import_module("huggingface_hub.utils"))
    with ExitStack() as after, warnings.catch_warnings(), silenced("datasets", "huggingface_hub"):
        warnings.simplefilter("ignore")
        for module in bars:
            if not module.are_progress_bars_disabled():
                module.disable_progress_bars()
                after.callback(module.enable_progress_bars)
        yield
