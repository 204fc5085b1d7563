"""The predictor: a model in use, by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import drcil
from drcil import Learner, UserError
from drcil.models.predictor import Predictor
from drcil.streams.stream import make_stream

pytestmark = pytest.mark.numerical

STREAM = make_stream("digits-b0-5")
PIXELS = STREAM[1].test.read()[:, 0].numpy()


@pytest.fixture(scope="module")
def taught() -> Learner:
    """Two tasks of a method with two readouts, of which one needs class means besides the net."""
    learner = Learner("icarl", epochs_scale=0.05, device="cpu")
    for task in STREAM[:2]:
        learner.learn(task)
    return learner


@pytest.fixture(scope="module")
def saved(taught: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predictor") / "model"
    taught.save(path)
    return path


@pytest.mark.parametrize("readout", [None, "nme", "classifier"])
def test_a_saved_model_predicts_as_its_learner_does(taught: Learner, saved: Path, readout: str | None) -> None:
    predictor = drcil.load_predictor(saved, device="cpu")
    assert predictor.classes == taught.classes == ("4", "2", "7", "6")
    assert predictor.readouts == ("nme", "classifier")
    assert predictor.predict(PIXELS, top=3, readout=readout) == taught.predict(PIXELS, top=3, readout=readout)
    assert predictor.evaluate(STREAM[1].test, readout=readout) == taught.evaluate(STREAM[1].test, readout=readout)


def test_probabilities_are_those_of_the_net_in_evaluation_mode(taught: Learner) -> None:
    net, data = taught.method.net, taught.model.data
    with torch.no_grad():
        normalised = (torch.from_numpy(PIXELS)[:, None].float() / 255 - data.mean[0]) / data.std[0]
        likely = net.eval()(normalised).logits.fused.softmax(dim=1)
        expected = likely.topk(4, dim=1)
    predictions = taught.predict(PIXELS, top=4, readout="classifier")
    assert [one.classes for one in predictions] == [tuple(taught.classes[i] for i in row) for row in expected.indices]
    np.testing.assert_allclose([one.probabilities for one in predictions], expected.values, atol=1e-5)
    np.testing.assert_allclose(taught.predictor().probabilities(PIXELS, "classifier"), likely, atol=1e-5)


def test_nets_are_frozen_and_built_once(taught: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A predictor keeps what was known when it was made, whatever becomes of the learner, and folds no net again."""
    predictor = taught.predictor()
    assert taught.predictor() is predictor, "until more is learnt"
    before = predictor.predict(PIXELS)
    with torch.no_grad():
        weights = [parameter.clone() for parameter in taught.method.net.parameters()]
        try:
            for parameter in taught.method.net.parameters():
                parameter.zero_()
            monkeypatch.setattr("drcil.nets.net.frozen_copy", lambda net: pytest.fail("folded again"))
            assert predictor.predict(PIXELS) == before
        finally:
            for parameter, value in zip(taught.method.net.parameters(), weights, strict=True):
                parameter.copy_(value)


def test_learning_on_makes_a_new_predictor() -> None:
    learner = Learner("replay", epochs_scale=0.02, device="cpu")
    learner.learn(STREAM[0])
    first = learner.predictor()
    learner.learn(STREAM[1])
    assert (len(first.classes), len(learner.predictor().classes)) == (2, 4)


def test_half_precision_answers_nearly_the_same_in_float32(saved: Path) -> None:
    whole, half = (drcil.load_predictor(saved, device="cpu", precision=p) for p in ("32", "bf16-mixed"))
    ranked = [predictor.rank(STREAM[1].test, 4)["classifier"] for predictor in (whole, half)]
    assert ranked[1].scores.dtype == torch.float32
    assert not torch.equal(ranked[0].scores, ranked[1].scores)
    assert torch.allclose(ranked[0].scores, ranked[1].scores, atol=0.3)


def test_what_cannot_be_used_is_refused(saved: Path) -> None:
    for options, sentence in (
        ({"device": "abacus"}, "unknown device 'abacus'"),
        ({"device": "cpu", "precision": "16-mixed"}, "needs a GPU"),
        ({"device": "cpu", "precision": "fp16"}, "unknown precision 'fp16'"),
        ({"device": "cpu", "batch": 0}, "batch must be a whole number from 1 to 1048576, not 0"),
        ({"device": "cpu", "workers": -3}, "workers must be a whole number from 0 to 256, not -3"),
    ):
        with pytest.raises(UserError, match=sentence):
            drcil.load_predictor(saved, **options)
    with pytest.raises(UserError, match="threads must be a whole number from 1 to"):
        drcil.configure(threads=0)
    predictor = drcil.load_predictor(saved, device="cpu")
    with pytest.raises(UserError, match="no task has been learnt"):
        Predictor({}, (), predictor.shape, predictor._inference)


def test_predicting_needs_no_training_code_and_no_plots(saved: Path, tmp_path: Path) -> None:
    """In a process of its own, from a picture on disk: neither the engine's nor the report's libraries are imported,
    nor torch's compiler, which takes seconds."""
    Image.fromarray(PIXELS[0]).save(tmp_path / "digit.png")
    program = (
        "import json, sys, drcil\n"
        "predictor = drcil.load_predictor(sys.argv[1], device='cpu')\n"
        "(one,) = predictor.predict(sys.argv[2])\n"
        "heavy = {'matplotlib', 'rich', 'typer', 'drcil.train', 'torch._dynamo'}\n"
        "print(json.dumps([one.label, sorted(heavy & sys.modules.keys())]))\n"
    )
    command = [sys.executable, "-c", program, str(saved), str(tmp_path / "digit.png")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(answer) == [drcil.load_predictor(saved).predict(PIXELS[:1])[0].label, []]


@pytest.mark.slow
def test_nothing_process_wide_changes_behind_the_users_back() -> None:
    """Threads, determinism, environment, generators, signals: the same before and after a learner has learnt."""
    program = """
import os, random, signal, torch, numpy as np
torch.set_num_threads(2)
def state():
    return (
        torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark, torch.get_default_dtype(), torch.is_grad_enabled(), os.getcwd(),
        torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate(),
        signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), dict(os.environ),
    )
calls = []
import ctypes
real = ctypes.CDLL
class Watched(real):
    def __getattr__(self, name):
        if name == "mallopt":
            calls.append(name)
        return super().__getattr__(name)
before = state()
import drcil
ctypes.CDLL = Watched
stream = drcil.stream("digits-b0-5")
learner = drcil.Learner("mafdrc", epochs_scale=0.01, device="cpu")
learner.learn(stream[0])
learner.predict(stream[0].test.read(slice(None, 3)))
assert state() == before
assert not calls
drcil.configure(threads=1)
assert torch.get_num_threads() == 1
assert calls
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["foster:boosted", "foster-b4"])
def test_a_readout_that_is_named_with_the_method_leads_also_after_loading(name: str, tmp_path: Path) -> None:
    learner = Learner(name, epochs_scale=0.02, device="cpu")
    for task in STREAM[:2]:
        learner.learn(task)
    learner.save(tmp_path / "model")
    loaded = drcil.load_predictor(tmp_path / "model", device="cpu")
    assert loaded.readouts == learner.predictor().readouts == ("boosted", "compressed")
    assert loaded.predict(PIXELS, top=4) == learner.predict(PIXELS, top=4, readout="boosted")
    assert loaded.predict(PIXELS, top=4) != learner.predict(PIXELS, top=4, readout="compressed")
