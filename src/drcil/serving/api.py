"""HTTP endpoints, response models, static files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Annotated

from fastapi import FastAPI, File, Form, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from .. import __version__
from ..errors import UserError
from .access import Refusal, class_label
from .learn_jobs import JobStatus
from .service import PredictedImage, ServerState, UploadResult


class ErrorMessage(BaseModel):
    error: str


class Predictions(BaseModel):
    version: str
    """The version of the model that was used."""
    images: list[PredictedImage]


class ClassInfo(BaseModel):
    """A class, the number of its training images, and its held-out accuracy in percent."""

    name: str = Field(serialization_alias="class")
    images: int | None
    accuracy: float | None


class Classes(BaseModel):
    version: str
    classes: list[ClassInfo]


class Health(BaseModel):
    status: str
    model: str
    version: str
    classes: int
    calibrated: bool
    teaches: bool
    collects: bool
    token: bool
    """Whether requests need a token."""
    learning: bool


class Correction(BaseModel):
    label: str
    known: bool
    """Whether the model knows the class."""
    images: int


class Corrections(BaseModel):
    corrections: list[Correction]


_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PATHS = {"index.html": "/", "docs.html": "/docs"}


@cache
def assets() -> dict[str, tuple[str, bytes]]:
    """Media type and content of the page's files, by URL path."""
    files = sorted((resources.files(__package__) / "page").iterdir(), key=lambda file: file.name)
    return {
        _PATHS.get(file.name, f"/page/{file.name}"): (_MEDIA_TYPES[suffix], file.read_bytes())
        for file in files
        if (suffix := file.name.rpartition(".")[2]) in _MEDIA_TYPES
    }


Images = Annotated[list[UploadFile], File(description="Image files.")]
Label = Annotated[str, Form(description="Class of the images.")]
_MESSAGES = {
    404: "there is no such address; /docs lists the endpoints",
    405: "this endpoint does not accept that method; /docs lists the endpoints",
}


