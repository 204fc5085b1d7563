"""Laws of all registered heads: growing, forgetting, folding, descriptions, and the features they accept."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drcil.errors import UserError
from drcil.heads import CosineHead, Head, Logits, ResidualHead
from drcil.heads.head import HEADS, remaining
from drcil.heads.scaled import ScaledHead, Scales
from drcil.nets.backbone import build_described_head, build_head
from drcil.seeding import seeded_torch
from support.heads import EVERY_HEAD, NAMES, maps, trained_head

pytestmark = pytest.mark.numerical

every_head = pytest.mark.parametrize(("name", "options"), EVERY_HEAD, ids=NAMES)
widths = st.integers(1, 6)
task_lists = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def class_tensors(head: Head) -> list[Tensor]:
    """The tensors that have a row for every class."""
    if isinstance(head, CosineHead):
        return [head.rows().detach()]
    classifier = head.get_submodule("classifier")
    return [parameter.detach().clone() for parameter in classifier.parameters()]


def shared_tensors(head: Head) -> dict[str, Tensor]:
    """What all classes share, apart from branches, which are merged when the head grows."""
    skipped = ("classifier.", "old_rows", "new_rows", "branches.new", "branches.old")
    return {name: tensor.clone() for name, tensor in head.state_dict().items() if not name.startswith(skipped)}


@every_head
@given(channels=widths, tasks=task_lists, more=st.integers(1, 4))
def test_growing_keeps_old_rows_bit_for_bit(
    name: str, options: dict[str, Any], channels: int, tasks: list[int], more: int
) -> None:
    head = trained_head(name, channels, tasks, **options)
    old, rows, shared = sum(tasks), class_tensors(head), shared_tensors(head)
    before = head(maps(channels)).fused
    head.grow(more)
    assert head.tasks == [*tasks, more] and head.classes == old + more
    for tensor, known in zip(class_tensors(head), rows, strict=True):
        assert len(tensor) == old + more
        assert torch.equal(tensor[:old], known)
    after = shared_tensors(head)
    assert all(torch.equal(after[key], tensor) for key, tensor in shared.items())
    if not isinstance(head, ResidualHead):
        torch.testing.assert_close(head(maps(channels)).fused[:, :old], before)


@every_head
@given(channels=widths, tasks=task_lists, more=st.integers(1, 4))
def test_new_rows_have_the_stated_distribution(
    name: str, options: dict[str, Any], channels: int, tasks: list[int], more: int
) -> None:
    """Linear rows: uniform within ±sqrt(3 / width), bias zero. Cosine rows: uniform within ±1 / sqrt(width)."""
    head = trained_head(name, channels, tasks, **options)
    head.grow(more)
    rows, *bias = (tensor[-more:] for tensor in class_tensors(head))
    variance = 1 if isinstance(head, CosineHead) else 3
    assert rows.abs().max() <= (variance / rows.shape[-1]) ** 0.5
    assert all(bool((tensor == 0).all()) for tensor in bias)


@every_head
@given(channels=widths, tasks=task_lists)
def test_folding_gives_the_fused_logits(name: str, options: dict[str, Any], channels: int, tasks: list[int]) -> None:
    head = trained_head(name, channels, tasks, **options)
    before = copy.deepcopy(head.state_dict())
    features = maps(channels)
    vectors = features.mean(dim=(2, 3))
    folded = head.fold()
    assert isinstance(folded, nn.Linear) == (name not in ("cosine", "projected"))
    torch.testing.assert_close(folded(vectors), head(features).fused)
    torch.testing.assert_close(folded(vectors), head(vectors).fused)
    assert not any(tensor.requires_grad for tensor in (*folded.parameters(), *folded.buffers()))
    for parameter in head.parameters():
        parameter.data.zero_()
    expected = build_described_head(head.describe()).double().eval()
    expected.load_state_dict(before)
    torch.testing.assert_close(folded(vectors), expected(vectors).fused, msg="the folded form is a copy")


@every_head
def test_a_head_is_rebuilt_from_its_description_and_its_state(name: str, options: dict[str, Any]) -> None:
    head = trained_head(name, 4, [2, 1, 3], **options)
    head.forget([2])
    description = json.loads(json.dumps(head.describe()))
    assert (description["name"], description["tasks"]) == (name, [2, 0, 3])
    again = build_described_head(description).double().eval()
    again.load_state_dict(head.state_dict(), strict=True)
    assert again.describe() == head.describe()
    assert torch.equal(again(maps(4)).fused, head(maps(4)).fused)


@every_head
@given(tasks=task_lists, data=st.data())
def test_forgetting_changes_no_other_logit(
    name: str, options: dict[str, Any], tasks: list[int], data: st.DataObject
) -> None:
    head = trained_head(name, 4, tasks, **options)
    before = head(maps(4)).fused
    classes = sum(tasks)
    gone = data.draw(st.sets(st.integers(0, classes - 1), max_size=classes))
    left = [column for column in range(classes) if column not in gone]
    head.forget(gone)
    assert head.tasks == remaining(tasks, left)
    torch.testing.assert_close(head(maps(4)).fused, before[:, left])
    torch.testing.assert_close(head.fold()(maps(4).mean(dim=(2, 3))), before[:, left])
    head.grow(2)
    assert head(maps(4)).fused.shape[1] == len(left) + 2


def test_remaining_classes_are_counted_by_task() -> None:
    assert remaining([2, 0, 3, 1], [0, 1, 2, 5]) == [2, 0, 1, 1]
    assert remaining([2, 2], []) == [0, 0]


@every_head
def test_growth_stays_on_the_device_and_dtype_of_the_head(name: str, options: dict[str, Any]) -> None:
    head = build_head(name, 3, **options).to("meta", torch.bfloat16)
    for _ in range(3):
        head.grow(2)
        tensors = [*head.parameters(), *head.buffers()]
        assert {tensor.device.type for tensor in tensors} == {"meta"}
        assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.bfloat16}


@every_head
@pytest.mark.parametrize("training", [True, False])
def test_tokens_are_a_map_of_one_column(name: str, options: dict[str, Any], training: bool) -> None:
    """In training too, where statistics are those of all images and tokens."""
    head = trained_head(name, 5, [2, 3], **options).train(training)
    with seeded_torch("test", "tokens"):
        tokens = 2 * torch.randn(4, 7, 5, dtype=torch.float64) + 1
    twin = copy.deepcopy(head)
    torch.testing.assert_close(head(tokens).fused, twin(tokens.transpose(1, 2).unsqueeze(3)).fused)
    for key, tensor in head.state_dict().items():
        torch.testing.assert_close(tensor, twin.state_dict()[key])


@every_head
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
def test_unreadable_features_are_refused(
    name: str, options: dict[str, Any], shape: tuple[int, ...], message: str
) -> None:
    head = build_head(name, 8, **options)
    head.grow(2)
    with pytest.raises(UserError, match=message):
        head(torch.zeros(shape))


@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_task_without_classes_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="the number of new classes must be a whole number from 1 to 1048576, not 0"):
        build_head(name, 4).grow(0)


@every_head
def test_a_scaled_head_multiplies_the_logits_also_when_folded(name: str, options: dict[str, Any]) -> None:
    head = trained_head(name, 5, [2, 3], **options)
    scales = Scales(5).double()
    scaled = ScaledHead(head, scales).eval()
    features, values = maps(5).mean(dim=(2, 3)), torch.linspace(-1, 2, 5, dtype=torch.float64)
    plain = head(features).fused
    assert torch.equal(scaled(features).fused, plain), "scales of one change nothing"
    assert scaled.classes == head.classes == 5
    scales.values.data.copy_(values)
    assert torch.equal(scaled(features).fused, values * plain)
    folded = scaled.fold()
    assert isinstance(folded, nn.Linear) == isinstance(head.fold(), nn.Linear)
    scales.values.data.zero_()
    torch.testing.assert_close(folded(features), values * plain, msg="the folded form is a copy")
    scaled.grow(1)
    assert scales.values.tolist() == [0] * 5 + [1]


class Unregistered(Head):
    """A head that nobody registered."""

    def grow(self, new_classes: int) -> None:
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        return Logits(features[:, : self.classes])

    def fold(self) -> nn.Module:
        return copy.deepcopy(self)

    def options(self) -> dict[str, Any]:
        return {}


def test_a_head_that_is_not_registered_has_no_description() -> None:
    with pytest.raises(LookupError, match="Unregistered is not registered as a head"):
        Unregistered(64).describe()


def test_every_head_has_a_docstring() -> None:
    """``drcil list heads`` prints it."""
    assert all((HEADS[name].__doc__ or "").strip() for name in HEADS)


def test_heads_need_torch_alone() -> None:
    """Importing a head for another program imports none of the packages that drcil depends on."""
    script = (
        "import sys, torch; torches = set(sys.modules)\n"
        "from drcil.heads import DynamicResidualHead\n"
        "roots = {name.split('.')[0] for name in set(sys.modules) - torches}\n"
        "print(sorted(roots - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['drcil']"
