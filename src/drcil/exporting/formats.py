"""The formats by name: how each is written, how a file is asked, and what can be asked for. It imports little."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ..arguments import one_of, optional
from ..errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..models.model import Model

Answer: TypeAlias = "Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]"
"""Images (N, H, W, C) to probabilities (N, classes)."""

Quantization = Literal["int8"]


@dataclass(frozen=True)
class Format:
    """A kind of file. Its module, which is imported when it is needed, has ``write`` and ``opened``."""

    module: str
    suffix: str
    runs_in: str
    """What answers."""
    needs: tuple[str, ...] = ()
    """The packages of the extra ``export`` that it takes."""

    def write(self, model: Model, path: Path) -> None:
        """Write the model, folded, as one file."""
        self._module().write(model, path)

    def opened(self, path: Path) -> Answer:
        """A file that was written, ready for use."""
        answer: Answer = self._module().opened(path)
        return answer

    def _module(self) -> Any:
        return import_module(f".{self.module}", __package__)


FORMATS = {
    "onnx": Format("onnx_file", ".onnx", "onnxruntime", ("onnx", "onnxscript", "onnxruntime")),
    "torch": Format("program", ".pt2", "torch.export"),
    "safetensors": Format("weights", ".safetensors", "torch"),
}


def require_possible(place: Path, format: str | None, quantize: str | None) -> str:
    """The format: the one that is named, else that of the file's ending. Or what cannot be asked for, in a sentence."""
    kind = _named(format, place)
    optional(one_of, "quantize", quantize, get_args(Quantization))
    if quantize and kind != "onnx":
        raise UserError(f"'{quantize}' is for ONNX files, and the format is '{kind}'; give format 'onnx', or omit it")
    if os.path.lexists(place):
        raise UserError(f"{place} already exists; choose another file, or remove it first")
    absent = [name for name in FORMATS[kind].needs if importlib.util.find_spec(name) is None]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        raise UserError(
            f"the format '{kind}' needs {', '.join(absent)}, which {verb} not installed; install with "
            f"pip install 'drcil[export]'"
        )
    return kind


def _named(format: str | None, place: Path) -> str:
    name = next((name for name, known in FORMATS.items() if known.suffix == place.suffix), None)
    if format is not None:
        if name not in (None, one_of("format", format, FORMATS)):
            raise UserError(f"'{place.name}' is named as the format '{name}', and '{format}' was asked for; choose one")
        return format
    if name is None:
        endings = ", ".join(known.suffix for known in FORMATS.values())
        raise UserError(f"'{place.name}' does not tell a format; give one, or a name that ends in {endings}")
    return name
