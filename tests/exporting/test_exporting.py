"""``drcil export``: files that predict like ``drcil predict``, without drcil."""

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
from drcil.data.decoding import centre_view, decode_full, short_side
from drcil.exporting.classifier import PictureView, columns_first_if_tall
from drcil.exporting.exporter import Exported
from drcil.methods import METHODS, method
from drcil.methods.replay import Replay
from drcil.nets.net import Output, Readout
from drcil.streams.stream import make_stream

pytestmark = pytest.mark.numerical

STREAM = make_stream("digits-b0-5")
ROOT = Path(__file__).resolve().parents[2]
TINTS = np.array([1.0, 0.8, 0.5])
SHAPES = [(8, 8), (5, 9), (40, 13), (11, 60), (90, 7), (1, 1)]
BOUND = 1e-4


def coloured(images: Any) -> Any:
    """Digits in colour, (N, 8, 8, 3)."""
    grey = images.source.read(images.rows)[:, 0].numpy()
    return (grey[..., None] * TINTS).astype(np.uint8)


@pytest.fixture(scope="module")
def taught() -> Learner:
    """A calibrated model of coloured digits with held-out images."""
    learner = Learner("mafdrc", epochs_scale=0.03, device="cpu", memory="5/class")
    for task in STREAM[:2]:
        learner.learn(coloured(task.new), [f"digit {label}" for label in task.new.labels], validation=0.1)
    return learner


