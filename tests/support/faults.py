"""A kit of faults: damage to every file that drcil reads, every verb that reads it, and the law that must hold.

The law: a right answer, or exit code 2 (1 for faults of the machine) with one sentence; no traceback, no hang, nothing
written outside, nothing lost that was there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

import drcil
from drcil.cli import main
from drcil.files import CHECKSUM, write_checksummed_json
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from drcil.train.events import Event, StepDone

STREAM = "digits-b0-5"
DEEP = "[" * 100_000
NONSENSE: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**12, -(10**12), 2**70, "", "x", "a/../b", "\u0000", "x" * 3000, [], [[]], [1, "a"], {},
    {"kind": "x"}, [None] * 3, [10**9] * 3, "../../etc/passwd",
)  # fmt: skip
"""What may stand where anything else is due in a JSON file."""


class Case(NamedTuple):
    """A file of one of the things that ``make_all`` makes, what happens to it, and who reads it then."""

    thing: str
    file: str
    damage: str
    verb: str
    seed: int = 0


class _Stop(Exception):
    pass


def make_all(place: Path) -> None:
    """A finished run, one that was stopped halfway, a model, a comparison, a folder of images and a run on it."""
    tiny: dict[str, Any] = {"epochs_scale": 0.02, "engine": {"device": "cpu", "snapshot_seconds": 0}, "threads": 1}
    create_run(complete(RunSettings(method="icarl", stream=STREAM, tasks=2, **tiny)), place / "run").train()
    stopped = create_run(complete(RunSettings(method="replay", stream=STREAM, tasks=2, **tiny)), place / "stopped")
    _stop(stopped, task=2, step=2)
    learner = drcil.Learner("mafdrc", memory="20", epochs_scale=0.02, device="cpu")
    for task in drcil.stream(STREAM)[:2]:
        learner.learn(task)
    learner.save(place / "model")
    colours = random.Random(0)
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (place / "folder" / split / name).mkdir(parents=True)
            for number in range(2):
                colour = tuple(colours.randrange(256) for _ in range(3))
                Image.new("RGB", (20, 20), colour).save(place / "folder" / split / name / f"{number}.png")
    compared = complete(RunSettings(method="replay", stream=STREAM, tasks=1, **tiny))
    create_run(compared, place / "comparison" / "runs" / "one").train()
    said = answer(_compare(place))
    assert said.code == 0, said.err


def _compare(place: Path) -> list[str]:
    tiny = ["--tasks", "1", "--epochs-scale", "0.02", "--threads", "1"]
    return ["compare", "replay", STREAM, *tiny, "--out", str(place / "comparison"), "--json", "--quiet"]


def _stop(run: Run, task: int, step: int) -> None:
    seen = 0

    def listener(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, StepDone) and event.task == task
        if seen == step:
            raise _Stop

    with contextlib.suppress(_Stop):
        run.train(listener=listener)


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def answer(arguments: list[str]) -> Answer:
    """What the command line says, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return Answer(code, out.getvalue(), err.getvalue())


def _folder_run(place: Path) -> list[str]:
    tiny = ["--tasks", "1", "--epochs-scale", "0.01", "--image-size", "16", "--backbone", "resnet20", "--threads", "1"]
    return ["run", "replay", f"folder:{place}/folder-b0-2", *tiny, "--out", str(place / "new"), "--json", "--quiet"]


VERBS: dict[str, dict[str, Callable[[Path], list[str]]]] = {
    "run": {
        "show": lambda place: ["show", str(place / "run"), "--json"],
        "evaluate": lambda place: ["evaluate", str(place / "run"), STREAM, "--json"],
        "tables": lambda place: ["show", str(place / "run")],
    },
    "stopped": {
        "show": lambda place: ["show", str(place / "stopped"), "--json"],
        "resume": lambda place: ["resume", str(place / "stopped"), "--json", "--quiet"],
    },
    "model": {
        "evaluate": lambda place: ["evaluate", str(place / "model"), STREAM, "--json"],
        "predict": lambda place: ["predict", str(place / "model"), str(place / "folder/test/cat/0.png"), "--json"],
    },
    "folder": {
        "check": lambda place: ["data", "check", f"folder:{place}/folder"],
        "run": _folder_run,
    },
    "comparison": {"compare": _compare},
}
"""By thing: the verbs that read it."""
EXACT = ("show", "resume", "evaluate", "predict")
"""The verbs whose answer must be the undamaged one, or none."""


