"""The same run in the fewest words: two runs that differ only in what they would have anyway are one."""

from __future__ import annotations

from typing import Any

from ..data.datasets.dataset import DataSpec, find_dataset
from ..errors import UserError
from ..methods import METHODS
from ..methods.resolve import resolve_settings, unusual_settings
from ..methods.spec import MethodSpec
from ..streams.budget import Budget
from ..streams.longtail import long_tailed_spec
from ..streams.protocols import known_tasks, parse_stream, protocol_memory
from .settings import RunSettings


def plain(own: RunSettings) -> RunSettings:
    """A run without choices that change nothing: the protocol's memory, the usual backbone and augmentation, settings
    that the recipe has, all tasks of the stream. One whose method or dataset is not known here stays as it is.
    """
    try:
        spec, cut = METHODS[own.method], parse_stream(own.stream)
        entry = find_dataset(cut.dataset)[0]
        data = long_tailed_spec(entry.spec) if cut.tail else entry.spec
        backbone = spec.backbone(data, own.backbone)
        memory = None if entry.classes is None else protocol_memory(cut, entry.classes, data)
        usual = {
            "memory": own.memory is not None and _is_budget(own.memory, spec.build.memory or memory),
            "backbone": own.backbone == spec.backbone(data),
            "augment": own.augment is not None and own.augment == _augment(spec, data, own.stream, backbone),
            "tasks": own.tasks == known_tasks(own.stream),
        }
        given = unusual_settings(spec, data.kind, own.settings, own.stream, backbone, own.schedule)
    except UserError:
        return own
    changed: dict[str, Any] = {name: None for name, same in usual.items() if same}
    return own.model_copy(update={**changed, "settings": given})


def _is_budget(memory: str, usual: str | None) -> bool:
    return usual is not None and Budget.parse(memory) == Budget.parse(usual)


def _augment(spec: MethodSpec, data: DataSpec, stream: str, backbone: str) -> str:
    """The training augmentation unless another is asked for."""
    return resolve_settings(spec, data.kind, {}, 1.0, stream, backbone).augment or data.augment
