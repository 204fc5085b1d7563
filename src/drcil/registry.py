"""Registries of named components, and the plugins that provide them.

A plugin is installed (an entry point of the group ``drcil.plugins`` that names a module), or it is a module or a Python
file that is named by ``--plugin``, ``DRCIL_PLUGINS`` or ``use_plugins``. Plugins are imported at the first look-up.
Runs and models store the names of those they need, and digests of their code.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from .errors import UserError, check_text, unknown_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUP, VARIABLE = "drcil.plugins", "DRCIL_PLUGINS"
PACKAGE = __name__.partition(".")[0]
SESSION = "this session"
"""The origin of entries that a notebook or a script registers itself: no other process can import them."""

_lock = threading.RLock()
"""Held while modules are imported to fill registries, so that other threads do not see them half full."""
_current_plugin: ContextVar[str | None] = ContextVar("current_plugin", default=None)
"""The plugin that is being imported."""
_registries: WeakSet[Registry[Any]] = WeakSet()
_named: dict[str, None] = {}
"""The plugins that were named in Python or on the command line, in that order."""
_missing: set[str] = set()
"""Plugins that do not exist. Each is reported once; otherwise no later look-up in this process would succeed."""
_loaded: set[str] = set()
_codes: dict[str, PluginCode] = {}
"""Read when a plugin is imported: later edits do not count, because this process does not execute them."""


@dataclass(frozen=True)
class PluginCode:
    """The source of a plugin: its file, or all modules of its package."""

    files: Mapping[str, bytes]
    """By path, as it would be imported from: ``mine.py``, or ``mine/__init__.py`` and so on. With TOML files beside."""
    version: str = ""
    """Of the distribution that an installed plugin belongs to."""

    @property
    def digest(self) -> str:
        """Equal for equal code, wherever it is. Recipes do not count: what they say is compared as settings."""
        hashed = hashlib.blake2b(self.version.encode(), digest_size=16)
        for path, content in sorted(self.files.items()):
            if not path.endswith(_RECIPE):
                hashed.update(f"\0{path}\0{len(content)}\0".encode() + content)
        return hashed.hexdigest()


_SOURCE, _RECIPE = ".py", ".toml"


class _MissingError(Exception):
    """There is no such plugin. The message continues a sentence about it."""


def use_plugins(*names: str) -> None:
    """Name plugins, modules or Python files, to be imported at the next look-up. A file must exist."""
    for name in [_full_name(check_text("the name of a plugin", name)) for name in names]:
        if _is_file(name) and not os.path.isfile(name):
            raise UserError(f"the plugin '{name}' cannot be used: there is no such file")
        _named[name] = None
        _missing.discard(name)


def named_plugins() -> tuple[str, ...]:
    """The plugins that were named, in the environment or by ``use_plugins``; files by their absolute path."""
    names = dict.fromkeys([*_in_environment(), *_named])
    return tuple(name for name in names if name not in _missing)


def load_plugins() -> None:
    """Import the plugins that are installed and those that were named, each once."""
    if _current_plugin.get() is not None:  # A plugin looks something up: it sees the entries that exist.
        return
    with _lock:
        while waiting := [name for name in (*_installed(), *named_plugins()) if name not in _loaded]:
            try:
                _load(waiting[0])
            except _MissingError as error:
                _missing.add(waiting[0])
                raise UserError(f"the plugin '{waiting[0]}' cannot be used: {error}") from None


def require_plugins(names: Iterable[str], needed_by: object) -> None:
    """The plugins that a run or a model needs must be installed, named, or imported by the program itself.

    Nothing is imported because of the content of a file. A named plugin substitutes for another with the same stem.
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


def acting_plugins(needed: Iterable[str]) -> tuple[str, ...]:
    """The plugins whose code a result depends on: those it needs, and named ones that register nothing in drcil.

    These act in other ways, such as by registering a model with timm.
    """
    load_plugins()
    registering = {origin for registry in _registries for origin in registry.origins()}
    named = (name for name in named_plugins() if name not in registering)
    return tuple(dict.fromkeys([*needed, *named]))


def plugin_code(name: str) -> PluginCode:
    """The code of a plugin that is imported; a named plugin substitutes for another with the same stem."""
    load_plugins()
    present = (*named_plugins(), *_installed())
    if name not in present:
        name = next((other for other in present if _stem(other) == _stem(name)), _stem(name))
    if name not in _codes:
        _codes[name] = _read_code(name)
    return _codes[name]


def changed_plugin(digests: Mapping[str, str]) -> str | None:
    """The first of these plugins whose code has another digest now."""
    return next((name for name, digest in digests.items() if plugin_code(name).digest != digest), None)


def _read_code(name: str) -> PluginCode:
    point = _installed().get(name)
    path = Path(name) if point is None and _is_file(name) else _module_file(point.module if point else name)
    version = point.dist.version if point and point.dist else ""
    if path is None:
        return PluginCode({}, version)
    if path.name == "__init__.py":
        paths = [Path(directory, file) for directory, _, files in os.walk(path.parent) for file in files]
        paths, root = [path for path in paths if path.suffix in (_SOURCE, _RECIPE)], path.parent.parent
    else:
        paths, root = [path, *([recipe] if (recipe := path.with_suffix(_RECIPE)).is_file() else [])], path.parent
    try:
        return PluginCode({path.relative_to(root).as_posix(): path.read_bytes() for path in paths}, version)
    except OSError as error:
        raise UserError(f"the code of the plugin '{name}' cannot be read: {error}") from None


