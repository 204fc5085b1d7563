"""Typed settings of models, engines and runs: the only place that declares options, defaults, bounds and help.

The command line, Python keywords and ``config.toml`` are derived from the fields of these models.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from .errors import (
    Bounds,
    UserError,
    WrongTypeError,
    WrongValueError,
    check_int,
    check_path,
    format_value,
    printable,
    shortened,
)
from .files import FileChecksum, file_name

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["32", "16-mixed", "bf16-mixed"]


SEED = Bounds(0, 2**63 - 1)
ORDER_SEED = Bounds(0, 2**32 - 1)
"""Those of numpy's legacy generator."""
SEEDS = Bounds(1, 10_000)
TASKS = Bounds(1, 1_000_000)
"""More than any stream has; the stream says how many there are."""
IMAGE_SIZE = Bounds(4, 4096)
VALIDATION = Bounds(0.0, 1.0, open_above=True)
THREADS = Bounds(1, max(256, 4 * (os.cpu_count() or 1)))
"""With many more than there are cores nothing moves, and with very many the process is killed."""
WORKERS = Bounds(0, 256)
JOBS = Bounds(1, 256)
EVERY = Bounds(1, 1_000_000)
CHANNELS = Bounds(1, 2**20)
CLASSES = Bounds(1, 2**20)
BATCH = Bounds(1, 2**20)
TOP = Bounds(1, 2**31 - 1)


def machine_memory() -> int | None:
    """Bytes of main memory, and of what the system may swap; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return sum(int(lines[name].split()[0]) for name in ("MemTotal", "SwapTotal")) * 1024
    except (OSError, ValueError, KeyError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


TOKEN_VARIABLE = "DRCIL_TOKEN"
"""The environment variable that may hold the server's token."""
CONFIG = "config.toml"
"""The file of a run that holds its settings."""
FORMAT = 3
"""Format of ``config.toml``; a run of another format is refused."""


@dataclass(frozen=True)
class Option:
    """How a field appears on the command line, and what it means for the identity of a run."""

    panel: Literal["Experiment", "Compute", "Output"] = "Experiment"
    """The group of options that ``--help`` lists it in."""
    flag: str | None = None
    """None: the name of the field with dashes; empty: not an option of the command line."""
    metavar: str | None = None
    default_text: str | None = None
    """What help shows as the default where the field's own default does not say it."""
    env: str | None = None
    """The environment variable that is read where the option is missing."""
    identity: bool = True
    """Whether a run with another value is another run."""
    omitted: tuple[Any, ...] = ()
    """Values at which ``identity`` leaves the field out."""
    budget: bool = False
    """Whether the value makes a run shorter or longer."""

    @property
    def is_result(self) -> bool:
        """Whether the result of a run depends on it."""
        return self.identity or self.budget


HIDDEN = Option(flag="", identity=False)
"""Not on the command line, and without effect on the result."""


