"""Golden values: they pin what stored results depend on, that is the identities of runs and all that is drawn.

If one changes, finished runs are no longer found, and interrupted runs end otherwise than they would have. The values
may only be regenerated on purpose, with ``python tests/golden/regenerate.py`` and a line in the changelog.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from golden.regenerate import FILE, values

pytestmark = pytest.mark.numerical

PINNED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """As JSON gives them back."""
    return json.loads(json.dumps(values()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["runs", "keys", "draws", "class orders", "streams", "exemplars"])
def test_what_stored_results_depend_on_has_not_changed(kind: str, found: dict[str, dict[str, Any]]) -> None:
    assert found.keys() == PINNED.keys()
    changed = {name: value for name, value in found[kind].items() if PINNED[kind].get(name) != value}
    assert changed == {} and found[kind].keys() == PINNED[kind].keys()
