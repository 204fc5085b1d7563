"""How many images of old classes may be kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..arguments import shown, whole
from ..errors import UserError, WrongTypeError, shortened
from ..limits import Bounds

_TOTAL = Bounds(0, 10**12 - 1)


@dataclass(frozen=True)
class Budget:
    """How many exemplars may be kept: ``total`` shared by all classes, or ``per_class``; neither means all images."""

    total: int | None = None
    per_class: int | None = None

    def __post_init__(self) -> None:
        if self.total is not None and self.per_class is not None:
            raise ValueError("a budget is a total or a number per class, not both")
        if (self.total or 0) < 0 or (self.per_class is not None and self.per_class < 1):
            raise ValueError(f"a budget of {self.total} in total or {self.per_class} per class is too small")

    @classmethod
    def parse(cls, text: str | int) -> Budget:
        """``"2000"`` or a number (in total), ``"20/class"``, ``"all"`` (unlimited) or ``"none"`` (also ``"0"``)."""
        if isinstance(text, int) and not isinstance(text, bool):
            text = str(whole("memory", text, _TOTAL))
        if not isinstance(text, str):
            raise WrongTypeError(f"memory must be a budget such as 2000 or '20/class', not {shown(text)}")
        if text == "all":
            return cls()
        if text == "none":
            return cls(total=0)
        match = re.fullmatch(r"([0-9]{1,12})(/class)?", text)
        if match is None or (match[2] and int(match[1]) == 0):
            raise UserError(
                f"memory '{shortened(text)}' is not a budget: give a total such as '2000', a number per class such as "
                "'20/class', 'all' or 'none'"
            )
        return cls(per_class=int(match[1])) if match[2] else cls(total=int(match[1]))

    def __str__(self) -> str:
        if self.per_class is not None:
            return f"{self.per_class}/class"
        if self.total is None:
            return "all"
        return str(self.total) if self.total else "none"

    def quota(self, classes: int) -> int | None:
        """Exemplars of each class once this many (at least one) have been seen: ⌊total / classes⌋; None: all images.

        What the division leaves over stays unused.
        """
        return self.per_class if self.total is None else self.total // classes
