"""timm models as backbones, and their published weights.

timm imports torchvision for reading and transforming images, which drcil does by itself; no model needs it. But
torchvision works only with the build of torch that it was compiled for, and with others it fails when it is
imported. Then timm is given stand-ins: empty classes under the names that it imports. They are there only
while timm is imported, so that no other code mistakes them for torchvision.

The kind of a model's output is detected once, with one image: if the features that timm pools are the
average of its last map or of its tokens, those are given; else (a class token, a norm or layers behind the pooling) the
pooled features themselves, as the only token.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import UserError, shortened, unknown_name
from ..process import silenced
from ..seeding import generator, seeded_torch
from ..settings import Weights
from .backbone import BACKBONES, Backbone, Family, Features, Preprocessing, parts_of
from .initial_weights import find_weights

TIMM = "timm:"
"""What the names of timm's models begin with here."""
_ABSENT = "torchvision"
INSTALL = "pip install 'drcil[timm]'"
_importing = threading.Lock()


@cache
def import_timm() -> Any:
    """The package timm; an error with the command that installs it, if it is not there."""
    if importlib.util.find_spec("timm") is None:
        raise UserError(f"backbones 'timm:NAME' need timm, which is not installed; install it with {INSTALL}")
    with _importing, _stand_ins():
        try:
            return importlib.import_module("timm")
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"timm cannot be imported: {why}; install it with {INSTALL}") from error


class _Members(type):
    """Classes that have any public attribute, as constants of an enumeration."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _StandIn(ModuleType):
    """A module that provides a class for any requested name."""

    def __getattr__(self, name: str) -> Any:
        if not name[:1].isupper():
            raise AttributeError(name)
        made = _Members(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds a stand-in for torchvision and for every module of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_stand_in = fullname.partition(".")[0] == _ABSENT
        return ModuleSpec(fullname, self, is_package=True) if is_stand_in else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Within the block torchvision can be imported, in earnest or not."""
    if _works():
        yield
        return
    _forget()
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget()


def _works() -> bool:
    try:
        importlib.import_module(_ABSENT)
    except Exception:  # A build for another torch can fail in any way.
        return False
    return True


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == _ABSENT]:
        del sys.modules[name]


Gives = Literal["stages", "map", "tokens", "vector"]
"""The last map with or without the maps of all stages, the last tokens, or one vector."""
_GIVES: dict[tuple[str, int, int], Gives] = {}
"""By name, channels and size of images."""
_TRANSFORMERS = {"beit", "cait", "coat", "deit", "eva", "hiera", "nest", "pit", "pvt_v2", "tnt", "twins", "volo"}
_WORDS = ("vit", "former", "swin", "xcit")
"""Modules of timm that are transformers, by their names, and by parts of their names."""


