"""Completes settings from profile and recipe, checks them, plans the work of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.augment import AUGMENTS
from ..data.dataset import Dataset, DataSpec, find_dataset
from ..data.fingerprint import DatasetFingerprint, dataset_fingerprint
from ..data.image_set import ImageShape
from ..errors import UserError, check_int, optional
from ..heads.head import HEADS
from ..inference import find_device
from ..learner import Learner
from ..methods import METHODS
from ..methods.catalog import MethodSpec, changed_settings, named_method, resolve_settings
from ..methods.dry_run import dry_run
from ..methods.rebalancing import REMEDIES
from ..methods.recipe import known_schedule, load_profile, merge
from ..models.model import Model, find_initial_weights, idle_settings, new_model
from ..nets.backbone import BACKBONES, backbone_for, preprocessing_of
from ..settings import THREADS, EngineSettings, MemoryBudget, RunSettings, machine_memory
from ..streams.protocols import known_tasks, long_tailed_spec, parse_stream, protocol_memory
from ..streams.stream import Stream, make_stream
from ..train.loggers import known_loggers


def complete(run: RunSettings) -> RunSettings:
    """The settings of a run: those of the user over those of the profile, with the checksum of initial weights.

    Unknown names are errors.
    """
    spec, readout = named_method(run.method)
    for table, name in ((BACKBONES, run.backbone), (AUGMENTS, run.augment)):
        if name is not None:
            table[name]
    known_loggers(run.loggers)
    _check_pipeline(run)
    data = find_dataset(parse_stream(run.stream).dataset)[0].spec
    values = merge(load_profile(run.profile, data.kind, spec.family), run.given())
    values |= {"method": spec.name, "readout": readout or run.readout}
    values |= {"schedule": known_schedule(values.get("schedule"))}
    values |= {"weights": find_initial_weights(run), "pretrained": False}
    preprocessing = preprocessing_of(spec.backbone(data, values.get("backbone")))
    if data.photographs and preprocessing is not None:
        values.setdefault("image_size", preprocessing.image_size)
    return RunSettings.parse(values)


def _check_pipeline(run: RunSettings) -> None:
    """Only pipelines take a head and remedies, and only where the method's name does not say them."""
    fields = named_method(run.method)[0].build.Settings.model_fields
    for setting, flag, table in (("head", "--head", HEADS), ("remedies", "--remedy", REMEDIES)):
        if setting not in run.settings:
            continue
        if setting not in fields:
            raise UserError(
                f"{flag} is for the pipelines maf, mdt and mec and their combinations; '{run.method}' is none"
            )
        for addon in run.method.partition(":")[0].split("+")[1:]:
            if addon in table:
                value = run.settings[setting]
                text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
                raise UserError(f"'{run.method}' says '{addon}' by its name, so {flag} cannot say '{text}'; give one")


def default_settings(run: RunSettings) -> RunSettings:
    """The settings of a run with only its method, stream and profile; a method of a missing plugin has no recipe."""
    settings = RunSettings(method=run.method, stream=run.stream, profile=run.profile)
    try:
        return complete(settings)
    except UserError:
        return RunSettings(method=run.method, stream=run.stream)


def command_of(run: RunSettings) -> str:
    """``drcil run`` with the options that the result depends on, without those that its profile brings anyway."""
    return run.command(default_settings(run))


_FULL, _HALF = 4, 2
"""Bytes of a number, in full precision and in mixed precision."""


def require_room(model: Model, engine: EngineSettings) -> None:
    """One step of training, and one batch of images to be classified, must fit into the memory of the device."""
    present = device_memory(engine.device)
    if present is None:
        return
    each = _FULL if engine.precision == "32" else _HALF
    stored, widest = maps_of_image(model)
    batch = max((schedule.batch_size for schedule in model.method.settings.schedules().values()), default=1)
    needed = max(stored * batch, widest * engine.inference_batch) * each
    if needed > present:
        raise UserError(
            f"images of {model.shape} (channels, height, width) need more than {needed / 2**30:.1f} GiB with backbone "
            f"'{model.method.architecture.backbone}' and batches of {batch}, and the device has {present / 2**30:.1f} "
            f"GiB; give a smaller --image-size"
        )


def device_memory(name: str) -> int | None:
    """Bytes of memory of a device; None if unknown."""
    device = find_device(name)
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()


def maps_of_image(model: Model) -> tuple[int, int]:
    """Numbers that one image takes at least: what all layers keep for training; the widest input and output.

    The backbone sees an image without content, which takes neither memory nor time.
    """
    shape: ImageShape = model.shape
    maps: dict[int, Tensor] = {}
    widest = shape.channels * shape.size**2

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal widest
        maps[id(inputs[0])] = inputs[0]
        widest = max(widest, inputs[0].numel() + output.numel())

    try:
        with torch.device("meta"), torch.no_grad():
            backbone = backbone_for(model.method.architecture.backbone, shape.channels, shape.size)
            for module in backbone.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    module.register_forward_hook(note)
            backbone.eval()(torch.zeros(1, shape.channels, shape.size, shape.size))
    except Exception:
        # A backbone from outside may not know such images; then only the images themselves are known.
        maps = {}
    return max(widest, sum(tensor.numel() for tensor in maps.values())), widest