def make_app(state: ServerState) -> FastAPI:
    """The API of a server."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with state.run():
            yield

    app = FastAPI(
        title="drcil",
        version=__version__,
        summary="An image classifier that keeps learning new classes.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={"4XX": {"model": ErrorMessage, "description": "What is wrong with the request."}},
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(Exception, _internal_error)
    _add_predictions(app, state)
    _add_status(app, state)
    if state.policy.collect:
        _add_corrections(app, state)
    if state.policy.teach:
        _add_learning(app, state)
    for path, (media_type, content) in assets().items():
        # One route per file: no path of a request is looked up on disk.
        app.add_route(path, _static(media_type, content), include_in_schema=False)
    return app


def _add_predictions(app: FastAPI, state: ServerState) -> None:
    @app.post("/predict", summary="Classify images")
    async def predict(
        images: Images,
        top: Annotated[int, Query(ge=1, le=1000, description="Number of classes per image.")] = 3,
        threshold: Annotated[float, Query(ge=0, le=1, description="No label below this probability.")] = 0.0,
        nearest: Annotated[int, Query(ge=0, le=12, description="Number of most similar exemplars.")] = 0,
    ) -> Predictions:
        model, predicted = await state.predict(images, top, threshold, nearest)
        return Predictions(version=model.version, images=predicted)

    @app.get("/exemplars/{key}/{label}/{index}", summary="Get an exemplar of the model", response_class=Response)
    async def exemplar(key: str, label: int, index: int) -> Response:
        model, png = state.current.model, None
        if key == model.key:
            png = await state.current.run_in_model_thread(lambda: model.exemplar(label, index))
        if png is None:
            raise Refusal(404, "there is no such image")
        return Response(png, media_type="image/png", headers={"Cache-Control": "private, max-age=86400, immutable"})


def _add_status(app: FastAPI, state: ServerState) -> None:
    @app.get("/classes", summary="List the classes of the model")
    async def classes() -> Classes:
        model = state.current.model
        usage, unknown = model.usage, [None] * len(model.classes)
        rows = zip(model.classes, usage.images if usage else unknown, usage.accuracy if usage else unknown, strict=True)
        infos = [ClassInfo(name=name, images=images, accuracy=accuracy) for name, images, accuracy in rows]
        return Classes(version=model.version, classes=infos)

    @app.get("/health", summary="Get the status of the server and what it offers")
    async def health() -> Health:
        model, policy = state.current.model, state.policy
        return Health(
            status="ok",
            model=state.name,
            version=model.version,
            classes=len(model.classes),
            calibrated=bool(model.usage and model.usage.calibration),
            teaches=policy.teach,
            collects=policy.collect,
            token=policy.token is not None,
            learning=state.learn_job.status.is_busy,
        )

    @app.get("/metrics", summary="Get metrics for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(state.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_corrections(app: FastAPI, state: ServerState) -> None:
    @app.post("/corrections", summary="Collect images with their true class")
    async def correct(label: Label, images: Images) -> UploadResult:
        return await state.collect(images, class_label(label))

    @app.get("/corrections", summary="List the collected corrections")
    async def corrections() -> Corrections:
        labels = [image.label for image in state.collection.corrections]
        classes = state.current.model.classes
        return Corrections(
            corrections=[
                Correction(label=label, known=label in classes, images=labels.count(label))
                for label in dict.fromkeys(labels)
            ]
        )

    @app.get("/corrections.zip", summary="Download the corrections for 'drcil learn'", response_class=Response)
    async def archive() -> Response:
        headers = {"Content-Disposition": 'attachment; filename="corrections.zip"'}
        return Response(await state.collection.archive(), media_type="application/zip", headers=headers)

    @app.delete("/corrections", summary="Delete the corrections", status_code=204)
    async def delete() -> None:
        state.require_not_learning()
        state.collection.remove(list(state.collection.corrections))


def _add_learning(app: FastAPI, state: ServerState) -> None:
    @app.post("/learn", summary="Learn images of a new or a known class", status_code=202)
    async def learn(label: Label, images: Images) -> UploadResult:
        return await state.learn_images(images, class_label(label))

    @app.post("/learn/corrections", summary="Learn the collected corrections", status_code=202)
    async def learn_corrections() -> JobStatus:
        return await state.learn_corrections()

    @app.get("/learn", summary="Get the status of the learning job")
    async def status() -> JobStatus:
        return state.learn_job.status

    @app.delete("/learn", summary="Stop the learning job", status_code=204)
    async def stop() -> None:
        if state.learn_job.status.is_busy and (await state.learn_job.stop()).state == "learnt":
            raise Refusal(409, "the job finished before it could be stopped; 'drcil undo' restores the previous model")

    @app.get("/learn/events", summary="Watch the learning job (server-sent events)", response_class=StreamingResponse)
    async def events() -> StreamingResponse:
        if state.learn_job.listeners >= state.limits.listeners:
            raise Refusal(503, "too many clients watch the learning job; try again later", {"Retry-After": "10"})
        return StreamingResponse(state.learn_job.events(), media_type="text/event-stream")


def _static(media_type: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        return Response(content, media_type=media_type)

    return respond


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail if isinstance(error, Refusal) else _MESSAGES.get(error.status_code, error.detail)
    return JSONResponse({"error": message}, error.status_code, error.headers)


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field, reason = ".".join(map(str, first["loc"][1:])), first["msg"]
    if "UploadFile" in reason:
        reason = "a file is needed, sent as multipart/form-data with a file name"
    return JSONResponse({"error": f"invalid request: {field}: {reason}"}, 400)


async def _user_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _internal_error(request: Request, error: Exception) -> Response:
    """The error itself is logged; clients learn nothing about it."""
    return JSONResponse({"error": "internal server error; see the log of the server"}, 500)
