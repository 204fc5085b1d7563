"""Write docs/options.md: all options of runs, models and experiments, from the settings models.

``python tools/options.py`` writes the page anew after a field changed.
"""

from __future__ import annotations

from pathlib import Path

from drcil.cli.options import PANELS, Field, fields_of
from drcil.settings import EngineSettings, ExperimentSettings, ModelSettings, RunSettings

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
_HEAD = """# Options

The settings of runs. Each is an option of `drcil run`, `compare` and `reproduce`, and a key of a run's `config.toml`.
Those marked *model* are also options of `drcil learn` and, like those of `engine`, keywords of `drcil.Learner`.
`drcil run --config FILE` starts from the `config.toml` of another run. A run with another value of a setting marked
*identity* is another run: it is trained anew, and an unfinished run does not resume with it.

Stages that train a backbone are those for which the method's recipe leaves the optimiser open. `--schedule`,
`--epochs`, `--lr` and `--batch-size` apply to all of them. `--set` changes a single stage and overrides them, such as
`--set later.lr=0.05`. `--epochs` sets the number of epochs whatever `--epochs-scale` says; milestones and warm-up
change in proportion. With `--lr`, the final rate and the rate of the warm-up change in proportion.

This page is written by `python tools/options.py`.
"""
_TABLE = "| option | key | value | default | | |\n|---|---|---|---|---|---|\n"


def page() -> str:
    """The content of the page."""
    fields = [*fields_of(RunSettings), *fields_of(ExperimentSettings)]
    parts = [_HEAD]
    for panel in PANELS:
        rows = [_row(field) for field in fields if field.option.panel == panel]
        parts.append(f"## {panel}\n\n{_TABLE}{''.join(rows)}")
    return "\n".join(parts)


def _row(field: Field) -> str:
    model, name, option = field
    info = model.model_fields[name]
    flag = name.upper() if name in ("method", "stream") else model.flag(name)
    key = f"engine.{name}" if model is EngineSettings else name
    accepted = "a size such as 2GB" if name == "cache" else model.accepted(name)
    default = option.default_text or ("" if info.default in (None, ()) else str(info.default))
    if info.is_required() or info.default_factory is not None:
        default = ""
    marks = []
    if option.identity and model is not ExperimentSettings:
        marks.append("identity")
    if name in ModelSettings.model_fields:
        marks.append("model")
    if option.env is not None:
        marks.append(f"`{option.env}`")
    cells = (f"`{flag}`", f"`{key}`", accepted, default, ", ".join(marks), info.description or "")
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
