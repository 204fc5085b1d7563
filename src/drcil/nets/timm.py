"""Any model of timm as a backbone: ``timm:NAME``, or ``timm:NAME.TAG`` for weights other than its first ones.

What a model answers with is found out once, by showing it an image: where the features that timm pools are the
average of its last map or of its tokens, those are given; else (a class token, a norm or layers behind the pooling) the
pooled features themselves, as the only token.
"""

from __future__ import annotations

import difflib
import math
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import UserError, shortened, unknown
from ..keys import generator, randomness
from .features import BACKBONES, Backbone, Family, Features, Preprocessing, parts_of
from .timm_import import TIMM, import_timm

Gives = Literal["stages", "map", "tokens", "vector"]
"""The last map with or without the maps of all stages, the last tokens, or one vector."""
_GIVES: dict[tuple[str, int, int], Gives] = {}
"""By name, channels and size of images."""
_TRANSFORMERS = {"beit", "cait", "coat", "deit", "eva", "hiera", "nest", "pit", "pvt_v2", "tnt", "twins", "volo"}
_WORDS = ("vit", "former", "swin", "xcit")
"""Modules of timm that are transformers, by their names, and by what is in their names."""


class TimmBackbone(Backbone):
    """A model of timm without its classifier."""

    def __init__(self, name: str, channels_in: int, image_size: int, gives: Gives | None = None) -> None:
        """``gives``: None: it is found out."""
        super().__init__()
        if gives is not None and gives not in get_args(Gives):
            raise unknown("answer of a backbone", gives, get_args(Gives))
        self.name, self.channels_in, self.image_size = name, channels_in, image_size
        self.net: Any = _create(name, channels_in, image_size)
        self.gives = gives or self._known(_GIVES)
        self.stage_maps = self.gives == "stages"
        width = self.net.num_features
        self.channels = int(getattr(self.net, "head_hidden_size", width) if self.gives == "vector" else width)

    def forward(self, images: Tensor) -> Features:
        if self.gives == "vector":
            pooled = self.net(images).flatten(1)
            return Features((), pooled[:, None], pooled)
        if self.gives == "tokens":
            tokens = self._tokens(self.net.forward_features(images))
            return Features((), tokens, tokens.mean(dim=1))
        if self.gives == "map":
            last = self._map(self.net.forward_features(images))
            return Features((), last, last.mean(dim=(2, 3)))
        features, stages = self.net.forward_intermediates(images, output_fmt="NCHW")
        last = self._map(features)
        return Features(tuple(stages), last, last.mean(dim=(2, 3)))

    def tokens(self, images: Tensor) -> Tensor:
        """Those of patches, also where a class token is all that it answers with."""
        if self.gives != "vector":
            return super().tokens(images)
        seen = self.net.forward_features(images)
        if isinstance(seen, Tensor) and seen.ndim == 4 and self.net.num_features in (seen.shape[1], seen.shape[3]):
            return self._map(seen).flatten(2).transpose(1, 2)
        if isinstance(seen, Tensor) and seen.ndim == 3 and seen.shape[2] == self.net.num_features:
            return self._tokens(seen)
        raise UserError(f"backbone '{TIMM}{self.name}' does not tell the tokens of its patches; choose another one")

    def describe(self) -> dict[str, Any]:
        return {
            "name": f"{TIMM}{self.name}",
            "channels_in": self.channels_in,
            "image_size": self.image_size,
            "gives": self.gives,
        }

    def parts(self) -> tuple[str, ...]:
        return tuple(f"net.{part}" for part in parts_of(self.as_published()))

    def as_published(self) -> nn.Module:
        return self.get_submodule("net")

    def adapted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """As timm does it for its own files: names of older versions, another size of images, other channels."""
        change = getattr(sys.modules[type(self.net).__module__], "checkpoint_filter_fn", None)
        if change is not None:
            try:
                tensors = change(dict(tensors), self.net)
            except Exception:  # Files of other models: what does not fit is told with the names that they have.
                return tensors
        first = self.net.pretrained_cfg.get("first_conv") or ()
        for name in (f"{one}.weight" for one in ([first] if isinstance(first, str) else first)):
            if name in tensors and tensors[name].ndim == 4 and tensors[name].shape[1] == 3 != self.channels_in:
                adapt = import_timm().models.adapt_input_conv
                tensors = {**tensors, name: adapt(self.channels_in, tensors[name])}
        return tensors

    def _map(self, features: Tensor) -> Tensor:
        """As (N, C, H, W): some models have the channels last."""
        return features if features.shape[1] == self.net.num_features else features.permute(0, 3, 1, 2)

    def _tokens(self, features: Tensor) -> Tensor:
        """Those of patches: what stands before them are class tokens and registers.

        Models that do not say how many of these they have have patches in a square.
        """
        before = features.shape[1] - math.isqrt(features.shape[1]) ** 2
        return features[:, getattr(self.net, "num_prefix_tokens", before) :]

    def _known(self, answers: dict[tuple[str, int, int], Gives]) -> Gives:
        """What it answers with, found out once in a process."""
        if any(parameter.is_meta for parameter in self.net.parameters()):
            return "vector"
        key = (self.name, self.channels_in, self.image_size)
        if key not in answers:
            answers[key] = self._found_out()
        return answers[key]

    @torch.no_grad()
    def _found_out(self) -> Gives:
        """What it answers with, by the answers to one image."""
        image = torch.rand(1, self.channels_in, self.image_size, self.image_size, generator=generator("timm"))
        self.net.eval()
        try:
            pooled, features = self.net(image).flatten(1), self.net.forward_features(image)
            if isinstance(features, Tensor) and features.ndim == 4 and _is(pooled, self._map(features).mean((2, 3))):
                return "stages" if self._has_stages(image, features) else "map"
            if isinstance(features, Tensor) and features.ndim == 3 and _is(pooled, self._tokens(features).mean(1)):
                return "tokens"
            return "vector"
        except Exception as error:  # A model can stumble over such images anywhere.
            raise _unusable(self.name, self.image_size, error) from None
        finally:
            self.net.train()

    def _has_stages(self, image: Tensor, features: Tensor) -> bool:
        try:
            again, stages = self.net.forward_intermediates(image, output_fmt="NCHW")
        except Exception:  # Not every model can, and those say it in different ways.
            return False
        return bool(stages) and all(stage.ndim == 4 for stage in stages) and torch.equal(again, features)


