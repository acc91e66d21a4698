"""The endpoints that describe the server and its models: models, tokens, health and metrics."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..core.errors import nearest
from .http_errors import HttpError
from .json_bodies import BodyLimits, read_request
from .request_fields import TokenizeRequest
from .scores import spans
from .service import Service

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Models:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def list(self, request: Request) -> Response:
        """List the models."""
        data = [model.described() for model in self.service.models.values()]
        return JSONResponse({"object": "list", "data": data})

    async def show(self, request: Request) -> Response:
        """Describe a model."""
        name = request.path_params["model"]
        model = self.service.models.get(name)
        if model is None:
            hint = nearest(name, list(self.service.models))
            raise HttpError(404, f"model: {name!r} is not served; {hint}", param="model", code="model_not_found")
        return JSONResponse(model.described())

    async def tokenize(self, request: Request) -> Response:
        """Divide a text into tokens, with their ids and the characters that they cover."""
        fields = await read_request(request, TokenizeRequest, BodyLimits(self.service.limits.max_body))
        model = self.service.find(fields.model, "/v1/tokenize")
        tokenizer = model.run.tokenizer
        ids: Sequence[int] = tokenizer.encode(fields.input).tolist()
        return JSONResponse({"object": "list", "model": model.name, "data": spans(tokenizer, fields.input, ids)})

    async def health(self, request: Request) -> Response:
        """Return 200 if all models answer, else 503."""
        states = {name: "ok" if model.engine.is_alive else "dead" for name, model in self.service.models.items()}
        is_ok = set(states.values()) <= {"ok"}
        return JSONResponse({"status": "ok" if is_ok else "dead", "models": states}, 200 if is_ok else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics as text for Prometheus."""
        return Response(self.service.registry.exposition(), media_type=METRICS_TYPE)
