"""Residual networks for small images: He et al.'s CIFAR family, and a tiny sibling for 8×8 digits."""

from __future__ import annotations

from .features import BACKBONES
from .resnet import ResNet, Shortcut


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
