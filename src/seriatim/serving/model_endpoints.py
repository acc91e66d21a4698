"""The endpoints that describe the server and its models: models, tokens, health and metrics."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import nearest
from .http_errors import HttpError
from .json_bodies import BodyLimits, read_request
from .metrics import CONTENT_TYPE
from .request_fields import TokenizeRequest
from .scores import spans
from .service import Service
from .strict_json import JsonResponse


class Models:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def list(self, request: Request) -> Response:
        """List the models."""
        data = [model.described() for model in self.service.models.values()]
        return JsonResponse({"object": "list", "data": data})

    async def show(self, request: Request) -> Response:
        """Describe a model."""
        name = request.path_params["model"]
        model = self.service.models.get(name)
        if model is None:
            hint = nearest(name, list(self.service.models))
            raise HttpError(404, f"model: {name!r} is not served; {hint}", param="model", code="model_not_found")
        return JsonResponse(model.described())

    async def tokenize(self, request: Request) -> Response:
        """Divide a text into tokens, with their ids and the characters that they cover."""
        fields = await read_request(request, TokenizeRequest, BodyLimits(self.service.limits.max_body))
        model = self.service.find(fields.model, "/v1/tokenize")
        tokenizer, most = model.run.tokenizer, self.service.limits.max_prompt_tokens

        def respond() -> Response:
            ids: Sequence[int] = tokenizer.encode(fields.input).tolist()
            if len(ids) > most:
                problem = f"must have at most {most:,} tokens, got {len(ids):,}; shorten it"
                raise HttpError(400, f"input: {problem}", param="input")
            return JsonResponse({"object": "list", "model": model.name, "data": spans(tokenizer, fields.input, ids)})

        return await asyncio.to_thread(respond)

    async def health(self, request: Request) -> Response:
        """Return 200 if all models answer, else 503."""
        states = {name: "ok" if model.engine.is_alive else "dead" for name, model in self.service.models.items()}
        is_ok = set(states.values()) <= {"ok"}
        return JsonResponse({"status": "ok" if is_ok else "dead", "models": states}, 200 if is_ok else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics as text for Prometheus."""
        return Response(self.service.metrics.exposition(), media_type=CONTENT_TYPE)
