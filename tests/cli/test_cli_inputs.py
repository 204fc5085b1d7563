"""What a user of the command line gives by mistake, and outputs that fail: one sentence, or the work is done."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drcil.cli import app, main

COMMAND = [sys.executable, "-m", "drcil.cli"]
TINY = ["run", "finetune", "digits-b0-5", "--epochs-scale", "0.001", "--tasks", "1", "--threads", "1"]
LONG = "x" * 300
BASES: dict[str, list[str]] = {
    "run": TINY,
    "compare": ["compare", "finetune", "digits-b0-5", "--epochs-scale", "0.001", "--tasks", "1"],
    "check": ["check", "finetune"],
    "paper": ["paper", "T5"],
    "reproduce": ["reproduce", "T5"],
    "report": ["report", "nothing"],
    "resume": ["resume", "nothing"],
    "show": ["show", "nothing"],
    "evaluate": ["evaluate", "nothing", "digits-b0-5"],
    "predict": ["predict", "nothing", "-"],
    "learn": ["learn", "model", "nothing"],
    "serve": ["serve", "nothing"],
    "info": ["info", "nothing"],
    "rename": ["rename", "nothing", "a", "b"],
    "undo": ["undo", "nothing"],
    "forget": ["forget", "nothing", "a"],
    "export": ["export", "nothing", "--out", "o.onnx"],
    "import": ["import", "nothing", "--out", "o"],
    "list": ["list", "methods"],
    "data check": ["data", "check", "digits"],
    "data imbalance": ["data", "imbalance", "digits-b0-5"],
    "data fetch": ["data", "fetch", "digits"],
}
"""A command of each verb, to which an option is added that it must refuse."""
NUMBERS = [
    "x",
    "-1",
    "1.5.2",
    "9" * 400,
    "1e400",
    "nan",
    "0x10",
    " ",
    "--",
    "-inf",
    "10000000000000000000000",
    "\u0661/2",
]
WORDS = ["", "no such", "x" * 5000, "  ", "no\nsuch", "\udcff", "a=b=c=[", "-", "=", "../..", "\0", "é" * 100]
PATHS = ["", LONG, "a\0b", "x/" * 3000, "~nosuchuser/x", "é" * 200]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRCIL_DATA", raising=False)
    monkeypatch.setattr("drcil.registry._named", {})


def options() -> Iterator[tuple[str, str, str]]:
    """Every verb and option of the command line, and the kind of its value, as typer knows them."""
    command: Any = typer.main.get_command(app)
    for name, verb in command.commands.items():
        for own, leaf in getattr(verb, "commands", {"": verb}).items():
            for param in leaf.params:
                if not getattr(param, "is_flag", False) and param.opts[0].startswith("--") and param.name != "help":
                    yield f"{name} {own}".strip(), param.opts[0], str(getattr(param, "annotation", param))


ALL = [(verb, option) for verb, option, _ in options()]
PATH_OPTIONS = ("--out", "--data")
NUMBER_OPTIONS = (
    "--seed", "--order-seed", "--seeds", "--tasks", "--image-size", "--epochs-scale", "--validation", "--jobs",
    "--threads", "--workers", "--eval-every", "--top", "--threshold", "--batch",
)  # fmt: skip


def values(option: str) -> list[str]:
    return PATHS if option in PATH_OPTIONS else NUMBERS if option in NUMBER_OPTIONS else WORDS


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], told: str = "") -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("drcil: ") and output.err.count("\n") == 1 and len(output.err) < 4000, output.err
    assert told in output.err
    assert not list(Path().iterdir())


def test_every_verb_has_a_command_to_try() -> None:
    assert {verb for verb, _ in ALL} == set(BASES) and len(ALL) > 60


@pytest.mark.parametrize(("verb", "option"), ALL)
def test_nonsense_by_type_is_refused(verb: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in values(option):
        refused([*BASES[verb], option, value], capsys)
        refused([*BASES[verb], f"{option}={value}"], capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "option"), ALL)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.text(max_size=30).map(lambda text: f"{text}¶"))  # Nothing that is known ends so.
def test_whatever_text_is_given_it_is_refused(
    verb: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if option not in PATH_OPTIONS:
        refused([*BASES[verb], option, value], capsys)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*TINY, "--backbone", ""], "--backbone must not be empty"),
        ([*TINY, "--augment="], "--augment must not be empty"),
        (["run", ""], "an argument must not be empty"),
        (["run", "finetune", "digits-b0-5", "--tasks", "99"], "has 5 tasks, so a run cannot stop after 99"),
        (["check", "finetune", "--stream", "digits-b0-1"], "has 1 task, so a run cannot stop after 3"),
        ([*TINY, "--out", "\udcff"], "it is not UTF-8; rename it"),
        ([*TINY, "--data", "\udcff"], "it is not UTF-8; rename it"),
        ([*TINY, "--set", "augment="], "'augment' cannot be ''"),
        (["compare", "finetune", "digits-b0-5", "--tasks", "99"], "has 5 tasks, so a run cannot stop after 99"),
        ([*TINY, "--threads", "100000"], "--threads must be a whole number from 1 to "),
        ([*TINY, "--workers", "100000"], "--workers must be a whole number from 0 to 256, not 100000"),
        ([*TINY, "--seed", str(2**63)], "--seed must be a whole number from 0 to 9223372036854775807"),
        ([*TINY, "--epochs-scale", "1e9"], "--epochs-scale must be a number above 0 and at most 1000"),
        ([*TINY, "--cache", "900TB"], "is more than the"),
        ([*TINY, "--cache", "1,5GB"], "--cache cannot be '1,5GB': give a size such as '500MB' or '2GB'"),
        ([*TINY, "--image-size", "100000"], "--image-size must be a whole number from 4 to 4096, not 100000"),
        ([*TINY, "--image-size", "3"], "--image-size must be a whole number from 4 to 4096, not 3"),
        ([*TINY, "--image-size", "9"], "are only made smaller, so give at most 8"),
        ([*TINY, "--set", "first.lr=inf"], "'first.lr' cannot be inf"),
        ([*TINY, "--set", "first.epochs=99999999999"], "'first.epochs' cannot be 99999999999"),
        ([*TINY, "--set", f"first.epochs={'9' * 5000}"], "'first.epochs'"),
        (["compare", "finetune", "digits-b0-5", "--seeds", "99999999999"], "--seeds must be a whole number from 1 to"),
        (["compare", "finetune", "digits-b0-5", "--jobs", "100000"], "--jobs must be a whole number from 1 to 256"),
        (["run", "finetune", f"digits-b0-{'9' * 5000}"], "is not of the form"),
        (["run", LONG], "unknown method 'xxx"),
        (["run", "finetune", f"folder:{LONG}-b0-2"], "is not a directory"),
        (["run", "finetune", "folder:~nosuchuser/x-b0-2"], "nosuchuser"),
        (["resume", LONG], "File name too long"),
        (["show", LONG], "File name too long"),
        (["evaluate", LONG, "digits-b0-5"], "File name too long"),
        (["import", LONG, "--out", "o"], "File name too long"),
        (["import", "c", "--out", LONG], "File name too long"),
        (["list", "methods", "--plugin", f"{LONG}.py"], "there is no such file"),
        (["data", "check", LONG], "unknown dataset"),
        (["data", "check", f"folder:{LONG}"], "is not a directory"),
        (["run", "finetun"], "did you mean 'finetune'?"),
        (["run", "foster:bosted"], "unknown readout of 'foster' 'bosted'; did you mean 'boosted'?"),
        (["run", "finetune:nme"], "unknown readout of 'finetune' 'nme'; known: classifier"),
        (["run", "foster-b4:compressed"], "'foster-b4' stands for 'foster:boosted'"),
        (["run", "finetune", "digit-b0-5"], "did you mean 'digits'?"),
        (["run", "finetune", "digits"], "'digits' is not of the form"),
        (["run", "finetune", "digits-b0-7"], "10 classes do not divide into 7"),
        (["run", "finetune", "--profile", "shrt"], "did you mean 'short'?"),
        (["run", "finetune", "--augment", "bsic"], "did you mean 'basic'?"),
        (["run", "finetune", "--backbone", "resnet-digit"], "did you mean 'resnet-digits'?"),
        (["run", "finetune", "--set", "later.epoch=3"], "did you mean 'later.epochs'?"),
        (["run", "finetune", "--set", "later.epochs=none"], "'later.epochs'"),
        (["run", "finetune", "--set", "later.epochs"], "KEY=VALUE"),
        (["run", "finetune", "--head", "drc"], "--head is for the pipelines"),
        (["run", "maf", "--head", "dcr"], "unknown head 'dcr'; did you mean 'drc'?"),
        (["run", "mdt", "--head", "cosine", "--remedy", "wa"], "head 'cosine' has no fully connected layer"),
        (["run", "finetune", "--remedy", "la"], "--remedy is for the pipelines"),
        (["run", "finetune", "--memory", "many"], "--memory cannot be 'many': give a total"),
        (["run", "finetune", "--device", "abacus"], "'abacus'"),
        (["run", "finetune", "--precision", "8"], "'8'"),
        (["run", "finetune", "--seed", "-1"], "--seed must be a whole number from 0"),
        (["run", "finetune", "--order-seed", "-1"], "--order-seed must be a whole number from 0 to 4294967295, not -1"),
        (["run", "finetune", "--tasks", "0"], "--tasks must be a whole number from 1"),
        (
            ["run", "finetune", "--epochs-scale", "0"],
            "--epochs-scale must be a number above 0 and at most 1000, not 0.0",
        ),
        (["run", "finetune", "--validation", "1"], "--validation must be a number at least 0 and below 1, not 1.0"),
        (["run", "finetune", "--workers", "-1"], "--workers must be a whole number from 0 to 256, not -1"),
        (["run", "finetune", "--cache", "lots"], "give a size such as '500MB' or '2GB'"),
        (["run", "eeil", "--set", "noise=lots"], "'noise' cannot be 'lots': input should be a number"),
        (["run", "foster", "--set", "boosting_betas=0.9,0.8"], "input should be a list such as [1, 2]"),
        (["run", "finetune", "--log", "cvs"], "did you mean 'csv'?"),
        (["compare", "finetune", "digits-b0-5", "--log", "cvs"], "did you mean 'csv'?"),
        (["run", "finetune", "--seed", "one"], "--seed must be a whole number from 0"),
        (["run", "finetune", "--sed", "1"], "--sed"),
        (["run", "finetune", "cifar100-b0-10", "--data", "nowhere"], "nowhere"),
        (["run", "finetune", "digits-b0-5", "surplus"], "surplus"),
        (["rnu"], "rnu"),
        (["resume", "nothing-here"], "nothing-here is not a run"),
        (["resume"], "RUN"),
        (["show", "nothing-here"], "nothing-here is not a run"),
        (["list"], "'KIND'; see 'drcil list --help'"),
        (["list", "method"], "did you mean 'methods'?"),
        (["data", "check", "digit"], "did you mean 'digits'?"),
        (["data", "fetch", "cifr100"], "did you mean 'cifar100'?"),
        (["data", "fetch", "digits"], "ships with drcil"),
        (["data", "fetch", "cifar100", "--data", "/dev/null/data"], "/dev/null/data cannot be used: Not a directory"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_wrong_input_is_reported_in_one_sentence_and_leaves_nothing_behind(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(arguments, capsys, told)


def test_images_for_which_there_is_no_memory_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    for name in ("own/ant", "own/bee"):
        (tmp_path / name).mkdir(parents=True)
        for index in range(3):
            Image.new("RGB", (16, 16), (index * 20, 0, 0)).save(tmp_path / name / f"{index}.png")
    assert main(["run", "finetune", "folder:own-b0-2", "--image-size", "4096"]) == 2
    said = capsys.readouterr().err
    assert "3 x 4096 x 4096" in said and "GiB; give a smaller --image-size" in said
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_folder_whose_path_is_long_has_a_run_of_a_shorter_name(tmp_path: Path) -> None:
    from drcil.settings import RunSettings

    deep = "/".join(["d" * 100] * 5)
    names = {RunSettings(method="finetune", stream=f"folder:{deep}{end}-b0-2").name for end in ("", "x", "y")}
    assert len(names) == 3 and all(len(name) < 200 and name.endswith("-b0-2-seed0") for name in names)


def test_slips_are_told_before_torch_is_imported() -> None:
    cases = [
        ["run", "--no-such-option"],
        ["run", "icarl", "digits-b0-5", "--seed", "x"],
        ["run", "icarl", "--seed", "-1"],
        ["run", "icarl", "--device", "abacus"],
        ["run", "icarl", "--precision", "8"],
        ["run", "icarl", "--memory", "lots"],
        ["run", "icarl", "--threads", "100000"],
        ["run", "icarl", "--backbone", ""],
        ["run", "icarl", "--out", LONG],
        ["compare", "icarl", "digits-b0-5", "--jobs", "0"],
        ["evaluate", "m", "digits-b0-5", "--device", "abacus"],
        ["list", "method"],
        ["rnu"],
    ]
    code = (
        "import json, sys\nfrom drcil.cli import main\n"
        "for case in json.loads(sys.argv[1]):\n"
        "    assert main(case) == 2 and not {'torch', 'numpy'} & sys.modules.keys(), case\n"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(cases)], check=True, capture_output=True)


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_a_full_output_does_not_end_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FULL.open("w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        assert main([*TINY, "--out", "r"]) == 0
    assert json.loads((tmp_path / "r" / "result.json").read_text())["complete"]
    assert "drcil: warning: standard output cannot be written: No space left on device\n" in capsys.readouterr().err
    for arguments in (["list", "heads"], ["list", "heads", "--json"], ["show", "r"], ["show", "r", "--json"]):
        with FULL.open("w") as full, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", full)
            assert main(arguments) == 1
        said = capsys.readouterr().err
        assert said == "drcil: standard output cannot be written: No space left on device\n"


def test_words_degrade_where_they_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert main([*TINY, "--out", "é", "--quiet"]) == 0
    simple = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", simple)
        assert main(["show", "é"]) == 0 and main([*TINY, "--out", "ü"]) == 0
    simple.flush()
    assert b"in ?\n" in simple.buffer.getvalue() and simple.errors == "strict"


@pytest.mark.parametrize("columns", ["0", "-5", "1", "x", "", "99999999999999999999", "¹"])
def test_any_width_will_do(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["list", "heads"]) == 0
    if columns != "1":
        assert "linear" in capsys.readouterr().out


def test_a_directory_that_is_gone_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        assert main(TINY) == 2
    finally:
        os.chdir(tmp_path)
    assert "the current directory cannot be used" in capsys.readouterr().err


def test_a_refused_run_prints_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--out", "r", "--quiet"]) == 0
    config = tmp_path / "r" / "config.toml"
    config.write_text(config.read_text().replace("\nseed = 0", "\nseed = 1"))
    capsys.readouterr()
    assert main(["resume", "r"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "'seed' in config.toml has changed" in output.err


def test_a_finished_run_on_a_disk_that_cannot_be_written_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--out", "r", "--quiet"]) == 0
    assert main(["show", "r", "--json"]) == 0
    shown = capsys.readouterr().out
    result = json.loads(shown[shown.index("\n{") :])
    place = tmp_path / "readonly"
    place.mkdir()
    mounted = [["mount", "--bind", str(tmp_path / "r"), str(place)], ["mount", "-o", "remount,ro,bind", str(place)]]
    try:
        for command in mounted:
            subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this process may not mount a directory read-only")
    try:
        assert main(["resume", str(place), "--json", "--quiet"]) == 0
        assert json.loads(capsys.readouterr().out) == result
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_who_asked_to_be_left_running_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang_up(*arguments: object) -> str:
        signal.raise_signal(signal.SIGHUP)
        return "on"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with monkeypatch.context() as patched:
            patched.setattr("drcil.cli.training.task_line", hang_up)
            assert main([*TINY, "--out", "r"]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_child_that_does_not_stop_when_its_parent_is_gone_is_ended() -> None:
    code = (
        "import signal, sys, threading, time\nfrom drcil.cli.child import end_with_parent\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "threading.Thread(target=end_with_parent, daemon=True).start()\n"
        "print('ready', flush=True)\ntime.sleep(3600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.stdin.close()
    assert child.wait() == 1
    child.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "list", "version"])
@pytest.mark.parametrize(
    "redirection", [">/dev/full", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full", "| head -c 1"]
)
def test_outputs_of_all_kinds_in_real_processes(verb: str, redirection: str, tmp_path: Path) -> None:
    arguments = {"run": [*TINY, "--out", "r"], "list": ["list", "heads"], "version": ["--version"]}[verb]
    script = f'set -o pipefail; "$@" {redirection}'
    done = subprocess.run(["bash", "-c", script, "x", *COMMAND, *arguments], capture_output=True, text=True)
    lost = redirection != "2>&-"
    assert (
        done.returncode == (1 if verb == "list" and lost and "head" not in redirection else 0) or "head" in redirection
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
    if verb == "run":
        assert json.loads((tmp_path / "r" / "result.json").read_text())["complete"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"COLUMNS": "0", "LINES": "0"},
        {"TERM": "dumb", "LANG": ""},
    ],
    ids=lambda value: " ".join(value),
)
def test_poor_environments_in_real_processes(environment: dict[str, str], tmp_path: Path) -> None:
    surroundings = {**os.environ, **environment}
    run = [*COMMAND, *TINY, "--out", "é"]
    done = subprocess.run(run, capture_output=True, env=surroundings)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([*COMMAND, "show", "é"], capture_output=True, env=surroundings)
    assert shown.returncode == 0 and b"Avg" in shown.stdout, shown.stderr
