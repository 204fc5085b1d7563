"""What methods share that put a new backbone beside the old ones: DER, FOSTER and MEC.

The expanded net starts as the old net does: frozen copies of its backbones, and its classifier's numbers where old
classes are seen through old backbones. MEC and FOSTER then compress it into a net of the old size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..heads.head import Head, grow_all, new_linear
from ..heads.linear import LinearHead
from ..nets.expanded import ExpandedNet, members_of
from ..nets.net import Net, Output
from ..objectives import distillation
from ..stages import Batch, Engine, Losses, Objective, ParamGroup, Schedule, Stage, Term
from ..streams.samplers import Sampler, shuffle
from ..streams.stream import Task
from .method import Method
from .rebalancing import classifier_of


def widened(linear: nn.Linear, channels: int, classes: int) -> nn.Linear:
    """A fresh layer of this size, with the weights of ``linear`` in its first rows and channels."""
    fresh = new_linear(channels, classes)
    with torch.no_grad():
        fresh.weight[: linear.out_features, : linear.in_features] = linear.weight
        fresh.bias[: linear.out_features] = linear.bias
    return fresh


def wider_head(previous: Net, task: Task) -> LinearHead:
    """A plain head for the expanded net: the width of one more backbone, the classes of all tasks so far."""
    head = LinearHead(previous.backbone.channels + members_of(previous)[-1].channels)
    grow_all(head, task.sizes)
    return head


def expand(previous: Net, head: Head, auxiliary_classes: int) -> ExpandedNet:
    """The previous net's backbones, frozen, and a copy of the newest to be trained, under this wider head.

    The frozen ones are shared with the previous net, not copied. The head's classifier starts as the previous one,
    widened; the auxiliary classifier starts with random weights.
    """
    members = members_of(previous)
    newest = copy.deepcopy(members[-1])
    old_classifier = classifier_of(previous)
    expanded = ExpandedNet([*members, newest], head, auxiliary_classes, old_classifier)
    start = widened(old_classifier, head.channels, head.classes)
    classifier_of(expanded).load_state_dict(start.state_dict())
    return expanded


def train_expanded(
    name: str,
    expanded: ExpandedNet,
    task: Task,
    engine: Engine,
    objective: Objective,
    schedule: Schedule,
    sampler: Sampler = shuffle,
) -> None:
    """Train everything but the earlier backbones on new images and memory."""
    data, frozen = task.new.join(task.memory), members_of(expanded)[:-1]
    fixed = {parameter for member in frozen for parameter in member.parameters()}
    groups = [ParamGroup([parameter for parameter in expanded.parameters() if parameter not in fixed])]
    engine.fit(Stage(name, expanded, data, objective, schedule, groups=groups, frozen=frozen, sampler=sampler))


def auxiliary_term(output: Output, targets: Tensor, weight: float) -> Term:
    """w · CE(auxiliary, targets): what the newest backbone can tell by itself."""
    return Term(F.cross_entropy(output.logits.extras["auxiliary"], targets), weight)


def distillation_term(output: Output, temperature: float, weight: float) -> Term:
    """w · KD_T(Φ_{t-1} → old columns): what the expanded net must not unlearn."""
    teacher_logits = output.logits.extras["previous"]
    return Term(distillation(output.logits.fused[:, : teacher_logits.shape[1]], teacher_logits, temperature), weight)


def compress(
    previous: Net,
    expanded: ExpandedNet,
    task: Task,
    engine: Engine,
    distil: Callable[[Tensor, Tensor], Tensor],
    schedule: Schedule,
) -> Net:
    """A net of the old size that starts as the previous one and learns to answer as the expanded one does.

    ``distil`` takes the student's and the teacher's logits over all classes.
    """
    student = copy.deepcopy(previous)
    student.head.grow(len(task.classes))

    def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
        """KD(expanded → student)."""
        return {"compression": Term(distil(output.logits.fused, teachers["expanded"].logits.fused))}

    data = task.new.join(task.memory)
    engine.fit(Stage("compression", student, data, objective, schedule, teachers={"expanded": expanded}))
    return student


def largest_net(method: Method) -> Net:
    """The expanded net of the last task, which selects the exemplars; after task 1 the only net."""
    return method.part("expanded" if "expanded" in method.parts else "net", Net)
