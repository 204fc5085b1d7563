"""The loss terms: small pure functions of outputs and labels, each with its equation.

Symbols: N classes seen, the first K of them old; a batch of n samples with labels y, n_O of them old (y < K);
ℓ the logits of the new branch, ℓ' of the old branch, S the fused logits; p(·) the softmax over the columns given.
Nothing here waits for the device: parts of a batch are selected by weights, never by the value of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .data.imageset import Int64
from .stages import Term


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """KD_T = -1/n Σ_i Σ_c p(teacher_i / T)_c · log p(student_i / T)_c, over the columns of both.

    The cross-entropy form without a factor T². The teacher takes no gradient.
    """
    return F.cross_entropy(student / temperature, (teacher.detach() / temperature).softmax(dim=1))


def kl_distillation(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """1/n Σ_i KL( p(teacher_i / T) ‖ p(student_i / T) ): the paper's form, zero where the two agree.

    It is ``distillation`` less the teacher's entropy, so both have the same gradient.
    """
    target = (teacher.detach() / temperature).log_softmax(dim=1)
    return F.kl_div((student / temperature).log_softmax(dim=1), target, reduction="batchmean", log_target=True)


def branch_loss(
    new_logits: Tensor,
    old_logits: Tensor | None,
    labels: Tensor,
    old_classes: int,
    *,
    rows: Literal["all", "old"] = "all",
    reduction: Literal["joint", "separate"] = "joint",
    epsilon: float = 1e-7,
    weight: float = 1.0,
) -> Term:
    """L_branch: each branch of a residual head classifies by itself, the old branch only samples of old classes.

    With s_i = -log( p(ℓ_i)_{y_i} + ε ) and s'_i the same of ℓ'_i:

    - ``reduction="joint"``: ( Σ_i s_i + Σ_{i: y_i<K} s'_i ) / (n + n_O), the published program's one denominator;
    - ``reduction="separate"``: 1/n Σ_i s_i + 1/n Σ_{i: y_i<K} s'_i, the paper's two plain sums. Both are divided by
      the size of the batch, so that they keep the relative weight the paper gives them.

    ``rows`` says which columns the old branch's softmax spans: ``"all"`` N (the program) or the ``"old"`` K (the
    paper). The program smooths the logarithm by ε = 1e-7, the paper does not (ε = 0). At task 1 there is no old
    branch (``old_logits=None``) and the loss is the new branch's alone.
    """
    total = _surprise(new_logits, labels, epsilon).sum()
    count = None
    if old_logits is not None:
        columns = old_logits[:, :old_classes] if rows == "old" else old_logits
        # New labels have no column among the old rows; any valid one will do, for their weight is zero.
        surprise = _surprise(columns, labels.clamp(max=columns.shape[1] - 1), epsilon)
        is_old = labels < old_classes
        total = total + (surprise * is_old).sum()
        if reduction == "joint":
            count = is_old.sum() + len(labels)
    return Term(total / (len(labels) if count is None else count), weight, count)


def _surprise(logits: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """-log( p(logits_i)_{y_i} + ε ) per sample."""
    if epsilon == 0:
        return F.cross_entropy(logits, labels, reduction="none")
    return -(logits.softmax(dim=1).gather(1, labels[:, None]).squeeze(1) + epsilon).log()


def fusion_loss(fused: Tensor, labels: Tensor, adjustment: Tensor | None = None) -> Tensor:
    """L_fusion = 1/n Σ_i CE(S_i + a, y_i), with a the logit adjustment in training; without it, plain CE."""
    return F.cross_entropy(fused if adjustment is None else fused + adjustment, labels)


def logit_adjustment(counts: Int64 | Tensor, tro: float = 1.2) -> Tensor:
    """a_c = log( (m_c / Σ_k m_k)^tro + 1e-12 ), with m_c the training samples of class c.

    One number per class, float32, on the device of the counts: the published program's form. A class without
    samples gets log 1e-12, the least there is.
    """
    samples = torch.as_tensor(counts).to(torch.float32)
    return ((samples / samples.sum().clamp(min=1)) ** tro + 1e-12).log()


def task_logit_adjustment(counts: Int64 | Tensor, task_sizes: Sequence[int], tro: float = 1.2) -> Tensor:
    """The paper's form: γ_i = log( (m_i / Σ_k m_k)^tro ), with m_i the training samples of the i-th *task*.

    ``counts`` are per class, ``task_sizes`` the number of classes each task brought; every class of a task gets
    its task's value. A task without samples gets log 1e-12, as in ``logit_adjustment``.
    """
    tasks = torch.split(torch.as_tensor(counts), list(task_sizes))
    values = logit_adjustment(torch.stack([samples.sum() for samples in tasks]), tro)
    return torch.cat([value.expand(len(samples)) for value, samples in zip(values, tasks, strict=True)])


def pod_spatial(student_maps: Sequence[Tensor], teacher_maps: Sequence[Tensor]) -> Tensor:
    """POD-spatial: mean over maps and samples of ‖ u(student) - u(teacher) ‖₂.

    u(A) = [ Σ_w A² , Σ_h A² ], flattened per sample (length C·H + C·W) and divided by its L2 norm.
    """
    distances = [
        torch.linalg.vector_norm(_profile(student) - _profile(teacher.detach()), dim=1).mean()
        for student, teacher in zip(student_maps, teacher_maps, strict=True)
    ]
    return torch.stack(distances).mean()


def _profile(maps: Tensor) -> Tensor:
    """u(A): where along its height and its width each channel of a map has its energy."""
    energy = maps.square()
    return F.normalize(torch.cat([energy.sum(dim=3).flatten(1), energy.sum(dim=2).flatten(1)], dim=1), dim=1)


def pod_flat(features: Tensor, old_features: Tensor) -> Tensor:
    """POD-flat: 1/n Σ_i ( 1 - cos(f_i, f_i^old) ) over pooled features."""
    return (1 - F.cosine_similarity(features, old_features.detach(), dim=1)).mean()
