"""``drcil export``: a file that answers as ``drcil predict`` does, without drcil."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import drcil
from drcil import Learner, UserError
from drcil.cli import main
from drcil.cli.export import _lines
from drcil.data.sources.decode import centre_view, short_side, whole
from drcil.exporting import view
from drcil.exporting.export import Exported
from drcil.exporting.view import PictureView
from drcil.exporting.weights import rebuilt
from drcil.methods import METHODS, method
from drcil.methods.replay import Replay
from drcil.nets.output import Output, Readout
from drcil.streams.stream import make_stream

STREAM = make_stream("digits-b0-5")
ROOT = Path(__file__).resolve().parents[1]
TINTS = np.array([1.0, 0.8, 0.5])
SHAPES = [(8, 8), (5, 9), (40, 13), (11, 60), (90, 7), (1, 1)]
BOUND = 1e-4


def coloured(images: Any) -> Any:
    """Digits in colour, (N, 8, 8, 3)."""
    grey = images.source.read(images.rows)[:, 0].numpy()
    return (grey[..., None] * TINTS).astype(np.uint8)


@pytest.fixture(scope="module")
def taught() -> Learner:
    """A model of coloured digits, with images that were held out and probabilities that are calibrated."""
    learner = Learner("mafdrc", epochs_scale=0.03, device="cpu", memory="5/class")
    for task in STREAM[:2]:
        learner.learn(coloured(task.new), [f"digit {label}" for label in task.new.labels], validation=0.1)
    return learner


@pytest.fixture(scope="module")
def model(taught: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export") / "digits"
    taught.save(place)
    return place


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Digits of many heights and widths, in files."""
    place = tmp_path_factory.mktemp("pictures")
    for number, (pixels, (height, width)) in enumerate(zip(coloured(STREAM[1].test), SHAPES, strict=False)):
        Image.fromarray(pixels).resize((width, height)).save(place / f"{number}.png")
    return sorted(place.iterdir())


def arrays(pictures: list[Path]) -> list[Any]:
    return [np.asarray(Image.open(path)) for path in pictures]


def probabilities(model: Path, pictures: list[Path]) -> Any:
    """What ``drcil predict`` says of each file, by class."""
    predictor = drcil.load_predictor(model, device="cpu")
    found = predictor.predict(pictures, top=len(predictor.classes))
    known = [dict(zip(one.classes, one.probabilities, strict=True)) for one in found]
    return np.array([[one[name] for name in predictor.classes] for one in known])


