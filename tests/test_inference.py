"""Looking without learning: features, rankings, and the bank that sees each image once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drcil.data.dataset import DIGITS_SPEC
from drcil.data.image_set import ArraySource, ImageSet
from drcil.heads.head import Logits
from drcil.inference import FeatureBank, Inference
from drcil.nets.backbone import Features
from drcil.nets.net import Output, Readout, frozen_readouts
from support.engine import (
    FEW,
    fit,
    make_engine,
    make_net,
    make_stage,
)

pytestmark = pytest.mark.numerical


class TestLooking:
    def test_features_are_those_of_the_net_in_evaluation_mode(self) -> None:
        net = make_net()
        fit(make_engine(), make_stage(net))
        engine = make_engine("crop", inference_batch=7)
        features = engine.features(net, FEW)
        pixels = FEW.read().float() / 255
        with torch.no_grad():
            expected = net((pixels - DIGITS_SPEC.mean[0]) / DIGITS_SPEC.std[0]).features.pooled
        assert torch.allclose(features, expected, atol=1e-4)
        assert not features.is_inference()

    def test_readouts_that_share_a_net_share_a_pass(self) -> None:
        net, passes = make_net(), []

        class Counted(Inference):
            def outputs(
                self, net: nn.Module, images: ImageSet, read: Callable[[Output], Sequence[Tensor]]
            ) -> list[Tensor]:
                passes.append(net)
                return super().outputs(net, images, read)

        readouts = {
            "up": Readout(net),
            "other": Readout(make_net()),
            "down": Readout(net, lambda output: -output.logits.fused),
        }
        inference = Counted(torch.device("cpu"), DIGITS_SPEC.mean, DIGITS_SPEC.std)
        rankings = inference.rank(frozen_readouts(readouts), FEW, best=10)
        assert list(rankings) == ["up", "other", "down"]
        assert len(passes) == 2
        for ranking in rankings.values():
            assert ranking.classes.dtype == torch.int64
            assert torch.equal(ranking.scores, ranking.scores.sort(dim=1, descending=True).values)
        assert torch.equal(rankings["up"].classes, rankings["other"].classes)
        assert torch.allclose(rankings["up"].scores, -rankings["down"].scores.flip(1), atol=1e-6)
        assert inference.rank(frozen_readouts(readouts), FEW, best=3)["up"].classes.shape == (100, 3)

    def test_there_must_be_something_to_look_at(self) -> None:
        with pytest.raises(ValueError, match="no images"):
            make_engine().features(make_net(), FEW.subset([]))


class TestFeatureBank:
    @given(st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=12), min_size=1, max_size=5))
    def test_each_image_is_seen_once_and_every_answer_is_its_own(self, requests: list[list[int]]) -> None:
        """Over two sources, one by itself and chained; rows in any order, with repetitions."""
        values = torch.arange(40, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
        sources = [ArraySource(values[:20].clone()), ArraySource(values[20:].clone())]
        whole = ImageSet.of(sources[0], np.arange(20), np.zeros(20, dtype=np.int64)).join(
            ImageSet.of(sources[1], np.arange(20), np.zeros(20, dtype=np.int64))
        )
        seen: list[int] = []

        def features(images: ImageSet) -> Tensor:
            vectors = images.read()[:, 0, 0, :1].float()
            seen.extend(int(value) for value in vectors)
            return vectors

        bank = FeatureBank(features)
        for rows in requests:
            assert bank(whole.subset(rows)).flatten().tolist() == rows
            alone = [row for row in rows if row < 20]
            if alone:
                images = ImageSet.of(sources[0], np.array(alone), np.zeros(len(alone), dtype=np.int64))
                assert bank(images).flatten().tolist() == alone
        assert sorted(seen) == sorted({row for rows in requests for row in rows})


def test_large_images_go_through_a_few_at_a_time() -> None:
    """On a CPU; and never more than was asked for."""
    seen: list[int] = []

    class Watch(nn.Module):
        def forward(self, images: torch.Tensor) -> Output:
            seen.append(len(images))
            vectors = images.flatten(1)[:, :1]
            return Output(Logits(fused=vectors), Features((), vectors[:, None], vectors))

    for size, batch, expected in ((224, 500, [41, 41, 8]), (224, 30, [30, 30, 30]), (8, 500, [90])):
        images = ArraySource(torch.zeros(90, 1, size, size, dtype=torch.uint8))
        rows = np.arange(90)
        inference = Inference(torch.device("cpu"), (0.5,), (0.5,), batch=batch, workers=0)
        seen.clear()
        inference.outputs(Watch(), ImageSet.of(images, rows, rows), lambda output: (output.logits.fused,))
        assert seen == expected
