"""The server does what its own OpenAPI document says, for right and for wrong requests."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

from .conftest import Served

EXAMPLES = int(os.environ.get("SERIATIM_EXAMPLES", 5))
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.response_schema_conformance,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.unsupported_method,
    openapi_checks.negative_data_rejection,
]


OPERATIONS = [
    "POST /v1/completions", "POST /v1/score", "GET /v1/sessions", "GET /v1/sessions/{session}",
    "DELETE /v1/sessions/{session}", "GET /v1/sessions/{session}/state", "PUT /v1/sessions/{session}/state",
    "POST /v1/fill", "POST /v1/classify", "POST /v1/tag", "POST /v1/translate", "GET /v1/models",
    "GET /v1/models/{model}", "POST /v1/tokenize", "POST /v1/inspect", "GET /pages/{page}", "GET /health",
    "GET /metrics",
]  # fmt: skip


@pytest.fixture(scope="module")
def operations(served: Served) -> dict:
    schema = schemathesis.openapi.from_dict(served.http.get("/openapi.json").json())
    found = [result.ok() for result in schema.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


def test_all_operations_are_described(operations: dict) -> None:
    assert sorted(operations) == sorted(OPERATIONS)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "inspect" not in name])
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=str)
def test_the_server_keeps_its_description(served: Served, operations: dict, name: str, mode) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(operations[name].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=served.address, checks=CHECKS)

    try:
        check()
    except Unsatisfiable:  # an operation without parameters has no wrong requests
        assert mode.is_negative
