"""The OpenAPI document: keys, and the methods of paths; `test_described_endpoints.py` holds the server to it."""

import pytest
from starlette.testclient import TestClient

from seriatim.serving.application import AccessRules, make_application
from seriatim.serving.service import Service

ERRORS = {"400", "403", "404", "408", "409", "413", "415", "429", "500", "503"}


@pytest.fixture(scope="module")
def document() -> dict:
    """The document of a server with a key."""
    app = make_application(Service({}), AccessRules(key="secret"))
    return TestClient(app).get("/openapi.json", headers={"Authorization": "Bearer secret"}).json()


def test_the_key_is_part_of_the_document(document: dict) -> None:
    assert document["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
    operation = document["paths"]["/v1/completions"]["post"]
    assert operation["security"] == [{"key": []}]
    assert set(operation["responses"]) == {"200", "401", *ERRORS}
    assert operation["requestBody"]["content"] == {
        "application/json": {"schema": {"$ref": "#/components/schemas/CompletionRequest"}}
    }


def test_open_paths_need_no_key_in_the_document(document: dict) -> None:
    unsecured = {
        path for path, operations in document["paths"].items() for each in operations.values() if "security" not in each
    }
    assert unsecured == {"/health", "/pages/{page}"}


def test_every_operation_has_a_summary_and_a_name(document: dict) -> None:
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert all(each["summary"].endswith(".") and "description" not in each for each in operations)
    names = {each["operationId"] for each in operations}
    assert len(names) == len(operations)
    assert {"post_v1_completions", "get_v1_sessions_session_state"} <= names


@pytest.mark.usefixtures("outside_registered")
def test_a_task_from_outside_has_its_endpoint() -> None:
    """Nothing in the server names it."""
    paths = TestClient(make_application(Service({}))).get("/openapi.json").json()["paths"]
    assert set(paths["/v1/answer"]["post"]["responses"]) == {"200", *ERRORS} - {"409"}


def test_nothing_is_described_that_is_not_answered(document: dict) -> None:
    assert not any("422" in each["responses"] for path in document["paths"].values() for each in path.values())
    assert not any("Validation" in name for name in document["components"]["schemas"])


def test_wrong_methods_are_told_all_that_are_right() -> None:
    client = TestClient(make_application(Service({})))
    for path, methods in (("/v1/sessions/a", "DELETE, GET, HEAD"), ("/v1/sessions/a/state", "GET, HEAD, PUT")):
        answer = client.patch(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)
        assert methods in answer.json()["error"]["message"]
