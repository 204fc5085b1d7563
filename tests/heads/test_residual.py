"""Residual heads: branches, merging and fusion; and the head ``norm``, which has their normalisation only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drcil.errors import UserError
from drcil.heads import DynamicResidualHead, Head, NormHead, ResidualHead
from drcil.heads.residual import ConvBranches, NormBranches
from drcil.nets.backbone import build_head
from drcil.seeding import seeded_torch
from support.heads import learn_something, maps, trained_head

pytestmark = pytest.mark.numerical

widths = st.integers(1, 6)
task_lists = st.lists(st.integers(1, 4), min_size=1, max_size=5)
later_task_lists = st.lists(st.integers(1, 4), min_size=2, max_size=5)
branch_kinds = st.sampled_from(["conv", "bn"])
fusions = st.sampled_from(["mean", "sum"])
new_branches = st.sampled_from(["keep", "reset"])
inits = st.sampled_from(["identity", "kaiming"])
options = st.fixed_dictionaries(
    {"branch": branch_kinds, "fusion": fusions, "new_branch": new_branches, "conv_init": inits}
)
residual_names = st.sampled_from(["rc", "drc"])


def residual(name: str, channels: int, tasks: list[int], **options: Any) -> ResidualHead:
    head = trained_head(name, channels, tasks, **options)
    assert isinstance(head, ResidualHead)
    return head


def stored(head: Head) -> int:
    return sum(parameter.numel() for parameter in head.parameters()) + head.frozen_parameters()


@given(channels=widths, tasks=task_lists, more=st.integers(1, 4), options=options)
def test_the_merged_branch_gives_the_previous_logits(
    channels: int, tasks: list[int], more: int, options: dict[str, Any]
) -> None:
    """ℓ'_t on old rows = ℓ̄_{t-1}; with ``sum`` half of it, but all of it at task 2, where only one branch was there."""
    head = residual("drc", channels, tasks, **options)
    features = maps(channels)
    before = head(features).fused
    head.grow(more)
    old = head(features).old
    share = 0.5 if options["fusion"] == "sum" and len(tasks) > 1 else 1.0
    torch.testing.assert_close(old[:, : head.classes - more], share * before)


@given(channels=widths, tasks=later_task_lists, branch=branch_kinds, name=residual_names)
def test_fusion_is_the_mean_or_the_sum_of_the_two_branches(
    channels: int, tasks: list[int], branch: str, name: str
) -> None:
    features = maps(channels)
    for fusion, share in (("mean", 0.5), ("sum", 1.0)):
        logits = residual(name, channels, tasks, branch=branch, fusion=fusion)(features)
        torch.testing.assert_close(logits.fused, share * (logits.new + logits.old))


@given(channels=widths, classes=st.integers(1, 5), options=options, name=residual_names)
def test_at_task_1_there_is_no_old_branch(channels: int, classes: int, options: dict[str, Any], name: str) -> None:
    logits = residual(name, channels, [classes], **options)(maps(channels))
    assert logits.old is None
    assert torch.equal(logits.fused, logits.new)


@given(channels=widths, tasks=task_lists, more=st.integers(1, 4), branch=branch_kinds)
def test_from_task_2_on_drc_grows_by_rows_and_rc_by_rows_and_a_branch(
    channels: int, tasks: list[int], more: int, branch: str
) -> None:
    one_branch = channels * channels if branch == "conv" else 2 * channels
    rows = more * (channels + 1)
    for name in ("rc", "drc"):
        head = residual(name, channels, tasks, branch=branch)
        before = stored(head)
        head.grow(more)
        another_branch = name == "rc" or len(tasks) == 1
        assert stored(head) - before == rows + (one_branch if another_branch else 0)