@pytest.fixture(scope="module")
def model(taught: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "digits"
    taught.save(path)
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Digits of many heights and widths, in files."""
    directory = tmp_path_factory.mktemp("pictures")
    for number, (pixels, (height, width)) in enumerate(zip(coloured(STREAM[1].test), SHAPES, strict=False)):
        Image.fromarray(pixels).resize((width, height)).save(directory / f"{number}.png")
    return sorted(directory.iterdir())


def arrays(pictures: list[Path]) -> list[Any]:
    return [np.asarray(Image.open(path)) for path in pictures]


def probabilities(model: Path, pictures: list[Path]) -> Any:
    """Probabilities that ``drcil predict`` gives for each file, by class."""
    predictor = drcil.load_predictor(model, device="cpu")
    predictions = predictor.predict(pictures, top=len(predictor.classes))
    by_class = [dict(zip(image.classes, image.probabilities, strict=True)) for image in predictions]
    return np.array([[image[name] for name in predictor.classes] for image in by_class])


@pytest.mark.parametrize("size", [8, 32, 65, 100, 224])
def test_the_view_equals_pillow_bit_for_bit(size: int) -> None:
    generator = np.random.default_rng(size)
    shapes = [(size, size), (size, size + 1), (3 * size, size + 2), (1, 1), *generator.integers(1, 400, (12, 2))]
    for height, width in shapes:
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        expected = np.asarray(centre_view(Image.fromarray(pixels), size, short_side(size)))
        levels = PictureView(size)(torch.from_numpy(pixels)[None])[0]
        assert np.array_equal(levels.permute(1, 2, 0).numpy(), expected), (height, width)


def test_the_view_scales_axes_in_the_order_of_the_installed_pillow() -> None:
    """Older versions of Pillow scale rows first, whatever the shape; the other order differs by one level."""
    pixels = np.random.default_rng(1).integers(0, 256, (90, 20), dtype=np.uint8)
    expected = np.asarray(centre_view(Image.fromarray(pixels), 32, 32, "L"))
    view = PictureView(32)
    assert view.tall_first == columns_first_if_tall()
    assert np.array_equal(view(torch.from_numpy(pixels)[None, ..., None])[0, 0].numpy(), expected)
    view.tall_first = not view.tall_first
    differences = np.abs(view(torch.from_numpy(pixels)[None, ..., None])[0, 0].numpy() - expected)
    assert differences.max() == 1 and (differences > 0).mean() < 0.4


def test_a_large_jpeg_differs_by_about_a_level_since_predict_decodes_it_smaller() -> None:
    encoded = io.BytesIO()
    digit = Image.fromarray(coloured(STREAM[1].test)[0])
    digit.resize((400, 300), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
    with Image.open(encoded) as picture:
        expected = np.asarray(centre_view(picture, 32, 32)).astype(int)
    with Image.open(encoded) as picture:
        levels = PictureView(32)(torch.from_numpy(decode_full(picture))[None])[0].permute(1, 2, 0).numpy()
    assert 0 < np.abs(levels - expected).mean() < 1 and np.abs(levels - expected).max() <= 8


@pytest.mark.slow
def test_an_onnx_file_predicts_like_drcil_and_describes_itself(
    taught: Learner,
    model: Path,
    pictures: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(model), "--out", "animals.onnx", "--threads", "1", "--json", "--benchmark"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["animals.onnx"]
    speeds = json.loads(capsys.readouterr().out)["speed"]
    assert [speed["net"] for speed in speeds] == [
        "as trained, in torch",
        "folded, in torch",
        "the file, in onnxruntime",
    ]
    session = onnxruntime.InferenceSession("animals.onnx", providers=["CPUExecutionProvider"])
    predicted = [session.run(None, {"images": image[None]})[0][0] for image in arrays(pictures)]
    np.testing.assert_allclose(predicted, probabilities(model, pictures), atol=BOUND)
    images = coloured(STREAM[1].test)
    expected = drcil.load_predictor(model, device="cpu").probabilities(images)
    for count in (1, 7, 33):
        (batch,) = session.run(["probabilities"], {"images": images[:count]})
        np.testing.assert_allclose(batch, expected[:count], atol=BOUND)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(taught.classes)
    assert float(about["temperature"]) == taught.model.temperature != 1
    assert (about["drcil_version"], about["method"]) == (drcil.__version__, "mafdrc")
    assert (about["image_size"], about["channels"]) == ("8", "3")
    (images_input,) = session.get_inputs()
    assert (images_input.shape, images_input.type) == (["batch", "height", "width", 3], "tensor(uint8)")
    # The program in the documentation needs onnxruntime and Pillow only.
    page = (ROOT / "docs" / "own-images.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(# classify\.py\n.*?)```", page, flags=re.DOTALL)
    assert program and "drcil" not in program[1]
    Path("photo.jpg").symlink_to(pictures[2])
    exec(program[1], {})
    (best,) = drcil.load_predictor(model, device="cpu").predict(pictures[2])
    assert capsys.readouterr().out.split(": ")[0] == best.label


@pytest.mark.slow
def test_a_torch_program_predicts_like_drcil_and_describes_itself(
    taught: Learner, model: Path, pictures: list[Path], tmp_path: Path
) -> None:
    exported = drcil.export(taught, tmp_path / "digits.pt2")
    assert exported.format == "torch" and exported.difference <= BOUND and exported.model_images > 0
    extra = {"drcil.json": ""}
    program = torch.export.load(exported.file, extra_files=extra).module()
    predicted = [program(torch.from_numpy(image.copy())[None])[0] for image in arrays(pictures)]
    np.testing.assert_allclose(torch.stack(predicted).numpy(), probabilities(model, pictures), atol=BOUND)
    assert program(torch.zeros(5, 20, 20, 3, dtype=torch.uint8)).shape == (5, 4)
    assert json.loads(extra["drcil.json"])["classes"] == list(taught.classes)


def test_safetensors_are_folded_and_load_exported_predicts_like_drcil(
    model: Path, pictures: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "digits.safetensors"
    assert main(["export", str(model), "--out", str(file), "--threads", "1"]) == 0
    output = capsys.readouterr().out
    assert "largest difference from drcil's probabilities" in output and "5 synthetic images)" in output
    assert "as trained" not in output, "speed is measured with --benchmark only"
    net = drcil.load_exported(file)
    predicted = [net(torch.from_numpy(image.copy())[None])[0] for image in arrays(pictures)]
    np.testing.assert_allclose(torch.stack(predicted).numpy(), probabilities(model, pictures), atol=BOUND)
    assert not any("running_mean" in name for name in net.state_dict())


def test_load_exported_refuses_damaged_and_other_files(model: Path, tmp_path: Path) -> None:
    content = drcil.export(model, tmp_path / "digits.safetensors").file.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[:-100])
    (tmp_path / "other.safetensors").write_bytes(content.replace(b"mafdrc", b"mafdcr"))
    for name, message in (("cut", "cannot read"), ("other", "unknown method 'mafdcr'")):
        with pytest.raises(UserError, match=message):
            drcil.load_exported(tmp_path / f"{name}.safetensors")
    with pytest.raises(UserError, match="is not an exported model"):
        drcil.load_exported(next(model.glob("**/method.safetensors")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.onx"], "'x.onx' has no known suffix; give a format, or a name that ends in .onnx, .pt2"),
        (["--out", "x.onnx", "--format", "torch"], "'x.onnx' ends like the format 'onnx', but the format is 'torch'"),
        (["--out", "x", "--format", "onxx"], "unknown format 'onxx'; did you mean 'onnx'?"),
        (["--out", "x.pt2", "--quantize", "int8"], "'int8' is for ONNX files, and the format is 'torch'"),
        (["--out", "x.onnx", "--quantize", "int4"], "unknown quantize 'int4'; did you mean 'int8'?"),
        (["--out", "there.safetensors"], "there.safetensors already exists; choose another file"),
        (["--out", "there.safetensors/x.safetensors"], "cannot write"),
        ([], "Missing option '--out'"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(
    arguments: list[str],
    message: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.safetensors").write_bytes(b"mine")
    assert main(["export", str(model), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name))
    with pytest.raises(UserError, match=r"needs onnx, onnxscript, onnxruntime, which are not .* 'drcil\[export\]'"):
        drcil.export(model, tmp_path / "x.onnx")


def test_only_models_are_exported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no model yet"):
        drcil.export(Learner("replay"), tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="must be a path or a learner, not 3"):
        drcil.export(3, tmp_path / "x.safetensors")  # type: ignore[arg-type]
    assert main(["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "x.safetensors")]) == 2
    assert not list(tmp_path.iterdir())


def test_a_file_that_disagrees_is_not_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("drcil.exporting.exporter.MAX_DIFFERENCE", -1.0)
    assert main(["export", str(model), "--out", str(tmp_path / "x.safetensors")]) == 1
    assert "would differ from drcil's predictions by" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_that_does_not_run_is_not_written(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drcil.exporting.torch_formats.write_weights", lambda model, path: path.write_bytes(b"damaged"))
    with pytest.raises(UserError, match="the exported file does not run, so nothing was written: cannot read"):
        drcil.export(model, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_run_is_exported_as_its_last_model(taught: Learner, tmp_path: Path) -> None:
    taught.save(tmp_path / "run" / "tasks" / "02")
    assert drcil.export(tmp_path / "run", tmp_path / "x.safetensors").difference <= BOUND


class ValueDependent(Replay):
    """Its readout depends on the values of the scores, which no graph can express."""

    def readouts(self) -> Mapping[str, Readout]:
        def scores(output: Output) -> Tensor:
            return output.logits.fused * (2 if output.logits.fused.max().item() > 1 else 1)

        return {"classifier": Readout(self.net, scores)}


@pytest.mark.slow
def test_a_readout_that_cannot_be_traced_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS.items()))
    method("value-dependent", paper="none", year=2026, recipe="replay")(ValueDependent)
    learner = Learner("value-dependent", epochs_scale=0.001, device="cpu")
    learner.learn(STREAM[0])
    with pytest.raises(UserError, match=r"'value-dependent' cannot be exported: .* cannot be written as one graph"):
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
"""Methods whose folded nets differ; those of all others are built like one of these."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))
def test_exports_of_every_method_predict_like_drcil(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Compares predictions of files once more, with the runtimes alone."""
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
    net = drcil.load_exported(drcil.export(learner, tmp_path / "x.safetensors").file)
    for image, target in zip(arrays(files), expected, strict=True):
        batch = image.reshape(1, *image.shape[:2], channels)
        if session is not None:
            np.testing.assert_allclose(session.run(None, {"images": batch})[0][0], target, atol=BOUND)
        for module in (program, net):
            np.testing.assert_allclose(module(torch.from_numpy(batch.copy()))[0].numpy(), target, atol=BOUND)


@pytest.mark.parametrize(
    ("model_images", "message"),
    [
        (
            0,
            "int8, dynamic, since the model has no images to calibrate with; on 5 synthetic images: the same best",
        ),
        (1, "int8, calibrated on the model's only image; on it and 5 synthetic ones: the same"),
        (7, "int8, calibrated on 4 images of the model; on 3 others of them: the same best class for 80.0 %"),
    ],
)
def test_output_says_on_which_images_int8_was_compared(model_images: int, message: str) -> None:
    exported = Exported(Path("x.onnx"), "onnx", 1, model_images + 5, model_images, 1e-6, 0.1, 0.8)
    assert message in _lines(exported)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["20/class", "0"])
def test_int8_predicts_nearly_like_float(memory: str, tmp_path: Path) -> None:
    """With exemplars the file is calibrated; without, quantisation is dynamic."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    learner = Learner("finetune" if memory == "0" else "replay", epochs_scale=0.3, device="cpu", memory=memory)
    learner.learn(STREAM[0])
    exported = drcil.export(learner, tmp_path / "x.onnx", quantize="int8")
    assert exported.difference <= BOUND and exported.agreement is not None and exported.agreement >= 0.9
    session = onnxruntime.InferenceSession(exported.file)
    test = STREAM[0].test
    images = test.read().permute(0, 2, 3, 1).numpy()
    (predicted,) = session.run(None, {"images": images})
    expected = learner.predictor().probabilities(images)
    assert (predicted.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.97
    assert session.get_modelmeta().custom_metadata_map["quantized"] == "int8"
