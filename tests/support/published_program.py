"""The authors' published program, transcribed slowly: what our heads, methods and engine are compared with.

Two whole batch normalisations on the map instead of one with two affine pairs, plain loops instead of tensor
algebra, PyTorch's own optimiser. Names of layers are those of the published files. Nothing of ``drcil`` is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.stride = channels // channels_in
        self.conv_a = nn.Conv2d(channels_in, channels, 3, self.stride, 1, bias=False)
        self.bn_a = nn.BatchNorm2d(channels)
        self.conv_b = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn_b = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn_b(self.conv_b(torch.relu(self.bn_a(self.conv_a(x)))))
        if self.stride == 2:
            x = nn.functional.avg_pool2d(x, 1, 2)
            x = torch.cat([x, torch.zeros_like(x)], dim=1)
        return torch.relu(x + out)


class ConvNet(nn.Module):
    """ResNet-32, with the linear layer that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_1_3x3 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn_1 = nn.BatchNorm2d(16)
        self.stage_1 = nn.Sequential(*(Block(16, 16) for _ in range(5)))
        self.stage_2 = nn.Sequential(Block(16, 32), *(Block(32, 32) for _ in range(4)))
        self.stage_3 = nn.Sequential(Block(32, 64), *(Block(64, 64) for _ in range(4)))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> list[Tensor]:
        """The maps at the end of the three stages."""
        first = self.stage_1(torch.relu(self.bn_1(self.conv_1_3x3(x))))
        second = self.stage_2(first)
        return [first, second, self.stage_3(second)]


class PublishedNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.convnet = ConvNet()
        self.BHO = nn.BatchNorm2d(64)
        self.BHN = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Logits of the old branch, logits of the new branch, and the stage maps."""
        maps = self.convnet(images)
        both = torch.cat([self.BHO(maps[-1]), self.BHN(maps[-1])])
        logits = self.fc(nn.functional.adaptive_avg_pool2d(both, 1).flatten(1))
        old, new = logits.chunk(2)
        return old, new, maps

    def score(self, images: Tensor) -> Tensor:
        """What the program reads: the sum of both branches."""
        old, new, _ = self(images)
        score: Tensor = old + new
        return score

    def grow(self, rows: Tensor) -> None:
        """Further classifier rows (given, because they are drawn at random), with bias zero."""
        old, self.fc = self.fc, nn.Linear(64, len(self.fc.weight) + len(rows))
        self.fc.to(old.weight.dtype)
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([old.weight, rows]))
            self.fc.bias.copy_(torch.cat([old.bias, torch.zeros_like(rows[:, 0])]))

    @torch.no_grad()
    def merge(self, task: int) -> None:
        """Entering a task: the old branch takes over the new one (task 2), or half of it (later)."""
        for name in ("weight", "bias"):
            old, new = getattr(self.BHO, name), getattr(self.BHN, name)
            old.copy_(new if task == 2 else (old + new) / 2)
            old.requires_grad_(False)


def random_checkpoint(path: Path, task: int, classes: int, seed: int = 1993, **changed: Any) -> None:
    """A file like the published ones after a task (from 1); ``changed`` tensors replace or (None) remove some."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = PublishedNet(classes)
        net.train()(torch.randn(4, 3, 32, 32))
        with torch.no_grad():
            # Large, so that some probabilities come near the program's 1e-7.
            net.fc.weight.uniform_(-2, 2)
            net.BHN.weight.uniform_(0.5, 1.5)
            net.BHN.bias.uniform_(-0.5, 0.5)
            if task == 1:
                net.BHO.weight.fill_(0.1336)
            else:
                net.BHO.weight.uniform_(0.5, 1.5)
                net.BHO.bias.uniform_(-0.5, 0.5)
    state = {name: tensor for name, tensor in {**net.state_dict(), **changed}.items() if tensor is not None}
    torch.save({"state_dict": state, "seed": seed, "task": task - 1}, path)


def adaptation_loss(net: PublishedNet, images: Tensor, labels: Tensor, old: int) -> Tensor:
    """CE over the new columns only, averaged."""
    scores = net.score(images)[:, old:]
    total = scores.new_zeros(())
    for row, label in zip(scores, labels, strict=True):
        total = total - torch.log(torch.softmax(row, 0)[label - old])
    return total / len(labels)


def adjustment(labels: Sequence[int], classes: int, tro: float = 1.2) -> Tensor:
    """a_c = log( (m_c / Σ m)^tro + 1e-12 ), counted label by label."""
    counts = [0] * classes
    for label in labels:
        counts[label] += 1
    return torch.tensor([math.log((count / len(labels)) ** tro + 1e-12) for count in counts], dtype=torch.float64)


def fusion_losses(
    student: PublishedNet, previous: PublishedNet, adapted: PublishedNet, images: Tensor, labels: Tensor, old: int
) -> dict[str, Tensor]:
    """The four terms of fusion before their weights. The batch is the whole data, so it also has the label counts."""
    with torch.no_grad():
        was, became = previous.score(images), adapted.score(images)
    old_logits, new_logits, _ = student(images)
    shift = adjustment(labels.tolist(), new_logits.shape[1]).to(new_logits.dtype)
    adjusted = new_logits + old_logits + shift
    branch, fusion, kept, gained = (adjusted.new_zeros(()) for _ in range(4))
    remembered = 0
    for index, label in enumerate(labels.tolist()):
        branch = branch - torch.log(torch.softmax(new_logits[index], 0)[label] + 1e-7)
        if label < old:
            remembered += 1
            branch = branch - torch.log(torch.softmax(old_logits[index], 0)[label] + 1e-7)
        fusion = fusion - torch.log_softmax(adjusted[index], 0)[label]
        kept = kept + _distilled(adjusted[index, :old], was[index])
        gained = gained + _distilled(adjusted[index, old:], became[index, old:])
    size = len(labels)
    return {"fusion": fusion / size, "branch": branch / (size + remembered), "old": kept / size, "new": gained / size}


WEIGHTS = {"fusion": 0.8, "branch": 0.2, "old": 4.0, "new": 1.0}


def _distilled(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """-Σ_c p(teacher / T)_c log p(student / T)_c."""
    target = torch.softmax(teacher / temperature, 0)
    answer = torch.log_softmax(student / temperature, 0)
    total = student.new_zeros(())
    for column in range(len(student)):
        total = total - target[column] * answer[column]
    return total
