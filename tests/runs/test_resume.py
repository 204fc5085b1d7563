"""A run that was stopped anywhere ends bit for bit as if it had not been; and nothing else makes a difference."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drcil.data.datasets.digits import load_digits
from drcil.data.image_set import ArraySource, ImageSet
from drcil.errors import UserError
from drcil.files import file_lock
from drcil.methods import METHODS
from drcil.methods.catalog import register_preset
from drcil.runs.execution import Run
from drcil.runs.plan import load_stream, plan_run
from drcil.streams.stream import make_stream
from drcil.train.events import EpochDone, Event, StageStarted, StepDone, TaskDone
from support.documents import SUPPORT
from support.kills import KILLS, gets_on
from support.processes import FORKS
from support.runs import ENGINE, Stop, Watch, assert_same, make_run, outcome

pytestmark = pytest.mark.numerical

UNWATCHED = {"device": "cpu", "snapshot_seconds": 1000}
"""A snapshot after every step, and none."""


@pytest.mark.parametrize(
    ("method", "stream"),
    [
        pytest.param("icarl", "digits-b0-5", marks=pytest.mark.slow),
        pytest.param("mafdrc", "digits-b0-5", marks=pytest.mark.slow),
        pytest.param("mafdrc", "digits-lt-ordered-b0-5", marks=pytest.mark.slow),
    ],
)
def test_a_killed_process_is_resumed_bit_for_bit(method: str, stream: str, tmp_path: Path) -> None:
    # Of the schedules the one in which every step is different.
    make_run(tmp_path / "whole", method, stream=stream, profile="fast", engine=UNWATCHED).train()
    make_run(tmp_path / "killed", method, stream=stream, profile="fast")
    program = SUPPORT / "kills.py"
    done = subprocess.run(
        [sys.executable, program, tmp_path / "killed"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [*(f"{kind}: killed" for kind in KILLS), "to the end: status 0"], done.stderr
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "killed"))
    assert not list((tmp_path / "killed").glob(".*.tmp")), "what kills left behind was not cleared away"


KILLED = (
    "lucir+two-stage", "mafdrc", "mecdrc", "icarl", "bic", "podnet", "foster", "dytox", "ranpac",
)  # fmt: skip
"""Stages of every kind. All other methods are stopped and resumed within a process (test_methods)."""


@pytest.mark.slow
@pytest.mark.parametrize("method", KILLED)
def test_kills_at_random_moments_make_no_difference(method: str, tmp_path: Path) -> None:
    events: list[Event] = []
    make_run(tmp_path / "whole", method).train(listener=events.append)
    make_run(tmp_path / "killed", method)
    program = [sys.executable, SUPPORT / "kills.py", tmp_path / "killed"]
    done = subprocess.run(
        [*map(str, program), "5", str(sum(map(gets_on, events))), str(zlib.crc32(method.encode()))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    *kills, end = done.stdout.splitlines()
    assert len(kills) == 5 and end == "to the end: status 0", done.stderr
    # Late ones may come a moment after the end.
    assert {kill.partition(",")[0] for kill in kills} <= {"killed", "status 0"}, kills
    assert kills[0].startswith("killed") and not kills[-1].endswith(", 0 finished"), kills
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "killed"))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_snapshots_keep_optimisers_hooks_and_branches(optimizer: str, tmp_path: Path) -> None:
    """Momenta in channels-last layout, AdamW's step counts, and a hook with buffers (``decaying_past``)."""
    options = {
        "tasks": 2,
        "settings": {
            "first.optimizer": optimizer,
            "adaptation.optimizer": optimizer,
            "adaptation.lr": 0.01,
            "first.lr": 0.01,
            "decaying_past": True,
        },
    }
    make_run(tmp_path / "whole", "mafdrc", **options).train()
    make_run(tmp_path / "stopped", "mafdrc", **options)
    for stop in [(StepDone, 1, 2), (StepDone, 1, 4), (StepDone, 2, 2), (StepDone, 2, 2), (StepDone, 2, 3)]:
        Watch().session(tmp_path / "stopped", stop)
    Run.open(tmp_path / "stopped").train()
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "stopped"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["icarl", "mafdrc"])
def test_mixed_precision_resumes_too(method: str, tmp_path: Path) -> None:
    """Training, herding, class means and evaluation through bfloat16; what is kept is in single precision."""
    options = {"tasks": 2, "engine": {**ENGINE, "precision": "bf16-mixed"}}
    make_run(tmp_path / "whole", method, **options).train()
    make_run(tmp_path / "stopped", method, **options)
    for stop in [(StepDone, 1, 3), (StepDone, 2, 3)]:
        Watch().session(tmp_path / "stopped", stop)
    Run.open(tmp_path / "stopped").train()
    mixed = outcome(tmp_path / "whole")
    assert_same(mixed, outcome(tmp_path / "stopped"))

    make_run(tmp_path / "single", method, tasks=2).train()
    single = outcome(tmp_path / "single")
    for file in mixed.keys() - {"result"}:
        for name, tensor in mixed[file].items():
            assert tensor.dtype == single[file][name].dtype, f"{name} of {file}"
    first = "tasks/01/method.safetensors"
    trained = [name for name, tensor in single[first].items() if not torch.equal(tensor, mixed[first][name])]
    assert len(trained) > len(single[first]) / 2, "nothing was computed in half precision"
    # Seeds 0 to 4: icarl 97.5 ± 1.2, mafdrc 84.2 ± 3.5; chance is 37.5.
    assert mixed["result"]["avg"] > 60


