"""Ridge regression from sums: what is kept of all images ever seen, and the classifier that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from .parts import PARTS

RIDGES = tuple(10.0**exponent for exponent in range(-8, 9))
"""What a ridge is chosen from."""
_ROWS = 1024
"""Vectors that are added at a time, in double precision."""


class RidgeSums(nn.Module):
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
        """Make room for classes; the columns of old ones are kept bit for bit."""
        self.moments = nn.Buffer(torch.cat([self.moments, self.moments.new_zeros(self.width, new_classes)], dim=1))

    def forget(self, classes: Collection[int]) -> None:
        """Let go of columns of Q. G is a sum over all images, from which those of a class cannot be taken out again."""
        kept = [label for label in range(self.moments.shape[1]) if label not in classes]
        self.moments = nn.Buffer(self.moments[:, kept])

    def add(self, features: Tensor, labels: Tensor, project: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        """Take in images by their features, which ``project`` makes vectors (n, width), some of them at a time."""
        products = self.products()
        for some, own in zip(torch.split(features, _ROWS), torch.split(labels, _ROWS), strict=True):
            rows = project(some).double()
            products.addmm_(rows.T, rows)
            self.moments.index_add_(1, own, rows.T)
        self.triangle.copy_(products[_lower(self.width)])
        self.count.add_(len(features))

    def products(self) -> Tensor:
        """G, (width, width)."""
        full = self.triangle.new_zeros(self.width, self.width)
        full[_lower(self.width)] = self.triangle
        return full + full.tril(-1).T

    def joined(self, other: RidgeSums) -> RidgeSums:
        """The sums over the images of both."""
        both = RidgeSums(self.width, self.moments.shape[1])
        for name, own in both.named_buffers():
            own.copy_(self.get_buffer(name) + other.get_buffer(name))
        return both

    def describe(self) -> dict[str, Any]:
        return {"part": "ridge-sums", "width": self.width, "classes": self.moments.shape[1]}


@PARTS.register("ridge-sums")
def _ridge_sums(description: dict[str, Any]) -> RidgeSums:
    return RidgeSums(description["width"], description["classes"])


def _lower(width: int) -> Tensor:
    return torch.ones(width, width, dtype=torch.bool).tril()


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


def chosen_ridge(fitted: RidgeSums, held: RidgeSums) -> float:
    """The ridge whose classifier, from the images of one sum, has the least squared error on those of the other.

    Σ ‖Wᵀh − y‖² = tr(Wᵀ G W) − 2 tr(Wᵀ Q) + n, with the sums over the images that were held out. 1, if there are none.
    """
    if not held.count:
        return 1.0
    products, expected = fitted.products(), held.products()
    errors: dict[float, float] = {}
    for ridge in RIDGES:
        weights = _solved(products, fitted.moments, ridge)
        if weights is not None:
            error = (weights * (expected @ weights)).sum() - 2 * (weights * held.moments).sum() + held.count
            # Below zero it cannot be: then rounding is all that it tells.
            errors[ridge] = float(error) if error >= 0 else float("inf")
    return min(errors, key=errors.__getitem__)
