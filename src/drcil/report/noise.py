"""How far two means may be apart by chance, where each is of few runs."""

from __future__ import annotations

import functools
from math import cos, exp, hypot, lgamma, pi, pow, sqrt, tan

WORDS = (
    "A difference is within noise if it is at most t·√(e² + p²). Here e is the standard error of our mean: over class "
    "orders where a cell has several (the mean over its seeds stands for each), else over seeds. p is the published "
    "standard error, and t is Student’s for 95 %, with the degrees of freedom of Welch and Satterthwaite. Where no "
    "error was published, the value is taken to be of a single run that varies as ours do: p is the standard deviation "
    "of our n runs, and t has n − 1 degrees of freedom: 12.7 for two runs, 4.3 for three, 2.8 for five. If we measure "
    "the same as was published, and noise is normal, about 19 of 20 differences are within it. A single run has no "
    "error of its own, so that there is no telling: one run."
)
_SHARE = 0.95
_STEPS = 100
"""Of an integral; even."""


def noise_of_means(error: float, runs: int, other: float, other_runs: int) -> float:
    """What the difference of two means stays within in 19 of 20 cases, by their standard errors and numbers of runs.

    With the degrees of freedom of Welch and Satterthwaite: the two may vary differently.

    >>> round(noise_of_means(0.5, 3, 0.5, 3), 3), round(noise_of_means(0.5, 3, 0.0, 3), 3)
    (1.963, 2.151)
    """
    together = hypot(error, other)
    if together == 0:
        return 0.0
    shares = (error / together) ** 4 / (runs - 1) + (other / together) ** 4 / (other_runs - 1)
    return student(1 / shares) * together


def noise_of_one(error: float, runs: int) -> float:
    """The same for a mean and a single run that varies as the runs of the mean do.

    >>> round(noise_of_one(1 / 3**0.5, 3), 3)
    4.968
    """
    return student(runs - 1) * error * sqrt(runs + 1)


@functools.cache
def student(freedom: float) -> float:
    """What a value of Student's t distribution is within, to either side, in 19 of 20 cases.

    >>> round(student(1), 3), round(student(2.5), 3), round(student(4), 3), round(student(1000), 3)
    (12.706, 3.575, 2.776, 1.962)
    """
    # With t = √ν·tan θ the density is that of cosᵛ⁻¹ θ. It falls, so that Newton's steps never go too far.
    half = exp(lgamma(freedom / 2) - lgamma((freedom + 1) / 2)) * sqrt(pi) / 2
    angle, step = 0.0, 1.0
    while step > 1e-12:
        step = (_SHARE * half - _integral(freedom, angle)) / pow(cos(angle), freedom - 1)
        angle += step
    return sqrt(freedom) * tan(angle)


def _integral(freedom: float, angle: float) -> float:
    """Of cosᵛ⁻¹ from 0 to an angle, by Simpson's rule."""
    width = angle / _STEPS
    values = [pow(cos(number * width), freedom - 1) for number in range(_STEPS + 1)]
    return width / 3 * (values[0] + 4 * sum(values[1::2]) + 2 * sum(values[2:-1:2]) + values[-1])
