"""What the documents say is true: their programs run, their commands exist, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from typer.main import get_command

import drcil.models.model
import drcil.registry
from drcil import DynamicResidualHead
from drcil.cli import UsageError, app
from drcil.errors import UserError
from drcil.methods import METHODS, MethodSpec, Settings
from drcil.methods.catalog import named_method, resolve_settings
from drcil.methods.recipe import load_profile
from drcil.streams.protocols import parse_stream
from support.documents import ROOT

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
ADDING, DROP_IN = ROOT / "docs" / "adding-a-method.md", ROOT / "docs" / "drop-in.md"

_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>\w+\.(py|toml))\n")
_COMMAND = re.compile(r"\bdrcil (?P<words>[^;|&`#\n]+)")
_PLACEHOLDER = re.compile(r"\$\w+|[A-Z]+")

Namespace = dict[str, Any]


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line it begins at."""

    language: str
    text: str
    line: int


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["text"], text.count("\n", 0, match.start("text")))
        for match in _BLOCK.finditer(text)
    ]


def prose(document: Path) -> str:
    return _BLOCK.sub("", document.read_text(encoding="utf-8"))


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


def write_file(block: Block) -> bool:
    """Write a block that begins with a file's name to that file. False: it is another block."""
    file = _FILE.match(block.text)
    if file is not None:
        Path(file["name"]).write_text(block.text, encoding="utf-8")
    return file is not None


def run(document: Path) -> Namespace:
    """Run a document's programs one after the other. Returns the names that they leave behind."""
    namespace: Namespace = {"__name__": document.stem}
    for block in blocks(document):
        if not write_file(block) and block.language == "python":
            # Empty lines in front, so that an error names the line of the document.
            exec(compile("\n" * block.line + block.text, str(document), "exec"), namespace)
    return namespace


@pytest.fixture
def hurry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """A directory with the pictures that programs speak of, and a way to shorten all training, to an epoch at least."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # What programs register is forgotten with the test.
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))
    modules = set(sys.modules)
    pictures(tmp_path)

    def by(factor: float) -> None:
        def shortened(spec: MethodSpec, kind: str, given: Any, epochs_scale: float = 1.0, *rest: Any) -> Settings:
            return resolve_settings(spec, kind, given, epochs_scale * factor, *rest)

        monkeypatch.setattr(drcil.models.model, "resolve_settings", shortened)

    yield by
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def pictures(directory: Path) -> None:
    """Two months of photographs, two classes each, more of one of these, and a photograph to be classified."""
    draws = np.random.default_rng(0)
    for place in ("march/crab", "march/llama", "april/panda", "april/rooster", "may/crab", "inbox"):
        (directory / place).mkdir(parents=True)
        for number in range(1 if place == "inbox" else 4):
            pixels = draws.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(directory / place / f"{number}.jpg")


@pytest.mark.parametrize("document", [page for page in DOCUMENTS if page not in (ADDING, DROP_IN)], ids=named)
def test_programs_run(document: Path, hurry: Callable[[float], None]) -> None:
    hurry(0.001)
    run(document)


def test_the_method_that_the_page_adds_learns_without_forgetting(hurry: Callable[[float], None]) -> None:
    hurry(0.1)
    end = run(ADDING)
    learner, test = end["learner"], end["stream"][1].test
    assert learner.method.settings.steadiness == 0.05
    # Seeds 0 to 4: 89 ± 7.1, old classes 78 ± 14; without a memory these are 50 and 0.
    assert learner.evaluate(test) > 60
    assert learner.evaluate(test.subset(test.labels < 2)) > 30


@pytest.mark.numerical
def test_the_drop_in_program_remembers_every_task() -> None:
    with torch.random.fork_rng():
        end = run(DROP_IN)
    images, labels = end["test_images"], end["test_labels"]
    right = end["head"](end["body"](images)).fused.argmax(dim=1) == labels
    for task in range(3):
        # Seeds 0 to 4: at least 0.997 ± 0.0045; chance is 0.17.
        assert right[labels // 2 == task].float().mean() > 0.8


def test_the_drop_in_options_are_those_of_the_head() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", prose(DROP_IN), re.MULTILINE)
    assert [name for name, _ in rows] == list(DynamicResidualHead(4).options())
    for name, values in rows:
        for value in re.findall(r'"(\w+)"', values):
            assert DynamicResidualHead(4, **{name: value}).options()[name] == value


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_commands_exist(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Plugins that commands name are files of the reader's, or blocks of the document.
    monkeypatch.setattr(drcil.registry, "_named", {})
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))
    for name in re.findall(r"--plugin (\w+\.py)", document.read_text(encoding="utf-8")):
        Path(name).touch()
    for block in blocks(document):
        write_file(block)
    for block in blocks(document):
        # A block that shows output has commands only behind a prompt.
        commands = block.text if block.language == "sh" else "".join(re.findall(r"^\$ .*\n", block.text, re.MULTILINE))
        for command in _COMMAND.finditer(commands):
            understand(command["words"])
    for code in re.findall(r"`(drcil [^`]+)`", prose(document)):
        understand(code.removeprefix("drcil "), partly=True)


def understand(words: str, partly: bool = False) -> None:
    """A command must be one that drcil takes; one that is mentioned ``partly`` may lack arguments."""
    arguments = shlex.split(words)
    command: Any = get_command(app)
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        assert name in command.commands, f"drcil has no verb '{name}': drcil {words}"
        command = command.commands[name]
    if "--help" in arguments:
        return
    try:
        parameters = command.make_context("drcil", arguments).params
    except UsageError as error:
        if not (partly and type(error).__name__ == "MissingParameter"):
            raise AssertionError(f"drcil {words}: {error.format_message()}") from None
        return
    checks: dict[str, Callable[[str], object]] = {
        "method": named_method,
        "stream": parse_stream,
        "profile": partial(load_profile, kind="digits"),
    }
    given = [(option, parameters.get(option)) for option in checks]
    given += [("method", name) for name in parameters.get("methods") or ()]
    for option, value in given:
        # Other verbs have a --profile of another kind.
        if isinstance(value, str) and not _PLACEHOLDER.fullmatch(value):
            checks[option](value)


def test_a_wrong_command_is_noticed() -> None:
    for words in (
        "rnu mafdrc",
        "run --epoch-scale 2",
        "run mafdcr",
        "run mafdrc digits",
        "compare mafdrc icral digits-b0-5",
        "show",
        "data look digits",
    ):
        with pytest.raises((AssertionError, UserError)):
            understand(words)
    understand("show", partly=True)


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    text = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)) <= set(targets)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), f"{named(document)} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{named(document)} links to {target}"


def anchors(document: Path) -> list[str]:
    """The headings of a document, as links to them are written."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_table_of_methods_has_their_summaries() -> None:
    section = prose(ROOT / "docs" / "methods.md").partition("\n## Names\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w+-]+)` \| (.+?) \|", section, re.MULTILINE)
    said = {name: summary for name, summary in rows if name in METHODS}
    assert said == {name: METHODS[name].summary for name in said}
    assert {"mafdrc", "mafdrc-text", "mdtdrc", "mecdrc", "icarl", "replay", "finetune", "joint"} <= said.keys()
