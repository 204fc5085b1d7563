"""Suites that are really run, on digits: killed and continued, with a run that fails, reused, over class orders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drcil.cli import main
from drcil.files import read_json
from support.processes import wait_for_end, wait_for_text

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reproducing.md"
SUITE = """
methods = ["replay"]
streams = ["digits-b0-5"]
tasks = 2
epochs_scale = 0.02
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def reproduce(content: str, *options: str, expected: int = 0) -> None:
    Path("mine.toml").write_text(content)
    assert main(["reproduce", "mine.toml", "--quiet", *options]) == expected


def answer(place: str) -> dict[str, Any]:
    """What came of a suite, without where its runs are."""
    found = read_json(Path(place) / "report.json")
    assert isinstance(found, dict)
    return found


def measured(place: str) -> dict[tuple[str, str], dict[str, Any]]:
    (table,) = answer(place)["tables"]
    return {(cell["row"], cell["metric"]): cell["measured"] for cell in table["cells"]}


def test_a_setting_is_swept_over_three_class_orders() -> None:
    """Every value has its point, which is a mean with a standard error; and all of it is reused elsewhere."""
    content = SUITE.replace("replay", "mafdrc") + "orders = 3\n[sweep]\nalpha = [0.1, 0.4]\n"
    reproduce(content, "--out", "here", "--jobs", "2")
    _, sweep = answer("here")["plots"]
    ((line, points),) = sweep["lines"].items()
    assert line == "mafdrc" and [value for value, _ in points] == [0.1, 0.4]
    assert all(own["error"] is not None and 0 < own["mean"] <= 100 for _, own in points)
    assert all(own["error"] is not None for own in measured("here").values())
    assert len(list(Path("here/runs").iterdir())) == 6
    reproduce(content, "--out", "there", "--reuse", "here")
    assert not Path("there/runs").exists()
    assert measured("there") == measured("here")


def test_the_suite_of_the_documents_ends_with_its_plots(capsys: pytest.CaptureFixture[str]) -> None:
    """Shortened: one seed, two tasks, one value of the grid."""
    (example,) = re.findall(r"```toml\n(# suite.toml.*?)```", DOCUMENT.read_text(), re.DOTALL)
    reproduce(example.replace("0.1\nmemory", "0.02\nmemory").replace("[0.05, 0.1]", "[0.1]"), "--seeds", "1",
              "--tasks", "2", "--out", "here", "--jobs", "2")  # fmt: skip
    sweep = next(one for one in answer("here")["plots"] if one["x_label"] == "alpha")
    assert {line: [value for value, _ in points] for line, points in sweep["lines"].items()} == {
        f"{method}, adaptation.lr=0.1": [0.1, 0.3, 0.5] for method in ("mafdrc", "mafrc")
    }


def test_a_run_that_fails_is_named_with_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    """A rate at which the loss is no number ends one run; the other is finished, and once it is mended all are."""
    content = SUITE + '[grid]\n"first.lr" = [1e30, 0.05]\n'
    reproduce(content, "--out", "here", "--jobs", "2", expected=1)
    shown = capsys.readouterr().out
    failed = next(line for line in shown.splitlines() if line.startswith("failed: "))
    assert "first.lr=1e+30" in failed and "a smaller learning rate" in failed
    log = Path(failed.rpartition("(log: ")[2].rstrip(")"))
    assert "a smaller learning rate" in log.read_text()
    assert f"report: {Path('here')}" in shown
    cells = measured("here")
    assert [own is not None for own in cells.values()] == [False, False, True, True]
    assert len(answer("here")["failures"]) == 1


def test_a_killed_suite_goes_on_and_ends_as_an_undisturbed_one() -> None:
    content = SUITE.replace("0.02", "0.06") + "seeds = 2\n"
    reproduce(content, "--out", "outright")
    arguments = ["reproduce", "mine.toml", "--out", "killed", "--quiet"]
    parent = subprocess.Popen([sys.executable, "-m", "drcil.cli", *arguments])
    events = Path("killed/runs/replay-digits-b0-5-seed0/events.jsonl")
    try:
        wait_for_text(events, "EpochDone", parent)
    finally:
        parent.kill()
        parent.wait()
    child = json.loads(next(line for line in events.read_text().splitlines() if '"Started"' in line))["process"]
    wait_for_end(child)
    assert not Path("killed/runs/replay-digits-b0-5-seed1").exists(), "it was finished before it could be killed"
    assert main(arguments) == 0
    assert measured("killed") == measured("outright")
    assert answer("killed")["request"]["seeds"] == 2
    assert answer("killed")["plots"] == answer("outright")["plots"]
    assert '"Started"' in events.read_text() and events.read_text().count('"Started"') == 2