def test_a_snapshot_of_another_seed_is_ignored(tmp_path: Path) -> None:
    """Only what was begun in the same way is gone on with."""
    for seed in (0, 1):
        make_run(tmp_path / f"seed{seed}", "replay", seed=seed, tasks=1).train()
    other = make_run(tmp_path / "other", "replay", seed=1, tasks=1)
    Watch().session(other.directory, (StepDone, 1, 6))
    mixed = make_run(tmp_path / "mixed", "replay", seed=0, tasks=1)
    (other.directory / "snapshot").rename(mixed.directory / "snapshot")
    watch = Watch()
    mixed.train(listener=watch)
    assert not watch.began_late
    assert_same(outcome(tmp_path / "seed0"), outcome(tmp_path / "mixed"))
    assert outcome(tmp_path / "seed0")["result"] != outcome(tmp_path / "seed1")["result"]


def test_a_plan_can_be_used_again_after_a_stop(tmp_path: Path) -> None:
    """Without a snapshot the first task begins again, with the model before any training."""
    make_run(tmp_path / "whole", "replay", tasks=1, engine=UNWATCHED).train()
    stopped = make_run(tmp_path / "stopped", "replay", tasks=1, engine=UNWATCHED)
    plan, watch = plan_run(stopped.settings), Watch()
    watch.stop_at = (StepDone, 1, 3)
    with pytest.raises(Stop):
        stopped.train(plan, listener=watch)
    stopped.train(plan)
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "stopped"))


def test_a_torn_snapshot_is_as_good_as_none(tmp_path: Path) -> None:
    make_run(tmp_path / "whole", "replay", tasks=1).train()
    torn = make_run(tmp_path / "torn", "replay", tasks=1)
    Watch().session(torn.directory, (StepDone, 1, 6))
    snapshot = torn.directory / "snapshot" / "partial.safetensors"
    snapshot.write_bytes(snapshot.read_bytes()[:1000])
    torn.train()
    assert_same(outcome(tmp_path / "whole"), outcome(torn.directory))