@given(channels=widths, branch=branch_kinds, fusion=fusions, tasks=st.lists(st.integers(1, 3), min_size=4, max_size=5))
def test_rc_and_drc_are_equal_up_to_task_3_only(channels: int, branch: str, fusion: str, tasks: list[int]) -> None:
    features = maps(channels)
    for t in range(1, len(tasks) + 1):
        rc, drc = (residual(name, channels, tasks[:t], branch=branch, fusion=fusion) for name in ("rc", "drc"))
        if t <= 3:
            torch.testing.assert_close(rc(features).fused, drc(features).fused)
        else:
            assert (rc(features).fused - drc(features).fused).abs().max() > 1e-6


@given(channels=widths, tasks=later_task_lists, branch=branch_kinds)
def test_the_old_branch_is_the_uniform_mean_in_rc_and_the_exponential_mean_in_drc(
    channels: int, tasks: list[int], branch: str
) -> None:
    """B'_{t-1} = B_{t-1}/2 + B_{t-2}/4 + … + B_2/2^{t-2} + B_1/2^{t-2}, and B̄ = (B_1 + … + B_{t-1})/(t-1)."""
    for name in ("rc", "drc"):
        head = build_head(name, channels, branch=branch)
        assert isinstance(head, ResidualHead)
        trained: list[dict[str, Tensor]] = []
        with seeded_torch("test", "unrolled", channels):
            for new_classes in tasks:
                head.grow(new_classes)
                learn_something(head)
                trained.append({key: tensor.detach().clone() for key, tensor in head.branches.new().items()})
        earlier = trained[:-1]
        n = len(earlier)
        weights = [1 / n] * n if name == "rc" else [2.0 ** -(n - 1), *(2.0 ** -(n - i) for i in range(1, n))]
        old = head.branches.old()
        assert old is not None
        for key, tensor in old.items():
            expected = sum(weight * branch[key] for weight, branch in zip(weights, earlier, strict=True))
            torch.testing.assert_close(tensor, expected)


@given(channels=widths, tasks=later_task_lists, options=options, name=residual_names)
def test_no_optimiser_reaches_the_frozen_branches(
    channels: int, tasks: list[int], options: dict[str, Any], name: str
) -> None:
    head = residual(name, channels, tasks, **options).train()
    before = {key: stack.clone() for key, stack in head.branches.stacks().items()}
    new_before = {key: tensor.detach().clone() for key, tensor in head.branches.new().items()}
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        head(maps(channels)).fused.square().mean().backward()
        optimizer.step()
    assert all(torch.equal(stack, before[key]) for key, stack in head.branches.stacks().items())
    assert any(not torch.equal(tensor, new_before[key]) for key, tensor in head.branches.new().items())


@given(channels=widths, tasks=later_task_lists, options=options, name=residual_names)
def test_the_new_branch_continues_or_starts_again(
    channels: int, tasks: list[int], options: dict[str, Any], name: str
) -> None:
    head = residual(name, channels, tasks, **options)
    before = {key: tensor.detach().clone() for key, tensor in head.branches.new().items()}
    head.grow(1)
    for key, tensor in head.branches.new().items():
        assert torch.equal(tensor, before[key]) == (options["new_branch"] == "keep")
    if options["new_branch"] == "reset" and (options["branch"], options["conv_init"]) != ("conv", "kaiming"):
        assert all(torch.equal(head.branches.new()[k], v.double()) for k, v in head.branches.fresh().items())


@given(channels=widths, branch=branch_kinds, training=st.booleans())
def test_branches_on_pooled_vectors_are_branches_on_maps(channels: int, branch: str, training: bool) -> None:
    """Branch layer on the map, then pooling, then the classifier: the same logits, in both modes."""
    head = residual("drc", channels, [2, 2, 1], branch=branch).train(training)
    features = maps(channels)
    new, old = head.branches.new(), head.branches.old()
    assert old is not None
    expected = []
    for tensors in (new, old):
        if branch == "conv":
            layered = nn.functional.conv2d(features, tensors["weight"][:, :, None, None])
        else:
            assert isinstance(head.branches, NormBranches)
            norm = head.branches.norm
            plain = nn.BatchNorm2d(channels, dtype=torch.float64).train(training)
            plain.load_state_dict({"weight": tensors["scale"], "bias": tensors["shift"], **norm.state_dict()})
            layered = plain(features)
        expected.append(head.classifier(layered.mean(dim=(2, 3))))
    logits = head(features)
    torch.testing.assert_close(logits.new, expected[0])
    torch.testing.assert_close(logits.old, expected[1])


