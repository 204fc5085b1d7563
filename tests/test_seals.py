"""A seal tells a file from any other that a disk could make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drcil.errors import UserError
from drcil.seals import Seal, require_unchanged

CONTENT = np.random.default_rng(0).integers(0, 256, 2**22 + 5, dtype=np.uint8).tobytes()
"""Three blocks, of which the last has a row and a word that are not full."""
SEAL = Seal.of(CONTENT)


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(place: int, change: int) -> None:
    changed = bytearray(CONTENT)
    changed[place] ^= change
    assert Seal.of(bytes(changed)) != SEAL


@pytest.mark.parametrize("size", [512, 4096, 65536, 2**20])
def test_exchanged_pieces_are_noticed(size: int) -> None:
    first, second, rest = CONTENT[:size], CONTENT[size : 2 * size], CONTENT[2 * size :]
    assert Seal.of(second + first + rest) != SEAL


def test_a_file_is_compared_with_its_seal(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    require_unchanged(path, SEAL)
    for content in (CONTENT[:-1], CONTENT + b"\0", b""):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"file is damaged: it has {len(content)} bytes, but {len(CONTENT)} were"):
            require_unchanged(path, SEAL)
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(UserError, match="file is damaged: its checksum is not"):
        require_unchanged(path, SEAL)
