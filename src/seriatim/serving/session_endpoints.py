"""``/v1/sessions``: the states of texts in progress, listed, downloaded, restored and removed."""

import asyncio

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from .endpoints import read_query
from .http_errors import HttpError
from .json_bodies import BodyLimits, check_content_type, read_body
from .request_fields import SessionName
from .service import ServedWriter, Service
from .session_store import load_session, save_session
from .strict_json import JsonResponse

STATE_TYPE = "application/octet-stream"
SESSION_NAME: TypeAdapter[str] = TypeAdapter(SessionName)


class Sessions:
    """The endpoints; the query parameter ``model`` is needed only if several language models are served."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def list(self, request: Request) -> Response:
        """List the sessions of a model, those used last first."""
        model = self._model(request)
        data = [session.described() for session in model.sessions.all()]
        return JsonResponse({"object": "list", "model": model.name, "data": data})

    async def show(self, request: Request) -> Response:
        """Describe a session."""
        return JsonResponse(self._model(request).sessions.find(_name(request)).described())

    async def delete(self, request: Request) -> Response:
        """Remove a session."""
        name = _name(request)
        self._model(request).sessions.remove(name)
        return JsonResponse({"id": name, "object": "session", "deleted": True})

    async def download(self, request: Request) -> Response:
        """Return the state of a session, as the file that `Stream.load` reads."""
        model, name = self._model(request), _name(request)
        model.sessions.find(name)
        session = model.sessions.open(name)
        try:
            data = await asyncio.wrap_future(model.engine.call(lambda: save_session(model.run, session)))
        finally:
            model.sessions.close(session)
        headers = {"Content-Disposition": f'attachment; filename="{name}.safetensors"'}
        return Response(data, media_type=STATE_TYPE, headers=headers)

    async def restore(self, request: Request) -> Response:
        """Set a session to a state that was downloaded, or that `Stream.save` wrote."""
        model, name = self._model(request), _name(request)
        check_content_type(request, STATE_TYPE)
        limits = BodyLimits(self.service.limits.max_state)
        data = await read_body(request, limits.size, limits.seconds)
        is_new = name not in model.sessions
        session = model.sessions.open(name)
        try:
            await asyncio.wrap_future(model.engine.call(lambda: load_session(model.run, session, data)))
        finally:
            model.sessions.close(session)
        return JsonResponse(session.described(), 201 if is_new else 200)

    def _model(self, request: Request) -> ServedWriter:
        return self.service.writer(read_query(request, "model").get("model"), "/v1/completions")


def _name(request: Request) -> str:
    try:
        return SESSION_NAME.validate_python(request.path_params["session"])
    except ValidationError:
        problem = "must have 1 to 64 letters, digits, '-', '_' or '.', and not begin with '.'"
        raise HttpError(400, f"session: the name {problem}", param="session") from None