@given(channels=widths, tasks=task_lists, training=st.booleans())
def test_norm_is_a_batch_normalisation_a_pooling_and_a_linear_layer(
    channels: int, tasks: list[int], training: bool
) -> None:
    """Statistics, in training of the batch's positions, are those of torch's own layer; there is no old branch."""
    head = trained_head("norm", channels, tasks).train(training)
    assert isinstance(head, NormHead)
    scale, shift = (head.branches.new()[name] for name in ("scale", "shift"))
    plain = nn.BatchNorm2d(channels, dtype=torch.float64).train(training)
    plain.load_state_dict({"weight": scale, "bias": shift, **head.branches.norm.state_dict()})
    features = maps(channels)
    logits = head(features)
    torch.testing.assert_close(logits.fused, head.classifier(plain(features).mean(dim=(2, 3))))
    assert logits.new is None and logits.old is None
    torch.testing.assert_close(head.branches.norm.running_mean, plain.running_mean)
    torch.testing.assert_close(head.branches.norm.running_var, plain.running_var)


@given(channels=widths, classes=st.integers(1, 5))
def test_norm_is_drc_at_task_1(channels: int, classes: int) -> None:
    """With one branch, the same training gives the same logits."""
    norm, drc = (trained_head(name, channels, [classes]) for name in ("norm", "drc"))
    torch.testing.assert_close(norm(maps(channels)).fused, drc(maps(channels)).fused)


def test_shared_statistics_are_updated_once_per_batch() -> None:
    head = DynamicResidualHead(3, branch="bn")
    head.grow(2)
    head.grow(2)
    features = torch.randn(6, 3, 4, 4) + 5
    head.train()(features)
    assert isinstance(head.branches, NormBranches)
    statistics = head.branches.norm.state_dict()
    assert int(statistics["num_batches_tracked"]) == 1
    torch.testing.assert_close(statistics["running_mean"], 0.1 * features.mean(dim=(0, 2, 3)))


def test_an_old_branch_can_be_set() -> None:
    """The published program's first model has an untrained, decayed old branch: S = W[(γ_N + γ_O) ẑ + β_N] + 2b."""
    head = residual("drc", 3, [4], branch="bn", fusion="sum")
    features = maps(3)
    new = head(features).fused
    head.branches.set_old_branch(scale=torch.full((3,), 0.134, dtype=torch.float64), shift=torch.zeros(3))
    logits = head(features)
    normalised = head.branches.prepare(features)
    torch.testing.assert_close(logits.fused - new, head.classifier(0.134 * normalised))
    torch.testing.assert_close(head.fold()(features.mean(dim=(2, 3))), logits.fused)
    with pytest.raises(UserError, match="scale, shift"):
        head.branches.set_old_branch(weight=torch.eye(3))


def test_fresh_convolutions() -> None:
    assert torch.equal(ConvBranches(4, "identity").fresh()["weight"], torch.eye(4))
    with seeded_torch("test", "kaiming"):
        weight = ConvBranches(256).fresh()["weight"]
    assert weight.std().item() == pytest.approx(1 / 16, rel=0.02)


def test_default_options() -> None:
    for name in ("rc", "drc"):
        assert build_head(name, 4).options() == {
            "branch": "bn", "fusion": "mean", "new_branch": "keep", "conv_init": "kaiming"
        }  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"branch": "con"}, "unknown branch 'con'; did you mean 'conv'"),
        ({"fusion": "means"}, "unknown fusion 'means'; did you mean 'mean'"),
        ({"new_branch": "rest"}, "did you mean 'reset'"),
        ({"conv_init": "identy"}, "did you mean 'identity'"),
    ],
)
def test_misspelt_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        build_head("drc", 4, **wrong)
