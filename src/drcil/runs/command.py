"""The command that makes a run like another, from its settings."""

from __future__ import annotations

import json
import shlex

from ..errors import UserError, legible
from ..recipes import RECIPE, dotted
from .settings import RunSettings, make_settings

_OPTIONS = (
    "seed", "order_seed", "memory", "backbone", "freeze", "tasks", "image_size", "epochs_scale", "schedule", "augment",
    "validation"
)  # fmt: skip
"""The settings that are options of the same name."""


def command_of(own: RunSettings) -> str:
    """``drcil run`` with the options that the result depends on; those that its profile brings anyway are left out."""
    usual = usual_run(own)
    words = ["drcil", "run", own.label, own.stream]
    words += [] if own.profile == "full" else ["--profile", own.profile]
    # A profile may bring a schedule, and then that of the recipe was asked for.
    words += ["--schedule", RECIPE] if own.schedule is None and usual.schedule is not None else []
    for name in _OPTIONS:
        value = getattr(own, name)
        if value is not None and value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--weights", own.weights.file] if own.weights else []
    words += [] if own.engine.precision == usual.engine.precision else ["--precision", own.engine.precision]
    words += ["--compile"] if own.engine.compile else []
    for key, value in dotted(own.settings):
        words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    for plugin in own.plugins:
        words += ["--plugin", plugin]
    return shlex.join(legible(word) for word in words)


def usual_run(own: RunSettings) -> RunSettings:
    """What a run has if nothing but its profile is chosen; a method of a plugin that is not there has no such."""
    try:
        return make_settings(method=own.method, stream=own.stream, profile=own.profile)
    except UserError:
        return RunSettings(method=own.method, stream=own.stream)