@dataclass(frozen=True)
class TimmFactory:
    """What ``BACKBONES`` has for a model of timm."""

    name: str
    family: Family
    preprocessing: Preprocessing

    def __call__(self, channels_in: int, *, image_size: int, gives: Gives | None = None) -> TimmBackbone:
        return TimmBackbone(self.name, channels_in, image_size, gives)


@cache
def timm_factory(name: str) -> TimmFactory:
    """The model of this name; the nearest names, if timm has none."""
    if not name.strip():
        raise UserError(f"backbone '{TIMM}{name}' is incomplete; give it as {TIMM}NAME, such as {TIMM}resnet18")
    timm = import_timm()
    plain, _, tag = name.partition(".")
    if not timm.is_model(plain):
        raise _unknown(name, timm.list_models())
    if tag and name not in timm.list_pretrained(f"{plain}.*"):
        raise _unknown(name, timm.list_pretrained(f"{plain}.*"))
    config = timm.get_pretrained_cfg(name)
    preprocessing = Preprocessing(max(config.input_size[1:]), tuple(config.mean), tuple(config.std))
    return TimmFactory(name, _family(plain), preprocessing)


BACKBONES.register_prefix(TIMM, timm_factory)


def _family(name: str) -> Family:
    """By an outline of the net, which takes no memory: a transformer attends.

    Among nets that are not called so there are convolutional ones that attend here and there. In a transformer
    attention is no exception beside convolutions, and batches are not normalised.
    """
    timm = import_timm()
    module = timm.model_entrypoint(name).__module__.rpartition(".")[2]
    called_so = module in _TRANSFORMERS or any(word in module for word in _WORDS)
    try:
        with torch.device("meta"), randomness("outline"):
            parts = list(timm.create_model(name, pretrained=False, num_classes=0).modules())
    except Exception:  # Some ask for numbers, which outlines do not have.
        return "transformer" if called_so else "convolutional"
    attention = sum(_attends(part) for part in parts)
    convolutions = sum(isinstance(part, nn.Conv2d) and part.kernel_size != (1, 1) for part in parts)
    norms = sum(isinstance(part, nn.BatchNorm2d) for part in parts)
    is_one = attention > 0 if called_so else attention > norms and 2 * attention > convolutions
    return "transformer" if is_one else "convolutional"


def _attends(part: nn.Module) -> bool:
    """Whether a module relates positions to each other; gates of channels have no heads and other names."""
    return isinstance(getattr(part, "num_heads", None), int) or "Attention" in type(part).__name__


def _create(name: str, channels_in: int, image_size: int) -> Any:
    timm = import_timm()
    config = timm.get_pretrained_cfg(name.partition(".")[0])
    sized = {"img_size": image_size} if config is not None and config.fixed_input_size else {}
    try:
        return timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels_in, **sized)
    except Exception as error:  # torch's outlines without memory ask for numbers, too
        if isinstance(error, NotImplementedError) or "meta" in str(error):
            raise
        raise _unusable(name, image_size, error) from None


def _is(pooled: Tensor, average: Tensor) -> bool:
    if pooled.shape != average.shape or not pooled.any():
        return False
    return bool(((pooled - average).abs() <= 1e-3 * pooled.abs().max()).all())


def _unusable(name: str, image_size: int, error: Exception) -> UserError:
    why = shortened(" ".join(str(error).split()) or type(error).__name__)
    return UserError(
        f"backbone '{TIMM}{name}' cannot take images of {image_size} pixels: {why}; give another --image-size"
    )


def _unknown(name: str, known: list[str]) -> UserError:
    near = difflib.get_close_matches(name, known, n=3) or [one for one in known if name in one][:3]
    hint = f"; did you mean {' or '.join(repr(one) for one in near)}?" if near else ""
    return UserError(f"timm has no model '{shortened(name)}'{hint}")
