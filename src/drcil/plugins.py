"""Plugins: code outside the package that registers methods, backbones, datasets and so on by being imported.

A plugin is installed (an entry point of the group ``drcil.plugins`` that names a module), or it is named: a module or
a Python file, by ``--plugin``, by ``DRCIL_PLUGINS`` or by ``use_plugins``. Plugins are imported at the first look-up.
Runs and models keep the names of those they need.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .arguments import text
from .errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .registry import Registry

GROUP, VARIABLE = "drcil.plugins", "DRCIL_PLUGINS"
PACKAGE = __name__.partition(".")[0]
SESSION = "this session"
"""The origin of what a notebook or a script registers by itself: no other process can import that."""

filling = threading.RLock()
"""Held while something is imported to fill registries, so that other threads do not see them half full."""


@dataclass
class Importing:
    """A plugin that is being imported, and how to undo what it has registered so far."""

    name: str
    undo: list[Callable[[], None]] = field(default_factory=list)


importing: ContextVar[Importing | None] = ContextVar("importing", default=None)
_named: dict[str, None] = {}
"""The plugins that were named, in that order."""
_loaded: set[str] = set()


class _MissingError(Exception):
    """There is no such plugin. The message continues a sentence about it."""


def use_plugins(*names: str) -> None:
    """Name plugins, modules or Python files, to be imported at the next look-up. A file must exist."""
    for name in [_full_name(text("the name of a plugin", name)) for name in names]:
        if _is_file(name) and not os.path.isfile(name):
            raise UserError(f"the plugin '{name}' cannot be used: there is no such file")
        _named[name] = None


def named_plugins() -> tuple[str, ...]:
    """The plugins that were named, in the environment or by ``use_plugins``; files by their absolute path."""
    return tuple(dict.fromkeys([*_in_environment(), *_named]))


def load_plugins() -> None:
    """Import the plugins that are installed and those that were named, each once."""
    if importing.get() is not None:  # A plugin looks something up: it sees what is there.
        return
    with filling:
        while waiting := [name for name in (*_installed(), *named_plugins()) if name not in _loaded]:
            try:
                _load(waiting[0])
            except _MissingError as error:
                # Or nothing could be looked up any more in this process.
                _named.pop(waiting[0], None)
                raise UserError(f"the plugin '{waiting[0]}' cannot be used: {error}") from None


def require_plugins(names: Iterable[str], needed_by: object) -> None:
    """The plugins that a run or a model needs must be installed, named, or imported by the program itself.

    Nothing is imported because a file says so. A plugin that was named serves for another of the same stem.
    """
    load_plugins()
    present = {_stem(name) for name in (*_installed(), *named_plugins())}
    for name in names:
        if _stem(name) not in sys.modules and _stem(name) not in present:
            raise UserError(
                f"{needed_by} needs the plugin '{name}'; install it, or name it with --plugin or drcil.use_plugins"
            )


def needed_plugins(*used: tuple[Registry[Any], str]) -> tuple[str, ...]:
    """The plugins that these entries come from, as far as they are known."""
    origins = (registry.origin(name) for registry, name in used if name in registry)
    return tuple(dict.fromkeys(origin for origin in origins if origin not in (None, SESSION)))


def _load(name: str) -> None:
    """Import a plugin. One that fails leaves nothing registered, so that it can be mended and tried again."""
    plugin = Importing(name)
    token = importing.set(plugin)
    try:
        _import(name)
    except _MissingError:
        raise
    except BaseException as error:
        for undo in plugin.undo:
            undo()
        if isinstance(error, Exception | SystemExit):
            raise UserError(f"the plugin '{name}' cannot be imported: {_failure(error)}") from error
        raise
    finally:
        importing.reset(token)
    _loaded.add(name)


def _import(name: str) -> None:
    if name in _installed():
        _installed()[name].load()
    elif _is_file(name):
        _import_file(Path(name))
    elif not all(part.isidentifier() for part in name.split(".")):
        raise _MissingError("it is neither the name of a module nor a file")
    else:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            hint = f"; did you mean '{name}.py'?" if os.path.isfile(f"{name}.py") else ""
            raise _MissingError(f"there is no such module{hint}") from None


def _import_file(path: Path) -> None:
    """Import a file, under a name that follows from its path, unless it is a module that has been imported already."""
    if not os.path.isfile(path):
        raise _MissingError("there is no such file")
    for module in list(sys.modules.values()):
        known = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(known, str) and Path(known).name == path.name and path.samefile(known):
            return
    name = f"{PACKAGE}_plugin_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _MissingError("it is not a Python file")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


@cache
def _installed() -> dict[str, EntryPoint]:
    """The entry points of installed packages, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


@cache
def _in_environment() -> tuple[str, ...]:
    names = os.environ.get(VARIABLE, "").split(os.pathsep)
    return tuple(_full_name(name.strip()) for name in names if name.strip())


def _full_name(name: str) -> str:
    """The name under which a plugin is kept: a module's, or the absolute path of a file."""
    return os.path.abspath(os.path.expanduser(name)) if _is_file(name) else name


def _is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name or os.sep in name


def _stem(name: str) -> str:
    """What stays of a plugin's name when its file is moved."""
    return Path(name).stem if _is_file(name) else name


def _failure(error: BaseException) -> str:
    """What went wrong, and in which line of a module outside drcil."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    place = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
        if code.co_name == "<module>" and module.partition(".")[0] != PACKAGE:
            place = f" ({code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return said + place
