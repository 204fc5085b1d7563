"""Which commit of drcil's own source is checked out, where it is run from a repository."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).parents[3]
"""Where the repository is, if the package is run from its source."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def source_commit(root: Path = _ROOT) -> str | None:
    """Its name, read from git's own files; None in an installed package. Changes since then are not seen."""
    try:
        place = _git_directory(root / ".git")
        head = (place / "HEAD").read_text().strip()
        found = _followed(place, head.removeprefix("ref: ")) if head.startswith("ref: ") else head
    except (OSError, ValueError):
        return None
    return found if found is not None and _COMMIT.fullmatch(found) else None


def _git_directory(path: Path) -> Path:
    """In a worktree a file says where it is."""
    if path.is_dir():
        return path
    return path.parent / path.read_text().removeprefix("gitdir: ").strip()


def _followed(place: Path, branch: str) -> str | None:
    """The commit that a branch is at: in a file of its own, or among the packed ones."""
    common = place / "commondir"
    shared = place / common.read_text().strip() if common.exists() else place
    for own in (place / branch, shared / branch):
        if own.is_file():
            return own.read_text().strip()
    for line in (shared / "packed-refs").read_text().splitlines():
        commit, _, name = line.partition(" ")
        if name == branch:
            return commit
    return None
