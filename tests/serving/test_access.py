"""Who may use the server: keys, names of the host, origins of pages; and what browsers are told."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from seriatim.serving.application import Access, AccessRules, check_origin, hosts_for
from seriatim.serving.json_bodies import EXCEPTION_HANDLERS

from ..refusals import refused

LOCAL = hosts_for("127.0.0.1")


async def serve(request: Request) -> Response:
    if request.method == "PUT":
        raise RuntimeError("a secret")
    return PlainTextResponse("served", headers={"Cache-Control": "max-age=9"} if request.method == "DELETE" else {})


def client(**rules: object) -> TestClient:
    paths = ["/", "/health", "/api", "/pages/name"]
    methods = ["GET", "POST", "PUT", "DELETE"]
    app = Starlette(
        routes=[Route(path, serve, methods=methods) for path in paths], exception_handlers=EXCEPTION_HANDLERS
    )
    return TestClient(Access(app, AccessRules(**rules)), "http://127.0.0.1:8000", raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer secret", 200),
        ("bearer secret", 200),
        ("Bearer  secret ", 200),
        ("Bearer secret2", 401),
        ("Bearer secre", 401),
        ("Bearer", 401),
        ("Basic secret", 401),
        ("secret", 401),
        ("", 401),
        ("Bearer sécret", 401),
    ],
)
def test_keys(header: str, status: int) -> None:
    answer = client(key="secret").post("/api", headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20), st.binary(max_size=20))
@settings(max_examples=50, deadline=None)
def test_only_the_key_is_the_key(key: str, other: bytes) -> None:
    rules = AccessRules(key=key)
    assert rules.has_key(f"Bearer {key}")
    text = other.decode("latin-1")
    assert rules.has_key(f"Bearer {text}") == (text.strip() == key)


@pytest.mark.parametrize("key", ["", "a b", "é", "a\n"])
def test_impossible_keys(key: str) -> None:
    with refused("malformed", "key"):
        AccessRules(key=key)


def test_open_paths_need_no_key() -> None:
    app = client(key="secret")
    for path, status in [("/", 200), ("/health", 200), ("/pages/name", 200), ("/api", 401), ("/health/", 401)]:
        assert app.get(path).status_code == status
    for path in ("//health", "/pages", "/pagesapi", "/Health"):
        assert app.get(f"http://127.0.0.1:8000{path}").status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:1", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("evil@localhost", 403),
        ("localhost:8000:1", 403),
        ("localhost:x", 403),
        ("0.0.0.0", 403),
        ("", 403),
    ],
)
def test_names_of_the_host(host: str, status: int) -> None:
    assert client(hosts=LOCAL).get("/health", headers={"Host": host}).status_code == status
    assert client(hosts=None).get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(("headers", "problem"), [([], "missing"), ([(b"host", b"")], "empty")])
def test_a_request_without_a_name_is_told_to_send_one(headers: list[tuple[bytes, bytes]], problem: str) -> None:
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    app = client(hosts=LOCAL).app
    asyncio.run(app({"type": "http", "method": "GET", "path": "/health", "headers": headers}, None, send))
    message = json.loads(sent[1]["body"])["error"]["message"]
    assert sent[0]["status"] == 403
    assert message.startswith(f"the header Host is {problem}; send one of this server's names: 127.0.0.1, ")


def test_hosts_for_an_address() -> None:
    assert hosts_for("127.0.0.1") == hosts_for("localhost") == hosts_for("::1") == {"localhost", "127.0.0.1", "[::1]"}
    assert "127.0.0.9" in (hosts_for("127.0.0.9") or ())
    assert "[::2]" not in (hosts_for("::1") or ())
    for host in ("0.0.0.0", "::", "192.168.0.5", "example.org", "localhost.evil.example"):
        assert hosts_for(host) is None


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://127.0.0.1:8000", 200),
        ("https://127.0.0.1:8000", 403),
        ("http://127.0.0.1", 403),
        ("http://localhost:8000", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_pages_of_other_origins_have_no_effects(origin: str | None, status: int) -> None:
    app = client(hosts=LOCAL)
    headers = {} if origin is None else {"Origin": origin}
    answer = app.post("/api", headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert app.get("/api", headers=headers).status_code == 200
    if origin is not None:
        assert app.options("/api", headers={**headers, "Access-Control-Request-Method": "POST"}).status_code in (
            403,
            405,
        )


def preflight(app: TestClient, origin: str) -> Response:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
    return app.options("/api", headers={"Origin": origin, **asked})


def test_allowed_origins() -> None:
    app = client(key="secret", origins=["https://Good.example:443/", "http://localhost:3000"])
    key = {"Authorization": "Bearer secret"}
    for origin in ("https://good.example", "http://localhost:3000"):
        asked = preflight(app, origin)
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == origin
        assert asked.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert "Origin" in asked.headers["vary"]
        for headers, status in [(key, 200), ({}, 401)]:  # a page can also read why it was refused
            answer = app.post("/api", headers={"Origin": origin, **headers})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == origin
            assert "access-control-allow-credentials" not in answer.headers
    answer = preflight(app, "https://evil.example")
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert app.post("/api", headers={"Origin": "https://evil.example", **key}).status_code == 403
    assert app.get("/health").headers["vary"] == "Origin"  # a cache must not give one page's answer to another


def test_all_origins() -> None:
    app = client(origins=["*"])
    for answer in (preflight(app, "null"), app.post("/api", headers={"Origin": "https://any.example"})):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["", "example.org", "https://a.b/path", "https://*.b", "ftp://a", "https://a:b@c"])
def test_impossible_origins(origin: str) -> None:
    with refused("malformed", "origin"):
        check_origin(origin)


@pytest.mark.parametrize(("method", "path"), [("GET", "/api"), ("PUT", "/api"), ("GET", "/none"), ("PATCH", "/api")])
def test_every_response_has_the_headers(method: str, path: str) -> None:
    answer = client().request(method, path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "secret" not in answer.text
    assert client().delete("/api").headers["cache-control"] == "max-age=9"
