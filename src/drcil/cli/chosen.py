"""The settings that the options of a verb make."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import text
from ..errors import UserError

if TYPE_CHECKING:
    from ..runs.settings import RunSettings

ENGINE = (
    "device", "precision", "workers", "cache", "eval_every", "devices", "accumulate", "sync_batchnorm", "timeout"
)  # fmt: skip
"""The options that are settings of the engine, of the same name."""


def chosen_settings(*, data: Path | None, compile: bool, log: list[str] | None, **given: Any) -> RunSettings:
    """The settings of a run from the options of a verb, by name; None: not given."""
    from ..runs.settings import make_settings
    from ..train.loggers import known_loggers

    engine = {name: given.pop(name, None) for name in ENGINE} | {"compile": compile or None}
    return make_settings(
        **given,
        data=data_directory(data),
        loggers=known_loggers(log or ()),
        engine={name: value for name, value in engine.items() if value is not None},
    )


def data_directory(given: Path | None) -> str | None:
    """``--data`` as settings have it."""
    return text("--data", str(given.expanduser().absolute())) if given else None


def method_settings(head: str | None, remedy: str | None, given: list[str]) -> dict[str, Any]:
    """The method's settings that were given by hand: ``--head`` and ``--remedy``, and over them every ``--set``."""
    chosen: dict[str, Any] = {}
    if head is not None:
        chosen["head"] = head
    if remedy is not None:
        chosen["remedies"] = [] if remedy == "none" else [name.strip() for name in remedy.split(",")]
    for assignment in given:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set takes KEY=VALUE, such as later.epochs=20, not '{assignment}'")
        chosen[key.strip()] = toml_value(value.strip())
    return chosen


def toml_value(text: str) -> Any:
    """A number, truth value, list or table as TOML writes it; anything else is a string.

    >>> toml_value("0.5"), toml_value("[30, 50]"), toml_value("cosine")
    (0.5, [30, 50], 'cosine')
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def require_pipeline(method: str, head: str | None, remedy: str | None) -> None:
    """A head and remedies can be chosen for the methods that are pipelines."""
    from ..heads.base import HEADS
    from ..methods.remedies import REMEDIES
    from ..methods.spec import named_method

    known = named_method(method)[0].build.Settings.model_fields
    for option, setting, given in (("--head", "head", head), ("--remedy", "remedies", remedy)):
        if given is not None and setting not in known:
            raise UserError(
                f"{option} is for the pipelines maf, mdt and mec and their combinations; '{method}' is none"
            )
    for option, given, table in (("--head", head, HEADS), ("--remedy", remedy, REMEDIES)):
        named = [addon for addon in method.split("+")[1:] if addon in table]
        if given is not None and named:
            raise UserError(f"'{method}' says '{named[0]}' by its name, so {option} cannot say '{given}'; give one")
