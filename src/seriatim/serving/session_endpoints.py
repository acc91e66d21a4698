"""``/v1/sessions``: the states of texts in progress, listed, downloaded, restored and removed."""

import asyncio
import re
from typing import Annotated

from fastapi import Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import nearest, shown
from .json_bodies import (
    BODY_ERRORS,
    HttpError,
    JsonResponse,
    check_content_type,
    described_errors,
    new_router,
    read_body,
)
from .schemas import SESSION_NAME, DeletedSession, SessionList, SessionObject
from .service import CurrentService, ServedLanguageModel
from .session_store import load_session, save_session

STATE_TYPE = "application/octet-stream"


async def _find_model(
    request: Request,
    service: CurrentService,
    model: Annotated[
        str | None, Query(description="The id of the model; may be left out if one language model is served.")
    ] = None,
) -> ServedLanguageModel:
    for name in request.query_params:
        if name != "model":
            raise HttpError(400, f"unknown query parameter {shown(name)}; {nearest(name, ['model'])}", param=name[:60])
    if len(request.query_params.getlist("model")) > 1:
        raise HttpError(400, "model: the query has it twice; send it once")
    return service.language_model(model, "/v1/completions")


async def _check_name(
    session: Annotated[
        str, Path(description="The name of the session.", min_length=1, json_schema_extra={"pattern": SESSION_NAME})
    ],
) -> str:
    if not re.fullmatch(SESSION_NAME, session):
        problem = "must have 1 to 64 letters, digits, '-', '_' or '.', and not begin with '.'"
        raise HttpError(400, f"session: the name {problem}")
    return session


Model = Annotated[ServedLanguageModel, Depends(_find_model)]
Name = Annotated[str, Depends(_check_name)]
router = new_router()


@router.get("/v1/sessions", response_model=SessionList, responses=described_errors(400, 404, 503))
async def list_sessions(model: Model) -> Response:
    """List the sessions."""
    data = [session.described() for session in model.sessions.all()]
    return JsonResponse({"object": "list", "model": model.name, "data": data})


@router.get("/v1/sessions/{session}", response_model=SessionObject, responses=described_errors(400, 404, 503))
async def show_session(model: Model, name: Name) -> Response:
    """Describe a session."""
    return JsonResponse(model.sessions.find(name).described())


@router.delete("/v1/sessions/{session}", response_model=DeletedSession, responses=described_errors(400, 404, 409, 503))
async def delete_session(model: Model, name: Name) -> Response:
    """Remove a session."""
    model.sessions.remove(name)
    return JsonResponse({"id": name, "object": "session", "deleted": True})


@router.get(
    "/v1/sessions/{session}/state",
    response_class=Response,
    responses={200: {"content": {STATE_TYPE: {}}}, **described_errors(400, 404, 409, 429, 503)},
)
async def download_state(model: Model, name: Name) -> Response:
    """Download a state."""
    model.sessions.find(name)
    session = model.sessions.open(name)
    try:
        data = await asyncio.wrap_future(model.engine.call(lambda: save_session(model.run, session)))
    finally:
        model.sessions.close(session)
    headers = {"Content-Disposition": f'attachment; filename="{name}.safetensors"'}
    return Response(data, media_type=STATE_TYPE, headers=headers)


@router.put(
    "/v1/sessions/{session}/state",
    response_model=SessionObject,
    responses={
        201: {"model": SessionObject, "description": "The session is new."},
        **described_errors(404, 409, 429, 503, *BODY_ERRORS),
    },
    openapi_extra={"requestBody": {"required": True, "content": {STATE_TYPE: {}}}},
)
async def restore_state(request: Request, service: CurrentService, model: Model, name: Name) -> Response:
    """Restore a state."""
    check_content_type(request, STATE_TYPE)
    data = await read_body(request, service.limits.max_state)
    is_new = name not in model.sessions
    session = model.sessions.open(name)
    try:
        await asyncio.wrap_future(model.engine.call(lambda: load_session(model.run, session, data)))
    finally:
        model.sessions.close(session)
    return JsonResponse(session.described(), 201 if is_new else 200)
