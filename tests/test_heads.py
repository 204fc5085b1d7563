"""Residual heads: the laws of branches, merging and fusion, for any width and any sequence of tasks; and the head
``norm``, which has their normalisation alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drcil.errors import UserError
from drcil.heads import DynamicResidualHead, Head, LinearHead, NormHead, ResidualHead
from drcil.heads.branches import ConvBranches, NormBranches
from drcil.keys import randomness
from drcil.nets.build import HEADS, build_head

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


def learn_something(head: ResidualHead | NormHead) -> None:
    """Move every parameter, and let normalisations see a batch, as a task's training would."""
    dtype = head.classifier.weight.dtype
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
        head.train()(2 * torch.randn(5, head.channels, 2, 2, dtype=dtype) + 1)
    head.eval()


def residual(name: str, channels: int, tasks: list[int], **options: Any) -> ResidualHead:
    """A double-precision head that has been through these tasks, each of which taught it something.

    What it is taught depends on the width and the tasks only: heads of two kinds live through the same training.
    """
    with randomness("test", channels, str(tasks)):
        head = build_head(name, channels, **options).double()
        assert isinstance(head, ResidualHead)
        for new_classes in tasks:
            head.grow(new_classes)
            learn_something(head)
    return head


def maps(channels: int) -> Tensor:
    with randomness("test", "maps", channels):
        return torch.randn(4, channels, 3, 3, dtype=torch.float64)


def stored(head: Head) -> int:
    return sum(parameter.numel() for parameter in head.parameters()) + head.frozen_parameters()


@given(channels=widths, tasks=task_lists, more=st.integers(1, 4), options=options)
def test_after_merging_the_old_branch_gives_the_previous_answers(
    channels: int, tasks: list[int], more: int, options: dict[str, Any]
) -> None:
    """ℓ'_t on old rows = ℓ̄_{t-1}; with ``sum`` half of it, but all of it at task 2 (there was one branch before)."""
    head = residual("drc", channels, tasks, **options)
    features = maps(channels)
    before = head(features).fused
    head.grow(more)
    old = head(features).old
    share = 0.5 if options["fusion"] == "sum" and len(tasks) > 1 else 1.0
    torch.testing.assert_close(old[:, : head.classes - more], share * before)


@given(channels=widths, tasks=task_lists, options=options, name=residual_names, pooled=st.booleans())
def test_folding_gives_the_fused_logits(
    channels: int, tasks: list[int], options: dict[str, Any], name: str, pooled: bool
) -> None:
    head = residual(name, channels, tasks, **options)
    features = maps(channels)
    vectors = features.mean(dim=(2, 3))
    folded = head.fold()
    assert isinstance(folded, nn.Linear)
    assert folded.out_features == head.classes == sum(tasks)
    torch.testing.assert_close(folded(vectors), head(vectors if pooled else features).fused)


@given(channels=widths, tasks=later_task_lists, branch=branch_kinds, name=residual_names)
def test_fusion_is_the_mean_or_the_sum_of_the_two_branches(
    channels: int, tasks: list[int], branch: str, name: str
) -> None:
    features = maps(channels)
    for fusion, share in (("mean", 0.5), ("sum", 1.0)):
        logits = residual(name, channels, tasks, branch=branch, fusion=fusion)(features)
        torch.testing.assert_close(logits.fused, share * (logits.new + logits.old))


@given(channels=widths, classes=st.integers(1, 5), options=options, name=residual_names)
def test_at_task_1_there_is_no_past(channels: int, classes: int, options: dict[str, Any], name: str) -> None:
    logits = residual(name, channels, [classes], **options)(maps(channels))
    assert logits.old is None
    assert torch.equal(logits.fused, logits.new)


