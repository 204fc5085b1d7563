"""The forms of what nets say of themselves, checked before anything is built from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..limits import CHANNELS

Count = Annotated[int, Field(ge=CHANNELS.least, le=CHANNELS.most)]
"""Of channels or classes."""
Size = Annotated[int, Field(ge=0, le=CHANNELS.most)]
"""Classes of a task that are still there; 0: all of them were forgotten."""


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BackboneForm(Form):
    """The name of a backbone, and its variant."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    channels_in: Count


class HeadForm(Form):
    name: str
    channels: Count
    options: dict[str, Any]
    tasks: Annotated[tuple[Size, ...], Field(max_length=10_000)]


class NetForm(Form):
    part: Literal["net"]
    backbone: BackboneForm
    head: HeadForm


class PerTaskHeadForm(Form):
    channels: Count
    tasks: Annotated[tuple[Size, ...], Field(max_length=10_000)]


class TaskNetForm(Form):
    part: Literal["task-attention"]
    backbone: BackboneForm
    head: PerTaskHeadForm


class MembersForm(Form):
    members: Annotated[tuple[BackboneForm, ...], Field(min_length=1, max_length=1000)]


class ExpandedForm(Form):
    part: Literal["expanded"]
    backbone: MembersForm
    head: HeadForm
    auxiliary: Count
