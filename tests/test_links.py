"""Links inside the directories that drcil writes in: nothing behind them is changed, and only drcil's files go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import drcil
from drcil.cli import main
from drcil.errors import UserError
from drcil.files import atomic_directory, read_checksummed_json, write_bytes, write_checksummed_json
from drcil.models.model_directory import read_model
from drcil.models.store import add_version, current_version
from drcil.runs.evidence import read_record, write_evidence
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete
from drcil.serving.decoder import EncodedImage
from drcil.serving.learn_jobs import CollectedImages
from drcil.settings import EngineSettings, RunSettings
from drcil.updates import rename, write_version

OTHER = "0123456789abcdef01234567"
"""A directory of snapshots, as a lesson that was given up leaves it."""
SMALL = ["--device", "cpu", "--threads", "1", "--workers", "0", "--quiet"]
SETTINGS = complete(
    RunSettings(
        method="replay",
        stream="digits-b0-5",
        tasks=1,
        epochs_scale=0.001,
        engine=EngineSettings(device="cpu", workers=0, snapshot_seconds=0.0),
    )
)

Content = dict[str, bytes | str | None]


def content(place: Path) -> Content:
    """All that is in a directory: files with their bytes, links with where they lead, and directories."""
    return {
        str(path.relative_to(place)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(place.rglob("*"))
    }


def images(place: Path, *classes: str) -> Path:
    draw = np.random.default_rng(len(classes[0]))
    for name in classes:
        (place / name).mkdir(parents=True)
        for number in range(4):
            pixels = draw.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(place / name / f"{number}.png")
    return place


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two versions and a lesson that was given up; images to teach it."""
    place = tmp_path_factory.mktemp("taught")
    learner = drcil.Learner("replay", backbone="resnet-digits", image_size=8, epochs_scale=0.001, device="cpu")
    learner.learn(images(place / "first", "cat", "dog"))
    model = place / "model"
    add_version(model, lambda directory: write_version(learner, directory))
    rename(model, "dog", "wolf")
    write_bytes(model / "learning" / OTHER / "01-00-first.safetensors", b"snapshot")
    images(place / "new", "owl")
    images(place / "more", "cat")
    return place


@pytest.fixture
def place(taught: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught, tmp_path / "home"))


