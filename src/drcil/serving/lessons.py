"""Lessons: one at a time, in a process of its own, with everyone told who watches."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from ..plugins import VARIABLE, named_plugins
from .collection import Collection, Item
from .current import Current
from .environment import environment
from .metrics import Metrics

State = Literal["idle", "learning", "loading", "learnt", "failed", "stopped"]
_ALIVE = 15.0
"""Seconds without news after which those who watch are told that there are none."""
_GOODBYE = 3.0
_LONGEST_LINE = 2**20
"""Bytes of what the process that learns says at a time."""


class Status(BaseModel):
    """How the lesson goes, or how the last one went."""

    state: State = "idle"
    classes: list[str] = []
    """The classes that are taught."""
    images: int = 0
    stage: str | None = None
    share: float | None = None
    """Of the work that is done, where it is known."""
    left: float | None = None
    """Seconds to go, where they are known."""
    why: str | None = None
    """It failed for this reason."""

    @property
    def busy(self) -> bool:
        return self.state in ("learning", "loading")


class Lessons:
    """What the model is being taught."""

    def __init__(
        self, current: Current, collection: Collection, metrics: Metrics, device: str, threads: int | None
    ) -> None:
        self._current, self._collection, self._metrics = current, collection, metrics
        self._device, self._threads = device, threads
        self.status = Status()
        self._changed = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._lesson: asyncio.Task[None] | None = None
        self._stopped, self._closing = False, False
        self.watched = 0

    async def begin(self, items: Sequence[Item], keep: Sequence[Item] = ()) -> Status:
        """Teach these images; ``keep`` are not removed unless they were learnt."""
        classes = list(dict.fromkeys(item.label for item in items))
        self.status, self._stopped = Status(state="learning", classes=classes, images=len(items)), False
        self._lesson = asyncio.create_task(self._taught(list(items), set(keep)))
        await self._tell()
        return self.status

    async def stop(self) -> Status:
        """Give the lesson up, and say how it ended: the model stays as it was, unless it was just learnt."""
        self._give_up()
        if self._lesson is not None:
            await asyncio.shield(self._lesson)
        return self.status

    def _give_up(self) -> None:
        if self.status.state == "learning":
            self._stopped = True
            self._end()

    async def close(self) -> None:
        """End the lesson, and everyone's watching."""
        self._closing = True
        await self._tell()
        self._give_up()
        if self._lesson is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._lesson), _GOODBYE)
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def watch(self) -> AsyncIterator[str]:
        """The status now and whenever it changes, as server-sent events."""
        self.watched += 1
        try:
            told: Status | None = None
            while not self._closing:
                if self.status is not told:
                    told = self.status
                    yield f"data: {told.model_dump_json()}\n\n"
                try:
                    async with asyncio.timeout(_ALIVE), self._changed:
                        while self.status is told and not self._closing:
                            await self._changed.wait()
                except TimeoutError:
                    yield ": no news\n\n"
        finally:
            self.watched -= 1

    async def _taught(self, items: list[Item], keep: set[Item]) -> None:
        table: Path | None = None
        try:
            table = self._collection.table(items)
            failure = await self._learnt(table)
            if failure is None:
                keep = set()
                await self._become(state="loading", share=1.0, left=None)
                failure = await self._loaded()
        except Exception as error:  # Whatever it is, another lesson must be possible.
            failure = _reason(error)
        finally:
            if table is not None:
                table.unlink(missing_ok=True)
            self._collection.remove(item for item in items if item not in keep)
        ended: State = "learnt" if failure is None else "stopped" if self._stopped else "failed"
        self._metrics.count("drcil_lessons_total", outcome=ended)
        await self._become(state=ended, left=None, stage=None, why=failure if ended == "failed" else None)

    async def _loaded(self) -> str | None:
        """Why what was learnt cannot be used yet; None if it can."""
        try:
            await self._current.renew()
        except Exception as error:
            return f"it was learnt, but cannot be loaded: {_reason(error)}"
        return None

    async def _learnt(self, table: Path) -> str | None:
        """Why it was not learnt; None if it was."""
        order = {
            "model": str(self._current.path.absolute()),
            "table": str(table),
            "device": self._device,
            "threads": self._threads,
        }
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "drcil.serving.pupil", json.dumps(order)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            start_new_session=True,
            env=environment(**{VARIABLE: os.pathsep.join(named_plugins())}),
        )
        if self._stopped:  # Before there was a process.
            self._end()
        failure: str | None = None
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                said = _parsed(line)
                if said.get("event") == "progress":
                    await self._become(stage=said["stage"], share=said["share"], left=said["left"])
                elif said.get("event") == "failed":
                    failure = said["why"]
        except BaseException:
            process.kill()
            raise
        finally:
            code = await process.wait()
            self._process = None
        return failure or (None if code == 0 else f"the process that learns ended with code {code}")

    def _end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def _become(self, **changes: Any) -> None:
        self.status = self.status.model_copy(update=changes)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _parsed(line: bytes) -> dict[str, Any]:
    """What the process says; what a library prints is no news."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