def _truncate(file: Path, draw: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(len(content) or 1)])


def _flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(bytes(content))


def _garbage(file: Path, draw: random.Random) -> None:
    file.write_bytes(draw.randbytes(draw.randrange(1, 5000)))


def _swap(file: Path, draw: random.Random) -> None:
    """With another file beside it or below the same thing."""
    others = sorted(one for one in file.parent.parent.rglob("*") if one.is_file() and one != file)
    shutil.copy(draw.choice(others), file)


def _mutate(file: Path, draw: random.Random) -> None:
    """One entry of a JSON or TOML file gets another value, is gone, or is doubled; the seal is made anew."""
    if file.suffix == ".toml":
        lines = file.read_text().splitlines()
        at = draw.randrange(len(lines))
        key, equals, _ = lines[at].partition(" = ")
        value = draw.choice(["-1", "1e308", '"x"', "[]", "{}", "true", "99999999999999", '""', "[[1]]"])
        lines[at : at + 1] = draw.choice([[f"{key} = {value}"] if equals else [], [], [lines[at]] * 2])
        file.write_text("\n".join(lines))
        return
    if file.suffix != ".json":
        _flip(file, draw)
        return
    value = json.loads(file.read_text())
    sealed = value.pop(CHECKSUM, None) is not None
    _mutated(value, draw)
    if sealed:
        write_checksummed_json(file, value)
    else:
        file.write_text(json.dumps(value))


def _mutated(value: Any, draw: random.Random) -> None:
    """Somewhere inside."""
    places: list[tuple[Any, Any]] = []

    def walk(one: Any) -> None:
        for key in list(one) if isinstance(one, dict) else range(len(one)):
            places.append((one, key))
            if isinstance(one[key], dict | list):
                walk(one[key])

    walk(value)
    inside, key = draw.choice(places)
    if draw.random() < 0.2:
        del inside[key]
    else:
        inside[key] = draw.choice(NONSENSE)


def _replaced(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def damage(file: Path, draw: random.Random) -> None:
        file.unlink()
        make(file)

    return damage


def _precious(file: Path) -> Path:
    """The file outside that nobody may write to."""
    return next(place for place in file.parents if place.name == "copy").parent / "outside" / "precious"


def _sparse(file: Path) -> None:
    with open(file, "wb") as stream:
        stream.truncate(2**41)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "truncate": _truncate,
    "flip": _flip,
    "garbage": _garbage,
    "swap": _swap,
    "mutate": _mutate,
    "missing": _replaced(lambda file: None),
    "empty": _replaced(Path.touch),
    "directory": _replaced(Path.mkdir),
    "outside": _replaced(lambda file: file.symlink_to(_precious(file))),
    "loop": _replaced(lambda file: file.symlink_to(file)),
    "dangling": _replaced(lambda file: file.symlink_to("nowhere")),
    "device": _replaced(lambda file: file.symlink_to("/dev/zero")),
    "pipe": _replaced(os.mkfifo),
    "deep": _replaced(lambda file: file.write_text(DEEP)),
    "table": _replaced(lambda file: file.write_text("{}")),
    "list": _replaced(lambda file: file.write_text("[]")),
    "null": _replaced(lambda file: file.write_text("null")),
    "huge": _replaced(_sparse),
}
RANDOM = ("truncate", "flip", "garbage", "swap", "mutate")
"""Damages that differ by their seed."""


def files_of(place: Path, thing: str) -> list[str]:
    """Its files; of images of a class one, of a comparison those that are not a run's."""
    files = sorted(file.relative_to(place) for file in (place / thing).rglob("*") if file.is_file())
    return [str(file) for file in files if file.name not in ("1.png", ".lock") and "runs" not in file.parts[1:]]


def all_cases(place: Path) -> Iterator[Case]:
    """Every damage to every file, read by every verb."""
    for thing, verbs in VERBS.items():
        for file in files_of(place, thing):
            for damage in DAMAGES:
                for verb in verbs:
                    yield Case(thing, file, damage, verb)


def a_third_of_cases(place: Path, thing: str) -> list[Case]:
    """Every file of a thing and every damage, but not every damage to every file."""
    cases = [case for case in all_cases(place) if case.thing == thing]
    files, damages = files_of(place, thing), list(DAMAGES)
    return [case for case in cases if (files.index(case.file) + damages.index(case.damage)) % 3 == 0]


