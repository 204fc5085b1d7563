"""Several processes compute what one would: normalisation, gradients, features, augmentation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from drcil import distributed
from drcil.data import loader
from drcil.data.augment import AUGMENTS, Draws, build_augment
from drcil.data.dataset import CIFAR_SPEC, PHOTO_SPEC
from drcil.data.file_source import FileList, FileSource
from drcil.data.loader import PictureCache
from drcil.nets.net import Output
from drcil.seeding import BatchShard, batch_shard, bernoulli_by_image, generator, seeded_torch
from drcil.stages import Batch, Losses, Term
from drcil.train import SnapshotStore
from drcil.train.batches import is_shared, shard_batch, shard_batches, split_shard
from drcil.train.events import Event
from drcil.train.sync_norm import SyncNorms
from support.engine import (
    FEW,
    SCHEDULE,
    assert_equal,
    fit,
    in_double,
    make_engine,
    make_net,
    make_stage,
    stopped_and_resumed,
)
from support.process_groups import in_processes

pytestmark = pytest.mark.numerical


def normalised(size: int) -> dict[str, Tensor]:
    """A batch normalisation of this process's rows of a batch, and the gradients of a loss on all of them."""
    with seeded_torch("norm"):
        norm = nn.BatchNorm2d(3).double()
        nn.init.uniform_(norm.weight), nn.init.uniform_(norm.bias)
        images, slopes = torch.randn(2, size, 3, 4, 2, dtype=torch.float64)
    # Means far apart, so that statistics of one process would tell.
    images = images + 5 * torch.arange(size).view(-1, 1, 1, 1)
    own = images[distributed.shard(size)].clone().requires_grad_()
    norms = SyncNorms(norm, synchronised=True)
    with norms.installed():
        output = norm(own)
    (output * slopes[distributed.shard(size)]).sum().backward()
    assert own.grad is not None and norm.weight.grad is not None and norm.bias.grad is not None
    gradients = {"weight": distributed.all_reduce(norm.weight.grad), "bias": distributed.all_reduce(norm.bias.grad)}
    joined = dict(zip(("output", "images"), distributed.all_gather_rows([output.detach(), own.grad]), strict=True))
    return {**joined, **gradients, **{name: value.clone() for name, value in norm.state_dict().items()}}


@pytest.mark.parametrize("processes", [2, 3])
def test_a_normalisation_over_processes_is_that_of_the_whole_batch(processes: int) -> None:
    expected = normalised(7)
    for found in in_processes(processes, normalised, 7):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)


def some_old(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
    """A mean over all images, and one over those of the first classes, of which a process may have none."""
    surprise = functional.cross_entropy(output.logits.fused, batch.labels, reduction="none")
    old = batch.labels < 2
    return {
        "all": Term(surprise.mean()),
        "old": Term((surprise * old).sum() / old.sum().clamp(min=1), 0.7, lambda labels: labels < 2),
    }


def trained(options: dict[str, Any], batch: int) -> dict[str, Tensor]:
    """The net after a short stage, and the losses that were told of it."""
    losses: list[dict[str, float]] = []
    engine = make_engine(
        "crop", listener=lambda event: losses.append(event.losses) if hasattr(event, "lr") else None, **options
    )
    schedule = SCHEDULE.model_copy(update={"batch_size": batch})
    with in_double(), engine.task(1):
        net = make_net()
        engine.fit(make_stage(net, objective=some_old, schedule=schedule, data=FEW))
    return {**net.state_dict(), "losses": torch.tensor([list(one.values()) for one in losses])}


@pytest.mark.parametrize(
    ("processes", "options", "batch"),
    [(2, {}, 32), (3, {}, 32), (2, {"sync_batchnorm": True}, 33), (3, {}, 97)],
    ids=["two", "three", "uneven", "a last batch of three"],
)
def test_a_stage_in_processes_ends_as_in_one(processes: int, options: dict[str, Any], batch: int) -> None:
    expected = trained({}, batch)
    together = in_processes(processes, trained, options, batch)
    for found in together:
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7, msg=partial("{}: {}".format, name))
        for name, value in together[0].items():
            assert torch.equal(found[name], value), f"{name} differs between processes"


