"""Runs and comparisons from Python: the same files and figures as the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import drcil
from drcil.methods import METHODS
from drcil.methods.catalog import register_preset

SMALL: dict[str, Any] = {"tasks": 2, "epochs_scale": 0.02, "device": "cpu", "threads": 1}


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_is_made_interrupted_resumed_and_read() -> None:
    class Stop(Exception):
        pass

    def stop(event: object) -> None:
        if getattr(event, "task", 1) == 2:
            raise Stop

    with pytest.raises(Stop):
        drcil.run("replay", "digits-b0-5", out="run", listener=stop, **SMALL)
    record = drcil.resume("run")
    assert record.result is not None and record.result.complete
    assert {"report.html", "curve.png", "result.json"} <= {file.name for file in Path("run").iterdir()}
    assert json.loads(Path("run/result.json").read_text())["avg"] == record.figure("avg")
    report = drcil.read("run")
    assert [run.figure("avg") for run in report.runs] == [record.figure("avg")]
    drcil.write_report(report, "all.json")
    assert json.loads(Path("all.json").read_text())["title"] == "1 run on digits-b0-5"
    with pytest.raises(drcil.UserError, match=r"the name of a report ends in .html, .md, .csv, .json, not 'all.pdf'"):
        drcil.write_report(report, "all.pdf")


def test_wrong_options_are_refused_before_there_is_a_directory() -> None:
    with pytest.raises(drcil.UserError, match="seed"):
        drcil.run("replay", "digits-b0-5", seed=-1)
    with pytest.raises(drcil.UserError, match="did you mean 'replay'"):
        drcil.compare("replya", "digits-b0-5")
    with pytest.raises(drcil.UserError, match="one run at a time"):
        drcil.compare("replay", "digits-b0-5", backend="inline", jobs=2)
    assert list(Path().iterdir()) == []


def test_methods_of_this_process_are_compared_on_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is defined in a notebook cannot be imported by a child process; a failure leaves the others whole."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))

    class Mine(METHODS["replay"].build):  # type: ignore[misc]
        pass

    class Broken(METHODS["replay"].build):  # type: ignore[misc]
        def learn(self, task: Any, engine: Any) -> None:
            if not engine.rehearsing:
                raise ValueError("it broke")

    recipe = Path(drcil.__file__).parent / "recipes" / "replay.toml"
    for name, build in (("mine", Mine), ("broken", Broken)):
        build.__module__ = "__main__"
        register_preset(name, build, summary="Mine", paper="None", year=2026, recipe=recipe)
    report = drcil.compare(["replay", "mine", "broken"], ["digits-b0-5", "digits-b0-2"], out="both", **SMALL)
    assert [table.name for table in report.tables] == ["digits-b0-5", "digits-b0-2"]
    assert report.tables[0].rows == ("replay", "mine", "broken") and len(report.plots) == 2
    values = {row: cell.values for (row, column), cell in report.tables[0].cells.items() if column.metric == "avg"}
    assert values["mine"] == values["replay"] and values["broken"] == []
    assert len(report.failures) == 2 and "ValueError: it broke" in report.failures[0]
    assert "it broke" in Path("both/logs/broken-digits-b0-5-seed0.log").read_text()
    assert {run.settings.method for run in drcil.read("both").runs} == {"replay", "mine"}
    # Again: all that is finished is reused.
    before = Path("both/runs/mine-digits-b0-5-seed0/result.json").stat().st_mtime_ns
    drcil.compare(["replay", "mine", "broken"], ["digits-b0-5", "digits-b0-2"], out="both", **SMALL)
    assert Path("both/runs/mine-digits-b0-5-seed0/result.json").stat().st_mtime_ns == before