def _integer(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except Exception as error:
        # Also for what looks like a number and is none, such as an array of several.
        raise PydanticCustomError("int_type", "input should be a whole number") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PydanticCustomError("float_type", "input should be a number")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty")
    return value


def _path_text(value: Any) -> str:
    """A path that the system accepts, as text."""
    if not isinstance(value, str | os.PathLike):
        raise PydanticCustomError("path_type", "input should be a path")
    try:
        return str(check_path("it", value))
    except WrongValueError as error:
        raise ValueError(str(error).rpartition(": ")[2]) from None


def _directory_text(value: Any) -> str:
    return str(expand_user(_path_text(value)).absolute())


def _memory_text(value: Any) -> str:
    try:
        MemoryBudget.parse(value)
    except UserError:
        raise ValueError(_BUDGET) from None
    return str(value)


def _whole_size(value: Any) -> Any:
    """Pydantic would read only the beginning of a text such as 1,5GB."""
    if isinstance(value, str) and not re.fullmatch(r"\s*[0-9]*\.?[0-9]+\s*[A-Za-z]*\s*", value):
        raise ValueError(_SIZE)
    return value


_SIZE = "give a size such as '500MB' or '2GB'"
Integer = BeforeValidator(_integer)
"""Integers of any library, but neither truth values nor text."""
Number = BeforeValidator(_number)
Text = Annotated[str, AfterValidator(_text)]
Size = Annotated[ByteSize, BeforeValidator(_whole_size)]


@dataclass(frozen=True)
class Weights:
    """A file of weights that a backbone starts from, and what it was when it was named."""

    file: str
    """The absolute path."""
    seal: FileChecksum
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """How the images were normalised that they were learnt from, by channel; None: the backbone may know."""


class OptionModel(BaseModel):
    """Base class of settings: fields with bounds (``Field``) and an `Option`; errors are sentences."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, flags: bool = False) -> Self:
        """The settings with these values; None: not given. ``flags``: errors name options instead of fields."""
        try:
            return cls.model_validate({name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            raise cls._error(error.errors()[0], flags) from None

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """Check some of the values before the others are known; errors name options of the command line."""
        try:
            cls.model_validate(values)
        except ValidationError as error:
            for problem in error.errors():
                if problem["type"] != "missing":
                    raise cls._error(problem, flags=True) from None

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The option of every field; of a field that has none, one that is not on the command line."""
        found = {}
        for name, field in cls.model_fields.items():
            found[name] = next((entry for entry in field.metadata if isinstance(entry, Option)), HIDDEN)
        return found

    @classmethod
    def flag(cls, name: str) -> str:
        """How the command line calls a field."""
        return cls.options()[name].flag or f"--{name.replace('_', '-')}"

    @classmethod
    def accepted(cls, name: str) -> str:
        """The values that a field takes, as a sentence names them.

        >>> EngineSettings.accepted("workers"), EngineSettings.accepted("device")
        ('a whole number from 0 to 256', 'one of auto, cpu, cuda, mps')
        """
        schema = cls.model_json_schema()["properties"][name]
        return " or ".join(filter(None, map(_accepted, schema.get("anyOf", [schema]))))

    def given(self) -> dict[str, Any]:
        """The values that were set, without None."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None}

    def identity(self) -> dict[str, Any]:
        """What tells a run from others, as JSON: not where things are, when to stop, how it is computed and shown."""
        dumped = self.model_dump(mode="json")
        values: dict[str, Any] = {}
        for name, option in self.options().items():
            value = getattr(self, name)
            if isinstance(value, OptionModel):
                values |= value.identity()
            elif option.identity and value not in option.omitted:
                values[name] = value.seal.checksum if isinstance(value, Weights) else dumped[name]
        return values

    @classmethod
    def _error(cls, error: ErrorDetails, flags: bool) -> UserError:
        model, name, *rest = cls._field_at(error["loc"])
        if model is None:
            return WrongValueError(_sentence(error))
        value, kind = error["input"], error["type"]
        field = model.flag(name) if flags else name
        if rest or kind in ("extra_forbidden", "missing"):
            return WrongValueError(_sentence(error))
        if kind in ("value_error", "string_too_short", "string_unicode", "byte_size", "byte_size_unit"):
            return WrongValueError(f"{field} cannot be {format_value(value)}: {_reason(error)}")
        wrong = (
            WrongTypeError if kind.endswith("_type") or not isinstance(value, str | int | float) else WrongValueError
        )
        return wrong(f"{field} must be {model.accepted(name)}, not {format_value(value)}")

    @classmethod
    def _field_at(cls, location: tuple[int | str, ...]) -> tuple[Any, ...]:
        """The model and the field that a location of pydantic names, and the rest of the location."""
        if not location or location[0] not in cls.model_fields:
            return (None, "")
        kind = cls.model_fields[str(location[0])].annotation
        if len(location) > 1 and isinstance(kind, type) and issubclass(kind, OptionModel):
            return kind._field_at(location[1:])
        # Behind the name of a field pydantic names the branches of unions.
        return (cls, str(location[0]), *(part for part in location[1:] if isinstance(part, int)))


def _compute(*, metavar: str | None = None, default_text: str | None = None, **identity: Any) -> Option:
    """An option that says how a run is computed; unless it says so, the result does not depend on it."""
    return Option("Compute", metavar=metavar, default_text=default_text, **{"identity": False, **identity})


class EngineSettings(OptionModel):
    """Where and how the engine computes. Nothing here changes what is learnt, except for rounding."""

    device: Annotated[DeviceName, Field(description="Device to compute on."), _compute()] = "auto"
    precision: Annotated[Precision, Field(description="Precision of training."), _compute(identity=True)] = "32"
    workers: Annotated[
        int,
        Field(ge=WORKERS.least, le=WORKERS.most, description="Worker processes that decode images."),
        Integer,
        _compute(),
    ] = 2
    cache: Annotated[
        Size,
        Field(description="Memory for decoded images from disk, such as 2GB; each task starts with an empty cache."),
        _compute(metavar="SIZE"),
    ] = ByteSize(0)
    compile: Annotated[
        StrictBool,
        Field(description="Compile nets with torch.compile: minutes at first, then faster steps."),
        _compute(identity=True, omitted=(False,)),
    ] = False
    devices: Annotated[
        Annotated[int, Field(ge=1, le=1024), Integer] | Literal["auto"],
        Field(description="Processes that share a run, each with a GPU (or cores) of its own; auto: all GPUs."),
        _compute(metavar="NUMBER"),
    ] = 1
    accumulate: Annotated[
        int,
        Field(ge=1, le=1024, description="Split each batch into this many parts, to need less memory."),
        Integer,
        # Statistics of batch normalisation are then those of parts of a batch.
        _compute(metavar="PARTS", identity=True, omitted=(1,)),
    ] = 1
    sync_batchnorm: Annotated[
        StrictBool | None,
        Field(description="Compute batch statistics over all processes."),
        _compute(default_text="if a process has fewer than 64 images", identity=True, omitted=(None, True)),
    ] = None
    timeout: Annotated[
        float,
        Field(gt=0, le=1e6, description="How long one process waits for another."),
        Number,
        _compute(metavar="SECONDS"),
    ] = 600.0
    eval_every: Annotated[
        Annotated[int, Field(ge=EVERY.least, le=EVERY.most), Integer] | None,
        Field(description="Also evaluate every this many epochs, on held-out images if there are any."),
        Option("Output", metavar="EPOCHS", identity=False),
    ] = None
    snapshot_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False), Number, HIDDEN] = 20.0
    """Least time between two snapshots of a stage in progress."""
    kept_features: Annotated[Size, HIDDEN] = ByteSize(2**30)
    """Memory for features of a frozen backbone, which the stages of a task share where images are not augmented."""
    inference_batch: Annotated[int, Field(ge=BATCH.least, le=BATCH.most), Integer, HIDDEN] = 500


class ModelSettings(OptionModel):
    """What a model is made from, besides data. None: what the method's recipe or the kind of data says."""

    method: Annotated[
        Text, Field(description="See 'drcil list methods'."), Option(metavar="METHOD", default_text="mafdrc")
    ]
    """A name, or NAME:READOUT."""
    seed: Annotated[int, Field(ge=SEED.least, le=SEED.most, description="Seed of training."), Integer, Option()] = 0
    memory: Annotated[
        Annotated[str, BeforeValidator(_memory_text)] | None,
        Field(description="Old images to keep: 2000 (in total), 20/class, all, none."),
        Option(metavar="BUDGET"),
    ] = None
    backbone: Annotated[
        Text | None, Field(description="See 'drcil list backbones'; timm:NAME for one of timm."), Option()
    ] = None
    weights: Annotated[
        Weights | Annotated[str, BeforeValidator(_path_text)] | None,
        Field(description="Weights that the backbone starts from: .safetensors, .pth, or a model."),
        Option(metavar="FILE", omitted=(None,)),
    ] = None
    """A path; in the settings of a run, with the checksum of the file."""
    pretrained: Annotated[
        StrictBool, Field(description="Start from the weights that timm publishes."), Option(identity=False)
    ] = False
    """In the settings of a run these are ``weights``."""
    freeze: Annotated[
        Text | None,
        Field(description="Freeze the backbone (backbone), or its parts up to this one (stages.1)."),
        Option(metavar="PART"),
    ] = None
    image_size: Annotated[
        Annotated[int, Field(ge=IMAGE_SIZE.least, le=IMAGE_SIZE.most), Integer] | None,
        Field(description="Image size, if not the dataset's own."),
        Option(metavar="PIXELS", budget=True),
    ] = None
    epochs_scale: Annotated[
        float, Field(gt=0, le=1000, description="Factor for all epochs."), Number, Option(budget=True)
    ] = 1.0
    epochs: Annotated[
        Annotated[int, Field(ge=EVERY.least, le=EVERY.most), Integer] | None,
        Field(description="Epochs of every stage that trains a backbone; overrides --epochs-scale for these stages."),
        Option(omitted=(None,), budget=True),
    ] = None
    lr: Annotated[
        Annotated[float, Field(gt=0, le=1e6), Number] | None,
        Field(description="Learning rate of every stage that trains a backbone."),
        Option(omitted=(None,), budget=True),
    ] = None
    batch_size: Annotated[
        Annotated[int, Field(ge=BATCH.least, le=BATCH.most), Integer] | None,
        Field(description="Batch size of every stage that trains a backbone."),
        Option(omitted=(None,), budget=True),
    ] = None
    schedule: Annotated[
        Text | None,
        Field(description="Learning rates and batches of the stages that train a backbone: recipe, fast."),
        Option(default_text="recipe", omitted=(None,), budget=True),
    ] = None
    augment: Annotated[Text | None, Field(description="See 'drcil list augmentations'."), Option()] = None
    settings: Annotated[
        dict[str, Any],
        Field(description="A setting of the method; repeatable."),
        Option(flag="--set", metavar="KEY=VALUE"),
    ] = Field(default_factory=dict)
    """Settings of the method by dotted name; they override the recipe."""

    @property
    def stage_options(self) -> dict[str, Any]:
        """The options that change every stage that trains a backbone, as far as they are set."""
        values = {"epochs": self.epochs, "lr": self.lr, "batch_size": self.batch_size}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def initial_weights(self) -> Weights | None:
        """The weights that the backbone starts from, once their file has been read."""
        assert not isinstance(self.weights, str), "the file of weights has not been read"
        return self.weights


class LearnerOptions(TypedDict, total=False):
    """The fields of `ModelSettings`, but for the method, and of `EngineSettings` as keyword arguments."""

    seed: int
    memory: str | int | None
    backbone: str | None
    weights: str | os.PathLike[str] | None
    pretrained: bool
    freeze: str | None
    image_size: int | None
    epochs_scale: float
    epochs: int | None
    lr: float | None
    batch_size: int | None
    schedule: str | None
    augment: str | None
    settings: Mapping[str, Any] | None
    device: str
    precision: str
    workers: int
    cache: int | str
    compile: bool
    devices: int | str
    accumulate: int
    sync_batchnorm: bool | None
    timeout: float
    eval_every: int | None
    snapshot_seconds: float
    kept_features: int | str
    inference_batch: int


_LONGEST_STREAM = 120
"""Bytes of a stream's name in the name of a directory, which may have 255 in all."""


class RunSettings(ModelSettings):
    """One method on one stream with one seed: the content of ``config.toml``."""

    format: Annotated[Literal[3], Option(flag="")] = 3
    readout: Annotated[Text | None, HIDDEN] = None
    """The readout whose figures come first; None: the method's first."""
    stream: Annotated[
        str,
        Field(
            description="DATASET-b0-TASKS, DATASET-b50-STEPS, DATASET-BASE/STEP; long-tailed: "
            "DATASET-lt-shuffled-b50-STEPS."
        ),
        Option(metavar="STREAM"),
    ]
    order_seed: Annotated[
        int,
        Field(
            ge=ORDER_SEED.least, le=ORDER_SEED.most, description="Seed of the class order and of the validation images."
        ),
        Integer,
        Option(),
    ] = 1993
    tasks: Annotated[
        Annotated[int, Field(ge=TASKS.least, le=TASKS.most), Integer] | None,
        Field(description="Stop after this many tasks."),
        Option(identity=False, budget=True),
    ] = None
    profile: Annotated[Text, Field(description="Set of options: full, short, fast, cpu."), Option(budget=True)] = "full"
    validation: Annotated[
        float,
        Field(ge=VALIDATION.least, lt=VALIDATION.most, description="Share of the training images to hold out."),
        Number,
        Option(metavar="SHARE"),
    ] = 0.0
    data: Annotated[
        Annotated[str, BeforeValidator(_directory_text)] | None,
        Field(description="Directory of the datasets."),
        Option(metavar="DIRECTORY", default_text="./data", env="DRCIL_DATA", identity=False),
    ] = None
    threads: Annotated[
        Annotated[int, Field(ge=1, le=2**31 - 1), Integer] | None,
        Field(description="CPU threads of a run."),
        Option("Compute", identity=False),
    ] = None
    """Each machine has its own upper bound (`check_threads`), so that settings of another one can be read."""
    deterministic: Annotated[
        StrictBool,
        Field(description="Use deterministic kernels on GPUs, as exact resuming needs; others are faster."),
        Option("Compute", omitted=(True,)),
    ] = True
    loggers: Annotated[
        tuple[str, ...],
        Field(description="csv, tensorboard, wandb; see 'drcil list loggers'; repeatable."),
        Option("Output", flag="--log", metavar="LOGGER", identity=False),
    ] = ()
    engine: EngineSettings = EngineSettings()
    plugins: Annotated[tuple[str, ...], HIDDEN] = ()
    """The code that the run needs besides drcil: modules, and files by their absolute path."""

    @model_validator(mode="before")
    @classmethod
    def _group_engine(cls, values: Any) -> Any:
        """Settings of the engine may be given by name, beside the others."""
        if not isinstance(values, Mapping):
            return values
        engine = {name: value for name, value in values.items() if name in EngineSettings.model_fields}
        if not engine:
            return values
        table = values.get("engine", {})
        if isinstance(table, EngineSettings):
            table = table.given()
        if not isinstance(table, Mapping) or engine.keys() & table.keys():
            raise ValueError(f"{next(iter(engine))} is given twice")
        return {**{name: values[name] for name in values if name not in engine}, "engine": {**table, **engine}}

    @property
    def has_full_budget(self) -> bool:
        """Whether nothing makes the run shorter, longer or otherwise trained than its recipe."""
        fields = type(self).model_fields
        return all(
            getattr(self, name) == fields[name].default for name, option in self.options().items() if option.budget
        )

    @property
    def name(self) -> str:
        """A directory name that tells runs apart."""
        return file_name(f"{self.method}-{self.directory_stem}-seed{self.seed}", "a run")

    @property
    def label(self) -> str:
        """The method as users name it: with the readout that leads, if one is set."""
        return self.method if self.readout is None else f"{self.method}:{self.readout}"

    @property
    def directory_stem(self) -> str:
        """Stream and profile, as part of a directory name."""
        stream = self.stream.replace("/", "_").replace(":", "_")
        encoded = stream.encode(errors="surrogateescape")
        if len(encoded) > _LONGEST_STREAM:
            # The end of a long path says most.
            digest = hashlib.blake2b(encoded, digest_size=4).hexdigest()
            stream = f"{digest}_{stream[-_LONGEST_STREAM // 4 :]}"
        return file_name(stream if self.profile == "full" else f"{stream}-{self.profile}", "a stream")

    def command(self, default: RunSettings) -> str:
        """``drcil run`` with the options that differ from those of another run and that the result depends on."""
        words = ["drcil", "run", self.label, self.stream]
        for model, other in ((self, default), (self.engine, default.engine)):
            for name, option in model.options().items():
                is_printed = option.is_result and option.flag != ""
                if is_printed and name not in ("method", "stream", "settings"):
                    usual = "full" if name == "profile" else getattr(other, name)
                    words += _words(model.flag(name), getattr(model, name), usual)
        for key, value in dotted(self.settings):
            words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        for plugin in self.plugins:
            words += ["--plugin", plugin]
        return shlex.join(printable(word) for word in words)


class ExperimentSettings(OptionModel):
    """How many runs an experiment has, and which backend executes them."""

    seeds: Annotated[
        Annotated[int, Field(ge=SEEDS.least, le=SEEDS.most), Integer] | None,
        Field(description="Runs of each: seeds 0, 1, …"),
        Option(default_text="1"),
    ] = None
    jobs: Annotated[
        Annotated[int, Field(ge=JOBS.least, le=JOBS.most), Integer] | None,
        Field(description="Runs at a time."),
        _compute(default_text="1; with ray as many as the cluster can hold"),
    ] = None
    backend: Annotated[
        Text,
        Field(description="Backend that executes the runs: local (this machine), ray (a cluster)."),
        Option("Compute", flag="--engine", metavar="local|ray", identity=False),
    ] = "local"
    ray_address: Annotated[
        Text | None,
        Field(description="The Ray cluster."),
        _compute(metavar="HOST:PORT|auto", default_text="RAY_ADDRESS; else Ray is started here"),
    ] = None
    cpus_per_run: Annotated[
        Annotated[float, Field(ge=0.01, le=4096), Number] | None,
        Field(description="CPUs reserved for each run, with ray."),
        _compute(default_text="1"),
    ] = None
    gpus_per_run: Annotated[
        Annotated[float, Field(ge=0, le=4096), Number] | None,
        Field(description="GPUs reserved for each run, with ray; 0.5: two runs share one."),
        _compute(default_text="1 where there are GPUs"),
    ] = None


def check_threads(name: str, threads: int) -> int:
    """As many threads as this machine can run: with many more than it has cores, it stalls."""
    return check_int(name, threads, THREADS)


def _words(flag: str, value: Any, default: Any) -> list[str]:
    """An option of the command line with its value; nothing at the default."""
    if value == default:
        return []
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, Weights):
        return [flag, value.file]
    if value is None:
        # A profile may bring a schedule, and then that of the recipe was asked for.
        return [flag, "recipe"] if flag == "--schedule" else []
    return [flag, str(value)]


