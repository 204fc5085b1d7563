"""Pictures to measure with where no dataset is at hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from drcil.keys import numpy_generator

_SHARED = 0.9
"""How much of the variance the colour channels have in common; in photographs they are nearly grey."""
_DEVIATION = 55.0
_FALL = 1.2
"""Amplitudes fall as frequency to this power: neighbours agree, and files weigh, as in photographs."""


def photographs(count: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Random RGB pictures (N, H, W, 3) with the statistics of photographs.

    Low frequencies prevail and the channels are correlated, so that files compress and histograms spread much as
    those of photographs do.
    """
    draws = numpy_generator("photographs", count, height, width)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    pictures = np.empty((count, height, width, 3), dtype=np.uint8)
    for picture in pictures:
        noise = draws.standard_normal((4, height, width))
        fields = np.fft.irfft2(np.fft.rfft2(noise) / frequency**_FALL, s=(height, width))
        fields /= fields.std(axis=(1, 2), keepdims=True)
        mixed = np.sqrt(_SHARED) * fields[:1] + np.sqrt(1 - _SHARED) * fields[1:]
        levels = draws.uniform(90, 160) + _DEVIATION * mixed
        picture[:] = levels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
    return pictures