def _module_file(name: str) -> Path | None:
    """The file of a module's outermost package, or of the module; None if there is no such file."""
    parts = name.split(".")
    modules = (sys.modules.get(".".join(parts[:number])) for number in range(1, len(parts) + 1))
    files = (getattr(module, "__file__", None) for module in modules)
    return next((Path(file) for file in files if file and os.path.isfile(file)), None)


def _load(name: str) -> None:
    """Import a plugin. One that fails leaves nothing registered, so that it can be fixed and tried again."""
    token = _current_plugin.set(name)
    try:
        _import(name)
    except _MissingError:
        raise
    except BaseException as error:
        for registry in _registries:
            registry.remove_origin(name)
        if isinstance(error, Exception | SystemExit):
            raise UserError(f"the plugin '{name}' cannot be imported: {_failure(error)}") from error
        raise
    finally:
        _current_plugin.reset(token)
    _loaded.add(name)
    _codes[name] = _read_code(name)


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
        module_file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(module_file, str) and Path(module_file).name == path.name and path.samefile(module_file):
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
    """The key of a plugin: the name of a module, or the absolute path of a file."""
    return os.path.abspath(os.path.expanduser(name)) if _is_file(name) else name


def _is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name or os.sep in name


def _stem(name: str) -> str:
    """The part of a plugin's name that does not depend on the directory of its file."""
    return Path(name).stem if _is_file(name) else name


def _failure(error: BaseException) -> str:
    """The error message, and the line of the module outside drcil that raised it."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    location = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
        if code.co_name == "<module>" and module.partition(".")[0] != PACKAGE:
            location = f" ({code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return message + location


T = TypeVar("T")
Entry = TypeVar("Entry")


class Registry(Mapping[str, T]):
    """``registry["name"]`` with an error that proposes the nearest name; ``@registry.register("name")`` fills it.

    The first look-up imports every module of ``packages``, then the plugins. Registering imports nothing.
    """

    def __init__(self, kind: str, *packages: str) -> None:
        self.kind = kind
        self._pending_packages = packages
        """Packages that are not imported yet."""
        self._entries: dict[str, T] = {}
        self._origins: dict[str, str | None] = {}
        _registries.add(self)

    __hash__ = object.__hash__  # A mapping is not hashable otherwise.

    def __eq__(self, other: object) -> bool:
        return self is other

    def register(self, name: str) -> Callable[[Entry], Entry]:
        origin = _origin(sys._getframe(1))

        def keep(entry: Entry) -> Entry:
            if name in self._entries:
                raise self._duplicate_error(name, origin)
            self._entries[name] = entry  # type: ignore[assignment]
            self._origins[name] = origin
            return entry

        return keep

    def name_of(self, entry: T) -> str:
        """The name under which an entry is registered."""
        for name, registered in self._entries.items():
            if registered is entry:
                return name
        raise LookupError(f"{getattr(entry, '__name__', entry)} is not registered as a {self.kind}")

    def origin(self, name: str) -> str | None:
        """Where an entry comes from: None for drcil itself, else the name of a plugin or a module, or ``SESSION``."""
        self[name]
        return self._origins.get(name)

    def __getitem__(self, name: str) -> T:
        self._fill()
        try:
            return self._entries[name]
        except KeyError:
            raise unknown_name(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(self._entries)

    def __len__(self) -> int:
        self._fill()
        return len(self._entries)

    def _fill(self) -> None:
        with _lock:
            # Emptied first: a module that looks something up while it is imported sees the entries that exist.
            packages, self._pending_packages = self._pending_packages, ()
            try:
                for package in packages:
                    _import_all(package)
            except BaseException:
                self._pending_packages = packages
                raise
            load_plugins()

    def origins(self) -> set[str | None]:
        """The origins of all entries so far; nothing is imported."""
        return set(self._origins.values())

    def remove_origin(self, origin: str) -> None:
        """Remove the entries of a plugin."""
        for name in [name for name, value in self._origins.items() if value == origin]:
            del self._entries[name], self._origins[name]

    def _duplicate_error(self, name: str, origin: str | None) -> Exception:
        origins = (self._origins.get(name), origin)
        if origins == (None, None):
            return ValueError(f"{self.kind} '{name}' is registered twice")
        first, second = (PACKAGE if name is None else f"'{name}'" for name in origins)
        return UserError(f"{self.kind} '{name}' is registered twice, by {first} and by {second}; rename one of them")


def _import_all(package: str) -> None:
    """Import a module, or a package with every module right below it."""
    for module in pkgutil.iter_modules(getattr(importlib.import_module(package), "__path__", ())):
        importlib.import_module(f"{package}.{module.name}")


def _origin(frame: FrameType | None) -> str | None:
    """The origin of an entry, from the frames that called the registry.

    A plugin or a script may be the first to import a module of drcil; the entries of that module are still drcil's.
    """
    module = SESSION
    while frame is not None:
        module = frame.f_globals.get("__name__", SESSION)
        is_ours = module.partition(".")[0] == PACKAGE
        if is_ours and frame.f_code.co_name == "<module>":
            return None
        if not is_ours:
            break
        frame = frame.f_back
    plugin = _current_plugin.get()
    if plugin is not None:
        return plugin
    return SESSION if module == "__main__" else module
