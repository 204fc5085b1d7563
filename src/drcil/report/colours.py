"""Colours of lines: told apart by colour-blind readers too, and none used twice."""

from __future__ import annotations

from collections.abc import Sequence

# Okabe and Ito's colours; yellow is left out, it is too light for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_BLACK = COLOURS[-1]
_WIDEST, _LIGHTEST = 0.5, 0.7
"""How far from its colour a shade is at most, on its way to black or to white; and how far from black."""


def colours(count: int) -> list[str]:
    """So many colours, each different: seven, then dark and light shades of them, as many as are needed."""
    rounds = max(0, -(-count // len(COLOURS)) - 1)
    chosen = list(COLOURS)
    for number in range(rounds):
        # Dark and light by turns, the widest first, so that lines of one hue differ as much as they can.
        level = 1 - (number // 2) / -(-rounds // 2)
        share = _WIDEST * level * (1 if number % 2 else -1)
        grey = _LIGHTEST * (number + 1) / rounds
        chosen += [_shade(colour, grey if colour == _BLACK else share) for colour in COLOURS]
    return chosen[:count]


def line_colours(marked: Sequence[bool]) -> list[str]:
    """A colour for every line; the first of all for the one that is marked."""
    order = sorted(range(len(marked)), key=lambda at: not marked[at])
    chosen = dict(zip(order, colours(len(marked)), strict=True))
    return [chosen[at] for at in range(len(marked))]


def _shade(colour: str, share: float) -> str:
    """A colour, part of the way to black (below 0) or to white."""
    end = 255 if share > 0 else 0
    channels = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(own + (end - own) * abs(share)):02X}" for own in channels)
