"""How long and how fast a stage learns."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .limits import BATCH, EVERY


class Schedule(BaseModel):
    """How long and how fast a stage learns. The learning rate is constant within an epoch."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(ge=EVERY.least, le=EVERY.most)
    lr: float = Field(gt=0)
    batch_size: int = Field(default=128, ge=BATCH.least, le=BATCH.most)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    decay: Literal["all", "weights"] = "all"
    """What weight decay acts on: every parameter; or, as transformers have it, the weights of layers alone, not
    biases, normalisations, learnt positions or tokens.
    """
    clip: float | None = Field(default=None, gt=0)
    """The largest norm of all gradients of a step together; longer ones are shortened to it. None: any."""
    curve: Literal["cosine", "steps", "constant"] = "cosine"
    milestones: tuple[int, ...] = ()
    """Epochs at which ``steps`` multiplies the rate by ``factor``."""
    factor: float = Field(default=0.1, gt=0, le=1)
    lr_end: float = Field(default=0.0, ge=0)
    """Where ``cosine`` ends."""
    warmup: int = Field(default=0, ge=0)
    """Epochs of linear rise from ``warmup_lr`` before the curve begins."""
    warmup_lr: float = Field(default=0.0, ge=0)

    def scaled(self, scale: float) -> Schedule:
        """The same schedule over ``scale`` times the epochs (at least one), milestones and warm-up with it."""
        if scale == 1:
            return self
        epochs = max(1, round(self.epochs * scale))
        return self.model_copy(
            update={
                "epochs": epochs,
                # Never before the first epoch is over, or a very short stage would not learn at its rate at all.
                "milestones": tuple(max(1, round(milestone * scale)) for milestone in self.milestones),
                "warmup": min(round(self.warmup * scale), epochs - 1),
            }
        )

    def decay_of(self, name: str, dimensions: int) -> float:
        """The weight decay of a parameter, by its name and its number of dimensions."""
        is_weight = dimensions > 1 and name.endswith(("weight", "rows"))
        return self.weight_decay if is_weight or self.decay == "all" else 0.0

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch (from 0)."""
        # A stage that is over before its warm-up would never learn at its rate.
        warmup = min(self.warmup, self.epochs - 1)
        if epoch < warmup:
            return self.warmup_lr + (self.lr - self.warmup_lr) * epoch / warmup
        if self.curve == "cosine":
            progress = (epoch - warmup) / (self.epochs - warmup)
            return self.lr_end + (self.lr - self.lr_end) * (1 + math.cos(math.pi * progress)) / 2
        if self.curve == "steps":
            return self.lr * self.factor ** sum(epoch >= milestone for milestone in self.milestones)
        return self.lr
