"""The losses of the methods as their papers write them: plain, slow, in double precision."""

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


def negative_log_likelihoods(logits: Tensor, labels: Tensor, epsilon: float = 0.0) -> list[float]:
    """-log( p_y + ε ) of every sample."""
    rows = softmax(logits).tolist()
    return [-math.log(row[label] + epsilon) for row, label in zip(rows, labels.tolist(), strict=True)]


def cross_entropy(
    logits: Tensor, labels: Tensor, weights: Sequence[float] | Array | None = None, gamma: float = 0.0
) -> float:
    """1/n Σ_i w_{y_i} (1 - p_i)^γ · -log p_i: class weights and focal loss."""
    values = []
    for row, label in zip(softmax(logits).tolist(), labels.tolist(), strict=True):
        weight = 1.0 if weights is None else float(weights[label])
        values.append(-weight * (1 - row[label]) ** gamma * math.log(row[label]))
    return float(np.mean(values))


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> float:
    """Mean over samples and classes of -log σ(z) for the label and -log(1 - σ(z)) for every other class."""
    values = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        for column, logit in enumerate(row):
            probability = 1 / (1 + math.exp(-logit))
            values.append(-math.log(probability if column == label else 1 - probability))
    return float(np.mean(values))


def branch_loss(
    new: Tensor, old: Tensor, labels: Tensor, old_classes: int, rows: str, reduction: str, epsilon: float
) -> float:
    """Both branches classify, the old one only samples of old classes."""
    is_old = labels < old_classes
    columns = old[is_old][:, :old_classes] if rows == "old" else old[is_old]
    values = negative_log_likelihoods(new, labels, epsilon)
    values += negative_log_likelihoods(columns, labels[is_old], epsilon)
    return sum(values) / (len(values) if reduction == "joint" else len(labels))


def distillation(
    teacher: Tensor, student: Tensor, temperature: float, weights: Sequence[float] | Array | None = None
) -> float:
    """-mean_i Σ_c q_c log p_c without a factor T²; with weights, q_c times w_c and of sum 1 again."""
    q, p = softmax(teacher, temperature), softmax(student, temperature)
    if weights is not None:
        q = q * weights / (q * weights).sum(axis=1, keepdims=True)
    return float(-(q * np.log(p)).sum(axis=1).mean())


def kl_distillation(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> float:
    """mean_i Σ_c q_c log( q_c / p_c )."""
    q, p = softmax(teacher, temperature), softmax(student, temperature)
    return float((q * np.log(q / p)).sum(axis=1).mean())


def binary_distillation(teacher: Tensor, student: Tensor, temperature: float) -> float:
    """Mean over samples and classes of the binary cross-entropy of two softmax vectors."""
    q, p = softmax(teacher, temperature), softmax(student, temperature)
    return float(-(q * np.log(p) + (1 - q) * np.log(1 - p)).mean())


def taskwise_distillation(
    teacher: Tensor, student: Tensor, task_sizes: Sequence[int], temperature: float, form: str
) -> float:
    """Every task by itself: the mean of binary distillation, or the sum of distillation. One class teaches nothing."""
    values, start = [], 0
    for size in task_sizes:
        columns = slice(start, start + size)
        loss = binary_distillation if form == "binary" else distillation
        values.append(0.0 if size == 1 else loss(teacher[:, columns], student[:, columns], temperature))
        start += size
    return float(np.mean(values) if form == "binary" else np.sum(values))


def unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def pod_flat(features: Tensor, old_features: Tensor) -> float:
    """mean_i ( 1 - cos(f_i, f_i^old) ): POD-flat, and LUCIR's feature term."""
    return float((1 - (unit(array(features)) * unit(array(old_features))).sum(axis=1)).mean())


def pod_spatial(maps: Sequence[Tensor], old_maps: Sequence[Tensor]) -> float:
    """Mean over maps and samples of the distance between unit profiles of energy along height and width."""
    distances = []
    for pair in zip(maps, old_maps, strict=True):
        profiles = []
        for tensor in pair:
            energy = array(tensor) ** 2
            profile = np.concatenate([energy.sum(axis=3), energy.sum(axis=2)], axis=2)
            profiles.append(unit(profile.reshape(len(profile), -1)))
        distances.append(np.linalg.norm(profiles[0] - profiles[1], axis=1).mean())
    return float(np.mean(distances))


def class_cosines(features: Tensor, rows: Tensor) -> Array:
    """Per class the cosines to its proxies, averaged with their own softmax."""
    cosines = np.einsum("nf,cpf->ncp", unit(array(features)), unit(array(rows)))
    return np.asarray((np.exp(cosines) * cosines).sum(axis=2) / np.exp(cosines).sum(axis=2))


def margin_ranking(cosines: Array, labels: Tensor, old: int, margin: float, hardest: int) -> float:
    """Mean over samples of old classes and their nearest new classes of max(0, m - cos_label + cos_new)."""
    values = [
        max(0.0, margin - row[label] + other)
        for row, label in zip(cosines.tolist(), labels.tolist(), strict=True)
        if label < old
        for other in sorted(row[old:], reverse=True)[:hardest]
    ]
    return float(np.mean(values)) if values else 0.0


def nca(cosines: Array, scale: float, labels: Tensor, margin: float, form: str) -> float:
    """The paper's hinge with a margin on the sample's class, or the program's, where the margin cancels."""
    values = []
    for row, label in zip((scale * cosines).tolist(), labels.tolist(), strict=True):
        others = [value for column, value in enumerate(row) if column != label]
        if form == "published":
            values.append(max(0.0, -math.log(math.exp(row[label] - scale * margin) / sum(map(math.exp, others)))))
        else:
            largest = max(row)
            values.append(largest - row[label] + math.log(1 + sum(math.exp(value - largest) for value in others)))
    return float(np.mean(values))


def class_weights(counts: Sequence[int], beta: float) -> Array:
    """Inverse effective numbers 1 / (1 + β + … + β^(m - 1)), of mean 1."""
    weights = np.array([1 / sum(beta**power for power in range(count)) for count in counts])
    return np.asarray(weights / weights.mean())


def adjustment(counts: Sequence[int], tro: float) -> Array:
    """log( share^tro ) of every class."""
    return np.log((np.array(counts) / sum(counts)) ** tro)
