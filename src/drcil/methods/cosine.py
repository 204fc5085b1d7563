"""What the methods with a cosine classifier share: the backbone it needs, rows that stay, two ways to read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..heads.cosine import CosineHead
from ..nets.output import Readout
from ..stages import Group
from .means import MethodWithMeans


class CosineMethod(MethodWithMeans):
    """A method whose head compares directions, those of old classes frozen while new ones are learnt."""

    backbone_options = MappingProxyType({"shortcut": "projected", "last_relu": False})
    head = "cosine"
    readout_names = ("classifier", "nme")
    copies = "2"

    @property
    def cosine_head(self) -> CosineHead:
        """The net's head."""
        head = self.net.head
        assert isinstance(head, CosineHead)
        return head

    def all_but_old_rows(self) -> list[Group]:
        """Every parameter except the rows of old classes, which neither gradient nor decay shall move."""
        old = self.cosine_head.old_rows
        return [Group([parameter for parameter in self.net.parameters() if parameter is not old])]

    def readouts(self) -> Mapping[str, Readout]:
        return {"classifier": Readout(self.net), "nme": self.nearest_mean()}
