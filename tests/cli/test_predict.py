"""``drcil predict``: files, folders and lists of them, what cannot be read, and the forms of the answer."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

import drcil
from drcil import Learner, UserError
from drcil.cli import main
from drcil.data.user_images import Unreadable, picture_files
from drcil.models.predictor import Prediction
from drcil.streams.stream import make_stream

STREAM = make_stream("digits-b0-5")
TEST = STREAM[1].test.subset(range(12))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    learner = Learner("replay", epochs_scale=0.1, device="cpu")
    for task in STREAM[:2]:
        learner.learn(task)
    place = tmp_path_factory.mktemp("model") / "digits"
    learner.save(place)
    return place


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of folders, with a picture that is none and files that nobody means."""
    place = tmp_path_factory.mktemp("pictures")
    for number, pixels in enumerate(TEST.read()[:, 0].numpy()):
        folder = place / f"folder{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    (place / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    (place / "notes.txt").write_text("not an image")
    (place / ".hidden.png").write_bytes(b"")
    return place


def answered(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["predict", *map(str, arguments), "--device", "cpu"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_folder_is_answered_file_by_file_and_what_cannot_be_read_is_named(
    model: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answered(capsys, model, pictures, "--json", "--top", "3", "--batch", "5")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and "broken.jpg cannot be read as an image" in err and "1 file could not be read" in err
    files = [*sorted(pictures.glob("folder0/*")), *sorted(pictures.glob("folder1/*"))]
    assert [one["file"] for one in found] == list(map(str, files))
    predictor = drcil.load_predictor(model, device="cpu")
    for one, expected in zip(found, predictor.predict(files, top=3), strict=True):
        assert [entry["class"] for entry in one["classes"]] == list(expected.classes)
        assert [entry["probability"] for entry in one["classes"]] == pytest.approx(expected.probabilities, abs=1e-5)
        assert one["label"] == expected.label and expected.file == one["file"]


def test_single_files_are_a_line_each(model: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(pictures.glob("folder1/*"))[:2]
    code, out, err = answered(capsys, model, *files, "--top", "2")
    assert (code, err) == (0, "")
    assert [line.split(": ")[0] for line in out.splitlines()] == list(map(str, files))
    assert all(line.count("%") == 2 for line in out.splitlines())


def test_paths_come_from_standard_input_too(
    model: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(pictures.glob("folder0/*"))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(str, files)) + "\n\n"))
    code, out, _ = answered(capsys, model, "-", "--csv")
    rows = list(csv.reader(io.StringIO(out)))
    assert code == 0 and rows[0] == ["file", "class1", "probability1"]
    assert [row[0] for row in rows[1:]] == list(map(str, files))


def test_a_missing_file_is_named_and_the_others_are_answered_wherever_the_names_come_from(
    model: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [pictures / "nosuch.jpg", pictures / "folder0" / "00.png"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(str, paths))))
    code, out, err = answered(capsys, model, *paths)
    assert code == 1 and out.startswith(f"{paths[1]}: ") and f"{paths[0]} cannot be read" in err
    assert (code, out, err) == answered(capsys, model, "-")


@pytest.mark.parametrize(("form", "said"), [("--csv", "unknown"), ("--json", '"label": null'), (None, ": unknown (")])
def test_below_the_threshold_the_answer_is_unknown(
    form: str | None, said: str, model: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(picture_files(pictures / "folder0"))
    options = [form] if form else []
    assert said in answered(capsys, model, file, "--threshold", "1", *options)[1]
    assert said not in answered(capsys, model, file, "--threshold", "0", *options)[1]


def test_any_number_of_files_goes_through_a_few_at_a_time(model: Path, pictures: Path) -> None:
    """No path is asked for before the batch but one behind it is needed."""
    taken = 0

    def paths() -> Iterator[Path]:
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield pictures / "folder0" / "00.png"

    predictor = drcil.load_predictor(model, device="cpu")
    answers = predictor.predict_files(paths(), batch=4)
    assert isinstance(next(answers), Prediction) and taken == 8
    assert sum(1 for _ in answers) == 49


def test_a_batch_without_a_picture_is_no_hindrance(model: Path, pictures: Path) -> None:
    predictor = drcil.load_predictor(model, device="cpu")
    good, bad = pictures / "folder0" / "00.png", pictures / "nothing.png"
    answers = list(predictor.predict_files([bad, bad, good], batch=2))
    assert [type(answer) for answer in answers] == [Unreadable, Unreadable, Prediction]
    assert answers[0].file == str(bad)


def test_python_is_told_of_the_function_that_goes_on(model: Path, pictures: Path) -> None:
    with pytest.raises(UserError, match=r"broken.jpg cannot be read as an image \(.*\); predict_files takes paths"):
        drcil.load_predictor(model, device="cpu").predict(pictures)


def test_a_folder_within_itself_is_entered_once(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "again").symlink_to(tmp_path)
    assert list(picture_files(tmp_path)) == [tmp_path / "a.png"]


def test_a_run_is_as_good_as_its_last_model(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--tasks", "2", "--epochs-scale", "0.02", "--device", "cpu", "--threads", "1"]
    assert main(["run", "replay", "digits-b0-5", *options, "--out", "run", "--quiet"]) == 0
    capsys.readouterr()
    file = next(picture_files(pictures / "folder0"))
    assert answered(capsys, "run", file) == answered(capsys, "run/tasks/02", file)
    assert drcil.load("run", device="cpu").classes == drcil.load_predictor("run/tasks/02", device="cpu").classes


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.png"], "there is no image file or folder nowhere.png"),
        (["nowhere.png", "b", "c"], "there is no image file or folder nowhere.png, nor any of the 2 others"),
        (["empty", "--csv"], "there are no image files in empty"),
        (["-", "-"], "standard input can be read once"),
        (["-", "--json", "--csv"], "give --json or --csv, not both"),
        (["-", "--threshold", "1.5"], "'--threshold': Input should be less than or equal to 1"),
        (["-", "--top", "0"], "'--top': Input should be greater than or equal to 1"),
        (["-", "--readout", "nme"], "unknown readout 'nme'"),
    ],
)
def test_what_cannot_be_asked_is_told(
    arguments: list[str],
    told: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("sys.stdin", io.StringIO("x.png\n"))
    code, out, err = answered(capsys, model, *arguments)
    assert code == 2 and told in err and not out


def test_a_list_may_have_the_line_ends_of_windows(
    model: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{pictures / 'folder0' / '00.png'}\r\n", newline=""))
    code, out, _ = answered(capsys, model, "-")
    assert code == 0 and out.count("\n") == 1


def test_it_stops_when_nobody_reads_on(model: Path, pictures: Path) -> None:
    """Its list never ends: it would go on for ever."""
    program = [sys.executable, "-m", "drcil.cli", "predict", str(model), "-", "--batch", "1", "--device", "cpu"]
    file = f"{pictures / 'folder0' / '00.png'}\n".encode()
    with subprocess.Popen(program, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
        assert asked.stdin is not None and asked.stdout is not None
        asked.stdin.write(3 * file)
        assert b"00.png" in asked.stdout.readline()
        asked.stdout.close()
        with suppress(BrokenPipeError):
            # A write waits where the pipe is full, and fails once nobody can read it.
            while True:
                asked.stdin.write(file)
        assert asked.wait() != 0
