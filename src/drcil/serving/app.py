"""The endpoints: what clients may ask, and what they are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, File, Form, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from .. import __version__
from ..errors import UserError
from .answering import Answer
from .assets import assets
from .collection import Item
from .desk import Desk
from .forms import Classes, Correction, Corrections, Health, Known, Likely, Predictions, Problem, Seen, Skipped, Taken
from .lessons import Status
from .limits import Refusal, class_label

Images = Annotated[list[UploadFile], File(description="Image files.")]
Label = Annotated[str, Form(description="The name of the class that they show.")]
_SENTENCES = {
    404: "there is nothing at this address; /docs lists what there is",
    405: "this address does not take that method; /docs lists what there is",
}
_DIGITS = 6
"""Of a probability."""


def make_app(desk: Desk) -> FastAPI:
    """The endpoints of one server."""

    @asynccontextmanager
    async def alive(app: FastAPI) -> AsyncIterator[None]:
        async with desk.open():
            yield

    app = FastAPI(
        title="drcil",
        version=__version__,
        summary="An image classifier that keeps learning new classes.",
        docs_url=None,
        redoc_url=None,
        lifespan=alive,
        responses={"4XX": {"model": Problem, "description": "What was wrong, in a sentence."}},
    )
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(RequestValidationError, _misused)
    app.add_exception_handler(UserError, _misused)
    app.add_exception_handler(Exception, _broken)
    _add_predicting(app, desk)
    _add_state(app, desk)
    if desk.rules.collect:
        _add_corrections(app, desk)
    if desk.rules.teach:
        _add_teaching(app, desk)
    for path, (kind, content) in assets().items():
        # Each is a route of its own: no path of a request is looked up on the disk.
        app.add_route(path, _always(kind, content), include_in_schema=False)
    return app


def _add_predicting(app: FastAPI, desk: Desk) -> None:
    @app.post("/predict", summary="Tell what images show")
    async def predict(
        images: Images,
        top: Annotated[int, Query(ge=1, le=1000, description="Classes per image.")] = 3,
        threshold: Annotated[float, Query(ge=0, le=1, description="No label below this probability.")] = 0.0,
        nearest: Annotated[int, Query(ge=0, le=12, description="Remembered images that look most alike.")] = 0,
    ) -> Predictions:
        model, found = await desk.predicted(images, top, nearest)

        def seen(file: str | None, one: Answer | Refusal) -> Seen:
            if isinstance(one, Refusal):
                return Seen(file=file, error=one.detail)
            best = one.prediction
            return Seen(
                file=file,
                label=best.label if best.probability >= threshold else None,
                classes=[
                    Likely(name=name, probability=round(likely, _DIGITS))
                    for name, likely in zip(best.classes, best.probabilities, strict=True)
                ],
                nearest=[f"/exemplars/{model.key}/{one.label}/{place}" for place in one.nearest],
            )

        return Predictions(
            version=model.version, images=[seen(image.filename, one) for image, one in zip(images, found, strict=True)]
        )

    @app.get("/exemplars/{key}/{label}/{place}", summary="An image that the model remembers", response_class=Response)
    async def exemplar(key: str, label: int, place: int) -> Response:
        model = desk.current.model
        found = await desk.current.ask(lambda: model.exemplar(label, place)) if key == model.key else None
        if found is None:
            raise Refusal(404, "there is no such image")
        return Response(found, media_type="image/png", headers={"Cache-Control": "private, max-age=86400, immutable"})


def _add_state(app: FastAPI, desk: Desk) -> None:
    @app.get("/classes", summary="List the classes it knows")
    async def classes() -> Classes:
        model = desk.current.model
        usage, none = model.usage, [None] * len(model.classes)
        rows = zip(model.classes, usage.images if usage else none, usage.accuracy if usage else none, strict=True)
        known = [Known(name=name, images=images, accuracy=accuracy) for name, images, accuracy in rows]
        return Classes(version=model.version, classes=known)

    @app.get("/health", summary="Tell whether it answers, and what it offers")
    async def health() -> Health:
        model, rules = desk.current.model, desk.rules
        return Health(
            status="ok",
            model=desk.name,
            version=model.version,
            classes=len(model.classes),
            calibrated=bool(model.usage and model.usage.calibration),
            teaches=rules.teach,
            collects=rules.collect,
            token=rules.token is not None,
            learning=desk.lessons.status.busy,
        )

    @app.get("/metrics", summary="Counts for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(desk.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_corrections(app: FastAPI, desk: Desk) -> None:
    @app.post("/corrections", summary="Collect images with the class that they show")
    async def correct(label: Label, images: Images) -> Taken:
        name = class_label(label)
        return _taken(name, images, await desk.corrected(images, name))

    @app.get("/corrections", summary="List what was collected")
    async def corrections() -> Corrections:
        labels = [item.label for item in desk.collection.corrected]
        known = desk.current.model.classes
        return Corrections(
            corrections=[
                Correction(label=label, known=label in known, images=labels.count(label))
                for label in dict.fromkeys(labels)
            ]
        )

    @app.get("/corrections.zip", summary="Fetch what was collected, for 'drcil learn'", response_class=Response)
    async def archive() -> Response:
        headers = {"Content-Disposition": 'attachment; filename="corrections.zip"'}
        return Response(await desk.collection.archive(), media_type="application/zip", headers=headers)

    @app.delete("/corrections", summary="Delete what was collected", status_code=204)
    async def delete() -> None:
        if refusal := desk.engaged():
            raise refusal
        desk.collection.remove(list(desk.collection.corrected))


def _add_teaching(app: FastAPI, desk: Desk) -> None:
    @app.post("/learn", summary="Teach a class: a new one, or more of one that it knows", status_code=202)
    async def learn(label: Label, images: Images) -> Taken:
        name = class_label(label)
        return _taken(name, images, await desk.taught(name, images))

    @app.post("/learn/corrections", summary="Teach what was collected", status_code=202)
    async def learn_corrections() -> Status:
        return await desk.taught_corrections()

    @app.get("/learn", summary="How the lesson goes")
    async def status() -> Status:
        return desk.lessons.status

    @app.delete("/learn", summary="Give the lesson up", status_code=204)
    async def stop() -> None:
        if desk.lessons.status.busy and (await desk.lessons.stop()).state == "learnt":
            raise Refusal(409, "the lesson was learnt before it could be given up; 'drcil undo' takes it back")

    @app.get("/learn/events", summary="How the lesson goes, as server-sent events", response_class=StreamingResponse)
    async def events() -> StreamingResponse:
        if desk.lessons.watched >= desk.limits.listeners:
            raise Refusal(503, "too many watch already; try again later", {"Retry-After": "10"})
        return StreamingResponse(desk.lessons.watch(), media_type="text/event-stream")


def _taken(label: str, images: Sequence[UploadFile], found: Sequence[Item | Refusal]) -> Taken:
    skipped = [
        Skipped(file=image.filename, error=one.detail)
        for image, one in zip(images, found, strict=True)
        if isinstance(one, Refusal)
    ]
    return Taken(label=label, images=len(found) - len(skipped), skipped=skipped)


def _always(kind: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind)

    return answer


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = error.detail if isinstance(error, Refusal) else _SENTENCES.get(error.status_code, error.detail)
    return JSONResponse({"error": sentence}, error.status_code, error.headers)


async def _misused(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where, why = ".".join(map(str, first["loc"][1:])), first["msg"]
        if "UploadFile" in why:
            why = "a file is needed, sent as multipart/form-data with a file name"
        return JSONResponse({"error": f"the request cannot be used: {where}: {why}"}, 400)
    return JSONResponse({"error": str(error)}, 400)


async def _broken(request: Request, error: Exception) -> Response:
    """The error itself is in the log, and is nobody's business elsewhere."""
    return JSONResponse({"error": "something broke in the server; its log says what"}, 500)
