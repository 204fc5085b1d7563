"""RanPAC: ridge regression on random projections of features.

This is RanPAC without its optional first stage, which adapts the backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ..errors import UserError
from ..heads.head import Head
from ..heads.projection import ProjectedHead, projected
from ..nets.parts import PARTS, Part
from ..seeding import generator
from .catalog import method
from .feature_statistics import OnePassMethod, OnePassSettings

RIDGES = tuple(10.0**exponent for exponent in range(-8, 9))
"""What a ridge is chosen from."""
_ROWS = 1024
"""Vectors that are added at a time, in double precision."""


@PARTS.register("ridge-sums")
class RidgeSums(Part):
    """G = Σ h hᵀ and Q = Σ h yᵀ over images with vectors h and one-hot labels y, and how many images there were.

    In double precision. G is symmetric and kept as its lower triangle, row by row.
    """

    def __init__(self, width: int, classes: int = 0) -> None:
        super().__init__()
        self.width = width
        self.triangle = nn.Buffer(torch.zeros(width * (width + 1) // 2, dtype=torch.float64))
        self.moments = nn.Buffer(torch.zeros(width, classes, dtype=torch.float64))
        self.count = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def grow(self, new_classes: int) -> None:
        """Add columns for new classes; the columns of old classes stay the same bit for bit."""
        self.moments = nn.Buffer(torch.cat([self.moments, self.moments.new_zeros(self.width, new_classes)], dim=1))

    def forget(self, classes: Collection[int]) -> None:
        """Remove columns of Q. G is a sum over all images, from which the images of a class cannot be subtracted."""
        remaining = [label for label in range(self.moments.shape[1]) if label not in classes]
        self.moments = nn.Buffer(self.moments[:, remaining])

    def add(self, features: Tensor, labels: Tensor, project: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        """Add images by their features, which ``project`` maps to vectors (n, width), in chunks."""
        products = self.products()
        for feature_chunk, label_chunk in zip(torch.split(features, _ROWS), torch.split(labels, _ROWS), strict=True):
            rows = project(feature_chunk).double()
            products.addmm_(rows.T, rows)
            self.moments.index_add_(1, label_chunk, rows.T)
        for row, start in enumerate(self._row_starts()):
            self.triangle[start : start + row + 1] = products[row, : row + 1]
        self.count.add_(len(features))

    def products(self) -> Tensor:
        """G, (width, width)."""
        full = self.triangle.new_zeros(self.width, self.width)
        for row, start in enumerate(self._row_starts()):
            values = self.triangle[start : start + row + 1]
            full[row, : row + 1] = values
            full[: row + 1, row] = values
        return full

    def _row_starts(self) -> Iterator[int]:
        """Where each row of the triangle starts. Rows are copied one by one: a mask would need as much memory as G."""
        return (row * (row + 1) // 2 for row in range(self.width))

    def joined(self, other: RidgeSums) -> RidgeSums:
        """The sums over the images of both."""
        total = RidgeSums(self.width, self.moments.shape[1])
        for name, buffer in total.named_buffers():
            buffer.copy_(self.get_buffer(name) + other.get_buffer(name))
        return total

    def describe(self) -> dict[str, Any]:
        return {"width": self.width, "classes": self.moments.shape[1]}


def classifier_from(sums: RidgeSums, ridge: float) -> Tensor | None:
    """W = (G + λ I)⁻¹ Q, (width, classes); None where λ is too small for G to be inverted."""
    return _solved(sums.products(), sums.moments, ridge)


def _solved(products: Tensor, moments: Tensor, ridge: float) -> Tensor | None:
    shifted = products.clone()
    shifted.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    if failed:
        return None
    solution = torch.cholesky_solve(moments, factor)
    return solution if bool(solution.isfinite().all()) else None


def select_ridge(fitted: RidgeSums, held_out: RidgeSums) -> float:
    """The ridge whose classifier, from the images of one sum, has the least squared error on those of the other.

    Σ ‖Wᵀh − y‖² = tr(Wᵀ G W) − 2 tr(Wᵀ Q) + n, with the sums over the images that were held out. 1, if there are none.
    """
    if not held_out.count:
        return 1.0
    products, expected = fitted.products(), held_out.products()
    errors: dict[float, float] = {}
    for ridge in RIDGES:
        weights = _solved(products, fitted.moments, ridge)
        if weights is not None:
            error = (weights * (expected @ weights)).sum() - 2 * (weights * held_out.moments).sum() + held_out.count
            # The error cannot be negative: a negative value is rounding noise.
            errors[ridge] = float(error) if error >= 0 else float("inf")
    return min(errors, key=errors.__getitem__)


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

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        idle = super().idle_settings(large_base)
        return {**idle, "held_share": "ridge=0"} if self.settings.ridge else idle

    def new_head(self, channels: int) -> Head:
        return ProjectedHead(channels, self.settings.width)

    @torch.no_grad()
    def add_features(self, features: Tensor, labels: Tensor) -> None:
        """Add the images to the sums; W = (G + λ I)⁻¹ Q from the sums over all images ever seen."""
        settings, head = self.settings, self.net.head
        assert isinstance(head, ProjectedHead)
        project = partial(projected, projection=head.projection.cpu())
        if not settings.ridge:
            held_out = held_out_images(labels, settings.held_share)
            fitted, held_out_sums = self._sums(FITTED), self._sums(HELD)
            fitted.add(features[~held_out], labels[~held_out], project)
            held_out_sums.add(features[held_out], labels[held_out], project)
            ridge, sums = select_ridge(fitted, held_out_sums), fitted.joined(held_out_sums)
        else:
            ridge, sums = settings.ridge, self._sums(FITTED)
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
        self.parts.setdefault(name, RidgeSums(self.settings.width))
        sums = self.part(name, RidgeSums)
        sums.grow(self.net.head.classes - sums.moments.shape[1])
        return sums


def held_out_images(labels: Tensor, share: float) -> Tensor:
    """Which images are held out, (N,): this share of every class, at least one, but of a single image none.

    Which of a class's images they are depends on how many it has, not on its label, its task or the other classes: λ is
    chosen from the same images whatever the order of classes and their grouping into tasks.
    """
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        positions = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(positions), generator=generator("ranpac", "held out", len(positions)))
        count = min(max(1, round(share * len(positions))), len(positions) - 1)
        mask[positions[order[:count]]] = True
    return mask
