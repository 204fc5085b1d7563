"""RanPAC: random projections of the features of a backbone that stays as it is, and ridge regression on them.

This is RanPAC without its optional first stage, which adapts the backbone.
"""

from __future__ import annotations

from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from ..errors import UserError
from ..heads.base import Head
from ..heads.projected import ProjectedHead, projected
from ..keys import generator
from .onepass import OnePassMethod, OnePassSettings
from .ridge import RidgeSums, chosen_ridge, classifier_from
from .spec import method

FITTED, HELD = "fitted", "held"
"""The parts with the sums over the images that choose W, and over those that choose λ."""


class RanpacSettings(OnePassSettings):
    width: int = Field(ge=1, le=50_000)
    """Random directions. Memory grows with their square, a solution with their cube."""
    ridge: float = Field(ge=0)
    """λ; 0: chosen after each task by the squared error on images that were held out."""
    held_share: float = Field(gt=0, lt=1)
    """Share of each class's images that is held out until λ is chosen."""


@method("ranpac", paper="McDonnell et al., RanPAC: Random Projections and Pre-trained Models, NeurIPS", year=2023)
class Ranpac(OnePassMethod):
    """Ridge regression on random projections of the features of a frozen backbone; no memory."""

    Settings = RanpacSettings
    settings: RanpacSettings
    head = "projected"

    def new_head(self, channels: int) -> Head:
        return ProjectedHead(channels, self.settings.width)

    @torch.no_grad()
    def take_in(self, features: Tensor, labels: Tensor) -> None:
        """Add the images to the sums; W = (G + λ I)⁻¹ Q from the sums over all images ever seen."""
        own, head = self.settings, self.net.head
        assert isinstance(head, ProjectedHead)
        project = partial(projected, projection=head.projection.cpu())
        if not own.ridge:
            held_out = held_out_images(labels, own.held_share)
            fitted, held = self._sums(FITTED), self._sums(HELD)
            fitted.add(features[~held_out], labels[~held_out], project)
            held.add(features[held_out], labels[held_out], project)
            ridge, sums = chosen_ridge(fitted, held), fitted.joined(held)
        else:
            ridge, sums = own.ridge, self._sums(FITTED)
            sums.add(features, labels, project)
        solution = classifier_from(sums, ridge)
        if solution is None:
            raise UserError(
                f"a ridge of {ridge:g} is too small for these features; give a larger one, or 0 to let it be chosen"
            )
        head.classifier.weight.copy_(solution.T)
        head.classifier.bias.zero_()

    def _sums(self, name: str) -> RidgeSums:
        """A part with sums, with room for the newest classes."""
        sums = self.parts.setdefault(name, RidgeSums(self.settings.width))
        assert isinstance(sums, RidgeSums)
        sums.grow(self.net.head.classes - sums.moments.shape[1])
        return sums


def held_out_images(labels: Tensor, share: float) -> Tensor:
    """Which images are held out, (N,): this share of every class, at least one, but of a single image none.

    Which of a class's images they are depends on how many it has, not on its label, its task or the other classes: λ is
    chosen from the same images whatever the order of classes and their grouping into tasks.
    """
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        places = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(places), generator=generator("ranpac", "held out", len(places)))
        count = min(max(1, round(share * len(places))), len(places) - 1)
        held[places[order[:count]]] = True
    return held
