"""The command line as its users meet it: exit codes, one-line errors, clean standard output, runs that go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from drcil import __version__
from drcil.cli import main
from drcil.cli.list import KINDS
from drcil.cli.options import toml_value
from drcil.methods import METHODS
from drcil.methods.catalog import register_preset
from support.html_reader import Page

COMMAND = [sys.executable, "-m", "drcil.cli"]
TINY = ["run", "finetune", "digits-b0-5", "--epochs-scale", "0.02", "--tasks", "2", "--threads", "1"]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run directories go to a directory of the test's own, which an error must leave empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRCIL_DATA", raising=False)


def test_heavy_packages_wait_until_a_verb_needs_them() -> None:
    """Help is quick because they are not imported."""
    code = (
        "import sys\nfrom drcil.cli import main\nassert main(['--help']) == 0\n"
        "print({'torch', 'numpy', 'matplotlib', 'PIL'} & sys.modules.keys())"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.splitlines()[-1] == "set()"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"drcil {__version__}\n"


def test_without_a_verb_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "resume" in capsys.readouterr().out


def test_a_directory_in_use_for_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("chapter 1")
    assert main([*TINY, "--out", "mine"]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_json_objects_with_unique_names(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    names = [entry["name"] for entry in entries]
    assert entries and len(set(names)) == len(names)
    assert all(entry.get("summary", entry.get("description")) for entry in entries)
    assert main(["list", kind]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in names)
    assert "origin" not in table and not any(entry["origin"] for entry in entries), "all are drcil's own"


@pytest.mark.parametrize("kind", KINDS)
def test_lists_fit_a_window_of_80_columns(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(["list", kind, "--json"])
    entries = json.loads(capsys.readouterr().out)
    main(["list", kind])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    assert {entry["name"] for entry in entries} <= {line.split()[0] for line in lines if line.strip()}
    if kind in ("streams", "datasets"):  # A line each; summaries of the others may take two.
        assert len([line for line in lines if line.strip()]) == len(entries) + 2


def test_a_method_is_listed_with_what_one_chooses_it_by(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "methods", "--json"])
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    icarl = entries["icarl"]
    assert list(icarl) == [
        "name", "summary", "paper", "year", "head", "stages", "readouts", "addons", "origin",
    ]  # fmt: skip
    assert (icarl["addons"], entries["eeil"]["addons"]) == ([], ["two-stage"])
    assert (icarl["year"], icarl["head"], icarl["stages"]) == (2017, "linear", ["first", "later"])
    assert (icarl["readouts"], entries["foster-b4"]["readouts"]) == (["nme", "classifier"], ["boosted", "compressed"])
    assert entries["maf+bft"]["stages"] == [*entries["maf"]["stages"], "finetuning"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    listing = subprocess.Popen([*COMMAND, "list", "streams"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert listing.stdout is not None and listing.stderr is not None
    listing.stdout.close()
    assert listing.stderr.read() == b""
    listing.wait()
    listing.stderr.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("5e-4", 5e-4),
        ("true", True),
        ("[30, 50]", [30, 50]),
        ('"8"', "8"),
        ("cosine", "cosine"),
        ("a\nb=1", "a\nb=1"),
    ],
)
def test_values_are_toml_or_else_text(text: str, value: object) -> None:
    assert toml_value(text) == value
    assert type(toml_value(text)) is type(value)


@pytest.mark.slow
def test_json_is_all_there_is_on_standard_output(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, *TINY, "--json", "--out", "r"], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    assert result.items() <= json.loads((tmp_path / "r" / "result.json").read_text()).items()
    assert result["complete"] and len(result["curve"]) == 2
    assert "task 1/2 first: 1 epoch in" in done.stderr and "task 2 done: 4 classes, accuracy" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_run_leaves_a_curve_and_a_page_and_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--out", "r", "--quiet"]) == 0
    output = capsys.readouterr()
    assert "task 1" not in output.out and "Avg" in output.out and "r/curve.png" in output.out
    with Image.open(tmp_path / "r" / "curve.png") as curve:
        assert curve.format == "PNG" and curve.width > 800
    page = Page((tmp_path / "r" / "report.html").read_text())
    page.require_complete()
    assert [len(row) for row in page.data["confusion"]["values"]] == [2, 2] and "loss-1" in page.data
    assert main(["show", "r", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main(["show", "r"]) == 0
    shown = capsys.readouterr().out
    assert f"{result['avg']:.2f}" in shown and f"{result['last']:.2f}" in shown and "not finished" not in shown


def test_a_run_that_has_its_directory_is_not_begun_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--out", "r", "--quiet"]) == 0
    assert main([*TINY, "--out", "r", "--quiet"]) == 2
    assert "drcil resume r" in capsys.readouterr().err


def test_unreadable_files_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for index in range(10):
            Image.new("RGB", (16, 16), (index * 20, 0, 0)).save(tmp_path / "own" / name / f"{index}.png")
    (tmp_path / "own" / "ant" / "broken.png").write_bytes(b"no picture")
    # The run itself is stopped by its directory: the warning comes before anything is written.
    (tmp_path / "r").write_text("a file")
    assert main(["run", "finetune", "folder:own-b0-2", "--image-size", "16", "--out", "r"]) == 2
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith("drcil: warning: 1 unreadable file skipped: ")
    assert warning.endswith("broken.png")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_tells_how_to_go_on_and_ends_like_one_that_was_not(
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*TINY, "--json", "--quiet"]) == 0
    whole = json.loads(capsys.readouterr().out)

    def stop_instead(result: object, task: int) -> str:
        signal.raise_signal(number)
        return "not reached"

    with monkeypatch.context() as patched:
        patched.setattr("drcil.cli.training.task_line", stop_instead)
        assert main([*TINY, "--out", "r"]) == 130
    assert capsys.readouterr().err == "drcil: interrupted; continue with 'drcil resume r'\n"
    assert main(["show", "r"]) == 0
    assert "continue with 'drcil resume r'" in capsys.readouterr().out
    assert main(["resume", "r", "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["complete"] and resumed["matrix"] == whole["matrix"]


def test_a_stop_before_there_is_a_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drcil.cli.training.plan_run", lambda *given: signal.raise_signal(signal.SIGTERM))
    assert main(TINY) == 130
    assert capsys.readouterr().err == "drcil: stopped\n"
    assert list(tmp_path.iterdir()) == []


def test_digits_check_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "digits"]) == 0
    assert "1442 images" in capsys.readouterr().out


@pytest.mark.data
def test_cifar100_checks_out(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "cifar100", "--data", str(data_dir)]) == 0
    assert "train: 50000 images, 500 per class" in capsys.readouterr().out


def test_a_method_for_one_kind_of_data_is_listed_with_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "own.toml"
    recipe.write_text("[digits.first]\nepochs = 1\nlr = 0.1\n[digits.later]\nepochs = 1\nlr = 0.1\n", encoding="utf-8")
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))
    register_preset("own", METHODS["replay"].build, summary="Mine", paper="None", year=2026, recipe=recipe)
    assert main(["list", "methods", "--json"]) == 0
    listed = {entry["name"]: entry["stages"] for entry in json.loads(capsys.readouterr().out)}
    assert listed["own"] == listed["replay"] == ["first", "later"]
