"""What a run is: every choice that its result depends on, as it stands in ``config.toml``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from ..data.augment import AUGMENTS
from ..data.datasets.dataset import find_dataset
from ..disk import write_bytes
from ..errors import UserError
from ..limits import EPOCHS_SCALE, IMAGE_SIZE, SEED, TASKS, VALIDATION
from ..limits import ORDER_SEED as ORDER_SEEDS
from ..methods.spec import named_method
from ..models.start import starting_weights
from ..nets.features import BACKBONES, preprocessing_of
from ..nets.weights import Weights
from ..recipes import known_schedule, load_profile, merge
from ..streams.protocols import ORDER_SEED, parse_stream
from ..train import EngineSettings
from ..validation import explain

CONFIG = "config.toml"
FORMAT = 3
"""Of ``config.toml``; a run of another format is refused."""

_LONG = 120
"""Bytes of a stream's name in the name of a directory, which may have 255 in all."""
Name = Annotated[str, Field(min_length=1)]


class RunSettings(BaseModel):
    """One method on one stream with one seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[3] = 3
    method: str
    """That is trained."""
    readout: str | None = None
    """Whose figures come first; None: the method's own choice. Training does not depend on it."""
    stream: str
    seed: int = Field(default=0, ge=SEED.least, le=SEED.most)
    """Training."""
    order_seed: int = Field(default=ORDER_SEED, ge=ORDER_SEEDS.least, le=ORDER_SEEDS.most)
    """Class order."""
    memory: Name | None = None
    backbone: Name | None = None
    weights: Weights | None = None
    """What the backbone starts from."""
    freeze: Name | None = None
    """The part of the backbone that is frozen, with all parts before it; ``backbone``: all of it."""
    data: str | None = None
    """The data directory."""
    threads: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Of one operation on the CPU, in a process of its own; None: as many as there are."""
    tasks: int | None = Field(default=None, ge=TASKS.least, le=TASKS.most)
    """Stop after so many."""
    image_size: int | None = Field(default=None, ge=IMAGE_SIZE.least, le=IMAGE_SIZE.most)
    epochs_scale: float = Field(default=1.0, gt=EPOCHS_SCALE.least, le=EPOCHS_SCALE.most)
    schedule: Name | None = None
    """One by name, for all stages that train a backbone; None: those of the recipe."""
    profile: Name = "full"
    augment: Name | None = None
    validation: float = Field(default=0.0, ge=VALIDATION.least, lt=VALIDATION.most)
    settings: dict[str, Any] = Field(default_factory=dict)
    """The method's own settings that were given by hand."""
    engine: EngineSettings = EngineSettings()
    loggers: tuple[str, ...] = Field(default=(), validation_alias=AliasChoices("loggers", "listeners"))
    """Who logs it besides its event log; runs of before have them under another name."""
    plugins: tuple[str, ...] = ()
    """The code it needs that is not drcil's own: modules, and files by their absolute path."""

    def choices(self) -> dict[str, Any]:
        """What cannot change halfway, as JSON: not where things are, when to stop, how it is computed and read."""
        left_out = {"readout", "weights", "data", "threads", "tasks", "engine", "loggers", "plugins"}
        chosen = self.model_dump(mode="json", exclude=left_out)
        if self.schedule is None:
            # As if there were no such choice: runs of before it have none.
            del chosen["schedule"]
        weights = {"weights": self.weights.seal.checksum} if self.weights else {}
        engine = self.engine
        compiled = {"compile": True} if engine.compile else {}
        # Statistics of batch normalisation are then those of parts of a batch.
        parts = {"accumulate": engine.accumulate} if engine.accumulate > 1 else {}
        apart = {"sync_batchnorm": False} if engine.sync_batchnorm is False else {}
        return {**chosen, "precision": engine.precision, **compiled, **parts, **apart, **weights}

    @property
    def name(self) -> str:
        """A directory name that tells runs apart."""
        return f"{self.method}-{self.matter}-seed{self.seed}"

    @property
    def label(self) -> str:
        """The method, with the readout that leads if one was chosen, as users name it."""
        return self.method if self.readout is None else f"{self.method}:{self.readout}"

    @property
    def matter(self) -> str:
        """What is learnt, and how thoroughly, as part of a directory name."""
        stream = self.stream.replace("/", "_").replace(":", "_")
        if len(stream.encode(errors="surrogateescape")) > _LONG:
            # A folder may lie deep; the end of its path, and of the name its cut, tell most.
            digest = hashlib.blake2b(stream.encode(errors="surrogateescape"), digest_size=4).hexdigest()
            stream = f"{digest}_{stream[-_LONG // 4 :]}"
        return stream if self.profile == "full" else f"{stream}-{self.profile}"


def make_settings(**given: Any) -> RunSettings:
    """Settings from what the user gave (None: not given) over what the profile says, with errors for people."""
    spec, readout = named_method(given["method"])
    given |= {"method": spec.name, "readout": readout}
    chosen = {name: value for name, value in given.items() if value is not None}
    for table, name in ((BACKBONES, "backbone"), (AUGMENTS, "augment")):
        if name in chosen:
            table[chosen[name]]
    data = find_dataset(parse_stream(chosen["stream"]).dataset)[0].spec
    weights = starting_weights(chosen.pop("weights", None), chosen.pop("pretrained", False), chosen.get("backbone"))
    values = merge(load_profile(chosen.get("profile", "full"), data.kind, spec.family), chosen)
    values["schedule"] = known_schedule(values.get("schedule"))
    wanted = preprocessing_of(spec.backbone(data, values.get("backbone")))
    if data.photographs and wanted is not None:
        values.setdefault("image_size", wanted.image_size)
    return checked({**values, **({"weights": weights} if weights else {})})


def checked(values: dict[str, Any]) -> RunSettings:
    """Settings from all their values, with errors for people."""
    try:
        return RunSettings.model_validate(values)
    except ValidationError as error:
        raise UserError(f"invalid run option: {explain(error)}") from None


def with_engine(settings: RunSettings, **given: Any) -> RunSettings:
    """The same settings, computed in another way (None: not given)."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if not chosen:
        return settings
    return checked({**settings.model_dump(), "engine": {**settings.engine.model_dump(), **chosen}})


def write_settings(settings: RunSettings, path: Path) -> None:
    write_bytes(path, tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True)).encode())
