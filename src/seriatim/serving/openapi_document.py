"""The OpenAPI 3.1 document of the server, made from the descriptions of its endpoints."""

import re
from collections.abc import Sequence
from http import HTTPStatus

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from .endpoints import Content, Endpoint, Parameter

Json = dict[str, object]
REFERENCE = "#/components/schemas/{model}"
ERROR: Json = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string", "description": "What is wrong, and what to do, in one line."},
                "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                "param": {"type": ["string", "null"], "description": "The field of the request that is wrong."},
                "code": {"type": ["string", "null"], "description": "A name that programs can compare."},
            },
        }
    },
}
MEANINGS = {
    400: "The request is wrong.",
    401: "The key is missing or wrong.",
    403: "The host or the origin is not allowed.",
    404: "What the path names does not exist.",
    408: "The body arrived too slowly.",
    409: "What the path or the body names is in use.",
    413: "The body is too large.",
    415: "The content type or the encoding is not supported.",
    429: "Too many requests wait.",
    500: "The server failed.",
    501: "An optional package is missing.",
    503: "The server cannot answer now.",
}
HEADERS: dict[int, Json] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: {"Retry-After": {"schema": {"type": "integer", "minimum": 0}}},
}


def openapi_document(endpoints: Sequence[Endpoint], title: str, version: str, *, key: bool = False) -> Json:
    """Return the document as a JSON value.

    Args:
        endpoints: All endpoints.
        title: The name of the server.
        version: The version of the interface.
        key: Whether the server has a key, so that secured endpoints need it and can answer 401.
    """
    schemas, definitions = _schemas(endpoints)
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        path = re.sub(r":\w+}", "}", endpoint.path)  # without the converter of Starlette, as in {name:path}
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, schemas, key)
    components: Json = {"schemas": {**definitions, "Error": ERROR}}
    if key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": components,
    }


Schemas = dict[tuple[type[BaseModel], JsonSchemaMode], Json]


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[Schemas, Json]:
    """Return references to the schemas of all models, and the schemas; pydantic gives equal names to no two."""
    models: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {}
    for endpoint in endpoints:
        if isinstance(endpoint.request, type):
            models[endpoint.request, "validation"] = None
        models |= {(answer, "serialization"): None for answer in endpoint.answers.values() if isinstance(answer, type)}
    references, schema = models_json_schema(list(models), ref_template=REFERENCE)
    definitions: Json = schema.get("$defs", {})
    if "Error" in definitions:
        raise ValueError("the name Error is the schema of errors; rename the model")
    _close_patterns(definitions)
    return {model: dict(references[model]) for model in models}, definitions


def _close_patterns(schema: object) -> None:
    """Refuse names that match no pattern, as pydantic does without saying so in its schemas."""
    if isinstance(schema, dict):
        if "patternProperties" in schema:
            schema.setdefault("additionalProperties", False)
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        _close_patterns(part)


def _operation(endpoint: Endpoint, path: str, schemas: Schemas, key: bool) -> Json:
    name = "_".join(re.findall(r"\w+", path)) or "root"
    operation: Json = {"operationId": f"{endpoint.method.lower()}_{name}", "summary": endpoint.summary}
    if endpoint.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in endpoint.parameters]
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, "content": _content(endpoint.request, "validation", schemas)}
    operation["responses"] = _responses(endpoint, schemas, key)
    if key and endpoint.secured:
        operation["security"] = [{"key": []}]
    return operation


def _parameter(parameter: Parameter) -> Json:
    # A path can hold no empty segment, and "/" would be another path.
    schema: Json = {"type": "string", "minLength": 1} if parameter.where == "path" else {"type": "string"}
    if parameter.pattern is not None:
        schema["pattern"] = f"^(?:{parameter.pattern})$"
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.text,
        "required": parameter.required or parameter.where == "path",
        "schema": schema,
    }


def _responses(endpoint: Endpoint, schemas: Schemas, key: bool) -> Json:
    responses: Json = {}
    for status, answer in sorted(endpoint.answers.items()):
        content = _content(answer, "serialization", schemas)
        if endpoint.streams and status == 200:
            content["text/event-stream"] = {}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    for status in endpoint.statuses(key):
        if status not in endpoint.answers:  # /health also answers 503 with its own model
            responses[str(status)] = _error(status)
    return responses


def _error(status: int) -> Json:
    response: Json = {
        "description": MEANINGS.get(status, HTTPStatus(status).phrase),
        "content": {"application/json": {"schema": {"$ref": REFERENCE.format(model="Error")}}},
    }
    return {**response, "headers": HEADERS[status]} if status in HEADERS else response


def _content(content: Content, mode: JsonSchemaMode, schemas: Schemas) -> Json:
    if isinstance(content, type):
        return {"application/json": {"schema": schemas[content, mode]}}
    kind = content.partition(";")[0]
    return {kind: {"schema": {"type": "string"}} if kind.startswith("text/") else {}}
