"""Gated positional self-attention (d'Ascoli et al. 2021): heads that begin as a convolution and may leave it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .transformer import drawn_linear


class GatedAttention(nn.Module):
    """Self-attention among the patches of a square grid. Head h gives patch i, with a gate σ_h = sigmoid(g_h),

        (1 − σ_h) Σ_j softmax_j(q_i·k_j / sqrt(d)) v_j  +  σ_h Σ_j softmax_j(u_h·r_ij + c_h) v_j,

    where r_ij = (δx, δy, δx² + δy²) leads from patch i to patch j. Both weights sum to one over j, and so does their
    mixture: nothing is left to normalise.
    """

    offsets: Tensor

    def __init__(self, channels: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads = heads
        self.content = drawn_linear(channels, 2 * channels, bias=False)
        """To queries and keys."""
        self.value = nn.Linear(channels, channels, bias=False)
        self.position = drawn_linear(3, heads)
        """u and c, by head."""
        self.gate = nn.Parameter(torch.ones(heads))
        self.out = drawn_linear(channels, channels)
        steps = torch.arange(side, dtype=torch.get_default_dtype())
        # Along one axis: from row to row, and likewise from column to column.
        self.register_buffer("offsets", steps[None, :] - steps[:, None], persistent=False)
        self._look_around()

    @torch.no_grad()
    def _look_around(self) -> None:
        """Let the first heads copy one neighbour each, as the weights of a small convolution: those of a square window.

        With u = (2a, 2b, −1) the positional score is −(δx − a)² − (δy − b)² but for a constant.
        """
        nn.init.eye_(self.value.weight)
        window = math.isqrt(self.heads)
        reach = (window - 1) / 2
        for head in range(window**2):
            across, down = head // window - reach, head % window - reach
            self.position.weight[head] = torch.tensor([2 * across, 2 * down, -1.0])

    def forward(self, tokens: Tensor) -> Tensor:
        images, patches, channels = tokens.shape
        shape = (images, patches, -1, channels // self.heads)
        query, key = self.content(tokens).chunk(2, dim=2)
        query, key, value = (one.view(shape).transpose(1, 2) for one in (query, key, self.value(tokens)))
        seen = functional.scaled_dot_product_attention(query, key, value)
        near = torch.einsum("hij,nhjd->nhid", self.nearness(), value)
        gate = torch.sigmoid(self.gate)[:, None, None]
        mixed = torch.lerp(seen, near, gate.to(seen.dtype))
        attended: Tensor = self.out(mixed.transpose(1, 2).reshape(tokens.shape))
        return attended

    def nearness(self) -> Tensor:
        """softmax_j(u_h·r_ij + c_h), (heads, T, T): where each head looks whatever it sees.

        The score is a sum of one along x and one along y, so the softmax is the product of one along each.
        """
        along_x, along_y, spread = self.position.weight.T[:, :, None, None]
        bow = spread * self.offsets.square()
        columns = torch.softmax(along_x * self.offsets + bow + self.position.bias[:, None, None], dim=2)
        rows = torch.softmax(along_y * self.offsets + bow, dim=2)
        # Patches are counted row by row: (y of i, x of i, y of j, x of j).
        both = rows[:, :, None, :, None] * columns[:, None, :, None, :]
        return both.flatten(3).flatten(1, 2)
