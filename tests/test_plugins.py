"""Plugins: found by entry point, module or file; imported once, at the first look-up; told of in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.plugins import METHOD, install

SHELF = "from drcil.registry import Registry\nTHINGS = Registry('thing')\n"
"""A registry of nobody's, so that a test need not wait for torch."""
LAMP = "from shelf import THINGS\nTHINGS.register('lamp')(1)\n"
SHOW = "from shelf import THINGS\nprint({name: THINGS.origin(name) for name in THINGS})\n"
"""What is registered, and its origin."""


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A directory from which modules can be imported."""
    (tmp_path / "shelf.py").write_text(SHELF)
    (tmp_path / "lamp.py").write_text(LAMP)
    return tmp_path


def python(room: Path, code: str, **environment: str) -> str:
    """What a fresh process prints; the sentence of a ``UserError`` where it ends in one."""
    code = f"from drcil import UserError\ntry:\n    exec({code!r})\nexcept UserError as error:\n    print(error)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=room,
        env={**os.environ, "PYTHONPATH": f"{room}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def use(*names: str) -> str:
    return f"from drcil.registry import use_plugins\nuse_plugins(*{names!r})\n"


def test_an_installed_plugin_is_imported_at_the_first_look_up_and_is_the_origin(room: Path) -> None:
    install(room, "lights", "lamp")
    assert python(room, SHOW) == "{'lamp': 'lights'}"
    early = "import sys, shelf\nshelf.THINGS.register('chair')(2)\nprint('lamp' in sys.modules)"
    assert python(room, early) == "False", "registering alone imports no plugin"


def test_a_plugin_is_named_by_module_or_file_in_python_or_in_the_environment(room: Path) -> None:
    file = str(room / "lamp.py")
    assert python(room, use("lamp") + SHOW) == "{'lamp': 'lamp'}"
    assert python(room, use("lamp.py") + SHOW) == f"{{'lamp': '{file}'}}"
    (room / "chair.py").write_text(LAMP.replace("lamp", "chair"))
    both = python(room, SHOW, DRCIL_PLUGINS=f"./lamp.py{os.pathsep}chair")
    assert both == f"{{'lamp': '{file}', 'chair': 'chair'}}"


def test_a_missing_plugin_of_the_environment_is_reported_once(room: Path) -> None:
    twice = (
        "from shelf import THINGS\nfrom drcil import UserError\n"
        "try:\n    len(THINGS)\nexcept UserError as error:\n    print(error)\n"
    )
    output = python(room, twice + SHOW, DRCIL_PLUGINS=f"absent{os.pathsep}lamp")
    assert output == "the plugin 'absent' cannot be used: there is no such module\n{'lamp': 'lamp'}"


def test_one_file_is_one_module_whatever_it_is_called(room: Path) -> None:
    (room / "inner").mkdir()
    names = ("lamp.py", "inner/../lamp.py", str(room / "lamp.py"))
    assert python(room, use(*names) + SHOW) == f"{{'lamp': '{room / 'lamp.py'}'}}"
    assert python(room, "import lamp\n" + use("lamp.py") + SHOW) == "{'lamp': 'lamp'}"


def test_what_is_registered_outside_a_plugin_has_its_module_or_the_session_as_origin(room: Path) -> None:
    code = "import lamp\nfrom shelf import THINGS\nTHINGS.register('chair')(2)\n" + SHOW
    assert python(room, code) == "{'lamp': 'lamp', 'chair': 'this session'}"
    needed = "from drcil.registry import needed_plugins\nprint(needed_plugins((THINGS, 'lamp'), (THINGS, 'chair')))\n"
    assert python(room, f"{code}{needed}").endswith("('lamp',)"), "a session cannot be imported again"


def test_a_plugin_sees_what_is_there_and_may_name_another(room: Path) -> None:
    (room / "desk.py").write_text(
        f"{use('lamp')}from shelf import THINGS\nTHINGS.register('desk')(len(THINGS))\n",
    )
    assert python(room, use("desk") + SHOW + "print(THINGS['desk'])") == "{'desk': 'desk', 'lamp': 'lamp'}\n0"


@pytest.mark.parametrize(
    ("plugin", "told"),
    [
        ("absent", "the plugin 'absent' cannot be used: there is no such module"),
        ("inner.absent", "the plugin 'inner.absent' cannot be used: there is no such module"),
        ("absent.py", "the plugin '{room}/absent.py' cannot be used: there is no such file"),
        ("wrong.py", "the plugin '{room}/wrong.py' cannot be imported: invalid syntax ({room}/wrong.py, line 2)"),
        ("fails.py", "the plugin '{room}/fails.py' cannot be imported: KeyError: 'x' ({room}/fails.py, line 3)"),
        ("leaves.py", "the plugin '{room}/leaves.py' cannot be imported: SystemExit: 3 ({room}/leaves.py, line 2)"),
        (
            "clash.py",
            "the plugin '{room}/clash.py' cannot be imported: thing 'lamp' is registered twice, by 'lamp' and by "
            "'{room}/clash.py'; rename one of them ({room}/clash.py, line 2)",
        ),
        (
            "needy.py",
            "the plugin '{room}/needy.py' cannot be imported: ModuleNotFoundError: No module named 'absent' "
            "({room}/needy.py, line 1)",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_told_in_one_sentence(room: Path, plugin: str, told: str) -> None:
    (room / "inner").mkdir()
    (room / "inner" / "__init__.py").touch()
    (room / "wrong.py").write_text("import os\ndef (:\n")
    (room / "fails.py").write_text("def find():\n    return {}['x']\nfind()\n")
    (room / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (room / "clash.py").write_text(LAMP)
    (room / "needy.py").write_text("import absent\n")
    assert python(room, use("lamp", plugin) + SHOW) == told.format(room=room)


def test_a_file_given_like_a_module_is_proposed(room: Path) -> None:
    (room / "elsewhere").mkdir()
    (room / "elsewhere" / "mine.py").touch()
    said = python(room, f"import os\nos.chdir('elsewhere')\n{use('mine')}{SHOW}")
    assert said == "the plugin 'mine' cannot be used: there is no such module; did you mean 'mine.py'?"


def test_a_plugin_that_failed_leaves_nothing_and_can_be_mended(room: Path) -> None:
    broken, mended = LAMP + "1 / 0\n", LAMP + "# mended\n"
    code = (
        f"open('mine.py', 'w').write({broken!r})\n{use('mine.py')}from shelf import THINGS\n"
        "try:\n    THINGS['lamp']\nexcept UserError as error:\n    print(error)\n"
        f"open('mine.py', 'w').write({mended!r})\nprint(THINGS['lamp'])\n"
    )
    first, second = python(room, code).splitlines()
    assert "division by zero" in first and second == "1"


def require(*names: str) -> str:
    return f"from drcil.registry import require_plugins\nrequire_plugins({names!r}, 'runs/mine')\n"


def test_a_plugin_that_a_run_needs_must_be_there_and_is_never_imported_because_a_file_says_so(room: Path) -> None:
    for name in ("lamp", str(room / "lamp.py")):
        told = python(room, require(name))
        assert told == f"runs/mine needs the plugin '{name}'; install it, or name it with --plugin or drcil.use_plugins"
        assert python(room, use("lamp.py") + require(name) + SHOW) == f"{{'lamp': '{room / 'lamp.py'}'}}"
    assert python(room, "import lamp\n" + require("lamp") + SHOW) == "{'lamp': 'lamp'}"


def test_a_named_plugin_serves_for_a_file_that_was_moved(room: Path) -> None:
    (room / "new").mkdir()
    moved = (room / "lamp.py").rename(room / "new" / "lamp.py")
    assert python(room, use(str(moved)) + require(str(room / "lamp.py")) + SHOW) == f"{{'lamp': '{moved}'}}"
    (room / "lamp.py").write_text(LAMP)
    assert python(room, use(str(moved)) + require(str(room / "lamp.py")) + SHOW) == f"{{'lamp': '{moved}'}}"


def digest(name: str, before: str = "") -> str:
    return f"{before}from drcil.registry import plugin_code\nprint(plugin_code({name!r}).digest)\n"


def test_the_code_of_a_plugin_is_its_file_wherever_it_is(room: Path) -> None:
    file = python(room, digest("lamp", use("lamp.py")))
    assert file == python(room, digest("lamp", use("lamp"))) == python(room, digest("lamp", "import lamp\n"))
    (room / "new").mkdir()
    moved = (room / "lamp.py").rename(room / "new" / "lamp.py")
    assert file == python(room, digest(str(room / "lamp.py"), use(str(moved))))
    moved.with_suffix(".toml").write_text("[default]\n")
    assert file == python(room, digest("lamp", use(str(moved)))), "a recipe is compared by what it says"
    moved.write_text(LAMP + "# edited\n")
    assert file != python(room, digest("lamp", use(str(moved))))


def test_the_code_of_a_package_is_all_of_its_modules(room: Path) -> None:
    (room / "lights" / "inner").mkdir(parents=True)
    for file, content in (("__init__.py", ""), ("lamp.py", LAMP), ("inner/loss.py", "")):
        (room / "lights" / file).write_text(content)
    before = python(room, digest("lights.lamp", use("lights.lamp")))
    assert before == python(room, digest("lights.lamp", use("lights.lamp"))), "compiled modules do not count"
    (room / "lights" / "inner" / "loss.py").write_text("scale = 2\n")
    after = python(room, digest("lights.lamp", use("lights.lamp")))
    (room / "lights" / "inner" / "loss.py").rename(room / "lights" / "inner" / "losses.py")
    assert len({before, after, python(room, digest("lights.lamp", use("lights.lamp")))}) == 3


def test_an_installed_plugin_is_told_by_its_version_and_its_code(room: Path) -> None:
    install(room, "lights", "lamp")
    metadata = room / "lamp-1.0.dist-info" / "METADATA"
    digests = [python(room, digest("lights"))]
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))
    digests.append(python(room, digest("lights")))
    (room / "lamp.py").write_text(LAMP + "# edited\n")
    digests.append(python(room, digest("lights")))
    assert len(set(digests)) == 3


def test_the_code_is_that_which_was_imported(room: Path) -> None:
    edited = f"open('lamp.py', 'w').write({LAMP + '# edited'!r})\n"
    imported = python(room, digest("lamp", use("lamp.py") + SHOW + edited)).splitlines()[-1]
    (room / "lamp.py").write_text(LAMP)
    assert imported == python(room, digest("lamp", use("lamp.py")))


def test_a_named_plugin_that_registers_nothing_counts_for_every_result(room: Path) -> None:
    (room / "patch.py").write_text("import shelf\n")
    code = use("lamp.py", "patch.py") + "from drcil.registry import acting_plugins\nprint(acting_plugins(['other']))"
    assert python(room, code) == f"('other', '{room / 'patch.py'}')"


@pytest.mark.slow
def test_what_drcil_registers_is_its_own_whoever_imports_it(room: Path) -> None:
    (room / "mine.py").write_text(METHOD.format(name="mine"))
    show = "from drcil.methods import METHODS\nprint({METHODS.origin(name) for name in METHODS if name != 'mine'})\n"
    assert python(room, f"import mine\n{show}print(METHODS.origin('mine'))") == "{None}\nmine"
    assert python(room, f"{use('mine')}{show}print(METHODS.origin('mine'))") == "{None}\nmine"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["drcil.methods.catalog:METHODS", "drcil.heads.head:HEADS"])
def test_a_name_of_drcil_cannot_be_taken(room: Path, first: str) -> None:
    """Neither where drcil's own comes first nor where the plugin is imported before drcil's methods are."""
    (room / "mine.py").write_text(METHOD.format(name="icarl"))
    module, registry = first.split(":")
    said = python(
        room,
        f"{use('mine')}from {module} import {registry}\nlen({registry})\n"
        "from drcil.methods import METHODS\nlen(METHODS)\n",
    )
    assert "method 'icarl' is registered twice" in said and "drcil" in said and "'mine'" in said


@pytest.mark.slow
def test_a_name_that_is_missing_does_not_stay_in_the_way(room: Path) -> None:
    code = use("absent") + "from drcil.methods import METHODS\n"
    look = "try: METHODS['replay']\nexcept Exception as error: print(error)\n"
    told = python(room, code + look + "print(METHODS['replay'].name)").splitlines()
    assert told == ["the plugin 'absent' cannot be used: there is no such module", "replay"]


@pytest.mark.slow
def test_a_method_without_a_recipe_is_told_and_listed(room: Path) -> None:
    (room / "mine.py").write_text(METHOD.format(name="mine").replace('recipe="replay"', 'recipe="mine"'))
    said = python(room, use("mine") + "import drcil\ndrcil.Learner('mine').learn(drcil.stream('digits-b0-5')[0])")
    assert said == "drcil has no recipe 'mine.toml'; a method from outside gives its own file"
    listed = "from drcil.cli import main\nmain(['list', 'methods', '--json'])"
    assert '"name": "mine"' in python(room, use("mine") + listed)
