"""Several processes compute what one would: normalisation, gradients, features, augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from drcil.data.augment import AUGMENTS, Draws, build_augment
from drcil.data.datasets import cifar100, folder
from drcil.data.sources.cache import CachedPictures, PictureCache, through
from drcil.data.sources.filelist import FileList
from drcil.data.sources.files import FileSource
from drcil.keys import Share, batch_share, bernoulli_by_image, generator, randomness
from drcil.nets.output import Output
from drcil.stages import Batch, Losses, Term
from drcil.team import ALONE, Team
from drcil.train.norms import SpreadNorms
from drcil.train.spread import Spread
from small_engine import FEW, SCHEDULE, make_engine, make_net, make_stage
from teams import in_double, in_processes


def normalised(size: int) -> dict[str, Tensor]:
    """A batch normalisation of this process's rows of a batch, and the gradients of a loss on all of them."""
    team = Team.current()
    with randomness("norm"):
        norm = nn.BatchNorm2d(3).double()
        nn.init.uniform_(norm.weight), nn.init.uniform_(norm.bias)
        images, slopes = torch.randn(2, size, 3, 4, 2, dtype=torch.float64)
    # Means far apart, so that statistics of one process would tell.
    images = images + 5 * torch.arange(size).view(-1, 1, 1, 1)
    own = images[team.share(size)].clone().requires_grad_()
    norms = SpreadNorms(norm, team, synchronised=True)
    with norms.installed():
        output = norm(own)
    (output * slopes[team.share(size)]).sum().backward()
    assert own.grad is not None and norm.weight.grad is not None and norm.bias.grad is not None
    gradients = {"weight": team.summed(norm.weight.grad), "bias": team.summed(norm.bias.grad)}
    joined = dict(zip(("output", "images"), team.joined([output.detach(), own.grad]), strict=True))
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
        "old": Term((surprise * old).sum() / old.sum().clamp(min=1), 0.7, old.sum()),
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
            torch.testing.assert_close(
                found[name], value, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
            )
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
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def still(options: dict[str, Any]) -> dict[str, Tensor]:
    """The net after a stage in which its normalisations stay as they are."""
    engine, net = make_engine("crop", **options), make_net()
    with engine.task(1):
        engine.fit(make_stage(net, objective=some_old, frozen=[net]))
    return net.state_dict()


def features(size: int) -> Tensor:
    engine = make_engine(inference_batch=7)
    return engine.features(make_net(), FEW.subset(np.arange(size)))


@pytest.mark.parametrize("size", [1, 7, 50])
def test_features_are_the_same_bit_for_bit(size: int) -> None:
    for found in in_processes(3, features, size):
        assert torch.equal(found, features(size))


def gathered() -> list[Any]:
    team = Team.current()
    rows = torch.arange(6)[team.share(6)]
    columns = [rows.double(), rows.bool(), rows.view(-1, 1).to(torch.bfloat16)]
    everything = team.joined(columns if team.rank < 2 else None)
    return [*everything, team.everyone(team.rank), team.leaders(f"of {team.rank}"), team.summed(torch.ones(2))]


def test_processes_exchange_rows_and_values() -> None:
    for found in in_processes(3, gathered):
        assert found[0].tolist() == [0, 1, 2, 3] and found[1].dtype == torch.bool and found[2].shape == (4, 1)
        assert found[3:5] == [[0, 1, 2], "of 0"] and found[5].tolist() == [3, 3]
    alone = ALONE.joined([torch.arange(3)])
    assert alone[0].tolist() == [0, 1, 2] and ALONE.leaders(4) == 4 and ALONE.everyone(5) == [5]


@pytest.mark.parametrize("name", sorted(AUGMENTS))
@pytest.mark.parametrize("spec", [cifar100.SPEC, folder.SPEC], ids=["shifted", "cut"])
def test_an_image_is_augmented_alike_whoever_looks_at_it(name: str, spec: Any) -> None:
    images = torch.randint(256, (23, 3, 24, 24), dtype=torch.uint8, generator=generator("images"))
    augment = build_augment(name, spec, in_memory=True)
    together = augment(images, Draws(generator("views"), Share(23)))
    own = torch.tensor([3, 4, 11, 22])
    assert torch.equal(augment(images[own], Draws(generator("views"), Share(23, own))), together[own])


def test_an_image_meets_the_same_chance_whoever_looks_at_it() -> None:
    def drawn(rows: int, share: Share) -> Tensor:
        with randomness("chance"), batch_share(share):
            return bernoulli_by_image(rows, 0.5, torch.empty(0))

    own = torch.tensor([1, 2, 9])
    for each in (1, 4):
        assert torch.equal(drawn(3 * each, Share(12, own)), drawn(12 * each, Share(12)).view(12, each)[own].flatten())


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 5, 16, 97, 128])
def test_every_image_of_a_batch_is_looked_at_once(size: int, total: int) -> None:
    spreads = [Spread(Team(rank, size), parts=3) for rank in range(size)]
    own = [np.arange(total)[spread.own(total)].tolist() for spread in spreads]
    if spreads[0].is_whole(total):
        assert all(one == list(range(total)) for one in own)
    else:
        assert [place for one in own for place in one] == list(range(total)) and min(map(len, own)) >= 2
    parts = [[share.own.tolist() for share in spread.shares(total) if share.own is not None] for spread in spreads]
    assert [[place for part in one for place in part] for one in parts] == own
    assert len({len(one) for one in parts}) == 1, "all processes meet in each part"
    chunk = np.concatenate([np.arange(total), total + np.arange(3)])
    for spread, one in zip(spreads, own, strict=True):
        later = (total + np.arange(3)[spread.own(3)]).tolist()
        assert chunk[spread.chunk([total, 3])].tolist() == [*one, *later]


def cached(paths: list[Path]) -> dict[str, Any]:
    """What a process sees through a cache of which it decoded only its own share."""
    team, plain = Team.current(), FileSource(FileList.of_paths(paths), 16)
    cache = PictureCache(1 << 20, team)
    pictures = through(cache, plain)
    assert isinstance(pictures, CachedPictures)
    pictures.read(np.arange(len(paths))[team.share(len(paths))])
    team.wait()
    found = {"kept": int((pictures.table[:, 0] > 0).sum()), "used": cache.used}
    rows = np.arange(len(paths))
    found["alike"] = torch.equal(pictures.read(rows), plain.read(rows))
    cache.clear()
    return {**found, "cleared": cache.used}


def test_processes_of_a_machine_share_a_cache(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(7)]
    for number, path in enumerate(paths):
        Image.new("RGB", (20 + number, 20), (number, 0, 0)).save(path)
    size = sum(3 * 20 * (20 + number) for number in range(7))
    for found in in_processes(2, cached, paths):
        assert found == {"kept": 7, "used": size, "alike": True, "cleared": 0}
    assert not list(Path("/dev/shm").glob("drcil-*"))


def test_gradients_of_a_bias_are_as_exact_as_the_bias() -> None:
    """Also where the net computes in half precision: 4095 is no number of bfloat16."""
    norm = nn.BatchNorm2d(1)
    norms = SpreadNorms(norm, Team(0, 1), synchronised=True)
    images = torch.randn(63, 1, 5, 13, dtype=torch.bfloat16, generator=generator("half"))
    norms._forward(norm, images).sum().backward()
    assert norm.bias.grad is not None and norm.bias.grad.tolist() == [4095.0]