class TimmBackbone(Backbone):
    """A model of timm without its classifier."""

    def __init__(self, name: str, channels_in: int, image_size: int, gives: Gives | None = None) -> None:
        """``gives``: the kind of output; None: detected."""
        super().__init__()
        if gives is not None and gives not in get_args(Gives):
            raise unknown_name("answer of a backbone", gives, get_args(Gives))
        self.name, self.channels_in, self.image_size = name, channels_in, image_size
        self.net: Any = _create(name, channels_in, image_size)
        self.gives = gives or self._cached_kind(_GIVES)
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
        """The patch tokens, also if the model's output is a class token."""
        if self.gives != "vector":
            return super().tokens(images)
        output = self.net.forward_features(images)
        if (
            isinstance(output, Tensor)
            and output.ndim == 4
            and self.net.num_features in (output.shape[1], output.shape[3])
        ):
            return self._map(output).flatten(2).transpose(1, 2)
        if isinstance(output, Tensor) and output.ndim == 3 and output.shape[2] == self.net.num_features:
            return self._tokens(output)
        raise UserError(f"backbone '{TIMM}{self.name}' does not tell the tokens of its patches; choose another one")

    def describe(self) -> dict[str, Any]:
        return {
            "name": f"{TIMM}{self.name}",
            "channels_in": self.channels_in,
            "image_size": self.image_size,
            "gives": self.gives,
        }

    def no_weight_decay(self) -> set[str]:
        """Parameters that the decay of weights leaves out: positions, tokens and whatever is not called a weight."""
        return {name for name, _ in self.named_parameters() if not name.endswith("weight")}

    def parts(self) -> tuple[str, ...]:
        return tuple(f"net.{part}" for part in parts_of(self.as_published()))

    def as_published(self) -> nn.Module:
        return self.get_submodule("net")

    def adapted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """As timm does for its files: names of older versions, another image size, other channels."""
        change = getattr(sys.modules[type(self.net).__module__], "checkpoint_filter_fn", None)
        if change is not None:
            try:
                tensors = change(dict(tensors), self.net)
            except Exception:  # Files of other models: tensors that do not fit are reported under their names.
                return tensors
        first = self.net.pretrained_cfg.get("first_conv") or ()
        for name in (f"{layer}.weight" for layer in ([first] if isinstance(first, str) else first)):
            if name in tensors and tensors[name].ndim == 4 and tensors[name].shape[1] == 3 != self.channels_in:
                adapt = import_timm().models.adapt_input_conv
                tensors = {**tensors, name: adapt(self.channels_in, tensors[name])}
        return tensors

    def _map(self, features: Tensor) -> Tensor:
        """As (N, C, H, W): some models have the channels last."""
        return features if features.shape[1] == self.net.num_features else features.permute(0, 3, 1, 2)

    def _tokens(self, features: Tensor) -> Tensor:
        """The patch tokens, without the class tokens and registers before them.

        For models that do not define the number of prefix tokens, patches are assumed to form a square.
        """
        before = features.shape[1] - math.isqrt(features.shape[1]) ** 2
        return features[:, getattr(self.net, "num_prefix_tokens", before) :]

    def _cached_kind(self, answers: dict[tuple[str, int, int], Gives]) -> Gives:
        """The kind of output, detected once per process and size."""
        if any(parameter.is_meta for parameter in self.net.parameters()):
            return "vector"
        key = (self.name, self.channels_in, self.image_size)
        if key not in answers:
            answers[key] = self._detect_kind()
        return answers[key]

    @torch.no_grad()
    def _detect_kind(self) -> Gives:
        """The kind of output, detected with one random image."""
        image = torch.rand(1, self.channels_in, self.image_size, self.image_size, generator=generator("timm"))
        self.net.eval()
        try:
            pooled, features = self.net(image).flatten(1), self.net.forward_features(image)
            if (
                isinstance(features, Tensor)
                and features.ndim == 4
                and _is_close(pooled, self._map(features).mean((2, 3)))
            ):
                return "stages" if self._has_stages(image, features) else "map"
            if (
                isinstance(features, Tensor)
                and features.ndim == 3
                and _is_close(pooled, self._tokens(features).mean(1))
            ):
                return "tokens"
            return "vector"
        except Exception as error:  # A model can fail on such images anywhere.
            raise _unusable(self.name, self.image_size, error) from None
        finally:
            self.net.train()

    def _has_stages(self, image: Tensor, features: Tensor) -> bool:
        try:
            last, stages = self.net.forward_intermediates(image, output_fmt="NCHW")
        except Exception:  # Models without intermediates raise different errors.
            return False
        return bool(stages) and all(stage.ndim == 4 for stage in stages) and torch.equal(last, features)


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
        with torch.device("meta"), seeded_torch("outline"):
            parts = list(timm.create_model(name, pretrained=False, num_classes=0).modules())
    except Exception:  # Some models read values, which meta tensors do not have.
        return "transformer" if called_so else "convolutional"
    attention = sum(_has_attention(part) for part in parts)
    convolutions = sum(isinstance(part, nn.Conv2d) and part.kernel_size != (1, 1) for part in parts)
    norms = sum(isinstance(part, nn.BatchNorm2d) for part in parts)
    is_one = attention > 0 if called_so else attention > norms and 2 * attention > convolutions
    return "transformer" if is_one else "convolutional"


def _has_attention(part: nn.Module) -> bool:
    """Whether a module relates positions to each other; gates of channels have no heads and other names."""
    return isinstance(getattr(part, "num_heads", None), int) or "Attention" in type(part).__name__


