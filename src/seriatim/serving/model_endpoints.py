"""The endpoints that describe the server and its models: models, tokens, health and metrics."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from ..core.errors import nearest
from . import response_fields as answers
from .http_errors import BODY_ERRORS, HttpError, described_errors
from .json_bodies import new_router
from .metrics import CONTENT_TYPE
from .request_fields import TokenizeRequest
from .scores import spans
from .service import CurrentService
from .strict_json import JsonResponse

router = new_router()


@router.get("/v1/models", response_model=answers.ModelList)
async def list_models(service: CurrentService) -> Response:
    """List the models."""
    data = [model.described() for model in service.models.values()]
    return JsonResponse({"object": "list", "data": data})


@router.get(
    "/v1/models/{model}",
    response_model=answers.ModelObject,
    responses=described_errors(404),
)
async def show_model(
    service: CurrentService, model: Annotated[str, Path(description="The id of the model.", min_length=1)]
) -> Response:
    """Describe a model."""
    served = service.models.get(model)
    if served is None:
        hint = nearest(model, list(service.models))
        raise HttpError(404, f"model: {model!r} is not served; {hint}", param="model", code="model_not_found")
    return JsonResponse(served.described())


@router.post(
    "/v1/tokenize",
    response_model=answers.TokenList,
    responses=described_errors(404, 503, *BODY_ERRORS),
)
async def tokenize(fields: TokenizeRequest, service: CurrentService) -> Response:
    """Divide a text into tokens."""
    model = service.find(fields.model, "/v1/tokenize")
    tokenizer, most = model.run.tokenizer, service.limits.max_prompt_tokens

    def respond() -> Response:
        ids: Sequence[int] = tokenizer.encode(fields.input).tolist()
        if len(ids) > most:
            problem = f"must have at most {most:,} tokens, got {len(ids):,}; shorten it"
            raise HttpError(400, f"input: {problem}", param="input")
        return JsonResponse({"object": "list", "model": model.name, "data": spans(tokenizer, fields.input, ids)})

    return await asyncio.to_thread(respond)


@router.get(
    "/health",
    response_model=answers.Health,
    responses={503: {"model": answers.Health, "description": "A model does not answer."}},
)
async def health(service: CurrentService) -> Response:
    """Say whether the models answer."""
    states = {name: "ok" if model.engine.is_alive else "dead" for name, model in service.models.items()}
    is_ok = set(states.values()) <= {"ok"}
    return JsonResponse({"status": "ok" if is_ok else "dead", "models": states}, 200 if is_ok else 503)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(service: CurrentService) -> Response:
    """Return metrics for Prometheus."""
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)