def test_processes_that_normalise_apart_stay_alike() -> None:
    one, other = in_processes(2, trained, {"sync_batchnorm": False}, 32)
    for name, value in one.items():
        assert torch.equal(other[name], value), name
    assert not torch.allclose(
        one["backbone.stem.norm.running_mean"], trained({}, 32)["backbone.stem.norm.running_mean"]
    )


def test_parts_of_a_batch_add_up_where_no_statistics_are_taken() -> None:
    """Without batch statistics the parts of a batch, of one or two processes, have the gradient of the whole."""
    expected = still({})
    for found in (still({"accumulate": 3}), *in_processes(2, still, {"accumulate": 3})):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-7, atol=1e-9, msg=name)


def still(options: dict[str, Any]) -> dict[str, Tensor]:
    """The net after a stage in which its normalisations stay as they are."""
    engine = make_engine("crop", **options)
    with in_double(), engine.task(1):
        net = make_net()
        engine.fit(make_stage(net, objective=some_old, frozen=[net]))
    return net.state_dict()


def resumed(directory: Path) -> list[dict[str, Tensor]]:
    """The net of a stage without and with interruptions, in this process."""
    nets: list[nn.Module] = []

    def train(snapshots: SnapshotStore, listener: Callable[[Event], None]) -> None:
        nets.append(make_net())
        fit(make_engine("crop", snapshots if distributed.is_main() else None, listener), make_stage(nets[-1]))

    train(SnapshotStore(), lambda event: None)
    stopped_and_resumed(train, directory, [3, 2])
    return [dict(nets[0].state_dict()), dict(nets[-1].state_dict())]


def test_a_stage_of_three_processes_resumes_bit_for_bit(tmp_path: Path) -> None:
    """With two processes any layout of gradients in messages gives the same sums; with three it does not."""
    for uninterrupted, interrupted in in_processes(3, resumed, tmp_path):
        assert_equal(uninterrupted, interrupted)


def features(size: int) -> Tensor:
    engine = make_engine(inference_batch=7)
    return engine.features(make_net(), FEW.subset(np.arange(size)))


@pytest.mark.parametrize("size", [1, 7, 50])
def test_features_are_the_same_bit_for_bit(size: int) -> None:
    for found in in_processes(3, features, size):
        assert torch.equal(found, features(size))


def gathered() -> list[Any]:
    rows = torch.arange(6)[distributed.shard(6)]
    columns = [rows.double(), rows.bool(), rows.view(-1, 1).to(torch.bfloat16)]
    everything = distributed.all_gather_rows(columns if distributed.rank() < 2 else None)
    return [
        *everything,
        distributed.all_gather_object(distributed.rank()),
        distributed.broadcast_object(f"of {distributed.rank()}"),
        distributed.all_reduce(torch.ones(2)),
    ]


def test_processes_exchange_rows_and_values() -> None:
    for found in in_processes(3, gathered):
        assert found[0].tolist() == [0, 1, 2, 3] and found[1].dtype == torch.bool and found[2].shape == (4, 1)
        assert found[3:5] == [[0, 1, 2], "of 0"] and found[5].tolist() == [3, 3]
    alone = distributed.all_gather_rows([torch.arange(3)])
    assert (
        alone[0].tolist() == [0, 1, 2]
        and distributed.broadcast_object(4) == 4
        and distributed.all_gather_object(5) == [5]
    )


@pytest.mark.parametrize("name", sorted(AUGMENTS))
@pytest.mark.parametrize("spec", [CIFAR_SPEC, PHOTO_SPEC], ids=["shifted", "cut"])
def test_an_image_is_augmented_alike_whoever_looks_at_it(name: str, spec: Any) -> None:
    images = torch.randint(256, (23, 3, 24, 24), dtype=torch.uint8, generator=generator("images"))
    augment = build_augment(name, spec, in_memory=True)
    together = augment(images, Draws(generator("views"), BatchShard(23)))
    own = torch.tensor([3, 4, 11, 22])
    assert torch.equal(augment(images[own], Draws(generator("views"), BatchShard(23, own))), together[own])


