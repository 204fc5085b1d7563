"""Command-line options: derived from the settings models, and the few that are not settings."""

from __future__ import annotations

import functools
import inspect
import re
import tomllib
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import typer
from pydantic import ByteSize

from ..errors import UserError, check_path, optional
from ..registry import use_plugins
from ..settings import Option, OptionModel, RunSettings, check_threads, expand_user

T = TypeVar("T")
TOKEN = re.compile("[!-~]{8,200}")
PANELS = ("Experiment", "Compute", "Output")
"""The groups that help lists options in."""


class Field(NamedTuple):
    """A field of a settings model that is an option."""

    model: type[OptionModel]
    name: str
    option: Option

    @property
    def kind(self) -> type:
        """What the text of the option is converted to: int, float, bool, list, dict or str."""
        leaves = list(_leaf_types(self.model.model_fields[self.name].annotation))
        for kind in (bool, dict, ByteSize, int, float):
            if kind in leaves:
                return str if kind is ByteSize else kind
        return list if tuple in leaves else str

    def parameter(self, panels: bool, default: str | None = None) -> inspect.Parameter:
        """The parameter from which typer makes the option; its value is None where the option is not used."""
        info, kind = self.model.model_fields[self.name], self.kind
        flag, default = self.model.flag(self.name), default or self.option.default_text
        if default is None and isinstance(info.default, int | float | str) and kind is not bool:
            default = str(info.default)
        declared = typer.Option(
            f"{flag}/{flag.replace('--', '--no-', 1)}" if kind is bool else flag,
            metavar=None if kind is bool else self.option.metavar or self._metavar(kind),
            help=info.description,
            show_default=default or False,
            envvar=self.option.env,
            rich_help_panel=self.option.panel if panels else None,
        )
        annotation = {bool: bool | None, list: list[str] | None, dict: list[str] | None}.get(kind, str | None)
        return _parameter(self.name, annotation, declared)

    def _metavar(self, kind: type) -> str:
        choices = [leaf for leaf in _leaf_types(self.model.model_fields[self.name].annotation) if isinstance(leaf, str)]
        return "|".join(choices) or {int: "INTEGER", float: "NUMBER"}.get(kind, "TEXT")

    def convert(self, value: Any) -> Any:
        """The typed value for the field. Text that is not a number stays text, which the model refuses."""
        if self.kind in (int, float):
            try:
                return self.kind(value)
            except ValueError:
                return value
        return method_settings(value) if self.kind is dict else value


def _parameter(name: str, annotation: Any, declared: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, declared]
    )


def _leaf_types(annotation: Any) -> Iterator[Any]:
    """The types in an annotation, and the values of its literals."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _leaf_types(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _leaf_types(part)
    elif origin is Literal:
        yield from get_args(annotation)
    else:
        yield origin or annotation


def fields_of(model: type[OptionModel]) -> list[Field]:
    """The fields of a model, and of the models in it, that are options of the command line."""
    fields = []
    for name, option in model.options().items():
        inner = model.model_fields[name].annotation
        if isinstance(inner, type) and issubclass(inner, OptionModel):
            fields += fields_of(inner)
        elif option.flag != "":
            fields.append(Field(model, name, option))
    return fields


def takes(
    model: type[OptionModel],
    *,
    only: Collection[str] = (),
    leave_out: Collection[str] = (),
    defaults: Mapping[str, str] | None = None,
    panels: bool = True,
    **models: type[OptionModel],
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a verb an option for every field of a model.

    The verb's parameter ``values`` gets the options that were used, by name of the field, checked by the model.
    ``models``: more models by the name of the verb's parameter, which gets the settings themselves.
    ``defaults``: what help shows as the default of a field where the verb has its own. ``panels``: whether help lists
    the options in groups.
    """
    fields = [field for field in fields_of(model) if field.name not in leave_out and (not only or field.name in only)]
    for option_model in models.values():
        fields += fields_of(option_model)
    fields.sort(key=lambda field: PANELS.index(field.option.panel))
    has_settings = any(field.kind is dict for field in fields)

    def decorate(verb: Callable[..., T]) -> Callable[..., T]:
        signature = inspect.signature(verb, eval_str=True)
        declared = [parameter for name, parameter in signature.parameters.items() if name not in ("values", *models)]
        arguments = [parameter for parameter in declared if _is_argument(parameter)]
        derived = [field.parameter(panels, (defaults or {}).get(field.name)) for field in fields]
        if has_settings:
            derived += _shortcuts()
        ordered = [*arguments, *derived, *(parameter for parameter in declared if parameter not in arguments)]

        @functools.wraps(verb)
        def command(**arguments: Any) -> T:
            values: dict[str, Any] = {}
            shortcuts = {name: arguments.pop(name) for name in ("head", "remedy") if has_settings}
            for field in fields:
                value = arguments.pop(field.name)
                if value not in (None, [], ()):
                    values[field.name] = field.convert(value)
            settings = {**_expand(**shortcuts), **values.get("settings", {})} if has_settings else {}
            if settings:
                values["settings"] = settings
            for name, option_model in models.items():
                options = {
                    field.name: values.pop(field.name) for field in fields_of(option_model) if field.name in values
                }
                arguments[name] = option_model.parse(options, flags=True)
            model.check(values)
            optional(check_threads, "--threads", values.get("threads"))
            return verb(**arguments, values=values)

        keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in ordered]
        command.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword_only}
        return command

    return decorate


