"""What a source may say of where its images are: the forms of ``Source.describe``, checked before they are followed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from ...errors import UserError
from ...limits import IMAGE_SIZE
from ...validation import explain

Pixels = Annotated[int, Field(ge=1, le=IMAGE_SIZE.most)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Embedded(_Form):
    """Nothing but a copy of the images would do."""

    kind: Literal["embedded"]


class OfDataset(_Form):
    """A split of a dataset that is known by name."""

    kind: Literal["dataset"]
    name: Annotated[str, Field(min_length=1, max_length=4096)]
    split: Literal["train", "test"]
    size: Pixels
    md5: str | None = None
    """Of the file that the images were read from."""


class Files(_Form):
    """Pictures on disk: each by its path, or all in some directories below a root, with a digest of their names."""

    kind: Literal["files"]
    size: Pixels
    resize: Pixels
    channels: Literal[1, 3]
    paths: tuple[str, ...] | None = None
    root: str | None = None
    directories: tuple[str, ...] | None = None
    digest: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Files:
        below = [self.root, self.directories, self.digest]
        if (self.paths is None) == any(entry is None for entry in below) or (self.paths and any(below)):
            raise ValueError("files are described by 'paths', or by 'root', 'directories' and 'digest'")
        return self


class Kept(_Form):
    """Pictures that a model carries with it, each named by what it holds."""

    kind: Literal["kept"]
    size: Pixels
    resize: Pixels
    channels: Literal[1, 3]
    files: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{32}\.[a-z0-9]{1,5}$")], ...]


Leaf = Annotated[Embedded | OfDataset | Files | Kept, Field(discriminator="kind")]


class Chain(_Form):
    """Several sources one after the other; at most one of them is embedded."""

    kind: Literal["chain"]
    parts: Annotated[tuple[Leaf, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_copy(self) -> Chain:
        if sum(isinstance(part, Embedded) for part in self.parts) > 1:
            raise ValueError("images are embedded once, not in several parts")
        return self


Description = Embedded | OfDataset | Files | Kept | Chain
AnyDescription = Annotated[Description, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Description] = TypeAdapter(AnyDescription)


def parse_description(description: Mapping[str, Any]) -> Description:
    """A description as a source gives it, checked."""
    try:
        return _ADAPTER.validate_json(json.dumps(description), strict=True)
    except ValidationError as error:
        raise UserError(f"images cannot be found by this description: {explain(error)}") from None


def leaves(description: Description) -> tuple[Embedded | OfDataset | Files | Kept, ...]:
    """The sources of a chain; of anything else, itself."""
    return description.parts if isinstance(description, Chain) else (description,)
