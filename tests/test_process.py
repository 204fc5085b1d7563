"""CPUs that announce AMX, and die at its first instruction."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import drcil
from drcil import process
from drcil.cli import main
from drcil.errors import UserError
from drcil.process import announces_amx, require_bf16, works_in_child
from drcil.train import EngineSettings, make_inference

ISA = "ONEDNN_MAX_CPU_ISA"
FLAGS = "processor : 0\nflags : fpu avx512_bf16{}\nbugs : amx_tile\n"


def die() -> None:
    os.kill(os.getpid(), signal.SIGILL)


def die_with_amx() -> None:
    if os.environ.get(ISA) != "AVX512_CORE_BF16":
        die()


def fail() -> None:
    raise RuntimeError("not implemented for bf16")


@pytest.fixture(autouse=True)
def unknown_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of the CPU, and no limit is set."""
    monkeypatch.setenv(ISA, "ALL")
    monkeypatch.delenv(ISA)
    require_bf16.cache_clear()
    yield
    require_bf16.cache_clear()


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put the process on a CPU that announces AMX, or does not, and on which a product ends so."""

    def pretend(product: Callable[[], None], amx: bool = True) -> None:
        monkeypatch.setattr(process, "announces_amx", lambda: amx)
        monkeypatch.setattr(process, "multiply_in_bf16", product)

    return pretend


@pytest.mark.parametrize(("flags", "announced"), [("", False), (" amx_bf16 amx_tile", True), (" amx_tiles", False)])
def test_a_cpu_announces_amx_by_its_flags(flags: str, announced: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(FLAGS.format(flags))
    assert announces_amx(tmp_path / "cpuinfo") == announced
    assert not announces_amx(tmp_path / "none")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
class TestBrokenAmx:
    def test_a_child_that_dies_or_fails_does_not_work(self) -> None:
        assert works_in_child(lambda: None)
        assert not works_in_child(die)
        assert not works_in_child(fail)

    def test_a_child_that_hangs_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(process, "_PROBE_SECONDS", 0.0)
        assert not works_in_child(signal.pause)

    def test_bf16_is_computed_without_amx_where_amx_ends_the_process(self, on_cpu: Callable[..., None]) -> None:
        on_cpu(die_with_amx)
        require_bf16()
        assert os.environ[ISA] == "AVX512_CORE_BF16"

    def test_a_cpu_whose_amx_works_keeps_it(self, on_cpu: Callable[..., None]) -> None:
        on_cpu(lambda: None)
        require_bf16()
        assert ISA not in os.environ

    @pytest.mark.parametrize("before", [None, "AVX512_CORE_AMX"])
    def test_where_nothing_helps_bf16_is_refused_and_nothing_is_changed(
        self, before: str | None, on_cpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if before is not None:
            monkeypatch.setenv(ISA, before)
        on_cpu(die)
        with pytest.raises(UserError, match="do not work; use --precision 32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE"):
            require_bf16()
        assert os.environ.get(ISA) == before

    def test_training_and_predicting_in_bf16_ask_first(
        self, on_cpu: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        on_cpu(die)
        short = ["--epochs-scale", "0.01", "--tasks", "1", "--quiet", "--device", "cpu", "--out", str(tmp_path / "run")]
        assert main(["run", "replay", "digits-b0-5", *short, "--precision", "bf16-mixed"]) == 2
        assert capsys.readouterr().err.startswith("drcil: --precision bf16-mixed cannot be used here, since the AMX")
        learner = drcil.Learner("replay", epochs_scale=0.01, device="cpu")
        learner.learn(drcil.stream("digits-b0-5").task(1))
        learner.save(tmp_path / "model")
        with pytest.raises(UserError, match="bf16-mixed cannot be used here"):
            drcil.load_predictor(tmp_path / "model", device="cpu", precision="bf16-mixed")


def test_nobody_is_asked_without_need(on_cpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for other precisions, not on a CPU without AMX, and not twice."""
    asked: list[object] = []

    def works_in_child(compute: object) -> bool:
        asked.append(compute)
        return True

    monkeypatch.setattr(process, "works_in_child", works_in_child)
    normalisation = ((0.5,), (0.5,))
    on_cpu(die, amx=False)
    make_inference(EngineSettings(device="cpu", precision="bf16-mixed"), *normalisation)
    assert not asked
    require_bf16.cache_clear()
    on_cpu(die)
    make_inference(EngineSettings(device="cpu"), *normalisation)
    assert not asked
    for _ in range(2):
        make_inference(EngineSettings(device="cpu", precision="bf16-mixed"), *normalisation)
    assert asked == [die]
