"""Runs ``drcil learn`` in a child process; status, events, collected corrections.

Nothing from a client becomes part of a path: its file names are dropped, and its class names are cells of a table.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from ..models.store import require_store
from ..registry import VARIABLE, named_plugins
from .access import Metrics
from .decoder import EncodedImage, child_environment

TABLE = "labels.csv"
"""The table of images in an archive, as 'drcil learn' reads it."""


class CollectedImage(NamedTuple):
    """A stored image and its class, as given by a client."""

    file: str
    label: str


class CollectedImages:
    """Temporary directory of corrections, and of the images of a learning job until it ends."""

    def __init__(self) -> None:
        # Private to this user; removed with the server.
        self._temporary = tempfile.TemporaryDirectory(prefix="drcil-serve-")
        self._directory = Path(self._temporary.name)
        self._files = 0
        self.corrections: list[CollectedImage] = []

    def add(self, encoded: EncodedImage, label: str) -> CollectedImage:
        self._files += 1
        image = CollectedImage(f"{self._files:08d}.{encoded.suffix}", label)
        with open(self._directory / image.file, "xb") as file:
            file.write(encoded.content)
        return image

    def remove(self, images: Iterable[CollectedImage]) -> None:
        removed = set(images)
        self.corrections = [image for image in self.corrections if image not in removed]
        for image in removed:
            (self._directory / image.file).unlink(missing_ok=True)

    def write_table(self, images: Sequence[CollectedImage]) -> Path:
        """A CSV file of these images, for a learning job."""
        self._files += 1
        path = self._directory / f"{self._files:08d}.csv"
        with open(path, "x", encoding="utf-8") as file:
            file.write(_table(images))
        return path

    async def archive(self) -> bytes:
        """A ZIP archive of all corrections and their table."""
        return await asyncio.to_thread(self._archive, list(self.corrections))

    def _archive(self, images: Sequence[CollectedImage]) -> bytes:
        content, packed = io.BytesIO(), []
        with zipfile.ZipFile(content, "w") as archive:
            for image in images:
                with suppress(FileNotFoundError):  # Deleted or learnt meanwhile.
                    archive.write(self._directory / image.file, image.file)
                    packed.append(image)
            archive.writestr(TABLE, _table(packed))
        return content.getvalue()

    def close(self) -> None:
        self._temporary.cleanup()


def _table(images: Iterable[CollectedImage]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "label"])
    writer.writerows(images)
    return text.getvalue()


State = Literal["idle", "learning", "loading", "learnt", "failed", "stopped"]
_KEEP_ALIVE_SECONDS = 15.0
"""Time between comments that keep an event stream open."""
_SHUTDOWN_SECONDS = 3.0
_MAX_LINE = 2**20
"""Bytes of one line from the learning process."""
_NICE = 5
"""Lower priority than the server, so that predictions stay fast."""
_ERROR, _WARNING = "drcil: ", "drcil: warning: "
"""How the command line begins the sentence that says why it failed, and warnings."""


class JobStatus(BaseModel):
    """Status of the current or the last learning job."""

    state: State = "idle"
    classes: list[str] = []
    """The classes to learn."""
    images: int = 0
    stage: str | None = None
    progress: float | None = None
    """The finished share of the work, from 0 to 1, where known."""
    seconds_left: float | None = None
    error: str | None = None
    """Why the job failed."""

    @property
    def is_busy(self) -> bool:
        return self.state in ("learning", "loading")


class LearnJob:
    """The learning job of a server; one at a time."""

    def __init__(
        self,
        path: Path,
        reload: Callable[[], Awaitable[None]],
        collection: CollectedImages,
        metrics: Metrics,
        device: str,
        threads: int | None,
    ) -> None:
        """``reload`` loads the new version of the model at ``path``."""
        self._path, self.reload, self._collection, self._metrics = path.absolute(), reload, collection, metrics
        self._device, self._threads = device, threads
        self.status = JobStatus()
        self.listeners = 0
        self._status_changed = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped, self._is_closing = False, False

    async def start(
        self, images: Sequence[CollectedImage], keep_on_failure: Sequence[CollectedImage] = ()
    ) -> JobStatus:
        """Start to learn images. They are removed when the job ends; ``keep_on_failure`` only if they were learnt."""
        classes = list(dict.fromkeys(image.label for image in images))
        self.status, self._is_stopped = JobStatus(state="learning", classes=classes, images=len(images)), False
        self._task = asyncio.create_task(self._run(list(images), set(keep_on_failure)))
        await self._notify()
        return self.status

    async def stop(self) -> JobStatus:
        """Stop the job and return its outcome: the model is unchanged unless the job has just finished."""
        self._terminate()
        if self._task is not None:
            await asyncio.shield(self._task)
        return self.status

    async def close(self) -> None:
        """Stop the job and end all event streams."""
        self._is_closing = True
        await self._notify()
        self._terminate()
        if self._task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), _SHUTDOWN_SECONDS)
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def events(self) -> AsyncIterator[str]:
        """The status, now and whenever it changes, as server-sent events."""
        self.listeners += 1
        try:
            sent: JobStatus | None = None
            while not self._is_closing:
                if self.status is not sent:
                    sent = self.status
                    yield f"data: {sent.model_dump_json()}\n\n"
                try:
                    async with asyncio.timeout(_KEEP_ALIVE_SECONDS), self._status_changed:
                        while self.status is sent and not self._is_closing:
                            await self._status_changed.wait()
                except TimeoutError:
                    yield ": keep-alive\n\n"
        finally:
            self.listeners -= 1

    async def _run(self, images: list[CollectedImage], keep_on_failure: set[CollectedImage]) -> None:
        table: Path | None = None
        try:
            table = self._collection.write_table(images)
            error = await self._learn(table)
            if error is None:
                keep_on_failure = set()
                await self._update(state="loading", progress=1.0, seconds_left=None)
                error = await self._reload()
        except Exception as exception:  # Whatever fails, the next job must be able to start.
            error = _message(exception)
        finally:
            if table is not None:
                table.unlink(missing_ok=True)
            self._collection.remove(image for image in images if image not in keep_on_failure)
        outcome: State = "learnt" if error is None else "stopped" if self._is_stopped else "failed"
        self._metrics.lessons.labels(outcome).inc()
        await self._update(state=outcome, stage=None, seconds_left=None, error=error if outcome == "failed" else None)

    async def _reload(self) -> str | None:
        """Load the new model; returns why it cannot be loaded."""
        try:
            await self.reload()
        except Exception as exception:
            return f"the new model cannot be loaded: {_message(exception)}"
        return None

    async def _learn(self, table: Path) -> str | None:
        """Learn in a child process; returns why it failed. If it is killed, the model is the old or the new one."""
        await asyncio.to_thread(require_store, self._path)
        options = ["--known", "refresh", "--progress", "json", "--device", self._device, "--workers", "0"]
        if self._threads is not None:
            options += ["--threads", str(self._threads)]
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "drcil.cli.child", "learn", str(self._path), str(table), *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE,
            start_new_session=True,
            env=child_environment(**{VARIABLE: os.pathsep.join(named_plugins())}),
        )
        if hasattr(os, "setpriority"):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        if self._is_stopped:  # Stopped before the process was started.
            self._terminate_process()
        error: str | None = None
        learnt_classes: list[str] | None = None
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                message, text = _parse_message(line), line.decode(errors="replace")
                if message.get("event") == "progress":
                    await self._update(**{name: message[name] for name in ("stage", "progress", "seconds_left")})
                elif message.get("event") == "learnt":
                    learnt_classes = message["new"] + message["refreshed"]
                elif text.startswith(_ERROR) and not text.startswith(_WARNING):
                    error = text.removeprefix(_ERROR).strip()
                else:
                    sys.stderr.write(text)
        except BaseException:
            process.kill()
            raise
        finally:
            code = await process.wait()
            self._process = None
        # The process may be terminated when it has written the model, before it ends.
        if learnt_classes:
            return None
        if learnt_classes is not None:
            return "the model has learnt these images before"
        return error or f"the learning process ended with code {code}"

    def _terminate(self) -> None:
        if self.status.state == "learning":
            self._is_stopped = True
            self._terminate_process()

    def _terminate_process(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def _update(self, **changes: Any) -> None:
        self.status = self.status.model_copy(update=changes)
        await self._notify()

    async def _notify(self) -> None:
        async with self._status_changed:
            self._status_changed.notify_all()


def _message(exception: Exception) -> str:
    return str(exception) or type(exception).__name__


def _parse_message(line: bytes) -> dict[str, Any]:
    """A message of the learning process; empty for other lines."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
