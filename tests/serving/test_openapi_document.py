"""An application that is described by its endpoints does what its OpenAPI document says."""

import re
from typing import Annotated, Literal

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from pydantic import BaseModel, ConfigDict, Field
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from seriatim.serving.access import Access, AccessRules
from seriatim.serving.endpoints import Endpoint, Parameter, make_routes, read_query
from seriatim.serving.http_errors import EXCEPTION_HANDLERS, HttpError
from seriatim.serving.json_bodies import BodyLimits, check_content_type, read_body, read_request
from seriatim.serving.openapi_document import openapi_document

ID = "[A-Za-z0-9_.-]{1,64}"


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class Completion(BaseModel):
    model_config = ConfigDict(extra="forbid")

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=4)] = ""
    max_tokens: Annotated[int, Field(ge=0, le=4096)] = 16
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    stream: bool = False
    stream_options: Options | None = None
    task: Literal["a", "b"] = "a"
    logit_bias: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], float] | None = None


class Answer(BaseModel):
    object: Literal["answer"]
    text: str


class Thing(BaseModel):
    id: str


async def complete(request: Request) -> Response:
    body = await read_request(request, Completion, BodyLimits())
    if body.stream:
        return StreamingResponse(iter(["data: [DONE]\n\n"]), media_type="text/event-stream")
    return JSONResponse({"object": "answer", "text": str(body.prompt)})


def named(request: Request) -> str:
    read_query(request, "model")
    name = request.path_params["id"]
    if not re.fullmatch(ID, name):
        raise HttpError(404, "no such thing")
    return name


async def show(request: Request) -> Response:
    return JSONResponse({"id": named(request)})


async def put(request: Request) -> Response:
    name = named(request)
    check_content_type(request, "application/octet-stream")
    if not await read_body(request, 1000, 1):
        raise HttpError(400, "the body is empty")
    return JSONResponse({"id": name}, 201)


PARAMETERS = (Parameter("id", "path", "Its id.", ID), Parameter("model", "query", "The model."))
ENDPOINTS = [
    (Endpoint("POST", "/complete", "Write text.", {200: Answer}, Completion, streams=True), complete),
    (Endpoint("GET", "/things/{id}", "Show a thing.", {200: Thing}, parameters=PARAMETERS), show),
    (Endpoint("PUT", "/things/{id}", "Make a thing.", {201: Thing}, "application/octet-stream",
              parameters=PARAMETERS), put),
]  # fmt: skip


def application() -> Access:
    document = openapi_document([endpoint for endpoint, _ in ENDPOINTS], "demo", "1")
    described = Endpoint("GET", "/openapi.json", "This document.", {200: "application/json"})

    async def show_document(request: Request) -> Response:
        return JSONResponse(document)

    app = Starlette(
        routes=make_routes([*ENDPOINTS, (described, show_document)]),
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False
    return Access(app, AccessRules())


SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", application())


@SCHEMA.parametrize()
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_document_is_kept(case: schemathesis.Case) -> None:
    case.call_and_validate(
        checks=[
            checks.not_a_server_error,
            openapi_checks.response_schema_conformance,
            openapi_checks.status_code_conformance,
            openapi_checks.content_type_conformance,
            openapi_checks.unsupported_method,
            openapi_checks.negative_data_rejection,
        ]
    )


def test_wrong_methods_are_told_all_that_are_right() -> None:
    from starlette.testclient import TestClient

    answer = TestClient(application()).delete("/things/a")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT"}


def test_the_key_is_part_of_the_document() -> None:
    document = openapi_document([endpoint for endpoint, _ in ENDPOINTS], "demo", "1", key=True)
    assert document["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
    operation = document["paths"]["/complete"]["post"]
    assert operation["security"] == [{"key": []}]
    assert set(operation["responses"]) == {"200", "400", "401", "403", "408", "413", "415", "500"}
    assert operation["requestBody"]["content"] == {
        "application/json": {"schema": {"$ref": "#/components/schemas/Completion"}}
    }


def test_endpoints_are_described_once() -> None:
    with pytest.raises(ValueError, match=r"GET /things/\{id\} is described twice"):
        make_routes([ENDPOINTS[1], ENDPOINTS[1]])
