"""The values in ``values.json``, as the code gives them now.

They pin what stored results depend on. Only after a change that is meant to alter them, write them again with
``python tests/golden/regenerate.py``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drcil.data.augment import AUGMENTS
from drcil.data.dataset import find_dataset
from drcil.experiments.jobs import current_method_settings, run_key
from drcil.runs.plan import complete
from drcil.seeding import derive_seed, generator, numpy_generator
from drcil.settings import RunSettings
from drcil.streams.memory import herding_order
from drcil.streams.protocols import class_order
from drcil.streams.samplers import class_balanced, repeated, shuffle
from drcil.streams.stream import make_stream

FILE = Path(__file__).parent / "values.json"

CHOICES: list[tuple[str, str, dict[str, Any]]] = [
    ("mafdrc", "digits-b0-5", {}),
    ("mafdrc", "digits-b0-5", {"seed": 3}),
    ("mafdrc", "digits-b0-5", {"order_seed": 7}),
    ("mafdrc", "digits-b0-5", {"memory": "3/class", "tasks": 2}),
    ("mafdrc", "digits-b0-5", {"memory": "30", "tasks": 5}),
    ("mafdrc", "digits-b0-5", {"epochs_scale": 0.1}),
    ("mafdrc", "digits-b0-5", {"settings": {"old_distillation": 3.0, "fusion.epochs": 7}}),
    ("mafdrc", "digits-b0-5", {"engine": {"accumulate": 2, "sync_batchnorm": False, "precision": "bf16-mixed"}}),
    ("mafdrc", "digits-b0-5", {"engine": {"compile": True, "workers": 0, "device": "cpu"}}),
    ("mafdrc", "cifar100-b0-10", {}),
    ("mafdrc", "cifar100-b0-10", {"profile": "cpu"}),
    ("mafdrc", "cifar100-b0-10", {"profile": "short"}),
    ("mafdrc", "cifar100-b0-10", {"profile": "fast"}),
    ("mafdrc", "cifar100-b0-10", {"profile": "fast", "schedule": "recipe"}),
    ("mafdrc", "cifar100-b50-5", {"settings": {"pod": 2.0}}),
    ("mafdrc-text", "cifar100-b0-10", {"augment": "auto"}),
    ("mafdrc-vit", "cifar100-b0-10", {"profile": "cpu"}),
    ("maf+norm", "cifar100-b0-5", {"validation": 0.1}),
    ("maf+drc+la", "cifar100-lt-shuffled-b50-5", {}),
    ("lucir+two-stage", "cifar100-lt-ordered-b50-10", {"seed": 1}),
    ("podnet", "digits-lt-shuffled-b0-5", {"memory": "20/class"}),
    ("mdt", "imagenet100-b0-10", {"image_size": 64}),
    ("mecdrc", "imagenet1000-b0-10", {}),
    ("icarl:classifier", "cifar100-b0-20", {}),
    ("foster-b4", "cifar100-b0-10", {"schedule": "fast"}),
    ("der", "cifar100-50/10", {"backbone": "resnet18"}),
    ("dytox", "cifar100-b0-10", {}),
    ("simplecil", "digits-b0-5", {"freeze": "backbone"}),
    ("ranpac", "digits-b0-5", {}),
    ("finetune", "digits-4/3", {}),
    ("joint", "digits-b0-5", {}),
    ("replay", "digits-b0-5", {"settings": {"later.epochs": 3}, "loggers": ("csv",), "threads": 1}),
]
"""Methods, streams and options of runs."""
EPOCH = (0, "task", 2, 1, "fusion", "epoch", 5)
"""What the draws of an epoch are keyed by: seed, task, position of the stage, its name, and the epoch."""
PLACES: list[tuple[int | str, ...]] = [
    (0,),
    (1, "task", 1),
    EPOCH,
    (*EPOCH, "order"),
    (*EPOCH, "view"),
    (*EPOCH, 0, "augment"),
    (*EPOCH, 8, "augment"),
    (*EPOCH, 3, "hooks"),
    (1993, "held out", "é/a\\b"),
    (2**62, "validation", 99),
]


def values() -> dict[str, Any]:
    """Integers and texts that are the same on every machine."""
    labels = np.arange(60) ** 2 % 7
    return {
        "runs": {json.dumps(choice): _identity(*choice) for choice in CHOICES},
        "keys": {json.dumps(place): derive_seed(*place) for place in PLACES},
        "draws": {
            "torch": torch.randint(2**31, (8,), generator=generator(*EPOCH, 0, "augment")).tolist(),
            "torch permutation": torch.randperm(12, generator=generator(*EPOCH, 0, "augment")).tolist(),
            "numpy": numpy_generator(*EPOCH, "order").integers(2**31, size=8).tolist(),
            "shuffle": shuffle(labels, derive_seed(*EPOCH, "order"))[:12].tolist(),
            "repeated": repeated(labels, derive_seed(*EPOCH, "order"))[:12].tolist(),
            "class_balanced": class_balanced(labels, derive_seed(*EPOCH, "order"))[:12].tolist(),
            "crops of digits": _crops("digits"),
            "crops of cifar100": _crops("cifar100"),
        },
        "class orders": {
            "10 classes": {seed: class_order(10, int(seed)) for seed in ("0", "7", "1993")},
            "100 classes": {seed: class_order(100, int(seed)) for seed in ("0", "7", "1993")},
        },
        "streams": {name: _stream(name) for name in ("digits-b0-5", "digits-4/3", "digits-lt-shuffled-b0-5")},
        "exemplars": {
            str(seed): herding_order(
                torch.from_numpy(numpy_generator("golden", seed).integers(-9, 10, (40, 8))), 12
            ).tolist()
            for seed in range(3)
        },
    }


def _identity(method: str, stream: str, options: dict[str, Any]) -> dict[str, str]:
    """Of a run: the name of its directory, what it is found again by, and its method's settings with its recipe."""
    settings = complete(RunSettings.parse({"method": method, "stream": stream, **options}))
    recipe = json.dumps(current_method_settings(settings), sort_keys=True)
    return {"directory": settings.name, "key": _digest(run_key(settings)), "settings": _digest(recipe)}


def _crops(dataset: str) -> str:
    """Integer images, shifted and flipped."""
    spec = find_dataset(dataset)[0].spec
    images = (torch.arange(16 * 3 * 8 * 8) * 37 % 256).to(torch.uint8).view(16, 3, 8, 8)
    augmented = AUGMENTS["crop"](spec, True)(images, generator(*EPOCH, 0, "augment"))
    return _digest(str(augmented.tolist()))


def _stream(name: str) -> dict[str, Any]:
    """The classes of the tasks, the number of images, and which images come first."""
    stream = make_stream(name, validation=0.1)
    return {
        "classes": [stream.task(number).classes for number in range(1, len(stream) + 1)],
        "images": [len(stream.task(number).new) for number in range(1, len(stream) + 1)],
        "rows": [stream.task(number).new.rows[:6].tolist() for number in range(1, len(stream) + 1)],
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    FILE.write_text(json.dumps(values(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
