"""Changing a model on disk as one who can also compute its digests: what is wrong then is wrong by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from drcil.files import CHECKSUM, read_json, read_tensors, write_checksummed_json, write_tensors
from drcil.models.model_format import STATE


def edit_state(model: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the entries of ``state.json`` in place."""
    state = read_json(model / STATE)
    change(state)
    state.pop(CHECKSUM, None)
    write_checksummed_json(model / STATE, state)


def edit_tensors(model: Path, name: str, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the tensors of a file in place."""
    tensors, note = read_tensors(model / name)
    change(tensors)
    seal = write_tensors(model / name, tensors, note)
    edit_state(model, lambda state: state["files"].update({name: asdict(seal)}))
