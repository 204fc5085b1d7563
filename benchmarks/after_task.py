"""The benchmark of what follows training: herding, class means and evaluation."""

from __future__ import annotations

import torch

from .rows import Measurement, benchmark
from .scene import Scene, Untrained, as_seen, learner_before
from .timing import alternate, seconds_of

_ROUNDS = 2


@benchmark(
    "after-task",
    "herding, class means and evaluation of iCaRL's task 10 ÷ one bare forward pass over the same images",
    target=1.3,
    better="lower",
    unit="×",
)
def after_task(scene: Scene) -> Measurement:
    few = scene.few(train=100, test=5)
    learner, task = learner_before(few, "icarl", 10, "500")
    engine, memory = learner.engine, learner.memory.images
    assert memory is not None
    views = [
        as_seen(pixels, task.spec)
        for images in (task.new, memory, task.test)
        for pixels in torch.split(images.source.read(images.rows), engine.settings.inference_batch)
    ]
    folded = engine.inference.frozen(learner.method.net)

    def bare() -> None:
        with torch.inference_mode():
            for view in views:
                folded(view)

    def closing() -> float:
        learner, task = learner_before(few, "icarl", 10, "500")
        learner.engine = Untrained(learner.engine)

        def work() -> None:
            learner.learn(task)
            learner.rank(task.test)

        return seconds_of(work)

    ours, forward = alternate(_ROUNDS, closing, lambda: seconds_of(bare))
    images = sum(map(len, views))
    return Measurement(ours / forward, f"{ours:.2f} against {forward:.2f} s for {images} images")
