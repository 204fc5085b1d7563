"""Loss terms with their equations, and the objectives that several methods share.

Symbols: N classes seen, the first K of them old; a batch of n samples with labels y, n_O of them old (y < K);
ℓ the logits of the new branch, ℓ' of the old branch, S the fused logits; p(·) the softmax over the columns given.
Nothing here waits for the device: parts of a batch are selected by weights, never by the value of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .data.image_set import Int64
from .nets.net import Output
from .stages import Batch, Losses, Objective, Term


class PerClass:
    """A number per class, such as the offsets of logit adjustment; moved to the logits' device once."""

    def __init__(self, vector: Tensor) -> None:
        self.vector = vector

    def on_device_of(self, logits: Tensor) -> Tensor:
        """The vector on the device of these logits."""
        self.vector = self.vector.to(logits.device)
        return self.vector


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


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-1/(n N) Σ_i Σ_c [ 1(y_i = c) log σ(z_ic) + 1(y_i ≠ c) log σ(-z_ic) ], σ the logistic function."""
    target = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, target)


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
    total = _negative_log_likelihood(new_logits, labels, epsilon).sum()
    denominator: int | Tensor = len(labels)
    over = None
    if old_logits is not None:
        columns = old_logits[:, :old_classes] if rows == "old" else old_logits
        # New labels have no column among the old rows; any valid index works, since their weight is zero.
        surprise = _negative_log_likelihood(columns, labels.clamp(max=columns.shape[1] - 1), epsilon)
        is_old = labels < old_classes
        total = total + (surprise * is_old).sum()
        if reduction == "joint":
            denominator = is_old.sum() + len(labels)

            def over(labels: Tensor) -> Tensor:
                return 1 + (labels < old_classes)

    return Term(total / denominator, weight, over)


def _negative_log_likelihood(logits: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """-log( p(logits_i)_{y_i} + ε ) per sample."""
    if epsilon == 0:
        return F.cross_entropy(logits, labels, reduction="none")
    return -(logits.softmax(dim=1).gather(1, labels[:, None]).squeeze(1) + epsilon).log()


def fusion_loss(
    fused: Tensor,
    labels: Tensor,
    adjustment: Tensor | None = None,
    weights: Tensor | None = None,
    gamma: float = 0.0,
) -> Tensor:
    """L_fusion = 1/n Σ_i w_{y_i} (1 - p_i)^γ CE(S_i + a, y_i), with p_i = softmax(S_i + a)_{y_i}; plain CE by default.

    a is the logit adjustment in training, w a weight per class, and γ > 0 lets samples that are known well count less
    (focal loss).
    """
    logits = fused if adjustment is None else fused + adjustment
    if weights is None and gamma == 0:
        return F.cross_entropy(logits, labels)
    surprise = F.cross_entropy(logits, labels, reduction="none")
    if gamma:
        # Short of 1 - p = 0, where a power below 1 has no gradient.
        surprise = surprise * (-torch.expm1(-surprise)).clamp(min=1e-12) ** gamma
    return (surprise if weights is None else weights[labels] * surprise).mean()


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


def margin_ranking(
    cosines: Tensor, labels: Tensor, old_classes: int, *, margin: float, hardest: int, weight: float = 1.0
) -> Term:
    """L_mr: a sample of an old class must be nearer to its own class than to any new one, by a margin m.

    1/(n_O k) Σ_{i: y_i<K} Σ_{c among the k new classes of highest cosine} max(0, m - cos_{i,y_i} + cos_{i,c}), with
    k = ``hardest``, or all new classes where there are fewer. Without an old sample it is zero.
    """
    is_old = labels < old_classes
    true_cosines = cosines.gather(1, labels[:, None])
    new = cosines[:, old_classes:]
    rivals = new.topk(min(hardest, new.shape[1]), dim=1).values
    excess = F.relu(margin - true_cosines + rivals).mean(dim=1)
    value = (excess * is_old).sum() / is_old.sum().clamp(min=1)
    return Term(value, weight, lambda labels: labels < old_classes)


def nca(
    cosines: Tensor, scale: Tensor, labels: Tensor, *, margin: float, form: Literal["published", "program", "softmax"]
) -> Tensor:
    """L_NCA over cosines a and their scale η, the mean over samples.

    - ``"published"``: [ -log( exp(η (a_y - δ)) / Σ_{c≠y} exp(η a_c) ) ]₊ with the margin δ on the sample's own class;
    - ``"program"``: -s_y + log( 1 + Σ_{c≠y} exp(s_c) ), s_c = η a_c - max_k η a_k. There the margin is taken off every
      class, so it cancels and is left out here; a 1 stands where the sample's own class would be; no hinge;
    - ``"softmax"``: -s_y + log Σ_c exp(s_c), the cross-entropy, as re-implemented for long-tailed streams.
    """
    scores = scale * cosines
    if form == "softmax":
        return F.cross_entropy(scores, labels)
    is_true_class = F.one_hot(labels, scores.shape[1]).bool()
    if form == "published":
        rivals = scores.masked_fill(is_true_class, -math.inf).logsumexp(dim=1)
        # The scale must not learn from the margin: shrinking it, even below zero, would be the easiest way to keep one.
        attraction = scores.gather(1, labels[:, None]).squeeze(1) - scale.detach() * margin
        return F.relu(rivals - attraction).mean()
    scores = scores - scores.amax(dim=1, keepdim=True)
    return (scores.masked_fill(is_true_class, 0).logsumexp(dim=1) - scores.gather(1, labels[:, None]).squeeze(1)).mean()


def class_shares(old: int, total: int) -> tuple[float, float]:
    """(1 - λ, λ) with λ = K / N: the weights of learning and of keeping, by how many classes each is about."""
    return (total - old) / total, old / total


def taskwise_distillation(
    student: Tensor,
    teacher: Tensor,
    task_sizes: Sequence[int],
    temperature: float = 2.0,
    form: Literal["binary", "softmax"] = "binary",
) -> Tensor:
    """Distillation with a separate softmax for the columns of each task.

    With p and q a task's softmax of student and teacher at temperature T:

    - ``form="binary"``: mean over tasks, samples and the task's classes of -q log p - (1 - q) log(1 - p);
    - ``form="softmax"``: sum over tasks of KD_T.

    A task of one class teaches nothing: its softmax is 1. One without any class, all forgotten, counts for nothing.
    """
    sizes = [size for size in task_sizes if size]
    students, teachers = (torch.split(logits, sizes, dim=1) for logits in (student, teacher.detach()))
    pairs = list(zip(students, teachers, strict=True))
    if form == "softmax":
        return torch.stack([distillation(outputs, targets, temperature) for outputs, targets in pairs]).sum()
    return torch.stack(
        [_binary_distillation(outputs / temperature, targets / temperature) for outputs, targets in pairs]
    ).mean()


def _binary_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean binary cross-entropy of the student's softmax, class by class, against the teacher's."""
    log_p, q = student.log_softmax(dim=1), teacher.softmax(dim=1)
    # Short of p = 1, where log(1 - p) ends.
    log_rest = torch.log1p(-log_p.exp().clamp(max=1 - 1e-6))
    return -(q * log_p + (1 - q) * log_rest).mean()