class TestView:
    @pytest.mark.parametrize("size", [8, 32, 65, 100, 224])
    def test_it_is_what_pillow_makes_of_a_picture_bit_for_bit(self, size: int) -> None:
        draws = np.random.default_rng(size)
        shapes = [(size, size), (size, size + 1), (3 * size, size + 2), (1, 1), *draws.integers(1, 400, (12, 2))]
        for height, width in shapes:
            pixels = draws.integers(0, 256, (height, width, 3), dtype=np.uint8)
            expected = np.asarray(centre_view(Image.fromarray(pixels), size, short_side(size)))
            levels = PictureView(size)(torch.from_numpy(pixels)[None])[0]
            assert np.array_equal(levels.permute(1, 2, 0).numpy(), expected), (height, width)

    def test_in_the_other_order_it_differs_by_one_level(self) -> None:
        """Older versions of Pillow scale rows first, whatever the shape."""
        pixels = np.random.default_rng(0).integers(0, 256, (1, 90, 20, 1), dtype=np.uint8)
        one, other = PictureView(32), PictureView(32)
        one.tall_first, other.tall_first = True, False
        differences = (one(torch.from_numpy(pixels)) - other(torch.from_numpy(pixels))).abs()
        assert differences.max() == 1 and (differences > 0).float().mean() < 0.4

    def test_the_order_of_the_installed_pillow_is_found_out(self) -> None:
        pixels = np.random.default_rng(1).integers(0, 256, (90, 20), dtype=np.uint8)
        expected = np.asarray(centre_view(Image.fromarray(pixels), 32, 32, "L"))
        own = PictureView(32)
        assert np.array_equal(own(torch.from_numpy(pixels)[None, ..., None])[0, 0].numpy(), expected)
        own.tall_first = not view.columns_first_if_tall()
        assert not np.array_equal(own(torch.from_numpy(pixels)[None, ..., None])[0, 0].numpy(), expected)

    def test_a_large_jpeg_differs_by_what_decoding_it_at_a_smaller_scale_does(self) -> None:
        """``drcil predict`` decodes those smaller, which no graph can: a level on average, as far as is measured."""
        encoded = io.BytesIO()
        digit = Image.fromarray(coloured(STREAM[1].test)[0])
        digit.resize((400, 300), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
        with Image.open(encoded) as picture:
            expected = np.asarray(centre_view(picture, 32, 32)).astype(int)
        with Image.open(encoded) as picture:
            levels = PictureView(32)(torch.from_numpy(whole(picture))[None])[0].permute(1, 2, 0).numpy()
        assert 0 < np.abs(levels - expected).mean() < 1 and np.abs(levels - expected).max() <= 8


@pytest.fixture(scope="module")
def file(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    place = tmp_path_factory.mktemp("onnx") / "digits.onnx"
    assert main(["export", str(model), "--out", str(place), "--threads", "1", "--json"]) == 0
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    return place


@pytest.fixture(scope="module")
def session(file: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


@pytest.mark.slow
class TestOnnx:
    def test_images_of_any_size_are_answered_as_predict_does(
        self, session: Any, model: Path, pictures: list[Path]
    ) -> None:
        found = [session.run(None, {"images": image[None]})[0][0] for image in arrays(pictures)]
        np.testing.assert_allclose(found, probabilities(model, pictures), atol=BOUND)

    def test_a_batch_of_any_size_is_answered_as_its_images_are(self, session: Any, model: Path) -> None:
        images = coloured(STREAM[1].test)
        expected = drcil.load_predictor(model, device="cpu").probabilities(images)
        for count in (1, 7, 33):
            (found,) = session.run(["probabilities"], {"images": images[:count]})
            np.testing.assert_allclose(found, expected[:count], atol=BOUND)

    def test_it_tells_what_it_is(self, session: Any, taught: Learner) -> None:
        about = session.get_modelmeta().custom_metadata_map
        assert json.loads(about["classes"]) == list(taught.classes)
        assert float(about["temperature"]) == taught.model.temperature != 1
        assert (about["drcil_version"], about["method"]) == (drcil.__version__, "mafdrc")
        assert (about["image_size"], about["channels"]) == ("8", "3")
        (images,) = session.get_inputs()
        assert (images.shape, images.type) == (["batch", "height", "width", 3], "tensor(uint8)")

    def test_the_program_of_the_page_runs(
        self,
        file: Path,
        pictures: list[Path],
        model: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """It needs onnxruntime and Pillow alone."""
        page = (ROOT / "docs" / "own-images.md").read_text(encoding="utf-8")
        program = re.search(r"```python\n(# classify\.py\n.*?)```", page, flags=re.DOTALL)
        assert program and "drcil" not in program[1]
        (tmp_path / "animals.onnx").symlink_to(file)
        (tmp_path / "photo.jpg").symlink_to(pictures[2])
        monkeypatch.chdir(tmp_path)
        exec(program[1], {})
        (best,) = drcil.load_predictor(model, device="cpu").predict(pictures[2])
        assert capsys.readouterr().out.split(": ")[0] == best.label


@pytest.mark.slow
def test_a_program_of_torch_answers_as_predict_does(taught: Learner, model: Path, tmp_path: Path) -> None:
    pictures = [tmp_path / "wide.png", tmp_path / "tall.png"]
    for path, pixels, size in zip(pictures, coloured(STREAM[1].test), [(30, 9), (9, 30)], strict=False):
        Image.fromarray(pixels).resize(size).save(path)
    done = drcil.export(taught, tmp_path / "digits.pt2")
    assert done.format == "torch" and done.difference <= BOUND and done.own_images > 0
    extra = {"drcil.json": ""}
    program = torch.export.load(done.file, extra_files=extra).module()
    found = [program(torch.from_numpy(image.copy())[None])[0] for image in arrays(pictures)]
    np.testing.assert_allclose(torch.stack(found).numpy(), probabilities(model, pictures), atol=BOUND)
    assert program(torch.zeros(5, 20, 20, 3, dtype=torch.uint8)).shape == (5, 4)
    assert json.loads(extra["drcil.json"])["classes"] == list(taught.classes)


class TestWeights:
    def test_what_is_rebuilt_answers_as_predict_does(
        self, model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "new" / "digits.safetensors"
        assert main(["export", str(model), "--out", str(file), "--threads", "1"]) == 0
        told = capsys.readouterr().out
        assert "largest difference from drcil's own probabilities" in told and "5 generated ones" in told
        assert re.search(r"as learnt, in torch +[\d.]+ +[\d.]+ +[\d.]+", told)
        net = rebuilt(file)
        found = [net(torch.from_numpy(image.copy())[None])[0] for image in arrays(pictures)]
        np.testing.assert_allclose(torch.stack(found).numpy(), probabilities(model, pictures), atol=BOUND)
        assert not any("running_mean" in name for name in net.state_dict()), "it is folded"

    def test_a_file_that_is_damaged_or_something_else_is_one_sentence(self, model: Path, tmp_path: Path) -> None:
        done = drcil.export(model, tmp_path / "digits.safetensors")
        content = done.file.read_bytes()
        (tmp_path / "cut.safetensors").write_bytes(content[:-100])
        (tmp_path / "other.safetensors").write_bytes(content.replace(b"mafdrc", b"mafdcr"))
        for name, told in (("cut", "cannot read"), ("other", "unknown method 'mafdcr'")):
            with pytest.raises(UserError, match=told):
                rebuilt(tmp_path / f"{name}.safetensors")
        with pytest.raises(UserError, match="is no model that was exported"):
            rebuilt(next(model.glob("**/method.safetensors")))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "x.onx"], "'x.onx' does not tell a format; give one, or a name that ends in .onnx, .pt2"),
        (["--out", "x.onnx", "--format", "torch"], "'x.onnx' is named as the format 'onnx', and 'torch' was asked for"),
        (["--out", "x", "--format", "onxx"], "unknown format 'onxx'; did you mean 'onnx'?"),
        (["--out", "x.pt2", "--quantize", "int8"], "'int8' is for ONNX files, and the format is 'torch'"),
        (["--out", "x.onnx", "--quantize", "int4"], "unknown quantize 'int4'; did you mean 'int8'?"),
        (["--out", "there.safetensors"], "there.safetensors already exists; choose another file"),
        (["--out", "there.safetensors/x.safetensors"], "cannot write"),
        ([], "Missing option '--out'"),
    ],
)
def test_what_cannot_be_exported_is_told(
    arguments: list[str],
    told: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.safetensors").write_bytes(b"mine")
    assert main(["export", str(model), *arguments]) == 2
    captured = capsys.readouterr()
    assert told in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


def test_a_missing_extra_is_told_with_the_command_that_installs_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name))
    with pytest.raises(UserError, match=r"needs onnx, onnxscript, onnxruntime, which are not .* 'drcil\[export\]'"):
        drcil.export(model, tmp_path / "x.onnx")


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no model yet"):
        drcil.export(Learner("replay"), tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="must be the path of one, or a learner, not 3"):
        drcil.export(3, tmp_path / "x.safetensors")  # type: ignore[arg-type]
    assert main(["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "x.safetensors")]) == 2
    assert not list(tmp_path.iterdir())


def test_a_file_that_disagrees_is_not_handed_over(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drcil.exporting.export.BOUND", -1.0)
    assert main(["export", str(model), "--out", str(tmp_path / "x.safetensors")]) == 1
    assert "would differ from drcil's own predictions by" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_that_does_not_run_is_not_handed_over(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drcil.exporting.weights.write", lambda model, path: path.write_bytes(b"damaged"))
    with pytest.raises(UserError, match="the exported file does not run, so that nothing was written: cannot read"):
        drcil.export(model, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_run_is_as_good_as_its_last_model(taught: Learner, tmp_path: Path) -> None:
    taught.save(tmp_path / "run" / "tasks" / "02")
    assert drcil.export(tmp_path / "run", tmp_path / "x.safetensors").difference <= BOUND


class Whimsical(Replay):
    """Reads its scores in a way that depends on what they are."""

    def readouts(self) -> Mapping[str, Readout]:
        def scores(output: Output) -> Tensor:
            return output.logits.fused * (2 if output.logits.fused.max().item() > 1 else 1)

        return {"classifier": Readout(self.net, scores)}


@pytest.mark.slow
def test_a_readout_that_is_no_graph_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS.items()))
    method("whimsical", paper="none", year=2026, recipe="replay")(Whimsical)
    learner = Learner("whimsical", epochs_scale=0.001, device="cpu")
    learner.learn(STREAM[0])
    with pytest.raises(UserError, match=r"'whimsical' cannot be exported: .* cannot be written as one graph"):
        drcil.export(learner, tmp_path / "x.pt2")
    assert not list(tmp_path.iterdir())


CASES = [
    *((name, {}) for name in sorted(METHODS)),
    ("replay+two-stage", {}),
    ("mafdrc", {"backbone": "timm:mobilenetv2_050"}),
    ("simplecil", {"backbone": "timm:vit_tiny_patch16_224", "freeze": "backbone"}),
]


NETS = (
    "mafdrc", "mafdrc-text", "mafdrc-vit", "bic", "der", "dytox", "foster", "foster-b4", "icarl", "lucir", "podnet",
    "ranpac", "simplecil", "replay",
)  # fmt: skip
"""Methods whose folded nets differ. Those of all others are built like one of them."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))
def test_every_method_is_exported_and_agrees_with_predict(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Export compares before it hands over; here once more, on files, by what is left when drcil is done."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    if "timm" in str(options) and importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    large = 32 if "mobilenet" in str(options) else 224 if "vit_tiny" in str(options) else None
    learner = Learner(name, epochs_scale=0.001, device="cpu", image_size=large, **options)
    if large:
        images = coloured(STREAM[0].new.subset(range(24))).repeat(4, axis=1).repeat(4, axis=2)
        learner.learn(list(images), [str(label) for label in STREAM[0].new.labels[:24]])
    else:
        for task in STREAM[:2]:
            learner.learn(task)
    channels = learner.model.shape.channels
    files = []
    for number, (pixels, size) in enumerate(zip(coloured(STREAM[1].test), [(8, 8), (31, 9), (9, 33)], strict=False)):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels if channels == 3 else pixels[..., 0]).resize(size).save(files[-1])
    learner.save(tmp_path / "model")
    expected = probabilities(tmp_path / "model", files)
    session = None
    if name in NETS:
        session = onnxruntime.InferenceSession(drcil.export(learner, tmp_path / "x.onnx").file)
    program = torch.export.load(drcil.export(learner, tmp_path / "x.pt2").file).module()
    net = rebuilt(drcil.export(learner, tmp_path / "x.safetensors").file)
    for image, own in zip(arrays(files), expected, strict=True):
        batch = image.reshape(1, *image.shape[:2], channels)
        if session is not None:
            np.testing.assert_allclose(session.run(None, {"images": batch})[0][0], own, atol=BOUND)
        for module in (program, net):
            np.testing.assert_allclose(module(torch.from_numpy(batch.copy()))[0].numpy(), own, atol=BOUND)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (0, "int8, dynamic, as the model has no images to calibrate with; on 5 generated images: the same best class"),
        (1, "int8, calibrated on the model's only image; on it and 5 generated ones: the same"),
        (7, "int8, calibrated on 4 images of the model; on 3 others of them: the same best class for 80.0 %"),
    ],
)
def test_it_is_said_on_which_images_eight_bits_were_measured(own: int, said: str) -> None:
    done = Exported(Path("x.onnx"), "onnx", 1, own + 5, own, 1e-6, 0.1, 0.8)
    assert said in _lines(done)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["20/class", "0"])
def test_eight_bits_cost_little_on_digits(memory: str, tmp_path: Path) -> None:
    """With images of its own it is calibrated; without, activations are measured as they come."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    learner = Learner("finetune" if memory == "0" else "replay", epochs_scale=0.3, device="cpu", memory=memory)
    learner.learn(STREAM[0])
    done = drcil.export(learner, tmp_path / "x.onnx", quantize="int8")
    assert done.difference <= BOUND and done.agreement is not None and done.agreement >= 0.9
    session = onnxruntime.InferenceSession(done.file)
    test = STREAM[0].test
    images = test.source.read(test.rows).permute(0, 2, 3, 1).numpy()
    (found,) = session.run(None, {"images": images})
    expected = learner.predictor().probabilities(images)
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.97
    assert session.get_modelmeta().custom_metadata_map["quantized"] == "int8"
