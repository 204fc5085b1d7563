"""The losses of the methods as their papers write them: slow, plain, in double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


def array(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float64)


def softmax(logits: Tensor, temperature: float = 1.0) -> Array:
    powers = np.exp(array(logits) / temperature)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def surprises(logits: Tensor, labels: Tensor, epsilon: float = 0.0) -> list[float]:
    """-log( p_y + ε ) of every sample."""
    rows = softmax(logits).tolist()
    return [-math.log(row[label] + epsilon) for row, label in zip(rows, labels.tolist(), strict=True)]


def cross_entropy(logits: Tensor, labels: Tensor) -> float:
    return float(np.mean(surprises(logits, labels)))


def distillation(teacher: Tensor, student: Tensor, temperature: float, weights: Array | None = None) -> float:
    """-mean_i Σ_c q_c log p_c without a factor T²; with weights, q_c times w_c and of sum 1 again."""
    q, p = softmax(teacher, temperature), softmax(student, temperature)
    if weights is not None:
        q = q * weights / (q * weights).sum(axis=1, keepdims=True)
    return float(-(q * np.log(p)).sum(axis=1).mean())


def binary_distillation(teacher: Tensor, student: Tensor, temperature: float) -> float:
    """Mean over samples and classes of the binary cross-entropy of two softmax vectors."""
    q, p = softmax(teacher, temperature), softmax(student, temperature)
    return float(-(q * np.log(p) + (1 - q) * np.log(1 - p)).mean())


def unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def unsteadiness(features: Tensor, old_features: Tensor) -> float:
    """mean_i ( 1 - cos(f_i, f_i^old) ): LUCIR's feature term, and POD-flat."""
    return float((1 - (unit(array(features)) * unit(array(old_features))).sum(axis=1)).mean())


def pod_spatial(maps: Sequence[Tensor], old_maps: Sequence[Tensor]) -> float:
    """Mean over maps and samples of the distance between unit profiles of energy along height and width."""
    distances = []
    for pair in zip(maps, old_maps, strict=True):
        profiles = []
        for one in pair:
            energy = array(one) ** 2
            profile = np.concatenate([energy.sum(axis=3), energy.sum(axis=2)], axis=2)
            profiles.append(unit(profile.reshape(len(profile), -1)))
        distances.append(np.linalg.norm(profiles[0] - profiles[1], axis=1).mean())
    return float(np.mean(distances))


def class_cosines(features: Tensor, rows: Tensor) -> Array:
    """Per class the cosines to its proxies, averaged with their own softmax."""
    near = np.einsum("nf,cpf->ncp", unit(array(features)), unit(array(rows)))
    return np.asarray((np.exp(near) * near).sum(axis=2) / np.exp(near).sum(axis=2))


def margin_ranking(cosines: Array, labels: Tensor, old: int, margin: float, hardest: int) -> float:
    """Mean over samples of old classes and their nearest new classes of max(0, m - cos_own + cos_rival)."""
    excesses = [
        max(0.0, margin - row[label] + rival)
        for row, label in zip(cosines.tolist(), labels.tolist(), strict=True)
        if label < old
        for rival in sorted(row[old:], reverse=True)[:hardest]
    ]
    return float(np.mean(excesses))


def nca(cosines: Array, scale: float, labels: Tensor, margin: float, form: str) -> float:
    """The paper's hinge with a margin on the own class, or the program's, where the margin cancels."""
    values = []
    for row, label in zip((scale * cosines).tolist(), labels.tolist(), strict=True):
        rivals = [value for c, value in enumerate(row) if c != label]
        if form == "published":
            values.append(max(0.0, -math.log(math.exp(row[label] - scale * margin) / sum(map(math.exp, rivals)))))
        else:
            top = max(row)
            values.append(top - row[label] + math.log(1 + sum(math.exp(rival - top) for rival in rivals)))
    return float(np.mean(values))


def class_weights(counts: Sequence[int], beta: float) -> Array:
    """Inverse effective numbers 1 / (1 + β + … + β^(m - 1)), of mean 1."""
    weights = np.array([1 / sum(beta**power for power in range(count)) for count in counts])
    return np.asarray(weights / weights.mean())


def adjustment(counts: Sequence[int], tro: float) -> Array:
    """log( share^tro ) of every class."""
    return np.log((np.array(counts) / sum(counts)) ** tro)
