"""Models of timm as backbones: what they answer, how they are described, and learning with them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import drcil
from drcil.cli import main
from drcil.errors import UserError
from drcil.nets.backbone import BACKBONES, backbone_for, build_backbone, family_of, preprocessing_of
from drcil.nets.initial_weights import find_weights, start_from, unmatched_tensors
from drcil.nets.timm_backbones import import_timm, pretrained_weights
from drcil.seeding import seeded_torch
from drcil.train.optimizers import exempt_parameters

pytestmark = pytest.mark.numerical

if importlib.util.find_spec("timm") is None:
    pytest.skip("needs timm: pip install 'drcil[timm]'", allow_module_level=True)

GIVES = {
    "resnet18": ("stages", 512, "convolutional"),
    "mobilenetv3_small_050": ("vector", 1024, "convolutional"),
    "vit_tiny_patch16_224": ("vector", 192, "transformer"),
    "levit_128s": ("tokens", 384, "transformer"),
}
"""What a model answers with: maps of stages, tokens without a class token, or what stands behind its pooling."""


@pytest.mark.parametrize("name", GIVES)
def test_features_are_what_timm_pools(name: str) -> None:
    gives, channels, family = GIVES[name]
    with seeded_torch("test", "timm", name):
        backbone = backbone_for(f"timm:{name}", 1, 64).eval()
        images = torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        features, pooled = backbone(images), backbone.as_published()(images)
    assert (backbone.describe()["gives"], backbone.channels) == (gives, channels)
    assert backbone.stage_maps is bool(features.stages) is (gives == "stages")
    torch.testing.assert_close(features.pooled, pooled, rtol=1e-3, atol=1e-5)
    average = features.last.mean(dim=(2, 3) if features.last.ndim == 4 else 1)
    torch.testing.assert_close(features.pooled, average)
    assert family_of(f"timm:{name}") == family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("repvit_m0_9", "convolutional"),
        ("poolformer_s12", "convolutional"),
        ("caformer_s18", "transformer"),
        ("fastvit_t8", "convolutional"),
        ("sam2_hiera_tiny", "transformer"),
        ("swin_tiny_patch4_window7_224", "transformer"),
        ("botnet26t_256", "convolutional"),
        ("mobilenetv4_hybrid_medium", "convolutional"),
    ],
)
def test_the_family_is_what_the_net_is_made_of_not_what_it_is_called(name: str, family: str) -> None:
    before = torch.get_rng_state()
    assert family_of(f"timm:{name}") == family
    assert torch.equal(torch.get_rng_state(), before)


@torch.no_grad()
def test_the_tokens_of_patches_are_there_where_a_class_token_is_the_answer() -> None:
    backbone = backbone_for("timm:vit_tiny_patch16_224", 3, 32).eval()
    images = torch.rand(2, 3, 32, 32)
    assert backbone(images).last.shape == (2, 1, 192)
    net: Any = backbone.as_published()
    expected = net.forward_features(images)[:, 1:]
    assert expected.shape == (2, 4, 192)
    torch.testing.assert_close(backbone.tokens(images), expected)


def test_a_description_builds_the_same_net_again() -> None:
    backbone = backbone_for("timm:resnet18", 1, 32).eval()
    again = build_backbone(**json.loads(json.dumps(backbone.describe()))).eval()
    again.load_state_dict(backbone.state_dict(), strict=True)
    images = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(images).pooled, backbone(images).pooled)
    assert backbone.parts()[:3] == ("net.conv1", "net.bn1", "net.layer1.0")
    with pytest.raises(UserError, match="unknown answer of a backbone 'maps'"):
        build_backbone(**{**backbone.describe(), "gives": "maps"})


def test_weight_decay_leaves_out_positions_and_tokens() -> None:
    backbone = backbone_for("timm:vit_tiny_patch16_224", 3, 32)
    exempt = exempt_parameters(backbone)
    assert {backbone.get_parameter("net.pos_embed"), backbone.get_parameter("net.cls_token")} <= exempt
    assert not [
        name for name, parameter in backbone.named_parameters() if name.endswith("weight") and parameter in exempt
    ]


def test_what_timm_does_not_have_is_told() -> None:
    with pytest.raises(UserError, match="backbone 'timm:' is incomplete; give it as timm:NAME, such as timm:resnet18"):
        BACKBONES["timm:"]
    with pytest.raises(UserError, match="timm has no model 'resnet19'; did you mean 'resnet18'"):
        BACKBONES["timm:resnet19"]
    with pytest.raises(UserError, match=r"timm has no model 'resnet18\.a0_in1k'; did you mean 'resnet18\.a"):
        BACKBONES["timm:resnet18.a0_in1k"]
    with pytest.raises(UserError, match=r"'timm:vit_tiny_patch16_224' cannot take images of 8 pixels: .* --image"):
        backbone_for("timm:vit_tiny_patch16_224", 3, 8)
    with pytest.raises(UserError, match="has no variant with last_relu=False, which the method needs"):
        build_backbone("timm:resnet18", 3, image_size=32, last_relu=False)


def test_published_weights_that_cannot_be_had_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("huggingface_hub") is not None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"of 'timm:resnet18' are not cached and .* give it with --weights FILE"):
        pretrained_weights("timm:resnet18")
    with pytest.raises(UserError, match=r"no published weights for backbone 'resnet32'; .* --weights FILE"):
        pretrained_weights("resnet32")
    with pytest.raises(UserError, match="give --pretrained or --weights"):
        drcil.Learner("replay", backbone="timm:resnet18", weights="some.pth", pretrained=True)


def test_without_timm_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_timm.cache_clear()
    with monkeypatch.context() as missing:
        missing.setattr("importlib.util.find_spec", lambda name: None)
        assert main(["run", "replay", "digits-b0-5", "--backbone", "timm:resnet10t"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "need timm, which is not installed; install it with pip install 'drcil[timm]'" in told


def test_weights_for_other_channels_and_sizes_are_adapted_as_timm_does_it(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    with seeded_torch("test", "timm", "weights"):
        saved = import_timm().create_model(name, img_size=64)
    save_file(saved.state_dict(), tmp_path / "w.safetensors")
    weights = find_weights(tmp_path / "w.safetensors")
    assert unmatched_tensors(lambda: backbone_for(f"timm:{name}", 1, 32), weights) == ""
    backbone = backbone_for(f"timm:{name}", 1, 32)
    start_from(backbone, weights)
    net: Any = backbone.as_published()
    torch.testing.assert_close(net.patch_embed.proj.weight, saved.patch_embed.proj.weight.sum(dim=1, keepdim=True))
    assert net.pos_embed.shape == (1, 1 + 4, 192)
    assert torch.equal(net.blocks[3].mlp.fc1.weight, saved.blocks[3].mlp.fc1.weight)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of small photographs, each of a colour of its own."""
    root, draw = tmp_path_factory.mktemp("timm") / "pictures", np.random.default_rng(0)
    colours = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200), "grey": (120, 120, 120)}
    for name, colour in colours.items():
        (root / name).mkdir(parents=True)
        for number in range(6):
            noise = draw.integers(-30, 30, (80, 96, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.jpg")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_a_timm_net_learns_a_folder_and_is_saved_loaded_and_asked(name: str, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["run", "replay", f"folder:{pictures}-b0-2", "--backbone", f"timm:{name}", "--epochs-scale", "0.001"]
    assert main([*command, "--workers", "0", "--quiet", "--out", str(out)]) == 0
    state = json.loads((out / "tasks" / "02" / "state.json").read_text())
    preprocessing = preprocessing_of(f"timm:{name}")
    assert preprocessing is not None
    assert state["images"]["size"] == preprocessing.image_size == 224
    learner = drcil.load(out / "tasks" / "02")
    assert learner.method.net.backbone.describe()["name"] == f"timm:{name}"
    files = sorted(pictures.glob("*/*.jpg"))
    asked = [one.probabilities for one in learner.predict(files[:8], top=4)]
    learner.save(tmp_path / "model")
    again = [one.probabilities for one in drcil.load_predictor(tmp_path / "model").predict(files[:8], top=4)]
    assert asked == again
    assert {name for one in learner.predict(files, top=4) for name in one.classes} == {"red", "green", "blue", "grey"}


def test_mean_and_deviation_come_from_the_backbone_where_weights_are_used(pictures: Path, tmp_path: Path) -> None:
    name = "tf_mobilenetv3_small_minimal_100"
    wanted = preprocessing_of(f"timm:{name}")
    assert wanted is not None and wanted.mean == (0.5, 0.5, 0.5)
    with seeded_torch("test", "timm", "saved"):
        save_file(import_timm().create_model(name).state_dict(), tmp_path / "w.safetensors")
    options: dict[str, Any] = {"backbone": f"timm:{name}", "epochs_scale": 0.001, "workers": 0}
    files = sorted(pictures.glob("[rg]*/*.jpg"))
    labels = [file.parent.name for file in files]
    started = drcil.Learner("replay", weights=tmp_path / "w.safetensors", **options)
    started.learn(files, labels)
    assert (started.model.data.mean, started.model.data.std) == (wanted.mean, wanted.std)
    assert started.model.shape.size == wanted.image_size
    fresh = drcil.Learner("replay", **options)
    fresh.learn(files, labels)
    assert fresh.model.data.mean == (0.485, 0.456, 0.406), "without weights as the data has it"


def test_small_images_in_memory_keep_their_size() -> None:
    from drcil.runs.plan import complete
    from drcil.settings import RunSettings

    assert complete(RunSettings(method="replay", stream="cifar100-b0-10", backbone="timm:resnet18")).image_size is None
    assert (
        complete(RunSettings(method="replay", stream="imagenet100-b0-10", backbone="timm:resnet18")).image_size == 224
    )
    given: dict[str, Any] = {"method": "replay", "stream": "imagenet100-b0-10", "image_size": 64}
    assert complete(RunSettings(**given, backbone="timm:resnet18")).image_size == 64
    assert complete(RunSettings(**given, backbone="resnet18")).image_size == 64


def test_published_weights_in_the_cache_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with seeded_torch("test", "timm", "cached"):
        saved = import_timm().create_model("resnet10t")
    place, revision = tmp_path / "models--timm--resnet10t.c3_in1k", "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(revision)
    (place / "snapshots" / revision).mkdir(parents=True)
    save_file(saved.state_dict(), place / "snapshots" / revision / "model.safetensors")
    assert hub.try_to_load_from_cache("timm/resnet10t.c3_in1k", "model.safetensors", cache_dir=tmp_path)
    weights = pretrained_weights("timm:resnet10t")
    backbone = backbone_for("timm:resnet10t", 3, 32)
    start_from(backbone, weights)
    net: Any = backbone.as_published()
    assert torch.equal(net.layer1[0].conv1.weight, saved.layer1[0].conv1.weight)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [("vit_tiny_patch16_224", 196), ("cait_xxs24_224", 196), ("tiny_vit_5m_224", 49), ("poolformer_s12", 49)],
)
def test_tokens_are_those_of_patches(name: str, count: int) -> None:
    backbone = build_backbone(f"timm:{name}", 3, image_size=224).eval()
    with torch.no_grad():
        assert backbone.tokens(torch.rand(1, 3, 224, 224)).shape == (1, count, backbone.channels)


@pytest.mark.slow
def test_a_model_without_tokens_of_patches_says_so() -> None:
    backbone = build_backbone("timm:crossvit_tiny_240", 3, image_size=240).eval()
    with torch.no_grad(), pytest.raises(UserError, match="does not tell the tokens of its patches"):
        backbone.tokens(torch.rand(1, 3, 240, 240))
