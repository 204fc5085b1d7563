"""Options of the command line are the fields of the settings models."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from pydantic import Field

from drcil.cli import app, main
from drcil.cli.options import takes
from drcil.settings import ExperimentSettings, Integer, Option, RunSettings

VERBS: Any = typer.main.get_command(app)


class Extended(RunSettings):
    """Settings with one more field, and nothing else."""

    warmth: Annotated[int, Field(ge=1, le=9, description="How warm."), Integer, Option()] = 3


def parsed(*arguments: str) -> dict[str, Any]:
    """The values that a verb with all options gets."""
    got: list[dict[str, Any]] = []

    @takes(Extended, experiment=ExperimentSettings)
    def verb(values: dict[str, Any], experiment: ExperimentSettings) -> None:
        got.append({**values, "seeds": experiment.seeds})

    assert main(["--seeds", "2", *arguments], app=_with_verb(verb)) == 0
    assert got[0].pop("seeds") == 2
    return got[0]


def _with_verb(verb: Any) -> typer.Typer:
    extended = typer.Typer(name="drcil")
    extended.command("verb")(verb)
    return extended


def test_a_field_is_all_that_an_option_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("--warmth", "5") == {"warmth": 5} and parsed() == {}
    values = {"method": "maf", "stream": "digits-b0-5"}
    warm, usual = Extended.parse({**values, "warmth": 5}), Extended.parse(values)
    assert warm.model_dump(mode="json")["warmth"] == 5, "config.toml has it"
    assert warm.identity() == {**usual.identity(), "warmth": 5}, "it makes another run"
    assert warm.command(usual) == "drcil run maf digits-b0-5 --warmth 5", "the printed command has it"
    with pytest.raises(ValueError, match="warmth must be a whole number from 1 to 9, not 10"):
        Extended.parse({**values, "warmth": 10})

    @takes(Extended)
    def verb(values: dict[str, Any]) -> None:
        raise AssertionError(values)

    assert main(["--warmth", "ten"], app=_with_verb(verb)) == 2
    assert capsys.readouterr().err == "drcil: --warmth must be a whole number from 1 to 9, not 'ten'\n"


def test_values_are_converted_to_the_type_of_their_field() -> None:
    values = parsed("--seed", "3", "--epochs-scale", "0.5", "--devices", "2", "--no-compile", "--log", "csv")
    assert values == {"seed": 3, "epochs_scale": 0.5, "devices": 2, "compile": False, "loggers": ["csv"]}
    assert parsed("--devices", "auto") == {"devices": "auto"}
    assert parsed("--head", "drc", "--remedy", "la, bft", "--set", "alpha=0.5", "--set", "branch=bn") == {
        "settings": {"head": "drc", "remedies": ["la", "bft"], "alpha": 0.5, "branch": "bn"}
    }
    assert parsed("--remedy", "none") == {"settings": {"remedies": []}}
    assert parsed("--head", "rc", "--set", "head=drc") == {"settings": {"head": "drc"}}, "--set overrides"


@pytest.mark.parametrize(("verb", "without"), [("compare", {"seed"}), ("reproduce", {"seed", "order_seed"})])
def test_verbs_that_train_runs_have_all_options_of_run(verb: str, without: set[str]) -> None:
    names = {name: {param.name for param in VERBS.commands[name].params} for name in ("run", verb)}
    assert names["run"] - {"method", "stream", "config", *without} <= names[verb]