def expected_answers(place: Path, scratch: Path) -> dict[tuple[str, str], Any]:
    """What the exact verbs answer where nothing is damaged."""
    expected = {}
    for thing, verbs in VERBS.items():
        for verb, arguments in verbs.items():
            if verb in EXACT:
                copy = shutil.copytree(place, scratch / f"{thing}-{verb}", symlinks=True)
                said = answer(arguments(copy))
                assert said.code == 0, said.err
                expected[thing, verb] = _without_clocks(json.loads(said.out))
    return expected


def violation(case: Case, place: Path, scratch: Path, expected: Mapping[tuple[str, str], Any]) -> str | None:
    """How a case breaks the law; None: it does not."""
    copy = scratch / "copy"
    shutil.copytree(place / case.thing, copy / case.thing, symlinks=True)
    (scratch / "outside").mkdir()
    (scratch / "outside" / "precious").write_text("precious")
    try:
        DAMAGES[case.damage](copy / case.file, random.Random(repr(case)))
        before = _contents(copy)
        try:
            said = answer(VERBS[case.thing][case.verb](copy))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | pytest.fail.Exception):
                error.add_note(repr(case))
                raise
            return f"{type(error).__name__}: {error}"
        return _broken_law(case, said, copy, before, expected) or _outside(scratch)
    finally:
        shutil.rmtree(scratch)
        scratch.mkdir()


def _broken_law(
    case: Case, said: Answer, copy: Path, before: Mapping[str, str], expected: Mapping[tuple[str, str], Any]
) -> str | None:
    lines = [line for line in said.err.splitlines() if not line.startswith("drcil: warning: ")]
    if said.code not in (0, 1, 2) or "Traceback" in said.err:
        return f"exit code {said.code}: {said.err}"
    # A comparison tells how its runs end, and a check of data tells of files on standard output.
    if said.code and case.verb not in ("compare", "check") and not (len(lines) == 1 and lines[0].startswith("drcil: ")):
        return f"exit code {said.code} with {len(lines)} lines: {said.err[:2000]}"
    # Who edits a file and renews its seal, or chooses another number of tasks, gets another answer.
    exact = case.damage != "mutate" and not case.file.endswith("config.toml")
    if said.code == 0 and exact and (case.thing, case.verb) in expected:
        got = _without_clocks(json.loads(said.out))
        if got != expected[case.thing, case.verb]:
            return f"another answer: {_difference(got, expected[case.thing, case.verb])}"
    if said.code:
        after = _contents(copy)
        lost = [name for name, content in before.items() if after.get(name) != content and _kept(name)]
        if lost:
            return f"exit code {said.code}, and {lost[0]} was changed or is lost"
    return None


def _kept(name: str) -> bool:
    """Logs grow, a stopped stage goes on, and a comparison says where its runs are now; all else stays."""
    told = (".jsonl", ".log", ".lock", "report.json", "report.csv", "runs.csv")
    return not name.endswith(told) and "/snapshot" not in name


def _contents(place: Path) -> dict[str, str]:
    found = {}
    for file in sorted(place.rglob("*")):
        regular = file.is_file() and not file.is_symlink() and file.stat().st_size < 2**30
        name = str(file.relative_to(place))
        found[name] = hashlib.sha256(file.read_bytes()).hexdigest() if regular else "not a file"
    return found


def _outside(scratch: Path) -> str | None:
    known = {"copy", "outside"}
    strange = sorted(file.name for file in scratch.iterdir() if file.name not in known)
    if strange or [file.read_text() for file in (scratch / "outside").iterdir()] != ["precious"]:
        return f"something was written outside: {strange}"
    return None


def _without_clocks(value: Any) -> Any:
    """An answer but for seconds, versions and paths."""
    if isinstance(value, dict):
        left_out = ("seconds", "learning_seconds", "versions", "model", "directory")
        return {key: _without_clocks(one) for key, one in value.items() if key not in left_out}
    return [_without_clocks(one) for one in value] if isinstance(value, list) else value


def _difference(one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if one.get(key) != other.get(key):
                return f"{key}: {_difference(one.get(key), other.get(key))}"
    return f"{str(one)[:200]} instead of {str(other)[:200]}"
