"""JSON references by which a saved model finds its images again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..settings import IMAGE_SIZE

Pixels = Annotated[int, Field(ge=1, le=IMAGE_SIZE.most)]


class _Ref(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EmbeddedRef(_Ref):
    """Images that exist nowhere else: a model keeps a copy of them."""

    kind: Literal["embedded"] = "embedded"


class DatasetRef(_Ref):
    """A split of a dataset that is known by name."""

    kind: Literal["dataset"] = "dataset"
    name: Annotated[str, Field(min_length=1, max_length=4096)]
    split: Literal["train", "test"]
    size: Pixels
    md5: str | None = None
    """Of the file that the images were read from, if it was verified."""


class FilesRef(_Ref):
    """Image files: each by its path, or all in some directories below a root, with a digest of their names."""

    kind: Literal["files"] = "files"
    size: Pixels
    resize: Pixels
    channels: Literal[1, 3]
    paths: tuple[str, ...] | None = None
    root: str | None = None
    directories: tuple[str, ...] | None = None
    digest: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> FilesRef:
        below = [self.root, self.directories, self.digest]
        if (self.paths is None) == any(entry is None for entry in below) or (self.paths and any(below)):
            raise ValueError("files are described by 'paths', or by 'root', 'directories' and 'digest'")
        return self


class KeptRef(_Ref):
    """Image files in the directory of a model, each named by a hash of its content."""

    kind: Literal["kept"] = "kept"
    size: Pixels
    resize: Pixels
    channels: Literal[1, 3]
    files: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{32}\.[a-z0-9]{1,5}$")], ...]


LeafRef = EmbeddedRef | DatasetRef | FilesRef | KeptRef


class ChainRef(_Ref):
    """Several sources one after the other; at most one of them is embedded."""

    kind: Literal["chain"] = "chain"
    parts: Annotated[tuple[Annotated[LeafRef, Field(discriminator="kind")], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_copy(self) -> ChainRef:
        if sum(isinstance(part, EmbeddedRef) for part in self.parts) > 1:
            raise ValueError("images are embedded once, not in several parts")
        return self


SourceRef = LeafRef | ChainRef
StoredRef = Annotated[SourceRef, Field(discriminator="kind")]
"""The same as an entry of a file."""


def leaves(ref: SourceRef) -> tuple[LeafRef, ...]:
    """The sources of a chain; of any other reference, itself."""
    return ref.parts if isinstance(ref, ChainRef) else (ref,)
