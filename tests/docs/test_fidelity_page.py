"""``docs/fidelity.md`` has the settings of both names right, and the tests it names exist."""

from __future__ import annotations

import functools
import re

from drcil.cli.options import toml_value
from drcil.methods import METHODS
from drcil.methods.catalog import resolve_settings, setting_keys
from drcil.methods.maf import MafSettings
from support.documents import ROOT

PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\|(?:[^|]+\|){3} `(?P<setting>[\w.]+)` \| `(?P<program>\S+)` \| `(?P<paper>\S+)` \|", re.MULTILINE)
NOT_AT_ISSUE = {"augment", "head", "remedies", "alpha"}
"""What paper and program agree on, and the text says."""


def test_the_table_has_the_settings_of_both_names() -> None:
    rows = list(ROW.finditer(PAGE))
    assert len(rows) == PAGE.split("## Where they differ")[1].split("##")[0].count("\n| ") - 1
    for method, column in (("mafdrc", "program"), ("mafdrc-text", "paper")):
        settings = resolve_settings(METHODS[method], "cifar", {})
        told = {row["setting"]: toml_value(row[column]) for row in rows}
        assert told == {key: functools.reduce(getattr, key.split("."), settings) for key in told}


def test_no_setting_of_the_method_is_passed_over() -> None:
    """Schedules apart, a setting is in the table, or among our own choices."""
    settings = {key for key in setting_keys(MafSettings) if "." not in key} - NOT_AT_ISSUE
    passed_over = {key for key in settings if f"`{key}`" not in PAGE}
    assert passed_over == set()


def test_the_tests_that_are_named_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 15
    assert named <= set(re.findall(r"def (test_\w+)", tests))