def plant(link: Path, outside: Path) -> Content:
    """Put a link in the place of something that is then outside, beside the user's own; what is there now."""
    outside.mkdir()
    if link.exists():
        shutil.move(link, outside / "target")
    else:
        (outside / "target").mkdir(parents=True)
    # In a run a number would be a task.
    mine = ("holiday",) if link.name == "tasks" else ("2020", "holiday")
    for name in mine if (outside / "target").is_dir() else ():
        (outside / "target" / name).mkdir()
        (outside / "target" / name / "photo.jpg").write_bytes(b"precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(outside / "target", link.parent))
    return content(outside)


COMMANDS = {
    "learn": ["learn", "model", "new", *SMALL],
    "refresh": ["learn", "model", "more", "--known", "refresh", *SMALL],
    "rename": ["rename", "model", "cat", "lion"],
    "forget": ["forget", "model", "cat"],
    "purge": ["forget", "model", "cat", "--purge"],
    "undo": ["undo", "model"],
}
WRITTEN = ("learning", f"learning/{OTHER}", "versions", "versions/0001", "versions/0002", ".lock")
READ = ("current.json", "versions/0001/exemplars", "versions/0002/exemplars", "versions/0002/method.safetensors")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("link", [*WRITTEN, *READ])
def test_a_link_inside_a_model_changes_nothing_outside(
    link: str, command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = plant(place / "model" / link, place / "outside")
    capsys.readouterr()
    code = main(COMMANDS[command])
    said = capsys.readouterr().err
    assert content(place / "outside") == before
    if link in WRITTEN:
        assert code and link in said and "link" in said and said.count("\n") == 1
        assert (place / "model" / link).is_symlink() and read_model(place / "model").classes == ("cat", "wolf")
    else:
        assert code == 0, said
        assert read_model(place / "model").classes != ("cat", "wolf") or command == "refresh"


def test_corrections_are_not_written_through_a_link(tmp_path: Path) -> None:
    given, picture = CollectedImages(), EncodedImage("png", b"picture")
    try:
        directory = given.write_table([]).parent
        (tmp_path / "precious").write_bytes(b"precious")
        (directory / "00000002.png").symlink_to(tmp_path / "precious")
        with pytest.raises(FileExistsError):
            given.add(picture, "cat")
    finally:
        given.close()
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_model_itself_may_be_a_link(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    Path("model").rename("elsewhere")
    Path("model").symlink_to("elsewhere")
    assert main(COMMANDS[command]) == 0
    assert Path("model").is_symlink() and current_version(Path("elsewhere")).is_dir()


@pytest.mark.parametrize("command", COMMANDS)
def test_only_what_drcil_wrote_is_removed(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    mine = [
        place / "model" / name
        for name in (
            "versions/2020/photo.jpg",
            "versions/.photo.1.tmp",
            "versions/holiday/photo.jpg",
            f"learning/{OTHER}/notes.txt",
            "learning/holiday/partial.safetensors",
            "learning/notes.txt",
            ".notes.1.tmp",
        )
    ]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"precious")
    assert main(COMMANDS[command]) == 0
    assert all(file.read_bytes() == b"precious" for file in mine)
    snapshot = place / "model" / "learning" / OTHER / "01-00-first.safetensors"
    assert snapshot.exists() == (command in ("rename", "forget", "undo"))
    assert main(["undo", "model"]) == (2 if command in ("purge", "undo") else 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = create_run(SETTINGS, tmp_path_factory.mktemp("finished") / "run")
    run.train()
    return run.directory


def with_another_task(finished: Path, directory: Path) -> Path:
    """A run that has one task to go."""
    shutil.copytree(finished, directory)
    config = directory / "config.toml"
    config.write_text(config.read_text().replace("tasks = 1", "tasks = 2"))
    return directory


@pytest.mark.parametrize("link", ["tasks", "snapshot", "events.jsonl", ".lock", "tasks/01", "result.json", ".owner"])
def test_a_link_inside_a_run_changes_nothing_outside(
    link: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = with_another_task(finished, tmp_path / "run")
    before = plant(directory / link, tmp_path / "outside")
    code = main(["resume", str(directory), "--quiet"])
    said = capsys.readouterr().err
    assert content(tmp_path / "outside") == before
    if link in ("tasks/01", "result.json", ".owner"):
        assert code == 0 and len(Run.open(directory).result().to_json()["curve"]) == 2
    else:
        assert code and link in said and "link" in said and said.count("\n") == 1


@pytest.mark.parametrize("name", ["plugins/mine.py", "environment.json", ".config.toml.1.tmp"])
def test_a_run_does_not_begin_in_a_directory_of_others(name: str, tmp_path: Path) -> None:
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_bytes(b"precious")
    before = content(tmp_path)
    with pytest.raises(UserError, match="exists and is not an empty directory"):
        create_run(SETTINGS, tmp_path / "run")
    assert content(tmp_path) == before


def test_a_run_removes_only_its_own_snapshots(finished: Path, tmp_path: Path) -> None:
    directory = with_another_task(finished, tmp_path / "run")
    mine = [directory / name for name in ("snapshot/photo.jpg", "tasks/.photo.1.tmp", ".notes.1.tmp")]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"precious")
    write_bytes(directory / "snapshot" / "partial.safetensors", b"of another task")
    Run.open(directory).train()
    assert all(file.read_bytes() == b"precious" for file in mine)
    assert os.listdir(directory / "snapshot") == ["photo.jpg"]


@pytest.mark.parametrize("link", ["runs", "logs", "plots"])
@pytest.mark.parametrize("verb", ["compare", "reproduce"])
def test_a_comparison_or_a_suite_is_written_in_its_own_directory(
    verb: str, link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = plant(tmp_path / "out" / link, tmp_path / "outside")
    Path("suite.toml").write_text('methods = ["replay"]\nstreams = ["digits-b0-5"]\ntasks = 1\n')
    asked = ["replay", "digits-b0-5", "--tasks", "1"] if verb == "compare" else ["suite.toml"]
    assert main([verb, *asked, "--out", "out", "--quiet"])
    said = capsys.readouterr().err
    assert f"out/{link} is a link" in said and said.count("\n") == 1
    assert content(tmp_path / "outside") == before and os.listdir("out") == [link]


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_behind_a_link_is_reused_but_not_continued(
    whole: bool, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = Path(shutil.copytree(finished, tmp_path / "elsewhere"))
    if not whole:
        shutil.rmtree(elsewhere / "tasks")
    Path("out/runs").mkdir(parents=True)
    Path("out/runs/mine").symlink_to("../../elsewhere")
    before = content(elsewhere)
    quick = ["--tasks", "1", "--epochs-scale", "0.001", "--device", "cpu", "--workers", "0"]
    code = main(["compare", "replay", "digits-b0-5", *quick, "--out", "out"])
    assert content(elsewhere) == before
    assert (code == 0) == whole
    assert whole or "out/runs/mine is a link" in "".join(capsys.readouterr())


def test_evidence_is_stored_in_its_directory(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = write_evidence(read_record(finished), Path("in"))
    found = read_checksummed_json(stored)
    write_checksummed_json(
        Path("evil.json"), {**found, "settings": {**found["settings"], "method": "../../escaped/evil"}}
    )
    Path("deep/store").mkdir(parents=True)
    before = content(tmp_path)
    assert main(["report", "evil.json", "--store", "deep/store"]) == 2
    said = capsys.readouterr().err
    assert "../../escaped/evil" in said and "cannot be the name of a file" in said and said.count("\n") == 1
    assert content(tmp_path) == before
    Path("precious").write_bytes(b"precious")
    (Path("deep/store") / stored.name).symlink_to("../../precious")
    assert main(["report", str(stored), "--store", "deep/store"]) == 0
    assert Path("precious").read_bytes() == b"precious"


def make_file(path: Path, root: Path) -> None:
    write_bytes(path, b"x", root)


def fill_directory(path: Path, root: Path) -> None:
    with atomic_directory(path, root) as directory:
        write_bytes(directory / "x", b"x")


@pytest.mark.parametrize("write", [make_file, fill_directory])
def test_below_a_root_no_link_is_followed(write: Callable[[Path, Path], None], tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()
    write(root / "a" / "b" / "c", root)
    (root / "a" / "link").symlink_to(outside)
    for path in (root / "a" / "link" / "c", root / "a" / "link" / "b" / "c"):
        with pytest.raises(UserError, match=r"a/link is a link, and drcil follows no links inside .*root"):
            write(path, root)
    with pytest.raises(UserError, match="cannot be the name of a file"):
        write(root / "a" / ".." / ".." / "outside" / "c", root)
    assert not list(outside.iterdir())
    (tmp_path / "other").symlink_to(root)
    write(tmp_path / "other" / "d" / "e", tmp_path / "other")
    assert (root / "d" / "e").exists()
