"""Engine: trains stages and computes features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .. import distributed
from ..data.augment import Augment
from ..data.augment.operations import on_device_of, put_rows
from ..data.image_set import ImageSet, Int64
from ..data.loader import PictureCache, require_forked
from ..errors import UserError
from ..inference import Inference, find_device
from ..nets.net import Readout
from ..seeding import Draws, seeded_torch
from ..settings import EngineSettings, machine_memory
from ..stages import Stage
from .events import Listener, StageDone, silence
from .feature_cache import FeatureCache
from .loop import StageTrainer
from .optimizers import trained_parameters, trains_nothing
from .snapshots import Digests, SnapshotStore, StageKey, restore_module, strip_prefix, with_prefix


def make_inference(settings: EngineSettings, mean: tuple[float, ...], std: tuple[float, ...]) -> Inference:
    """The inference of these settings, for images with this normalisation."""
    if settings.cache:
        require_forked(settings.workers)
        present = machine_memory()
        if present is not None and settings.cache > present:
            raise UserError(f"a cache of {settings.cache} bytes is more than the {present} bytes that this machine has")
    return Inference(
        find_device(settings.device),
        mean,
        std,
        precision=settings.precision,
        workers=settings.workers,
        batch=settings.inference_batch,
        cache=PictureCache(settings.cache) if settings.cache else None,
        shared=True,
    )


def engine_settings(values: Mapping[str, Any]) -> EngineSettings:
    """Engine settings from keyword arguments."""
    if "threads" in values:
        raise UserError("'threads' applies to the whole process; call drcil.configure(threads=…)")
    return EngineSettings.parse(values)


class TrainingEngine:
    """One device, one augmentation, one seed."""

    rehearsing = False

    def __init__(
        self,
        settings: EngineSettings,
        inference: Inference,
        augmentation: Augment,
        seed: int,
        snapshots: SnapshotStore | None = None,
        listener: Listener = silence,
    ) -> None:
        """``inference``: from ``make_inference``; it reads and normalises images."""
        self.settings, self.inference, self.augmentation, self.seed = settings, inference, augmentation, seed
        self.snapshots = snapshots or SnapshotStore()
        self.listener = listener
        self.device = inference.device
        if settings.compile:
            require_compiler(self.device)
        self._feature_cache = FeatureCache(inference, settings.kept_features)
        self._task = 0
        self._position = 0
        self._watched: ImageSet | None = None
        self.measured_on: Literal["test", "validation"] = "test"

    @contextmanager
    def task(self, number: int, test: ImageSet | None = None, validation: ImageSet | None = None) -> Iterator[None]:
        """Within the block stages belong to this task, and new layers draw from its key.

        Accuracies during training are measured on the validation images, if there are any, else on the test images.
        """
        self._task, self._position = number, 0
        # Features may have been computed since the last task.
        self._feature_cache.clear()
        if self.inference.cache is not None:
            self.inference.cache.clear()
        self._watched, self.measured_on = (validation, "validation") if validation else (test, "test")
        try:
            with seeded_torch(self.seed, "task", number, "between stages"):
                yield
        finally:
            self._feature_cache.clear()

    def fit(self, stage: Stage) -> None:
        """Train ``stage.net`` in place; or, if this stage was finished before a kill, restore its result in place."""
        started = time.monotonic()
        digests = Digests()
        key = StageKey(self._task, self._position, stage.name, digests.of_stage(stage))
        self._position += 1
        net, hooks = self.inference.placed(stage.net), nn.ModuleList(stage.hooks).to(self.device)
        # Before snapshots are read: what later stages find cached must not depend on whether this one is restored.
        cached_features = None if self.augments(stage) else self._feature_cache.of(stage, digests)
        finished = distributed.broadcast_object(self.snapshots.finished(key))
        is_skipped = finished is not None or trains_nothing(stage)
        if finished is not None:
            with self.snapshots.fitting():
                restore_module(net, strip_prefix("net", finished))
                restore_module(hooks, strip_prefix("hooks", finished))
        elif not is_skipped:
            # With generators of its own: draws after the stage must not depend on whether it was trained or restored.
            with seeded_torch(self.seed, "task", key.task, key.position, stage.name), trained_parameters(stage):
                StageTrainer(self, stage, key, cached_features).run()
            # With the hooks: a method may read what they have collected.
            result = {**with_prefix("net", net.state_dict()), **with_prefix("hooks", hooks.state_dict())}
            self.snapshots.save_finished(key, result)
        net.eval()
        self.listener(StageDone(key.task, stage.name, time.monotonic() - started, is_skipped))

    def make_scaler(self) -> torch.amp.GradScaler:
        """What scales the loss of a stage; it does nothing, and has no state, unless gradients are in 16 bits."""
        return torch.amp.GradScaler(self.device.type, enabled=self.settings.precision == "16-mixed")

    def augments(self, stage: Stage) -> bool:
        """Whether a stage sees its images in random views."""
        return stage.augment and (bool(self.augmentation.steps) or self.augmentation.crops_files)

    def features(self, net: nn.Module, images: ImageSet) -> Tensor:
        """Pooled features of the test view, (N, channels), on the CPU."""
        cached = self._feature_cache.pooled(net, images)
        return self.inference.features(net, images) if cached is None else cached.cpu()

    def accuracy_after(self, epoch: int, net: nn.Module) -> float | None:
        """Accuracy in percent after an epoch; None: it is not measured."""
        every = self.settings.eval_every
        if every is None or (epoch + 1) % every or self._watched is None or not len(self._watched):
            return None
        readouts = {"net": Readout(self.inference.frozen(net))}
        best = self.inference.rank(readouts, self._watched, best=1)["net"].classes[:, 0]
        return 100 * float(np.mean(best.numpy() == self._watched.labels))

    def augment(self, pixels: Tensor, draws: Draws | None, selected: Int64 | None = None) -> Tensor:
        """The uint8 images on the device; with ``draws`` augmented, all of them or the selected rows.

        Draws are for those that are augmented.
        """
        pixels = self.inference.sent(pixels)
        if draws is None or (selected is not None and not len(selected)):
            return pixels
        if selected is None:
            return self.augmentation(pixels, draws)
        views, rows = pixels.clone(), torch.from_numpy(selected)
        put_rows(views, rows, self.augmentation(pixels.index_select(0, on_device_of(rows, pixels)), draws))
        return views

    def compiled(self, net: nn.Module) -> nn.Module:
        """The net, compiled if the settings say so; it shares its tensors."""
        compiled: Any = torch.compile(net) if self.settings.compile else net
        return compiled  # type: ignore[no-any-return]


def require_compiler(device: torch.device) -> None:
    """Compile something small, to report a missing compiler now and not in the first stage."""
    try:
        torch.compile(torch.sin)(torch.ones(2, device=device))
    except RuntimeError as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(
            f"--compile cannot be used on this machine ({why}); install a compiler (C++ for the CPU, Triton for "
            f"CUDA), or omit --compile"
        ) from error
