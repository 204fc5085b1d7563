"""Backbones that answer with tokens and without stage maps: methods learn with them, or say what they miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import drcil
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.nets.backbone import build_backbone
from drcil.nets.expanded import SideBySide
from drcil.seeding import generator, seeded_torch
from drcil.train.events import Event
from support.token_backbone import Tokens, register_tokens

pytestmark = pytest.mark.numerical


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register_tokens(monkeypatch)


def make_learner(method: str, epochs_scale: float, settings: dict[str, Any], **options: Any) -> Learner:
    return Learner(
        method, backbone="tokens", memory="40", epochs_scale=epochs_scale, settings=settings, device="cpu", **options
    )


@pytest.mark.slow
@pytest.mark.parametrize(("method", "epochs_scale"), [("replay", 0.1), ("mafdrc", 0.2), ("lucir", 0.1), ("der", 0.1)])
def test_methods_learn_with_tokens_and_their_models_are_saved(method: str, epochs_scale: float, tmp_path: Path) -> None:
    stream = drcil.stream("digits-b0-5")
    learner = make_learner(method, epochs_scale, {})
    for task in stream[:2]:
        learner.learn(task)
    test = stream[1].test
    # Seeds 0 to 4: replay 97.6 ± 1.9, mafdrc 92.7 ± 4.5, lucir 87.2 ± 1.4, der 95.5 ± 3.8.
    assert learner.evaluate(test) > 70, "of four classes; 50 is to know the newest task alone"
    learner.save(tmp_path / "model")
    again = drcil.load(tmp_path / "model", device="cpu").rank(test)
    for name, ranking in learner.rank(test).items():
        assert torch.equal(again[name].classes, ranking.classes)
        assert torch.equal(again[name].scores, ranking.scores)


@pytest.mark.parametrize(("method", "weight"), [("podnet", "spatial"), ("maf", "pod")])
def test_a_loss_on_stage_maps_is_refused_before_anything_is_trained(method: str, weight: str) -> None:
    events: list[Event] = []
    stream = drcil.stream("digits-4/2")
    message = f"POD-spatial, which '{weight}' weighs, .* backbone 'tokens' gives none; set {weight}=0"
    with pytest.raises(UserError, match=message):
        make_learner(method, 0.001, {weight: 1.0}, listener=events.append).learn(stream[0])
    assert not events
    without = make_learner(method, 0.001, {weight: 0.0})
    for task in stream[:2]:
        without.learn(task)


def test_tokens_stand_side_by_side_along_their_channels_and_never_beside_maps() -> None:
    with seeded_torch("test"):
        one, other, maps = Tokens(1).eval(), Tokens(1).eval(), build_backbone("resnet-digits", 1).eval()
    images = torch.rand(3, 1, 8, 8, generator=generator("test", "images"))
    both = SideBySide([one, other])
    seen = both(images)
    assert torch.equal(seen.last, torch.cat([one(images).last, other(images).last], dim=2))
    assert seen.last.shape[2] == both.channels == 128
    torch.testing.assert_close(seen.pooled, seen.last.mean(dim=1))
    assert not both.stage_maps
    with pytest.raises(UserError, match="all give maps or all give tokens"):
        SideBySide([maps, one])(images)
