"""An ONNX file with weights, and where there are images activations, of eight bits."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..data.sources.decode import Pixels
from .graph import INPUT
from .program import quiet

_LAYERS = ("Conv", "Gemm", "MatMul")


def quantise(source: Path, target: Path, images: Sequence[Pixels]) -> None:
    """Static quantisation, the ranges of activations measured on these images; dynamic where there are none.

    Layers with weights are quantised, one scale per channel. The rest, such as preparing the image, is as it was.
    """
    import onnx

    quantization = import_module("onnxruntime.quantization")
    proto = onnx.load(source)
    known = {tensor.name for tensor in proto.graph.initializer}
    layers = [node.name for node in proto.graph.node if node.op_type in _LAYERS and known.intersection(node.input)]
    about = {entry.key: entry.value for entry in proto.metadata_props}
    # Weights of seven bits: sums of eight would overflow on processors without instructions for them.
    options: dict[str, Any] = {"nodes_to_quantize": layers, "per_channel": True, "reduce_range": True}
    before = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with quiet():
            if images:
                quantization.quantize_static(
                    proto, target, _Reader(images), op_types_to_quantize=list(_LAYERS), **options
                )
            else:
                unsigned = quantization.QuantType.QUInt8  # What convolutions of integers take.
                quantization.quantize_dynamic(proto, target, weight_type=unsigned, **options)
    finally:
        logging.root.setLevel(before)
    done = onnx.load(target)
    onnx.helper.set_model_props(done, {**about, "quantized": "int8"})
    onnx.save(done, target)


class _Reader:
    """Hands over images one by one."""

    def __init__(self, images: Sequence[Pixels]) -> None:
        self._left: Iterator[Pixels] = iter(images)

    def get_next(self) -> dict[str, Pixels] | None:
        image = next(self._left, None)
        return None if image is None else {INPUT: np.ascontiguousarray(image[None])}