def test_an_image_meets_the_same_chance_whoever_looks_at_it() -> None:
    def drawn(rows: int, share: BatchShard) -> Tensor:
        with seeded_torch("chance"), batch_shard(share):
            return bernoulli_by_image(rows, 0.5, torch.empty(0))

    own = torch.tensor([1, 2, 9])
    for each in (1, 4):
        assert torch.equal(
            drawn(3 * each, BatchShard(12, own)), drawn(12 * each, BatchShard(12)).view(12, each)[own].flatten()
        )


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 5, 16, 97, 128])
def test_every_image_of_a_batch_is_looked_at_once(size: int, total: int) -> None:
    rows = [np.arange(total)[shard_batch(total, rank, size)].tolist() for rank in range(size)]
    if size > 1 and not is_shared(total, size):
        assert all(shard == list(range(total)) for shard in rows)
    else:
        assert [row for shard in rows for row in shard] == list(range(total))
        assert size == 1 or min(map(len, rows)) >= 2
    parts = [
        [range(total) if part.rows is None else part.rows.tolist() for part in split_shard(total, rank, size, 3)]
        for rank in range(size)
    ]
    assert [[row for part in shard for row in part] for shard in parts] == rows
    assert len({len(shard) for shard in parts}) == 1, "all processes meet in each part"
    for rank, shard in enumerate(rows):
        later = (total + np.arange(3)[shard_batch(3, rank, size)]).tolist()
        assert shard_batches([total, 3], rank, size).tolist() == [*shard, *later]


def cached(paths: list[Path], memory: Path) -> dict[str, Any]:
    """What a process sees through a cache, with its files in a directory, of which it decoded only its own share."""
    loader._IN_MEMORY = str(memory)
    plain = FileSource(FileList.of_paths(paths), 16)
    cache = PictureCache(1 << 20)
    cache.add_table(plain)
    plain.read(np.arange(len(paths))[distributed.shard(len(paths))], cache=cache)
    distributed.barrier()
    found = {"kept": len(cache.rows(plain)), "used": cache.used}
    rows = np.arange(len(paths))
    found["alike"] = torch.equal(plain.read(rows, cache=cache), plain.read(rows))
    cache.clear()
    return {**found, "cleared": cache.used}


def test_processes_of_a_machine_share_a_cache(tmp_path: Path) -> None:
    paths, memory = [tmp_path / f"{number}.png" for number in range(7)], tmp_path / "memory"
    memory.mkdir()
    for number, path in enumerate(paths):
        Image.new("RGB", (20 + number, 20), (number, 0, 0)).save(path)
    size = sum(3 * 20 * (20 + number) for number in range(7))
    for found in in_processes(2, cached, paths, memory):
        assert found == {"kept": 7, "used": size, "alike": True, "cleared": 0}
    assert not list(memory.iterdir()), "files of the cache have no names"


def test_gradients_of_a_bias_are_as_exact_as_the_bias() -> None:
    """Also where the net computes in half precision: 4095 is no number of bfloat16."""
    norm = nn.BatchNorm2d(1)
    norms = SyncNorms(norm, synchronised=True)
    images = torch.randn(63, 1, 5, 13, dtype=torch.bfloat16, generator=generator("half"))
    norms._forward(norm, images).sum().backward()
    assert norm.bias.grad is not None and norm.bias.grad.tolist() == [4095.0]


_LEAVE_A_GROUP = """
import sys
from pathlib import Path
import torch
from torch.nn import Linear
from torch.nn.parallel import DistributedDataParallel
from drcil import distributed

def threads():
    return [name for path in Path("/proc/self/task").glob("*/comm") if "gloo" in (name := path.read_text())]

distributed.init_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
DistributedDataParallel(Linear(2, 2))(torch.ones(1, 2)).sum().backward()
assert threads()
distributed.destroy_group()
assert not threads(), threads()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed by Linux only")
def test_no_thread_outlives_a_group_of_processes(tmp_path: Path) -> None:
    """Such a thread may abort the process when the interpreter exits."""
    ended = subprocess.run(
        [sys.executable, "-c", _LEAVE_A_GROUP, str(tmp_path / "store")], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