@given(channels=widths, tasks=task_lists, more=st.integers(1, 4), branch=branch_kinds)
def test_from_task_2_on_drc_grows_by_classifier_rows_only_and_rc_by_a_branch_too(
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
def test_rc_and_drc_coincide_up_to_task_3_and_part_ways_after(
    channels: int, branch: str, fusion: str, tasks: list[int]
) -> None:
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
        learnt: list[dict[str, Tensor]] = []
        with randomness("test", "unrolled", channels):
            for new_classes in tasks:
                head.grow(new_classes)
                learn_something(head)
                learnt.append({key: tensor.detach().clone() for key, tensor in head.branches.new().items()})
        past = learnt[:-1]
        n = len(past)
        weights = [1 / n] * n if name == "rc" else [2.0 ** -(n - 1), *(2.0 ** -(n - i) for i in range(1, n))]
        old = head.branches.old()
        assert old is not None
        for key, tensor in old.items():
            expected = sum(weight * branch[key] for weight, branch in zip(weights, past, strict=True))
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


@given(channels=widths, tasks=task_lists, more=st.integers(1, 4), name=st.sampled_from(["linear", "norm", "rc", "drc"]))
def test_old_rows_survive_growth_bit_for_bit(channels: int, tasks: list[int], more: int, name: str) -> None:
    head = build_head(name, channels)
    assert isinstance(head, LinearHead | NormHead | ResidualHead)
    for new_classes in tasks:
        head.grow(new_classes)
    weight, bias = head.classifier.weight.detach().clone(), head.classifier.bias.detach().clone()
    head.grow(more)
    assert torch.equal(head.classifier.weight[: len(weight)], weight)
    assert torch.equal(head.classifier.bias[: len(bias)], bias)
    assert head.classifier.weight[len(weight) :].abs().max() <= (3 / channels) ** 0.5
    assert bool((head.classifier.bias[len(bias) :] == 0).all())
    assert head.classes == head.classifier.out_features == sum(tasks) + more


@given(channels=widths, tasks=later_task_lists, options=options, name=residual_names)
def test_the_new_branch_goes_on_or_begins_afresh(
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
    """The textbook order (branch layer on the map, then pool, then classify) gives the same logits, in both modes."""
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


@given(channels=widths, branch=branch_kinds, name=st.sampled_from(sorted(HEADS)), training=st.booleans())
def test_tokens_are_a_map_of_one_column(channels: int, branch: str, name: str, training: bool) -> None:
    """In training too, where statistics are those of all images and tokens."""
    options = {"branch": branch} if name in ("rc", "drc") else {}
    with randomness("test", "tokens", channels):
        head = build_head(name, channels, **options).double()
        head.grow(2)
        head.grow(3)
        tokens = 2 * torch.randn(4, 7, channels, dtype=torch.float64) + 1
    twin = copy.deepcopy(head).train(training)
    expected = twin(tokens.transpose(1, 2).unsqueeze(3)).fused
    torch.testing.assert_close(head.train(training)(tokens).fused, expected)
    for key, tensor in head.state_dict().items():
        torch.testing.assert_close(tensor, twin.state_dict()[key])
    if not training:
        torch.testing.assert_close(head(tokens.mean(dim=1)).fused, expected)
        torch.testing.assert_close(head.fold()(tokens.mean(dim=1)), expected)


@pytest.mark.parametrize("name", sorted(HEADS))
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((8,), r"a head reads maps \(N, C, H, W\), tokens \(N, T, C\) or vectors \(N, C\), not .* shape \(8,\)"),
        ((2, 8, 1, 3, 3), r"not features of shape \(2, 8, 1, 3, 3\)"),
        ((2, 4), "the features have 4 channels, but the head is for 8"),
        ((2, 8, 4), "the features have 4 channels, but the head is for 8"),
        ((2, 4, 8, 8), "the features have 4 channels, but the head is for 8"),
    ],
)
def test_features_that_a_head_cannot_read_are_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    head = build_head(name, 8)
    head.grow(2)
    with pytest.raises(UserError, match=message):
        head(torch.zeros(shape))


def normalised(channels: int, tasks: list[int]) -> NormHead:
    """A double-precision head ``norm`` that has been through these tasks, each of which taught it something."""
    with randomness("test", channels, str(tasks)):
        head = NormHead(channels).double()
        for new_classes in tasks:
            head.grow(new_classes)
            learn_something(head)
    return head


@given(channels=widths, tasks=task_lists, training=st.booleans())
def test_norm_is_a_batch_normalisation_a_pooling_and_a_linear_layer(
    channels: int, tasks: list[int], training: bool
) -> None:
    """Statistics, in training of the batch's positions, are those of torch's own layer; and there is no past."""
    head = normalised(channels, tasks).train(training)
    scale, shift = (head.branches.new()[name] for name in ("scale", "shift"))
    plain = nn.BatchNorm2d(channels, dtype=torch.float64).train(training)
    plain.load_state_dict({"weight": scale, "bias": shift, **head.branches.norm.state_dict()})
    features = maps(channels)
    logits = head(features)
    torch.testing.assert_close(logits.fused, head.classifier(plain(features).mean(dim=(2, 3))))
    assert logits.new is None and logits.old is None
    torch.testing.assert_close(head.branches.norm.running_mean, plain.running_mean)
    torch.testing.assert_close(head.branches.norm.running_var, plain.running_var)
    head.eval()
    vectors = features.mean(dim=(2, 3))
    folded = head.fold()
    assert isinstance(folded, nn.Linear)
    assert folded.out_features == head.classes == sum(tasks)
    torch.testing.assert_close(folded(vectors), head(features).fused)
    torch.testing.assert_close(folded(vectors), head(vectors).fused)


@given(channels=widths, tasks=task_lists)
def test_norm_is_what_drc_is_at_task_1(channels: int, tasks: list[int]) -> None:
    """One branch: the same training gives the same answers, as long as the residual head has no past."""
    twin = residual("drc", channels, tasks[:1], branch="bn")
    torch.testing.assert_close(normalised(channels, tasks[:1])(maps(channels)).fused, twin(maps(channels)).fused)