def dotted(tables: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted names, those of nested tables too.

    >>> dict(dotted({"alpha": 0.2, "later": {"lr": 0.1}}))
    {'alpha': 0.2, 'later.lr': 0.1}
    """
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


_REASONS = {
    "byte_size": _SIZE,
    "byte_size_unit": _SIZE,
    "float_parsing": "input should be a number",
    "int_parsing": "input should be a whole number",
    "string_too_short": "it is empty",
    "string_unicode": "it is not Unicode text",
    "tuple_type": "input should be a list such as [1, 2]",
}
"""By kind of error, where pydantic's words are for programmers."""


def _reason(error: ErrorDetails) -> str:
    reason = _REASONS.get(error["type"], error["msg"].removeprefix("Value error, "))
    return reason[:1].lower() + reason[1:]


def _accepted(schema: Mapping[str, Any]) -> str:
    """What a JSON schema accepts, in words; nothing for null."""
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("type"))
    if kind not in ("integer", "number"):
        return {"string": "text", "boolean": "true or false", "array": "a list", "object": "a table"}.get(kind, "")
    words = "a whole number" if kind == "integer" else "a number"
    if "minimum" in schema and "maximum" in schema:
        return f"{words} from {schema['minimum']:g} to {schema['maximum']}"
    limits = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{limit} {schema[key]:g}" for key, limit in limits.items() if key in schema]
    return f"{words} {' and '.join(bounds)}".strip()


