"""Every method learns in several processes what it learns in one, with the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import drcil
from drcil.methods import METHODS
from support.engine import in_double
from support.process_groups import in_processes

pytestmark = pytest.mark.numerical

TASKS = 2


def learnt(method: str) -> dict[str, Any]:
    """Weights, exemplars and answers after two small tasks of digits."""
    with in_double():
        stream = drcil.stream("digits-b0-5", memory=METHODS[method].build.memory or "20")
        learner = drcil.Learner(method, epochs_scale=0.02, device="cpu")
        for number in range(1, TASKS + 1):
            learner.learn(stream.task(number))
        tensors: dict[str, Tensor] = {}
        for name, part in learner.method.parts.items():
            tensors |= {f"{name}.{path}": value for path, value in part.state_dict().items()}
        memory = learner.memory.images
        return {
            "tensors": tensors,
            "memory": [] if memory is None else memory.rows.tolist(),
            "classes": {name: one.classes for name, one in learner.rank(stream.task(TASKS).test).items()},
        }


QUICK = ("mafdrc",)
"""A residual head, teachers and a memory."""


THREE = (*QUICK, "icarl", "lucir", "bic", "podnet", "der", "foster", "dytox")
"""Also in three: stages of every kind."""


def processes_of_methods() -> Iterator[Any]:
    for name, spec in METHODS.items():
        if spec.alias_of is None:
            yield pytest.param(2, name, marks=() if name in QUICK else pytest.mark.slow)
    for name in THREE:
        yield pytest.param(3, name, marks=pytest.mark.slow)


@pytest.mark.parametrize(("processes", "method"), list(processes_of_methods()))
def test_processes_learn_and_remember_what_one_does(processes: int, method: str) -> None:
    expected = learnt(method)
    for found in in_processes(processes, learnt, method):
        assert found["memory"] == expected["memory"]
        assert found["tensors"].keys() == expected["tensors"].keys()
        for name, value in expected["tensors"].items():
            torch.testing.assert_close(found["tensors"][name], value, rtol=1e-5, atol=1e-5, msg=name)
        for name, classes in expected["classes"].items():
            assert torch.equal(found["classes"][name][:, 0], classes[:, 0])
