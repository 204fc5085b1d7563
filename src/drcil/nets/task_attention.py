"""Task attention (Douillard et al. 2022): a learnt token for every task attends to the patches of an image.

The output of a token is the task's embedding of the image, which the task's classifier reads. Tokens are few and
patches many, so the keys and values of patches are computed once and serve all tasks.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..heads.head import Head, grow_all
from ..heads.per_task import PerTaskHead, new_classifier
from .backbone import Backbone, Features, build_backbone, fold_convolutions, require_width
from .convit import DROP_PATH, DropPath, Perceptron, truncated_normal_linear, truncated_normal_tokens
from .net import FoldedNet, Net, Output
from .parts import PARTS

HEADS = 12


class TaskAttention(nn.Module):
    """One block: each token asks, of itself and of the patches; attention, then a perceptron, both on the token alone.

        x = θ + out( Σ_j softmax_j(q·k_j / sqrt(d)) v_j ),   q of LN θ; k, v of LN [θ ; patches]
        e = x + perceptron( LN x )

    Tokens do not see one another.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(channels)
        self.query, self.key, self.value = (truncated_normal_linear(channels, channels, bias=False) for _ in range(3))
        self.out = truncated_normal_linear(channels, channels)
        self.before_perceptron = nn.LayerNorm(channels)
        self.perceptron = Perceptron(channels)
        self.drop_path = DropPath(DROP_PATH)

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        """Embeddings (N, tasks, C) of tokens (tasks, C) that look at patches (N, T, C)."""
        images, tasks = patches.shape[0], len(tokens)
        normed_tokens, normed_patches = self.before_attention(tokens)[None], self.before_attention(patches)
        query = self._by_head(self.query(normed_tokens)).expand(images, -1, -1, -1)
        key, value = (
            torch.cat(
                [
                    self._by_head(layer(normed_tokens)).expand(images, -1, -1, -1),
                    self._by_head(layer(normed_patches)),
                ],
                dim=2,
            )
            for layer in (self.key, self.value)
        )
        patches_for_all = torch.ones(tasks, patches.shape[1], dtype=torch.bool, device=patches.device)
        visible = torch.cat([torch.eye(tasks, dtype=torch.bool, device=patches.device), patches_for_all], dim=1)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        embeddings = tokens + self._dropped(self.out(attended.transpose(1, 2).flatten(2)))
        embeddings = embeddings + self._dropped(self.perceptron(self.before_perceptron(embeddings)))
        return embeddings

    def _by_head(self, tokens: Tensor) -> Tensor:
        return tokens.view(*tokens.shape[:2], self.heads, -1).transpose(1, 2)

    def _dropped(self, path: Tensor) -> Tensor:
        """Left out for an image and a task, not for all tasks of an image at once."""
        dropped: Tensor = self.drop_path(path.flatten(0, 1)).view(path.shape)
        return dropped


class TaskDecoder(nn.Module):
    """The tokens of all tasks, and the block that they share."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.channels = channels
        self.block = TaskAttention(channels, heads)
        self.tokens = nn.ParameterList()

    def no_weight_decay(self) -> set[str]:
        """Parameters that the decay of weights leaves out."""
        return {f"tokens.{number}" for number in range(len(self.tokens))}

    def grow(self) -> None:
        """A token for a new task."""
        like = self.block.out.weight
        self.tokens.append(nn.Parameter(truncated_normal_tokens(1, self.channels).detach().to(like.device, like.dtype)))

    def forward(self, patches: Tensor) -> Features:
        """The patches (N, T, C), and as vector the embeddings of all tasks side by side, (N, tasks x C)."""
        return Features((), patches, self.block(torch.cat(list(self.tokens)), patches).flatten(1))


@PARTS.register("task-attention")
class TaskNet(Net):
    """An encoder, a decoder with a token per task, and a classifier per task.

    ``divergence``, there while a task is learnt, tells its classes from each other and from all old ones by the newest
    embedding alone (``extras["divergence"]``). It is neither folded nor kept.
    """

    head: PerTaskHead
    divergence: nn.Sequential | None

    def __init__(self, backbone: Backbone, head: Head, decoder: TaskDecoder | None = None) -> None:
        super().__init__(backbone, head)
        self.decoder = TaskDecoder(backbone.channels, heads_beside(backbone)) if decoder is None else decoder
        self.divergence = None

    def forward(self, images: Tensor) -> Output:
        features = self.decoder(self.backbone.tokens(images))
        logits = self.head(features.pooled)
        if self.divergence is not None:
            newest = features.pooled[:, -self.decoder.channels :]
            logits = logits._replace(extras={**logits.extras, "divergence": self.divergence(newest)})
        return Output(logits, features)

    def grow(self, new_classes: int) -> None:
        super().grow(new_classes)
        self.decoder.grow()

    @torch.no_grad()
    def forget(self, classes: Collection[int]) -> None:
        super().forget(classes)
        # A task keeps its index, so that the others keep theirs, but loses what it learnt.
        for token, size in zip(self.decoder.tokens, self.head.tasks, strict=True):
            if size == 0:
                token.zero_()

    def diverge(self, classes: int) -> None:
        """Add a classifier for this number of classes on the newest embedding."""
        like = self.decoder.block.out.weight
        self.divergence = new_classifier(self.decoder.channels, classes).to(like.device, like.dtype)

    def under(self, head: Head) -> TaskNet:
        return TaskNet(self.backbone, head, self.decoder)

    def fold(self) -> FoldedNet:
        encoder = fold_convolutions(self.backbone)
        return FoldedNet(Decoded(encoder, copy.deepcopy(self.decoder)).requires_grad_(False), self.head.fold()).eval()

    def describe(self) -> dict[str, Any]:
        head = {"channels": self.head.channels, "tasks": list(self.head.tasks)}
        return {"backbone": self.backbone.describe(), "head": head}

    @classmethod
    def build(cls, backbone: Mapping[str, Any], head: Mapping[str, Any]) -> TaskNet:
        encoder = build_backbone(**backbone)
        require_width(encoder, head)
        net = TaskNet(encoder, PerTaskHead(encoder.channels))
        grow_all(net, head["tasks"])
        return net

    def size(self) -> int:
        training = () if self.divergence is None else self.divergence.parameters()
        return super().size() - sum(parameter.numel() for parameter in training)


def heads_beside(backbone: Backbone) -> int:
    """The encoder's number of heads, if it has one; else twelve, or a divisor of the width."""
    most = int(getattr(backbone, "heads", HEADS))
    return max(heads for heads in range(1, most + 1) if backbone.channels % heads == 0)


class Decoded(Backbone):
    """An encoder and a decoder as one, for a net that is not trained; ``pooled`` is the decoder's, not an average."""

    def __init__(self, encoder: Backbone, decoder: TaskDecoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.channels = encoder.channels

    def forward(self, images: Tensor) -> Features:
        features: Features = self.decoder(self.encoder.tokens(images))
        return features

    def describe(self) -> dict[str, Any]:
        return self.encoder.describe()