@given(channels=widths, tasks=task_lists)
def test_state_round_trip_of_norm(channels: int, tasks: list[int]) -> None:
    head = normalised(channels, tasks)
    again = build_head("norm", channels, **head.options()).double()
    for new_classes in tasks:
        again.grow(new_classes)
    again.load_state_dict(head.state_dict(), strict=True)
    assert torch.equal(again.eval()(maps(channels)).fused, head(maps(channels)).fused)


@given(channels=widths, tasks=task_lists, options=options, name=st.sampled_from(["rc", "drc"]))
def test_state_round_trip(channels: int, tasks: list[int], options: dict[str, Any], name: str) -> None:
    head = residual(name, channels, tasks, **options)
    again = build_head(name, channels, **head.options()).double()
    for new_classes in tasks:
        again.grow(new_classes)
    again.load_state_dict(head.state_dict(), strict=True)
    assert torch.equal(again.eval()(maps(channels)).fused, head(maps(channels)).fused)


@pytest.mark.parametrize(
    ("name", "options", "numbers"),
    [
        ("linear", {}, 6_500),
        ("norm", {}, 6_500 + 128),
        ("drc", {"branch": "bn"}, 6_500 + 256),
        ("drc", {"branch": "conv"}, 6_500 + 8_192),
        ("rc", {"branch": "conv"}, 6_500 + 10 * 4_096),
    ],
)
def test_sizes_at_64_channels_and_100_classes_in_ten_tasks(name: str, options: dict[str, Any], numbers: int) -> None:
    head = build_head(name, 64, **options)
    for _ in range(10):
        head.grow(10)
    assert stored(head) == numbers


def test_shared_statistics_are_learnt_once_per_batch() -> None:
    head = DynamicResidualHead(3, branch="bn")
    head.grow(2)
    head.grow(2)
    features = torch.randn(6, 3, 4, 4) + 5
    head.train()(features)
    assert isinstance(head.branches, NormBranches)
    statistics = head.branches.norm.state_dict()
    assert int(statistics["num_batches_tracked"]) == 1
    torch.testing.assert_close(statistics["running_mean"], 0.1 * features.mean(dim=(0, 2, 3)))


def test_a_past_learnt_elsewhere_joins_the_fused_logits() -> None:
    """The published program's first model carries an untrained, decayed old branch: S = W[(γ_N + γ_O) ẑ + β_N] + 2b."""
    head = residual("drc", 3, [4], branch="bn", fusion="sum")
    features = maps(3)
    new = head(features).fused
    head.branches.assume(scale=torch.full((3,), 0.134, dtype=torch.float64), shift=torch.zeros(3))
    logits = head(features)
    normalised = head.branches.prepare(features)
    torch.testing.assert_close(logits.fused - new, head.classifier(0.134 * normalised))
    torch.testing.assert_close(head.fold()(features.mean(dim=(2, 3))), logits.fused)
    with pytest.raises(UserError, match="scale, shift"):
        head.branches.assume(weight=torch.eye(3))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linear", {}),
        ("norm", {}),
        *((name, {"branch": branch}) for name in ("rc", "drc") for branch in ("conv", "bn")),
    ],
)
def test_growth_stays_on_the_device_and_dtype_of_the_head(name: str, options: dict[str, Any]) -> None:
    head = build_head(name, 3, **options).to("meta", torch.bfloat16)
    for _ in range(3):
        head.grow(2)
        everything = [*head.parameters(), *(buffer for buffer in head.buffers() if buffer.is_floating_point())]
        assert {tensor.device.type for tensor in head.buffers()} <= {"meta"}
        assert {(tensor.device.type, tensor.dtype) for tensor in everything} == {("meta", torch.bfloat16)}


def test_a_deep_copy_is_independent() -> None:
    head = residual("drc", 3, [2, 2], branch="conv")
    twin = copy.deepcopy(head)
    expected = head(maps(3)).fused
    learn_something(twin)
    assert torch.equal(head(maps(3)).fused, expected)


def test_fresh_convolutions() -> None:
    assert torch.equal(ConvBranches(4, "identity").fresh()["weight"], torch.eye(4))
    with randomness("test", "kaiming"):
        weight = ConvBranches(256).fresh()["weight"]
    assert weight.std().item() == pytest.approx(1 / 16, rel=0.02)


def test_without_being_asked_a_residual_head_normalises() -> None:
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
def test_a_wrong_option_is_named_with_what_is_accepted(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        build_head("drc", 4, **wrong)


def test_a_task_without_classes_is_refused() -> None:
    head = DynamicResidualHead(4)
    with pytest.raises(UserError, match="the number of new classes must be a whole number from 1 to 1048576, not 0"):
        head.grow(0)