@dataclass(frozen=True)
class RunPlan:
    """What a run starts with: the stream that it learns, its model, and the work of every task."""

    settings: RunSettings
    stream: Stream
    model: Model
    """Before the first task; a learner trains a copy of it."""
    work: list[list[int]]
    """Image-epochs (images times epochs) of the stages of each task; none where these could not be rehearsed."""

    @cached_property
    def data(self) -> DatasetFingerprint:
        """The fingerprint of the dataset; it may read many files."""
        return dataset_fingerprint(self.stream.dataset)

    def idle_settings(self) -> list[str]:
        """Which settings of the run have no effect on its stream, a sentence each."""
        run = self.settings
        return idle_settings(run, self.model, self.stream.large_base, run.stream)


def plan_run(run: RunSettings, stream: Stream | None = None) -> RunPlan:
    """What the run will do; or the error that would end it once its directory exists. None: its stream is loaded."""
    if run.readout is not None:
        METHODS[run.method].require_readout(run.readout)
    optional(check_int, "threads", run.threads, THREADS)
    stream = stream or load_stream(run)
    require_tasks(run, stream)
    known_loggers(run.loggers)
    model = fresh_model(run, stream)
    require_room(model, run.engine)
    # Check that the device and the augmentation exist.
    Learner.from_model(model, run.engine).engine  # noqa: B018
    stages = dry_run(model.method, stream[: run.tasks], model.memory.budget)
    return RunPlan(run, stream, model, [[stage.epochs * stage.images for stage in task] for task in stages])


def require_tasks(run: RunSettings, stream: Stream) -> None:
    """Check that the stream has as many tasks as the run."""
    if run.tasks is not None and run.tasks > len(stream):
        raise UserError(f"stream '{stream.name}' has {_counted(len(stream))}, so a run cannot stop after {run.tasks}")


def require_part(run: RunSettings, stream: Stream) -> None:
    """A backbone must have the part that is to be frozen."""
    if run.freeze is not None:
        fresh_model(run, stream).method.fresh_backbone()


def _counted(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def load_stream(run: RunSettings, dataset: Dataset | None = None) -> Stream:
    """The run's stream, from its dataset or from the one given in its place."""
    return make_stream(
        run.stream,
        dataset,
        data_dir=Path(run.data) if run.data else None,
        image_size=run.image_size,
        order_seed=run.order_seed,
        memory=run.memory,
        validation=run.validation,
    )


def fresh_model(run: RunSettings, stream: Stream) -> Model:
    """The model that a run begins with: known method and backbone, valid settings, a memory that will do."""
    shape = stream.dataset.train.shape
    model = new_model(run, stream.dataset.spec, shape, stream.budget, run.stream)
    model.require_exemplars(sum(stream.sizes[: run.tasks]))
    return model


def canonical_settings(run: RunSettings) -> RunSettings:
    """A run without choices that change nothing: the protocol's memory, the usual backbone and augmentation, settings
    that the recipe has, all tasks of the stream. One whose method or dataset is not known here stays as it is.
    """
    try:
        spec, cut = METHODS[run.method], parse_stream(run.stream)
        entry = find_dataset(cut.dataset)[0]
        data = long_tailed_spec(entry.spec) if cut.tail else entry.spec
        backbone = spec.backbone(data, run.backbone)
        memory = None if entry.classes is None else protocol_memory(cut, entry.classes, data)
        is_default = {
            "memory": run.memory is not None and _is_budget(run.memory, spec.build.memory or memory),
            "backbone": run.backbone == spec.backbone(data),
            "augment": run.augment is not None and run.augment == _augment(spec, data, run.stream, backbone),
            "tasks": run.tasks == known_tasks(run.stream),
        }
        settings = changed_settings(spec, data.kind, run.settings, run.stream, backbone, run.schedule)
    except UserError:
        return run
    changed: dict[str, Any] = {name: None for name, same in is_default.items() if same}
    return run.model_copy(update={**changed, "settings": settings})


def _is_budget(memory: str, default: str | None) -> bool:
    return default is not None and MemoryBudget.parse(memory) == MemoryBudget.parse(default)


def _augment(spec: MethodSpec, data: DataSpec, stream: str, backbone: str) -> str:
    """The training augmentation unless another is asked for."""
    return resolve_settings(spec, data.kind, {}, 1.0, stream, backbone).augment or data.augment


def require_match(model: Model, stream: Stream, order_seed: int) -> None:
    """The model must have learnt the stream's first tasks: the same classes, in the same order and portions."""
    unknown = [name for name in model.classes if name not in stream.classes]
    if unknown:
        raise UserError(f"the model has the class '{unknown[0]}', which is not in stream '{stream.name}'")
    for label, (name, expected) in enumerate(zip(model.classes, stream.classes, strict=False)):
        if name != expected:
            raise UserError(
                f"the model learnt its classes in another order than stream '{stream.name}' with order seed "
                f"{order_seed} has them: class {label} is '{name}' in the model and '{expected}' in the stream"
            )
    if model.sizes != stream.sizes[: len(model.sizes)]:
        raise UserError(
            f"the model learnt tasks of {_listed(model.sizes)} classes, "
            f"but stream '{stream.name}' has tasks of {_listed(stream.sizes)}"
        )
    channels = stream.dataset.test.shape.channels
    if channels != model.shape.channels:
        raise UserError(
            f"the model takes images of {model.shape.channels} channels, but stream '{stream.name}' has {channels}"
        )


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