def describe_validation_error(error: ValidationError) -> str:
    """The first problem: where it is, the value, what would be accepted.

    >>> from pydantic import ValidationError
    >>> from drcil.stages import Schedule
    >>> try: Schedule(epochs=0, lr=0.1)
    ... except ValidationError as error: print(describe_validation_error(error))
    'epochs' cannot be 0: input should be greater than or equal to 1
    """
    return _sentence(error.errors()[0])


def _sentence(error: ErrorDetails) -> str:
    where, reason = ".".join(str(part) for part in error["loc"]), _reason(error)
    if error["type"] == "missing":
        return f"'{where}' is missing"
    if error["type"] == "extra_forbidden":
        return f"'{where}' is not known"
    if isinstance(error["input"], dict | list | tuple):
        return f"'{where}': {reason}" if where else reason
    return f"'{where}' cannot be {format_value(error['input'])}: {reason}"


_BUDGET = "give a total such as '2000', a number per class such as '20/class', 'all' or 'none'"
_TOTAL = Bounds(0, 10**12 - 1)


@dataclass(frozen=True)
class MemoryBudget:
    """How many exemplars may be kept: ``total`` shared by all classes, or ``per_class``; neither means all images."""

    total: int | None = None
    per_class: int | None = None

    def __post_init__(self) -> None:
        if self.total is not None and self.per_class is not None:
            raise ValueError("a budget is a total or a number per class, not both")
        if (self.total or 0) < 0 or (self.per_class is not None and self.per_class < 1):
            raise ValueError(f"a budget of {self.total} in total or {self.per_class} per class is too small")

    @classmethod
    def parse(cls, text: str | int) -> MemoryBudget:
        """``"2000"`` or a number (in total), ``"20/class"``, ``"all"`` (unlimited) or ``"none"`` (also ``"0"``)."""
        if isinstance(text, int) and not isinstance(text, bool):
            text = str(check_int("memory", text, _TOTAL))
        if not isinstance(text, str):
            raise WrongTypeError(f"memory must be a budget such as 2000 or '20/class', not {format_value(text)}")
        if text == "all":
            return cls()
        if text == "none":
            return cls(total=0)
        match = re.fullmatch(r"([0-9]{1,12})(/class)?", text)
        if match is None or (match[2] and int(match[1]) == 0):
            raise UserError(f"memory '{shortened(text)}' is not a budget: {_BUDGET}")
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


def data_directory(given: Path | None = None) -> Path:
    """The data directory: the one given, else the one ``DRCIL_DATA`` names, else ``data`` where the program runs."""
    return expand_user(given or Path(os.environ.get("DRCIL_DATA") or "data"))


def expand_user(path: str | Path) -> Path:
    """The path with ``~`` and ``~user`` replaced by their home directories."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"'{path}' cannot be found: there is no home directory of that name") from None
