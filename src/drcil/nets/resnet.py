"""ResNets for ImageNet, CIFAR and digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn import functional

from ..errors import UserError, unknown_name
from .backbone import BACKBONES, Backbone, Features

Shortcut = Literal["padded", "projected"]


class NormConv(nn.Module):
    """A convolution without bias and the batch normalisation right behind it."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(channels)
        # Normal with sd sqrt(2 / (k² · channels out)): He et al.'s initialisation, counted on the output side.
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        normalised: Tensor = self.norm(self.conv(images))
        return normalised


class PaddedShortcut(nn.Module):
    """The shortcut without parameters (type A): every second row and column, and zeros for the further channels."""

    def __init__(self, further: int, stride: int) -> None:
        super().__init__()
        self.further, self.stride = further, stride

    def forward(self, images: Tensor) -> Tensor:
        # Measured: adding in place to the leading channels instead is faster without gradients, but slower with.
        return functional.pad(images[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.further))


class Block(nn.Module):
    """Two 3×3 convolutions around which the input is carried: relu(f(x) + x), or f(x) + x.

    Where the size changes, x takes a shortcut to the new one: ``padded`` (type A) or ``projected`` by a strided
    1×1 convolution (type B).
    """

    def __init__(self, channels_in: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.ends_in_relu = True
        self.first = NormConv(channels_in, channels, 3, stride)
        self.second = NormConv(channels, channels, 3)
        self.shortcut: nn.Module
        if stride == 1 and channels_in == channels:
            self.shortcut = nn.Identity()
        elif shortcut == "padded":
            self.shortcut = PaddedShortcut(channels - channels_in, stride)
        else:
            self.shortcut = NormConv(channels_in, channels, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        out = self.second(functional.relu(self.first(images), inplace=True))
        out = out.add_(self.shortcut(images))
        return functional.relu(out, inplace=True) if self.ends_in_relu else out


class ResNet(Backbone):
    """Stem, then stages of blocks; every stage after the first halves the map.

    A ReLU ends every block; without ``last_relu``, every block but the very last, so that features have both signs
    and cosines span all angles.
    """

    stage_maps = True

    def __init__(
        self,
        name: str,
        channels_in: int,
        *,
        widths: Sequence[int],
        blocks: Sequence[int],
        shortcut: Shortcut,
        last_relu: bool,
        stem: Literal["small", "large"],
    ) -> None:
        super().__init__()
        if shortcut not in get_args(Shortcut):
            raise unknown_name("shortcut", str(shortcut), get_args(Shortcut))
        if not isinstance(last_relu, bool):
            raise UserError(f"last_relu must be true or false, not {last_relu!r:.40}")
        self.name, self.channels_in, self.channels = name, channels_in, widths[-1]
        self.shortcut, self.last_relu = shortcut, last_relu
        large = stem == "large"
        self.stem = NormConv(channels_in, widths[0], 7, 2) if large else NormConv(channels_in, widths[0], 3)
        self.stem_pool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        self.stages = nn.ModuleList()
        incoming = widths[0]
        for index, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            stage = [Block(incoming, width, 2 if index else 1, shortcut)]
            stage += [Block(width, width, 1, shortcut) for _ in range(count - 1)]
            self.stages.append(nn.Sequential(*stage))
            incoming = width
        stage[-1].ends_in_relu = last_relu

    def forward(self, images: Tensor) -> Features:
        maps = [self.stem_pool(functional.relu(self.stem(images), inplace=True))]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return Features(stages=tuple(maps[1:]), last=maps[-1], pooled=maps[-1].mean(dim=(2, 3)))

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "channels_in": self.channels_in,
            "shortcut": self.shortcut,
            "last_relu": self.last_relu,
        }

    def normalised_convolutions(self) -> list[tuple[str, str]]:
        return [
            (f"{name}.conv", f"{name}.norm")
            for name, module in self.named_modules()
            if isinstance(module, NormConv) and not isinstance(module.norm, nn.Identity)
        ]


@BACKBONES.register("resnet18")
def resnet18(channels_in: int, *, shortcut: Shortcut = "projected", last_relu: bool = True) -> ResNet:
    """ResNet-18 for ImageNet-sized images: 512 channels, 11.2 M parameters."""
    return ResNet(
        "resnet18",
        channels_in,
        widths=(64, 128, 256, 512),
        blocks=(2, 2, 2, 2),
        shortcut=shortcut,
        last_relu=last_relu,
        stem="large",
    )


def _small(name: str, channels_in: int, blocks: int, shortcut: Shortcut, last_relu: bool) -> ResNet:
    """Three stages of 16, 32 and 64 channels behind a 3×3 stem; by default shortcuts without parameters."""
    return ResNet(
        name,
        channels_in,
        widths=(16, 32, 64),
        blocks=(blocks, blocks, blocks),
        shortcut=shortcut,
        last_relu=last_relu,
        stem="small",
    )


@BACKBONES.register("resnet20")
def resnet20(channels_in: int, *, shortcut: Shortcut = "padded", last_relu: bool = True) -> ResNet:
    """ResNet-20 for CIFAR-sized images: 64 channels, 0.27 M parameters."""
    return _small("resnet20", channels_in, 3, shortcut, last_relu)


@BACKBONES.register("resnet32")
def resnet32(channels_in: int, *, shortcut: Shortcut = "padded", last_relu: bool = True) -> ResNet:
    """ResNet-32 for CIFAR-sized images: 64 channels, 0.46 M parameters."""
    return _small("resnet32", channels_in, 5, shortcut, last_relu)


@BACKBONES.register("resnet44")
def resnet44(channels_in: int, *, shortcut: Shortcut = "padded", last_relu: bool = True) -> ResNet:
    """ResNet-44 for CIFAR-sized images: 64 channels, 0.66 M parameters."""
    return _small("resnet44", channels_in, 7, shortcut, last_relu)


@BACKBONES.register("resnet56")
def resnet56(channels_in: int, *, shortcut: Shortcut = "padded", last_relu: bool = True) -> ResNet:
    """ResNet-56 for CIFAR-sized images: 64 channels, 0.85 M parameters."""
    return _small("resnet56", channels_in, 9, shortcut, last_relu)


@BACKBONES.register("resnet-digits")
def resnet_digits(channels_in: int, *, shortcut: Shortcut = "padded", last_relu: bool = True) -> ResNet:
    """ResNet-8 for 8×8 digits: 64 channels, 0.07 M parameters, milliseconds per step on a CPU."""
    return _small("resnet-digits", channels_in, 1, shortcut, last_relu)