@pytest.mark.parametrize("stop", [(StepDone, 1, 2), (TaskDone, 1, 1)])
def test_settings_cannot_change_halfway(
    stop: tuple[type, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drcil.train.engine.require_compiler", lambda device: None)
    run = make_run(tmp_path / "run", "icarl")
    Watch().session(run.directory, stop)
    config = run.directory / "config.toml"
    before = config.read_text()
    for old, new, name in (
        ('"later.batch_size" = 64', '"later.batch_size" = 48', "later.batch_size"),
        ("[settings]", 'augment = "none"\n[settings]', "augment"),
        ("[settings]", 'backbone = "resnet20"\n[settings]', "backbone"),
        ("order_seed = 1993", "order_seed = 7", "order_seed"),
        ("validation = 0.0", "validation = 0.2", "validation"),
        ('precision = "32"', 'precision = "bf16-mixed"', "precision"),
        ("compile = false", "compile = true", "compile"),
    ):
        assert before.count(old) == 1
        config.write_text(before.replace(old, new))
        with pytest.raises(
            UserError, match=rf"cannot be used: '{name}' in config.toml has changed since the run began"
        ):
            Run.open(run.directory).train()
    config.write_text(before)
    other = plan_run(run.settings, make_stream("digits-b0-5", order_seed=5))
    if run.finished_tasks():
        with pytest.raises(UserError, match=r"in another order than .* class 0 is '4' in the model and '[^4]' in the"):
            Run.open(run.directory).train(other)
    config.write_text(before.replace("tasks = 3", "tasks = 2").replace("workers = 2", "workers = 1"))
    assert len(Run.open(run.directory).train().to_json()["curve"]) == 2


@pytest.fixture
def own_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe of a method ``own``, PODNet by another name, in a file outside the package."""
    recipe = tmp_path / "own.toml"
    recipe.write_text(files("drcil.recipes").joinpath("podnet.toml").read_text())
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))
    register_preset("own", METHODS["podnet"].build, summary="Own", paper="None", year=2026, recipe=recipe)
    return recipe


def change_margin(recipe: Path) -> None:
    before = recipe.read_text()
    assert before.count("margin = 0.6") == 1
    recipe.write_text(before.replace("margin = 0.6", "margin = 0.1"))


@pytest.mark.parametrize("task", [1, 2])
def test_a_recipe_cannot_change_halfway(task: int, own_recipe: Path, tmp_path: Path) -> None:
    """The margin of the loss shows neither in what a stage begins with nor in ``config.toml``."""
    run = make_run(tmp_path / "run", "own")
    Watch().session(run.directory, (StepDone, task, 2))
    change_margin(own_recipe)
    with pytest.raises(UserError, match=r"cannot be resumed: 'margin' in the recipe of 'own' has changed"):
        Run.open(run.directory).train()


def test_evaluation_in_between_and_the_global_generators_make_no_difference(tmp_path: Path) -> None:
    accuracies = []

    def listener(event: Event) -> None:
        if isinstance(event, EpochDone):
            accuracies.append(event.accuracy)

    make_run(tmp_path / "plain", "mafdrc", engine=UNWATCHED).train()
    torch.manual_seed(5)
    np.random.seed(5)
    torch.rand(3)
    make_run(tmp_path / "watched", "mafdrc", engine={**UNWATCHED, "eval_every": 1}).train(listener=listener)
    assert_same(outcome(tmp_path / "plain"), outcome(tmp_path / "watched"))
    assert len(accuracies) == 2 + 2 * 2
    assert all(accuracy is not None and 0 <= accuracy <= 100 for accuracy in accuracies)


def test_a_run_leaves_the_global_generator_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_run(tmp_path / "run", "icarl", tasks=2).train()
    assert torch.equal(torch.rand(3), expected)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Four classes of noisy pictures on disk, each of its own colour, larger than they will be seen."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for label in range(4):
            directory = tmp_path / "photographs" / split / f"class{label}"
            directory.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 120, (24, 28, 3), dtype=np.uint8)
                pixels[..., label % 3] += 60 + 70 * (label // 3)
                Image.fromarray(pixels).save(directory / f"{number}.png")
    return tmp_path / "photographs"


@pytest.mark.slow
def test_loading_workers_make_no_difference(photographs: Path, tmp_path: Path) -> None:
    outcomes = []
    for workers in (0, 1, 2):
        run = make_run(
            tmp_path / f"workers{workers}",
            "icarl",
            stream=f"folder:{photographs}-b0-2",
            tasks=2,
            image_size=16,
            backbone="resnet-digits",
            memory="8",
            epochs_scale=0.005,
            settings={"first.batch_size": 8, "later.batch_size": 8},
            engine={**ENGINE, "workers": workers},
        )
        run.train()
        outcomes.append(outcome(run.directory))
    for other in outcomes[1:]:
        assert_same(outcomes[0], other)


def rename_one(photographs: Path) -> None:
    (photographs / "train" / "class0" / "0.png").rename(photographs / "train" / "class0" / "renamed.png")


SMALL = {"tasks": 2, "image_size": 16, "backbone": "resnet-digits", "epochs_scale": 0.005}


def lose_a_class(photographs: Path) -> None:
    for split in ("train", "test"):
        shutil.rmtree(photographs / split / "class3")


@pytest.mark.parametrize(
    ("change", "reason"),
    [(rename_one, "the training images of class 'class0' have changed"), (lose_a_class, "class 'class3' is gone")],
)
@pytest.mark.parametrize("stop", [(StepDone, 1, 2), (TaskDone, 1, 1)])
def test_images_cannot_change_halfway(
    stop: tuple[type, int, int], change: Callable[[Path], None], reason: str, photographs: Path, tmp_path: Path
) -> None:
    """From the first step on, and though fine-tuning keeps no exemplars that would be missed."""
    batches = {"first.batch_size": 8, "later.batch_size": 8}
    run = make_run(tmp_path / "run", "finetune", stream=f"folder:{photographs}-b0-2", settings=batches, **SMALL)
    Watch().session(run.directory, stop)
    change(photographs)
    sentence = rf"the images of 'folder:.*' are not those that it began with: {reason}; start a new run, or restore"
    with pytest.raises(UserError, match=sentence):
        run.train()


def test_a_damaged_file_is_named_in_one_sentence_also_by_a_worker(photographs: Path, tmp_path: Path) -> None:
    options = {**SMALL, "engine": {**ENGINE, "workers": 1}}
    run = make_run(tmp_path / "run", "icarl", stream=f"folder:{photographs}-b0-2", memory="8", **options)

    def damage(event: Event) -> None:
        if isinstance(event, StageStarted):
            for file in photographs.glob("train/*/7.png"):
                file.write_bytes(file.read_bytes()[:200])

    with pytest.raises(UserError, match=r"class\d/7.png cannot be read as an image") as caught:
        run.train(listener=damage)
    assert "\n" not in str(caught.value)


def test_two_processes_cannot_work_on_one_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "replay")
    with ProcessPoolExecutor(1, FORKS) as second, file_lock(run.directory / ".lock", "in use"):
        refused = second.submit(go, run.directory).exception()
    assert isinstance(refused, UserError)
    assert str(refused) == f"{run.directory} is in use by another process; wait for it or stop it"
    assert not run.finished_tasks()


def go(directory: Path) -> None:
    Run.open(directory).train()


def test_where_there_are_no_locks_everyone_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with file_lock(tmp_path / "nowhere" / ".lock", "in use"):
        pass


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_a_full_disk_ends_a_run_with_a_sentence_and_harms_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "whole", "replay", tasks=2).train()
    full = make_run(tmp_path / "full", "replay", tasks=2)
    Watch().session(full.directory, (StepDone, 2, 3))
    snapshot = full.directory / "snapshot" / "partial.safetensors"
    before = snapshot.read_bytes()
    with small_disk(len(before) // 2), pytest.raises(UserError) as caught:
        full.train()
    assert str(caught.value) == f"cannot write {snapshot}: File too large; earlier files are intact"
    assert snapshot.read_bytes() == before
    assert [file.name for file in snapshot.parent.iterdir()] == [snapshot.name]
    full.train()
    assert_same(outcome(tmp_path / "whole"), outcome(full.directory))


@pytest.mark.slow
def test_exemplars_of_a_dataset_without_a_name_are_the_same_after_a_stop(tmp_path: Path) -> None:
    """They are found again as pixels, whose rows are not those of the dataset."""
    known = load_digits()
    pixels = known.train.source.read(np.arange(len(known.train.source)))
    train = ImageSet.of(ArraySource(pixels), known.train.rows, known.train.labels)
    outcomes = []
    for name, stops in (("whole", []), ("stopped", [(TaskDone, 1), (StepDone, 2), (TaskDone, 2)])):
        run = make_run(tmp_path / name, "icarl", memory="12")
        plan = plan_run(run.settings, load_stream(run.settings, replace(known, train=train)))
        for kind, number in stops:

            def stop(event: Event, kind: type = kind, number: int = number) -> None:
                if isinstance(event, kind) and event.task == number:
                    raise Stop

            with pytest.raises(Stop):
                run.train(plan, listener=stop)
        run.train(plan)
        outcomes.append(outcome(run.directory))
    assert_same(*outcomes)
