"""The three pipelines: compositions of a head and remedies, each stage as the paper has it."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import drcil
from drcil.errors import UserError
from drcil.heads import DynamicResidualHead, LinearHead, ResidualHead
from drcil.heads.head import HEADS
from drcil.learner import Learner
from drcil.methods import METHODS
from drcil.methods.catalog import resolve_settings
from drcil.methods.maf import Maf, OldBranchDecay, decayed
from drcil.methods.rebalancing import align_weights, balanced_set, classifier_of
from drcil.stages import Batch, Schedule, Stage, Step
from drcil.streams.stream import Stream
from support.stage_recorder import recorded

pytestmark = pytest.mark.numerical

PIPELINES = ("maf", "mdt", "mec")
BRIEF = 0.03


@pytest.fixture(scope="module")
def digits() -> Stream:
    return drcil.stream("digits-b0-5")


def learnt(name: str, digits: Stream, tasks: int, scale: float = BRIEF, **options: Any) -> Learner:
    learner = Learner(name, epochs_scale=scale, **options)
    for task in itertools.islice(digits, tasks):
        learner.learn(task)
    return learner


def stages_of_task_2(name: str, digits: Stream, **options: Any) -> tuple[Learner, list[Stage]]:
    learner = learnt(name, digits, 1, **options)
    return learner, [seen.stage for seen in recorded(learner, digits[1])]


def test_a_name_and_the_same_choice_made_by_hand_learn_the_same_weights(digits: Stream) -> None:
    by_name = learnt("mafdrc", digits, 2).method.state().tensors
    by_hand = learnt("maf", digits, 2, settings={"head": "drc", "remedies": ["la"]}).method.state().tensors
    assert by_name.keys() == by_hand.keys()
    assert all(torch.equal(by_name[key], by_hand[key]) for key in by_name)


def test_names_combine_a_pipeline_with_a_head_and_remedies(digits: Stream) -> None:
    assert METHODS["maf+drc+la"].presets == METHODS["mafdrc"].presets
    learner = learnt("mdt+norm", digits, 2)
    by_hand = learnt("mdt", digits, 2, settings={"head": "norm"})
    tensors = by_hand.method.state().tensors
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in learner.method.state().tensors.items())
    for name, message in (
        ("icarl+wa", "'icarl' cannot be combined with 'wa' or anything else"),
        ("mdt+x", "'mdt' cannot be combined with 'x'; known: mdt\\+la"),
        ("mdt+drc+", "'mdt\\+drc' cannot be combined with ''"),
        ("mtd+drc", "unknown method 'mtd'; did you mean 'mdt"),
    ):
        with pytest.raises(UserError, match=message):
            METHODS[name]


@pytest.mark.parametrize("remedies", [["wa", "bft"], ["la", "la"], ["la2"]])
def test_remedies_that_make_no_sense_are_refused(remedies: list[str]) -> None:
    with pytest.raises(UserError, match="remedies"):
        resolve_settings(METHODS["maf"], "digits", {"remedies": remedies})


@pytest.mark.slow
def test_mafdrc_is_well_ahead_of_replay(digits: Stream) -> None:
    accuracy = {name: learnt(name, digits, 5, scale=0.3).evaluate(digits[4].test) for name in ("replay", "mafdrc")}
    # Seeds 0 to 4: 91.6 ± 2.8 and 24.6 ± 5.9.
    assert accuracy["mafdrc"] > accuracy["replay"] + 40


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("head", ["drc", "norm"])
def test_each_pipeline_learns_with_a_normalised_classifier(pipeline: str, head: str, digits: Stream) -> None:
    # Seeds 0 to 4, drc and norm: maf 71 ± 8.6 and 77 ± 11, mdt 81 ± 9.6 and 73 ± 6.4, mec 35.5 ± 4.6 and 35.5 ± 4.8.
    learner = learnt(pipeline, digits, 3, scale=0.1, settings={"head": head})
    assert learner.evaluate(digits[2].test) > 20, "chance is 16.7"


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_head_from_elsewhere_learns_as_one_of_ours_that_is_equal(
    pipeline: str, digits: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OwnHead(LinearHead):
        pass

    monkeypatch.setattr(HEADS, "_entries", dict(HEADS))
    HEADS.register("own")(OwnHead)
    own, ours = (
        learnt(pipeline, digits, 2, settings={"head": head, "remedies": ["la", "bft"]}).method
        for head in ("own", "linear")
    )
    assert any(isinstance(net.get_submodule("head"), OwnHead) for net in own.parts.values())
    tensors = ours.state().tensors
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in own.state().tensors.items())


def test_a_head_without_the_layer_that_a_remedy_corrects_is_refused(digits: Stream) -> None:
    learnt("mdt", digits, 2, settings={"head": "cosine"})
    with pytest.raises(UserError, match="head 'cosine' has no fully connected layer 'classifier'"):
        learnt("mdt", digits, 2, settings={"head": "cosine", "remedies": ["wa"]})


@pytest.mark.slow
@pytest.mark.parametrize("remedies", [[], ["la"], ["bft"], ["wa"], ["la", "bft"], ["la", "wa"]], ids="+".join)
@pytest.mark.parametrize("head", ["linear", "norm", "rc", "drc"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_combination_runs(pipeline: str, head: str, remedies: list[str], digits: Stream) -> None:
    learner = learnt(pipeline, digits, 3, settings={"head": head, "remedies": remedies})
    for readout in learner.readouts():
        ranking = learner.rank(digits[2].test)[readout]
        assert ranking.classes.min() >= 0
        assert ranking.classes.max() < 6
        assert torch.isfinite(ranking.scores).all()


@pytest.mark.parametrize(("name", "keeps"), [("mafdrc", 1), ("mafdrc-text", 1), ("mafrc", 3)])
def test_branches_are_merged_or_kept_at_each_task(name: str, keeps: int, digits: Stream) -> None:
    learner = learnt(name, digits, 3)
    head = learner.method.net.head
    assert isinstance(head, ResidualHead)
    before = copy.deepcopy(head.branches)
    learner.learn(digits[3])
    after = learner.method.net.head
    assert isinstance(after, ResidualHead)
    for key, stack in after.branches.stacks().items():
        old, new = before.stacks()[key], before.new()[key]
        assert len(stack) == keeps
        assert torch.equal(
            stack, (old + new) / 2 if isinstance(after, DynamicResidualHead) else torch.cat([old, new[None]])
        )


def test_maf_adapts_on_new_images_alone_and_fuses_with_the_memory(digits: Stream) -> None:
    learner, (adaptation, fusion) = stages_of_task_2("mafdrc", digits)
    new = len(digits[1].new)
    assert (adaptation.name, len(adaptation.data), set(adaptation.teachers)) == ("adaptation", new, set())
    assert (fusion.name, set(fusion.teachers)) == ("fusion", {"previous", "adapted"})
    # Memory at task 2: ⌊30 / 2⌋ of each of the two old classes.
    assert fusion.data.counts(4).tolist()[:2] == [15, 15]
    assert len(fusion.data) == new + 30
    assert learner.method.net is fusion.net


@pytest.mark.parametrize("student", ["adapted", "previous"])
def test_the_student_starts_from_the_model_that_the_settings_name(student: str, digits: Stream) -> None:
    learner = learnt("mafdrc", digits, 1, settings={"student": student})
    method = learner.method
    assert isinstance(method, Maf)
    previous, adapted = method.net, copy.deepcopy(method.net)
    adapted.head.grow(2)
    for parameter in adapted.parameters():
        parameter.data += 1
    fused = method._student(previous, adapted, 2)
    origin = adapted if student == "adapted" else previous
    assert all(map(torch.equal, fused.backbone.state_dict().values(), origin.backbone.state_dict().values()))
    assert torch.equal(classifier_of(fused).weight[:2], classifier_of(origin).weight[:2])
    assert isinstance(fused.head, ResidualHead)
    assert isinstance(adapted.head, ResidualHead)
    own, theirs = fused.head.branches, adapted.head.branches
    assert all(
        map(
            torch.equal,
            (*own.new().values(), *own.stacks().values()),
            (*theirs.new().values(), *theirs.stacks().values()),
        )
    )


def test_fusion_without_its_extras_is_plain_cross_entropy(digits: Stream) -> None:
    off = {"alpha": 0.0, "old_distillation": 0.0, "new_distillation": 0.0}
    _, (_, fusion) = stages_of_task_2("maf+drc", digits, settings=off)
    images, labels = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    output = fusion.net(images)
    teachers = {name: teacher(images) for name, teacher in fusion.teachers.items()}
    terms = fusion.objective(output, teachers, Batch(labels, labels))
    total = sum(term.weight * term.value for term in terms.values())
    assert torch.isclose(torch.as_tensor(total), F.cross_entropy(output.logits.fused, labels))


def test_logit_adjustment_follows_the_task_or_the_class(digits: Stream) -> None:
    learner, (_, fusion) = stages_of_task_2("mafdrc-text", digits)
    method = learner.method
    assert isinstance(method, Maf)
    task = digits[1]
    counts = fusion.data.counts(4)
    by_task = method.adjustment(task, fusion.data)
    share = np.array([counts[:2].sum()] * 2 + [counts[2:].sum()] * 2) / counts.sum()
    assert np.allclose(by_task.vector.numpy(), 1.2 * np.log(share), atol=1e-6)
    per_class = learnt("mafdrc", digits, 1).method
    assert isinstance(per_class, Maf)
    by_class = per_class.adjustment(task, fusion.data)
    assert np.allclose(by_class.vector.numpy(), 1.2 * np.log(counts / counts.sum()), atol=1e-6)


def test_weight_aligning_makes_the_mean_norms_equal() -> None:
    layer = torch.nn.Linear(7, 9)
    old = layer.weight[:5].clone()
    align_weights(layer, 5)
    norms = layer.weight.norm(dim=1)
    assert torch.isclose(norms[:5].mean(), norms[5:].mean())
    assert torch.equal(layer.weight[:5], old)


def test_balanced_fine_tuning_trains_the_classifier_alone_on_equally_many_images(digits: Stream) -> None:
    learner, stages = stages_of_task_2("maf+bft", digits)
    fusion, balancing = stages[-2:]
    assert balancing.name == "finetuning"
    assert set(balancing.data.counts(4).tolist()) == {15}
    before = copy.deepcopy(fusion.net).state_dict()
    learner.engine.fit(balancing)
    after = balancing.net.state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"head.classifier.weight", "head.classifier.bias"}


def test_balanced_fine_tuning_without_memory_is_refused_before_training(digits: Stream) -> None:
    with pytest.raises(UserError, match="memory"):
        learnt("maf+bft", digits, 1, memory="none")


def test_a_balanced_set_has_of_every_class_as_many_as_the_memory_of_its_largest_or_all_there_are(
    digits: Stream,
) -> None:
    learner, task = learnt("maf", digits, 1), digits[1]
    kept = learner.memory.images
    assert kept is not None
    uneven = kept.subset(np.flatnonzero(kept.labels == 0).tolist() + np.flatnonzero(kept.labels == 1).tolist()[:4])
    images = balanced_set(learner.method.net, replace(task, memory=uneven), learner.engine)
    assert images.counts(4).tolist() == [15, 4, 15, 15]
    tiny = task.new.subset(np.flatnonzero((task.new.labels == 2) | (np.arange(len(task.new)) >= len(task.new) - 3)))
    images = balanced_set(learner.method.net, replace(task, memory=kept, new=tiny), learner.engine)
    assert images.counts(4).tolist() == [15, 15, 15, 3], "a tiny class makes no other smaller"


@pytest.mark.parametrize(
    ("settings", "adds"),
    [
        ({"head": "drc"}, True),
        ({"head": "rc"}, True),
        ({"head": "drc", "untrained_past": False}, False),
        ({"head": "drc", "branch": "conv"}, False),
        ({"head": "norm"}, False),
        ({"head": "linear"}, False),
    ],
    ids=str,
)
def test_the_first_model_teaches_with_a_branch_that_only_decayed_where_it_would_have_had_one(
    settings: dict[str, object], adds: bool, digits: Stream
) -> None:
    learner = learnt("maf", digits, 1, settings={**settings, "first.weight_decay": 0.1})
    assert ("untrained" in learner.method.parts) == adds
    first = copy.deepcopy(learner.method.net).eval()
    fusion = recorded(learner, digits[1])[1].stage
    assert "untrained" not in learner.method.parts
    images = torch.rand(8, 1, 8, 8)
    with torch.no_grad():
        expected = first(images)
        taught = fusion.teachers["previous"].eval()(images).logits
    if not adds:
        assert torch.equal(taught.fused, expected.logits.fused)
        return
    schedule = resolve_settings(METHODS["maf"], "digits", {"first.weight_decay": 0.1}, BRIEF).schedules()["first"]
    left = decayed(1.0, schedule, -(-len(digits[0].new) // schedule.batch_size))
    assert 0.1 < left < 0.9
    assert isinstance(first.head, ResidualHead)
    past = first.head.classifier(left * first.head.branches.prepare(expected.features.last))
    torch.testing.assert_close(taught.fused, expected.logits.fused + past)


def test_the_past_does_not_decay_where_decay_spares_normalisations() -> None:
    schedule = Schedule(epochs=3, lr=0.1, weight_decay=0.05, decay="weights")
    assert decayed(1.0, schedule, 5) == 1
    branches: tuple[tuple[Literal["bn", "conv"], bool], ...] = (("bn", False), ("conv", True))
    for branch, decays in branches:
        head = DynamicResidualHead(4, branch=branch)
        head.grow(2)
        head.grow(2)
        before = {name: stack.clone() for name, stack in head.branches.stacks().items()}
        OldBranchDecay(head, schedule).after_step(Step(0, 0, 0.1, torch.Generator()))
        same = [torch.equal(stack, before[name]) for name, stack in head.branches.stacks().items()]
        assert not any(same) if decays else all(same)


@pytest.mark.parametrize(
    "options",
    [{}, {"nesterov": True}, {"changes": "step", "curve": "linear", "warmup_share": 0.2}, {"optimizer": "adamw"}],
    ids=str,
)
def test_decay_step_by_step_is_that_of_the_optimiser_with_a_zero_gradient(options: dict[str, Any]) -> None:
    schedule = Schedule(epochs=3, lr=0.1, weight_decay=0.05, **options)
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        [parameter], lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=schedule.nesterov
    )
    if schedule.optimizer == "adamw":
        optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.05)
    head = DynamicResidualHead(4, branch="bn")
    head.grow(2)
    head.grow(2)
    hook = OldBranchDecay(head, schedule)
    for epoch, step in itertools.product(range(3), range(5)):
        rate = schedule.rate(epoch, step, 5)
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        with torch.no_grad():
            hook.after_step(Step(epoch, step, rate, torch.Generator()))
    assert decayed(1.0, schedule, 5) == pytest.approx(parameter.item(), rel=1e-12)
    assert head.branches.stacks()["scale"].flatten().tolist() == pytest.approx([parameter.item()] * 4, rel=1e-6)
