"""The same work as other programs usually do it: Pillow image by image, plain PyTorch."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from drcil.data.augment.pipelines import JITTER
from drcil.data.augment.policies import CIFAR10, IMAGENET, SubPolicy, magnitude
from drcil.data.decoding import random_box
from drcil.data.image_set import ImageSet
from drcil.data.loader import forking
from drcil.heads.residual import ResidualHead
from drcil.methods.maf import MafSettings
from drcil.nets.net import Net

Pixels = npt.NDArray[np.uint8]
Operations = tuple[tuple[str, float], ...]
_GREY = (128, 128, 128)


class Choice(NamedTuple):
    """Random choices for one image."""

    top: int
    left: int
    mirrored: bool
    brightness: float
    operations: Operations
    """Operations of AutoAugment to apply, with their values."""
    hole_y: int
    hole_x: int


def draw_choice(draws: random.Random, size: int, padding: int) -> Choice:
    """Random choices for an image of ``size`` pixels."""
    operations = draw_operations(draws, CIFAR10)
    return Choice(
        draws.randint(0, 2 * padding),
        draws.randint(0, 2 * padding),
        draws.random() < 0.5,
        draws.uniform(1 - JITTER, 1 + JITTER),
        operations,
        draws.randrange(size),
        draws.randrange(size),
    )


def draw_operations(draws: random.Random, policy: Sequence[SubPolicy]) -> Operations:
    """Operations of AutoAugment to apply, with their values."""
    pair = draws.choice(policy)
    operations = []
    for name, chance, index in (pair[:3], pair[3:]):
        if draws.random() < chance:
            centre, swing = magnitude(name, index)
            operations.append((name, centre + draws.choice((-1, 1)) * swing))
    return tuple(operations)


def augmented(pixels: Pixels, choice: Choice, padding: int) -> Pixels:
    """Padded crop, flip, brightness, AutoAugment and a hole of half the side; (H, W, 3) to the same."""
    size = len(pixels)
    picture = ImageOps.expand(Image.fromarray(pixels), padding)
    picture = picture.crop((choice.left, choice.top, choice.left + size, choice.top + size))
    result = np.array(painted(picture, choice.mirrored, choice.brightness, choice.operations))
    reach = size // 4
    rows = slice(max(0, choice.hole_y - reach), choice.hole_y + reach)
    result[rows, max(0, choice.hole_x - reach) : choice.hole_x + reach] = 0
    return result


def photograph(picture: Image.Image, size: int, draws: random.Random) -> Pixels:
    """A random crop scaled to ``size``, then flip, brightness and AutoAugment, as (size, size, 3)."""
    box = random_box(*picture.size, draws)
    edges = (box.left, box.top, box.left + box.width, box.top + box.height)
    cropped = picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=edges)
    mirrored, brightness = draws.random() < 0.5, draws.uniform(1 - JITTER, 1 + JITTER)
    return np.array(painted(cropped, mirrored, brightness, draw_operations(draws, IMAGENET)))


def painted(picture: Image.Image, mirrored: bool, brightness: float, operations: Operations) -> Image.Image:
    """Flip, brightness and AutoAugment."""
    if mirrored:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = ImageEnhance.Brightness(picture).enhance(brightness)
    for name, value in operations:
        picture = operate(picture, name, value)
    return picture


def operate(picture: Image.Image, name: str, value: float) -> Image.Image:
    """One operation of AutoAugment."""
    match name:
        case "shearX":
            return _warp(picture, (1, value, 0, 0, 1, 0), Image.Resampling.BICUBIC)
        case "shearY":
            return _warp(picture, (1, 0, 0, value, 1, 0), Image.Resampling.BICUBIC)
        case "translateX":
            return _warp(picture, (1, 0, value * picture.width, 0, 1, 0), Image.Resampling.NEAREST)
        case "translateY":
            return _warp(picture, (1, 0, 0, 0, 1, value * picture.height), Image.Resampling.NEAREST)
        case "rotate":
            turned = picture.convert("RGBA").rotate(value)
            ground = Image.new("RGBA", turned.size, (128,) * 4)
            return Image.composite(turned, ground, turned).convert(picture.mode)
        case "posterize":
            return ImageOps.posterize(picture, int(value))
        case "solarize":
            return ImageOps.solarize(picture, value)  # type: ignore[arg-type]  # published programs pass fractions too
        case "autocontrast":
            return ImageOps.autocontrast(picture)
        case "equalize":
            return ImageOps.equalize(picture)
        case "invert":
            return ImageOps.invert(picture)
        case "color":
            return ImageEnhance.Color(picture).enhance(value)
        case "contrast":
            return ImageEnhance.Contrast(picture).enhance(value)
        case "sharpness":
            return ImageEnhance.Sharpness(picture).enhance(value)
        case _:
            return ImageEnhance.Brightness(picture).enhance(value)


def _warp(picture: Image.Image, matrix: Sequence[float], filter: Image.Resampling) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, filter, fillcolor=_GREY)


class PillowImages(Dataset[tuple[Tensor, int]]):
    """Labelled images as a map-style dataset: an item is augmented, made a float tensor and normalised."""

    def __init__(
        self, pixels: Pixels, labels: Sequence[int], padding: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.pixels, self.labels, self.padding = pixels, labels, padding
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)
        self._draws: random.Random | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._draws is None:
            # Torch gives every worker process another seed.
            self._draws = random.Random(torch.initial_seed())
        pixels = self.pixels[index]
        view = augmented(pixels, draw_choice(self._draws, len(pixels), self.padding), self.padding)
        image = torch.from_numpy(view).permute(2, 0, 1).contiguous().float().div_(255)
        return image.sub_(self.mean).div_(self.std), self.labels[index]


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

    def __init__(self, blocks: int, classes: int, has_old_branch: bool) -> None:
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
        self.old_branch = nn.Conv2d(64, 64, 1, bias=False).requires_grad_(False) if has_old_branch else None
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
        layers = [(plain.conv, plain.bn)]
        for block in plain.blocks:
            assert isinstance(block, PlainBlock)
            layers += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        for (conv, norm), (conv_name, norm_name) in zip(layers, pairs, strict=True):
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
        settings, old = self.settings, self.old_classes
        with torch.no_grad():
            previous, adapted = self.previous(images).fused, self.adapted(images).fused[:, old:]
        fused, new, old_branch = self.student(images)
        fusion = F.cross_entropy(fused + self.adjustment(), labels)
        branch = F.cross_entropy(new, labels)
        is_old = labels < old
        if old_branch is not None and is_old.any():
            of_old = F.cross_entropy(old_branch[is_old][:, :old], labels[is_old], reduction="sum")
            branch = branch + of_old / len(labels)
        keep = self._distil(fused[:, :old], previous)
        adapt = self._distil(fused[:, old:], adapted)
        return (
            (1 - settings.alpha) * fusion
            + settings.alpha * branch
            + settings.old_distillation * keep
            + settings.new_distillation * adapt
        )

    def adjustment(self) -> Tensor:
        """γ = log of each task's share of the images to the power tro; here all old classes are one task."""
        sizes = [self.old_classes, len(self.counts) - self.old_classes]
        tasks = torch.stack([part.sum() for part in torch.split(self.counts, sizes)]).float()
        return (self.settings.tro * (tasks / tasks.sum()).log()).repeat_interleave(torch.tensor(sizes))

    def _distil(self, student: Tensor, teacher: Tensor) -> Tensor:
        temperature = self.settings.temperature
        target = F.softmax(teacher / temperature, dim=1)
        return F.kl_div(F.log_softmax(student / temperature, dim=1), target, reduction="batchmean")

    def epoch(self, images: PillowImages) -> float:
        """Train for one epoch; returns its seconds from the first batch on, without the start of the workers."""
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
        start, total = None, 0.0
        for batch, labels in loader:
            start = start or time.perf_counter()
            loss = self.loss(batch, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        return time.perf_counter() - (start or 0.0)


def pillow_images(images: ImageSet, padding: int, mean: tuple[float, ...], std: tuple[float, ...]) -> PillowImages:
    """An image set as the reference reads it."""
    pixels = np.ascontiguousarray(images.read().permute(0, 2, 3, 1).numpy())
    return PillowImages(pixels, images.labels.tolist(), padding, mean, std)
