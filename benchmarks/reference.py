"""MAF's fusion stage with the dynamic residual classifier, written the way class-incremental programs usually are.

A plain residual net in PyTorch's default layout; teachers as they were trained, run under ``no_grad``; a loader with
worker processes that transform image by image; the loss fetched after every step. It computes what drcil's stage
computes, and nothing in it is slower than it has to be in that style.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from drcil.data.sources.imageset import ImageSet
from drcil.data.sources.shared import forking
from drcil.heads.residual import ResidualHead
from drcil.methods.maf import MafSettings
from drcil.nets.net import Net

from .pillow import PillowImages

WORKERS = 2


class PlainBlock(nn.Module):
    """Two convolutions with batch normalisation around a shortcut without parameters."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.stride != 1:
            x = F.avg_pool2d(x, 1, self.stride)
            x = torch.cat([x, torch.zeros_like(x)], dim=1)
        return F.relu(x + out, inplace=True)


class PlainLogits(NamedTuple):
    fused: Tensor
    new: Tensor
    old: Tensor | None


class PlainNet(nn.Module):
    """A residual net for CIFAR that ends in two 1×1 convolutions and a linear layer they share."""

    def __init__(self, blocks: int, classes: int, has_past: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        channels, layers = 16, []
        for width in (16, 32, 64):
            for number in range(blocks):
                layers.append(PlainBlock(channels, width, 2 if width != 16 and number == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*layers)
        self.new_branch = nn.Conv2d(64, 64, 1, bias=False)
        self.old_branch = nn.Conv2d(64, 64, 1, bias=False).requires_grad_(False) if has_past else None
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> PlainLogits:
        maps = self.blocks(F.relu(self.bn(self.conv(x)), inplace=True))
        new = self.fc(self.new_branch(maps).mean(dim=(2, 3)))
        if self.old_branch is None:
            return PlainLogits(new, new, None)
        old = self.fc(self.old_branch(maps).mean(dim=(2, 3)))
        return PlainLogits((new + old) / 2, new, old)

    @classmethod
    @torch.no_grad()
    def like(cls, net: Net) -> PlainNet:
        """The same function as a ResNet of drcil's with the dynamic residual head and convolutional branches."""
        pairs, head = net.backbone.normalised_convolutions(), net.head
        assert isinstance(head, ResidualHead)
        old = head.branches.old()
        plain = cls((len(pairs) - 1) // 6, head.classes, old is not None)
        own = [(plain.conv, plain.bn)]
        for block in plain.blocks:
            assert isinstance(block, PlainBlock)
            own += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        for (conv, norm), (conv_name, norm_name) in zip(own, pairs, strict=True):
            conv.load_state_dict(net.backbone.get_submodule(conv_name).state_dict())
            norm.load_state_dict(net.backbone.get_submodule(norm_name).state_dict())
        plain.new_branch.weight.copy_(head.branches.new()["weight"][:, :, None, None])
        if plain.old_branch is not None and old is not None:
            plain.old_branch.weight.copy_(old["weight"][:, :, None, None])
        plain.fc.load_state_dict(head.classifier.state_dict())
        return plain


@dataclass
class PlainFusion:
    """The fusion stage of one task: nets, images and settings."""

    student: PlainNet
    previous: PlainNet
    adapted: PlainNet
    old_classes: int
    counts: Tensor
    """Training images of each class."""
    settings: MafSettings

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """(1 - α) L_fusion + α L_branch + β₁ KD(previous → old columns) + β₂ KD(adapted → new columns)."""
        own, old = self.settings, self.old_classes
        with torch.no_grad():
            was, became = self.previous(images).fused, self.adapted(images).fused[:, old:]
        fused, new, past = self.student(images)
        fusion = F.cross_entropy(fused + self.adjustment(), labels)
        branch = F.cross_entropy(new, labels)
        is_old = labels < old
        if past is not None and is_old.any():
            of_old = F.cross_entropy(past[is_old][:, :old], labels[is_old], reduction="sum")
            branch = branch + of_old / len(labels)
        keep = self._distil(fused[:, :old], was)
        adapt = self._distil(fused[:, old:], became)
        return (
            (1 - own.alpha) * fusion + own.alpha * branch + own.old_distillation * keep + own.new_distillation * adapt
        )

    def adjustment(self) -> Tensor:
        """γ = log of each task's share of the images to the power tro; here the past is one task."""
        sizes = [self.old_classes, len(self.counts) - self.old_classes]
        tasks = torch.stack([part.sum() for part in torch.split(self.counts, sizes)]).float()
        return (self.settings.tro * (tasks / tasks.sum()).log()).repeat_interleave(torch.tensor(sizes))

    def _distil(self, student: Tensor, teacher: Tensor) -> Tensor:
        temperature = self.settings.temperature
        target = F.softmax(teacher / temperature, dim=1)
        return F.kl_div(F.log_softmax(student / temperature, dim=1), target, reduction="batchmean")

    def epoch(self, images: PillowImages) -> float:
        """Train for one epoch; its seconds, once the first batch is there: starting workers is not held against it."""
        schedule = self.settings.fusion
        parameters = [parameter for parameter in self.student.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(
            parameters, lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay
        )
        self.student.train()
        self.previous.eval()
        self.adapted.eval()
        loader = DataLoader(
            images,
            batch_size=schedule.batch_size,
            shuffle=True,
            num_workers=WORKERS,
            multiprocessing_context=forking(),
        )
        started, total = None, 0.0
        for batch, labels in loader:
            started = started or time.perf_counter()
            loss = self.loss(batch, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
        return time.perf_counter() - (started or 0.0)


def pillow_images(images: ImageSet, padding: int, mean: tuple[float, ...], std: tuple[float, ...]) -> PillowImages:
    """An image set as the reference reads it."""
    pixels = np.ascontiguousarray(images.source.read(images.rows).permute(0, 2, 3, 1).numpy())
    return PillowImages(pixels, images.labels.tolist(), padding, mean, std)
