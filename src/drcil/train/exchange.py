"""Gradients that are added up over processes, while the backward pass that makes them goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

_BUCKET = 25 << 20
"""Bytes of gradients that are sent together: few messages, and the first of them early."""


class Exchange:
    """Adds up the gradients of parameters over all processes.

    Gradients are sent in buckets, each as soon as its last gradient is there. Which gradients share a bucket, and the
    order of buckets, are the same in every step: so sums are rounded the same way, in a resumed stage too. A parameter
    that no loss reaches has no gradient in any process, and keeps none.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], bucket: int = _BUCKET) -> None:
        self._buckets = _in_buckets(parameters, bucket)
        self._place = {parameter: number for number, own in enumerate(self._buckets) for parameter in own}
        self._sending = False
        self._begin()
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._ready) for parameter in self._place]  # type: ignore[no-untyped-call]

    @contextmanager
    def adding(self) -> Iterator[None]:
        """At the end of the block, in which the last backward pass of a step is run, gradients are those of all."""
        self._begin()
        self._sending = True
        try:
            yield
        finally:
            self._sending = False
        for number in range(len(self._sent), len(self._buckets)):
            self._send(number)
        for work, flat, gradients in self._sent:
            if work is not None:
                work.wait()
            sums = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, total in zip(gradients, sums, strict=True):
                gradient.copy_(total.view(gradient.shape))
        # Nothing is held on to until the next step.
        self._begin()

    def close(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent: list[tuple[dist.Work | None, Tensor, list[Tensor]]] = []

    def _ready(self, parameter: Tensor) -> None:
        if not self._sending:
            return
        self._missing[self._place[parameter]] -= 1  # type: ignore[index]
        # In order, because processes pair messages by it.
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send(len(self._sent))

    def _send(self, number: int) -> None:
        gradients = [own.grad for own in self._buckets[number] if own.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) if gradients else torch.empty(0)
        self._sent.append((dist.all_reduce(flat, async_op=True) if gradients else None, flat, gradients))


def _in_buckets(parameters: Sequence[nn.Parameter], bucket: int) -> list[list[nn.Parameter]]:
    """From the last to the first, about as backward passes reach them; one type of numbers in each."""
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in reversed(parameters):
        size = parameter.numel() * parameter.element_size()
        if not buckets or size > room or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            room = bucket
        buckets[-1].append(parameter)
        room -= size
    return buckets
