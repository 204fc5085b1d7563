"""ONNX export and int8 quantisation."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.decoding import Pixels
from ..models.model import Model
from .classifier import INPUT, OUTPUT, Predict, describe
from .torch_formats import export_error, no_warnings, trace

_AXES = ("batch", "height", "width")
_ERRORS_ONLY = 3


def write_onnx(model: Model, path: Path) -> None:
    import onnx

    program = trace(model)
    with no_warnings(), _errors_only("torch.onnx", "onnxscript"), torch.no_grad():
        try:
            written = torch.onnx.export(
                program, dynamo=True, external_data=False, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
            )
            assert written is not None
            proto = written.model_proto
        except Exception as error:  # An operation may be missing in ONNX.
            raise export_error(model, error) from error
    _clean_up(proto.graph)
    proto.producer_name = "drcil"
    about = describe(model)
    onnx.helper.set_model_props(
        proto, {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    )
    onnx.save(proto, path)


def open_onnx(path: Path) -> Predict:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run([OUTPUT], {INPUT: images})[0]


def _clean_up(graph: Any) -> None:
    """Name the axes, and remove where each node was traced."""
    for axis, name in enumerate(_AXES):
        graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    graph.output[0].type.tensor_type.shape.dim[0].dim_param = _AXES[0]
    for subgraph in _graphs(graph):
        del subgraph.value_info[:]
        for node in subgraph.node:
            node.doc_string = ""
            del node.metadata_props[:]


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and the graphs of its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


@contextmanager
def _errors_only(*names: str | None) -> Iterator[None]:
    """Let these loggers (None: the root) log errors only."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


_LAYERS = ("Conv", "Gemm", "MatMul")


def quantise(source: Path, target: Path, images: Sequence[Pixels]) -> None:
    """Static quantisation with ranges of activations measured on ``images``; dynamic if there are none.

    Layers with weights are quantised, with one scale per channel. The rest, such as resizing, stays as it is.
    """
    import onnx

    quantization = import_module("onnxruntime.quantization")
    proto = onnx.load(source)
    weights = {tensor.name for tensor in proto.graph.initializer}
    layers = [node.name for node in proto.graph.node if node.op_type in _LAYERS and weights.intersection(node.input)]
    about = {entry.key: entry.value for entry in proto.metadata_props}
    # Weights of seven bits: sums of eight-bit products overflow on processors without VNNI.
    options: dict[str, Any] = {"nodes_to_quantize": layers, "per_channel": True, "reduce_range": True}
    with no_warnings(), _errors_only(None):
        if images:
            reader = _CalibrationReader(images)
            quantization.quantize_static(proto, target, reader, op_types_to_quantize=list(_LAYERS), **options)
        else:
            unsigned = quantization.QuantType.QUInt8  # Required by convolutions of integers.
            quantization.quantize_dynamic(proto, target, weight_type=unsigned, **options)
    quantized = onnx.load(target)
    onnx.helper.set_model_props(quantized, {**about, "quantized": "int8"})
    onnx.save(quantized, target)


class _CalibrationReader:
    """Gives images to the calibration one by one."""

    def __init__(self, images: Sequence[Pixels]) -> None:
        self._images: Iterator[Pixels] = iter(images)

    def get_next(self) -> dict[str, Pixels] | None:
        image = next(self._images, None)
        return None if image is None else {INPUT: np.ascontiguousarray(image[None])}