def class_weights(counts: Int64 | Tensor, beta: float) -> Tensor:
    """w_c ∝ (1 - β) / (1 - β^{m_c}), of mean 1: the inverse of the effective number of m_c training samples.

    One number per class, float32, on the device of the counts; the rarer the class, the larger. β = 0 gives equal
    weights, β → 1 such as 1 / m_c. A class without samples weighs as much as one with a single sample, and the mean
    is over the others: absent classes must not reduce the weights of present ones.
    """
    samples = torch.as_tensor(counts).to(torch.float64)
    weights = (1 - beta) / (1 - beta ** samples.clamp(min=1))
    nonempty = weights[samples > 0]
    return (weights / (nonempty if len(nonempty) else weights).mean()).to(torch.float32)


def balanced_distillation(student: Tensor, teacher: Tensor, weights: Tensor, temperature: float = 2.0) -> Tensor:
    """KD_T with the teacher's probability of every class weighted: q_c ∝ p(teacher / T)_c · w_c, of sum 1 again.

    -1/n Σ_i Σ_c q_ic · log p(student_i / T)_c. Weighting a softmax equals adding T log w to its input.
    """
    return distillation(student, teacher + temperature * weights.log(), temperature)


def cross_entropy(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
    """CE(z, y) over all classes seen so far: the default objective."""
    return {"classification": Term(F.cross_entropy(output.logits.fused, batch.labels))}


def ce_and_distillation(temperature: float, weights: tuple[float, float]) -> Objective:
    """a · CE(z, y) + b · KD_T(z_old → z[:K]) with weights (a, b), for a stage whose teacher is named ``previous``."""

    def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
        logits, teacher_logits = output.logits.fused, teachers["previous"].logits.fused
        distilled = distillation(logits[:, : teacher_logits.shape[1]], teacher_logits, temperature)
        classified = F.cross_entropy(logits, batch.labels)
        return {"classification": Term(classified, weights[0]), "distillation": Term(distilled, weights[1])}

    return objective