def _create(name: str, channels_in: int, image_size: int) -> Any:
    timm = import_timm()
    config = timm.get_pretrained_cfg(name.partition(".")[0])
    size_option = {"img_size": image_size} if config is not None and config.fixed_input_size else {}
    try:
        return timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels_in, **size_option)
    except Exception as error:  # torch's outlines without memory ask for numbers, too
        if isinstance(error, NotImplementedError) or "meta" in str(error):
            raise
        raise _unusable(name, image_size, error) from None


def _is_close(pooled: Tensor, average: Tensor) -> bool:
    if pooled.shape != average.shape or not pooled.any():
        return False
    return bool(((pooled - average).abs() <= 1e-3 * pooled.abs().max()).all())


def _unusable(name: str, image_size: int, error: Exception) -> UserError:
    why = shortened(" ".join(str(error).split()) or type(error).__name__)
    return UserError(
        f"backbone '{TIMM}{name}' cannot take images of {image_size} pixels: {why}; give another --image-size"
    )


def _unknown(name: str, names: list[str]) -> UserError:
    matches = difflib.get_close_matches(name, names, n=3) or [candidate for candidate in names if name in candidate][:3]
    hint = f"; did you mean {' or '.join(repr(candidate) for candidate in matches)}?" if matches else ""
    return UserError(f"timm has no model '{shortened(name)}'{hint}")


_FILES = ("model.safetensors", "pytorch_model.bin")
"""What the repositories of the Hugging Face hub call the weights; the first that is there is taken."""


def named_weights(file: str | os.PathLike[str] | None, pretrained: bool, backbone: str | None) -> Weights | None:
    """The weights set by the user: those of a file, or the published weights of the backbone; None: none."""
    if not pretrained:
        return None if file is None else find_weights(file)
    if file is not None:
        raise UserError("published weights and those of a file exclude each other; give --pretrained or --weights FILE")
    if backbone is None:
        raise UserError(f"--pretrained takes a backbone that has published weights; give --backbone {TIMM}NAME")
    return pretrained_weights(backbone)


def pretrained_weights(backbone: str) -> Weights:
    """The published weights of a backbone."""
    BACKBONES[backbone]
    if not backbone.startswith(TIMM):
        raise UserError(
            f"there are no published weights for backbone '{backbone}'; give those of a file with --weights FILE, or "
            f"choose a backbone of timm, such as '{TIMM}resnet18'"
        )
    config = import_timm().get_pretrained_cfg(backbone.removeprefix(TIMM))
    if config is None or not config.has_weights:
        raise UserError(f"timm has no weights for backbone '{backbone}'; give those of a file with --weights FILE")
    if config.custom_load == "hf" or (config.custom_load and not config.hf_hub_id):
        raise UserError(
            f"the weights of '{backbone}' have a format of their own; give those of a file with --weights FILE"
        )
    try:
        return find_weights(_cached(config))
    except Exception as error:  # Networks fail in many ways.
        raise UserError(
            f"the weights of '{backbone}' are not cached and cannot be fetched ({type(error).__name__}); fetch the "
            "file on a machine with a network, and give it with --weights FILE"
        ) from error


def _cached(config: Any) -> str:
    """The file with the weights, fetched if it is not there."""
    if not config.hf_hub_id:
        return str(importlib.import_module("timm.models._hub").download_cached_file(config.url))
    hub = importlib.import_module("huggingface_hub")
    repository, _, revision = config.hf_hub_id.partition("@")
    names = (config.hf_hub_filename,) if config.hf_hub_filename else _FILES
    for name in names:
        path = hub.try_to_load_from_cache(repository, name, revision=revision or None)
        if isinstance(path, str):
            return path
    errors = importlib.import_module("huggingface_hub.errors")
    absent = getattr(errors, "RemoteEntryNotFoundError", errors.EntryNotFoundError)
    with silenced("huggingface_hub"):
        for name in names[:-1]:
            with suppress(absent):
                return str(hub.hf_hub_download(repository, filename=name, revision=revision or None))
        return str(hub.hf_hub_download(repository, filename=names[-1], revision=revision or None))
