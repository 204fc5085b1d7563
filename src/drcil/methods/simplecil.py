"""SimpleCIL: the features of a backbone that stays as it is, and the mean of each class as its classifier."""

from __future__ import annotations

import torch
from torch import Tensor

from ..heads.base import Head
from ..heads.cosine import CosineHead
from .onepass import OnePassMethod, OnePassSettings
from .spec import method


@method(
    "simplecil",
    paper="Zhou et al., Revisiting Class-Incremental Learning with Pre-Trained Models: Generalizability and Adaptivity "
    "are All You Need, IJCV",
    year=2024,
)
class SimpleCil(OnePassMethod):
    """Class means of the features of a frozen backbone as a cosine classifier; no training, no memory."""

    Settings = OnePassSettings
    head = "cosine"

    def new_head(self, channels: int) -> Head:
        return CosineHead(channels)

    @torch.no_grad()
    def take_in(self, features: Tensor, labels: Tensor) -> None:
        """w_c = mean of the features of class c; rows of old classes stay what they are."""
        head = self.net.head
        assert isinstance(head, CosineHead)
        new = len(head.new_rows)
        own = labels - (head.classes - new)
        sums = torch.zeros(new, features.shape[1], dtype=torch.float64).index_add_(0, own, features.double())
        head.new_rows.copy_((sums / torch.bincount(own, minlength=new)[:, None])[:, None])
