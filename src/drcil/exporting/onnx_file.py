"""A model as an ONNX file, which runs wherever there is a runtime for it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..models.model import Model
from .formats import Answer
from .graph import INPUT, OUTPUT, description
from .program import quiet, traced, unfit

_AXES = ("batch", "height", "width")
_ERRORS_ONLY = 3


def write(model: Model, path: Path) -> None:
    import onnx

    program = traced(model)
    with quiet(), _silent("torch.onnx"), _silent("onnxscript"), torch.no_grad():
        try:
            written = torch.onnx.export(
                program, dynamo=True, external_data=False, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
            )
            assert written is not None
            proto = written.model_proto
        except Exception as error:  # An operation may be missing in ONNX, or the exporter may stumble.
            raise unfit(model, error) from error
    _tidied(proto.graph)
    proto.producer_name = "drcil"
    about = description(model)
    onnx.helper.set_model_props(
        proto, {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    )
    onnx.save(proto, path)


def opened(path: Path) -> Answer:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run([OUTPUT], {INPUT: images})[0]


def _tidied(graph: Any) -> None:
    """Without what only tells where it was traced, and with axes called what they are."""
    for place, name in enumerate(_AXES):
        graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
    graph.output[0].type.tensor_type.shape.dim[0].dim_param = _AXES[0]
    for own in _graphs(graph):
        del own.value_info[:]
        for node in own.node:
            node.doc_string = ""
            del node.metadata_props[:]


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and those of its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


@contextmanager
def _silent(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
