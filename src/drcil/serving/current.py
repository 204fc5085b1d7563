"""The model that a server answers with: the current version at a path, replaced all at once when there is another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..models.directory import at_model
from .answering import Answering, version_key

T = TypeVar("T")

_EVERY = 2.0
"""Seconds between looks whether the model has changed: other processes may teach it too."""


class Current:
    """Predictions go on with the old version while the new one is loaded."""

    def __init__(self, path: Path, device: str = "auto") -> None:
        self.path, self._device = path, device
        self.model = Answering(path, device)
        # A net is asked by one thread, so that requests do not fight for the cores.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="net")
        self._renewing = asyncio.Lock()
        self._complained = ""

    async def ask(self, question: Callable[[], T]) -> T:
        """Have something done by the thread that asks the net."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)

    async def renew(self) -> None:
        """Answer with the current version from now on."""
        async with self._renewing:
            if at_model(self.path, version_key) != self.model.key:
                self.model = await asyncio.to_thread(Answering, self.path, self._device)

    async def follow(self) -> None:
        """Renew whenever the model has changed; one that cannot be read is complained about, once."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                await self.renew()
            except Exception as error:  # Whatever it is, the old version goes on, and a later one may be sound.
                if str(error) != self._complained:
                    self._complained = str(error)
                    print(f"drcil: warning: the model has changed but cannot be read: {error}", file=sys.stderr)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