def _is_argument(parameter: inspect.Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return parameter.annotation is typer.Context or any(
        isinstance(entry, typer.models.ArgumentInfo) for entry in metadata
    )


def _shortcuts() -> list[inspect.Parameter]:
    """Options for two settings of pipelines."""
    head = typer.Option(help="Head of a pipeline; see 'drcil list heads'.", rich_help_panel=PANELS[0])
    remedy = typer.Option(
        help="Remedies of a pipeline, joined by commas, or none; see 'drcil list addons'.", rich_help_panel=PANELS[0]
    )
    return [_parameter("head", str | None, head), _parameter("remedy", str | None, remedy)]


def _expand(head: str | None, remedy: str | None) -> dict[str, Any]:
    settings: dict[str, Any] = {} if head is None else {"head": head}
    if remedy is not None:
        settings["remedies"] = [] if remedy == "none" else [name.strip() for name in remedy.split(",")]
    return settings


def method_settings(assignments: list[str]) -> dict[str, Any]:
    """Settings of a method from ``--set KEY=VALUE``."""
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set takes KEY=VALUE, such as later.epochs=20, not '{assignment}'")
        settings[key.strip()] = toml_value(value.strip())
    return settings


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


def flag_of(param: typer.CallbackParam) -> str:
    """An option or an argument as users write it."""
    return next((name for name in param.opts if name.startswith("-")), None) or str(param.name).upper()


def usable(param: typer.CallbackParam, value: T) -> T:
    """Refuse paths that the system does not accept."""
    for path in value if isinstance(value, list | tuple) else [value]:
        expand_user(optional(check_path, flag_of(param), path) or "")
    return value


def check_token(param: typer.CallbackParam, value: str | None) -> str | None:
    """Refuse tokens that are easy to guess or cannot be sent in a header."""
    if value is not None and not TOKEN.fullmatch(value):
        raise UserError(f"{flag_of(param)} takes at least 8 letters, digits and signs of ASCII, without spaces")
    return value


def out(help: str, default: str) -> Any:
    """``--out`` of a verb that writes a directory; ``default``: where that is otherwise."""
    return typer.Option(help=help, show_default=default, rich_help_panel="Output", callback=usable)


def _use(names: list[str] | None) -> None:
    use_plugins(*names or ())


def argument(name: str, default: str | None = None) -> Any:
    """A field of a run that a verb takes as an argument."""
    description = RunSettings.model_fields[name].description
    return typer.Argument(metavar=name.upper(), help=description, show_default=default or False)


Method = Annotated[str, argument("method")]
Stream = Annotated[str, argument("stream")]
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model directory, or a run: its last task.", callback=usable)
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.", callback=usable)]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, everything else to stderr.", rich_help_panel="Output")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the result.", rich_help_panel="Output")]
PlainJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""For verbs whose help has no groups."""
Metric = Annotated[
    str | None,
    typer.Option(
        help="Metric to lead with; see 'drcil list metrics'.",
        show_default="avg; task_avg on long-tailed streams",
        rich_help_panel="Output",
    ),
]
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE|FILE.py", help="Module or file that registers methods, datasets, …; repeatable.", callback=_use
    ),
]
"""Takes effect while the command line is read, for every verb."""
