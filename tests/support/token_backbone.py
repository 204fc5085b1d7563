"""A backbone that answers with tokens and has no stage maps."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from drcil.nets.backbone import BACKBONES, Backbone, Features, build_backbone


class Tokens(Backbone):
    """The positions of a small ResNet's last map, one token each."""

    def __init__(self, channels_in: int, **variant: Any) -> None:
        super().__init__()
        self.inner = build_backbone("resnet-digits", channels_in, **variant)
        self.channels = self.inner.channels

    def forward(self, images: Tensor) -> Features:
        tokens = self.inner(images).last.flatten(2).transpose(1, 2)
        return Features((), tokens, tokens.mean(dim=1))

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "name": "tokens"}

    def normalised_convolutions(self) -> list[tuple[str, str]]:
        return [(f"inner.{conv}", f"inner.{norm}") for conv, norm in self.inner.normalised_convolutions()]


def register_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the backbone be asked for as ``tokens`` until the test ends."""
    monkeypatch.setitem(BACKBONES._entries, "tokens", Tokens)
