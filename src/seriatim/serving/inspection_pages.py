"""``/v1/inspect``: the page of ``seriatim inspect`` for a run that is served.

The page is written by a process of its own, because inspection records what every layer computes, which would slow down
the texts in progress, and takes memory of its own.
"""

import asyncio
import contextlib
import secrets
import tempfile
import time
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import Path
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ..pages import missing_packages
from ..processes.child import child_environment, python_command
from ..storage.written_folders import file_state
from .json_bodies import BODY_ERRORS, HttpError, JsonResponse, described_errors, new_router
from .schemas import InspectRequest, PageAnswer
from .server import unless_disconnected
from .service import INSPECT, Service

MAX_PAGES = 32
MAX_SECONDS = 300.0
ERROR_PREFIX = "seriatim: error: "


class InspectionPages:
    """Writes pages, one at a time, and keeps them for a while at addresses that cannot be guessed.

    Args:
        service: the server.
        options: more options of the command, for instance ``--allow-code``.
    """

    def __init__(self, service: Service, options: tuple[str, ...] = ()) -> None:
        self.service, self.options = service, options
        self._pages: dict[str, tuple[str, float]] = {}  # each with the time of its end, the oldest one first
        self._writing = asyncio.Lock()

    async def write(self, fields: InspectRequest, request: Request) -> Response:
        """Write a page, and return its address."""
        if missing_packages():
            raise HttpError(501, "pages need matplotlib and jinja2 on the server; pip install 'seriatim[report]'")
        model = self.service.find(fields.model, INSPECT)
        if model.run.file_state not in (None, file_state(model.run.path / "model.safetensors")):
            raise HttpError(400, "the run was replaced or removed since the server was started; restart the server")
        if self._writing.locked():
            raise HttpError(
                429, "another page is being written; try again in a few seconds", headers={"Retry-After": "5"}
            )
        async with self._writing:
            html = await self._run(model.run.path, fields.input, request)
        self._remove_old()
        name, seconds = secrets.token_urlsafe(24), self.service.limits.page_seconds
        self._pages[name] = html, time.monotonic() + seconds
        return JsonResponse({"object": "page", "url": f"/pages/{name}", "expires_in": int(seconds)})

    def show(self, name: str) -> Response:
        """Return a page."""
        self._remove_old()
        if name not in self._pages:
            raise HttpError(404, "the page does not exist or has expired; ask for it again")
        html, _ = self._pages[name]
        return HTMLResponse(html, headers={"Content-Security-Policy": "frame-ancestors 'self'"})

    def _remove_old(self) -> None:
        while self._pages:
            name, (_, until) = next(iter(self._pages.items()))
            if until > time.monotonic() and len(self._pages) < MAX_PAGES:
                return
            del self._pages[name]

    async def _run(self, run: FilePath, text: str, request: Request) -> str:
        """Return the page that the command writes; it ends if the client goes away."""
        with tempfile.TemporaryDirectory() as folder:
            # The text goes through a pipe: arguments of a process can be seen by others, and have a largest size.
            out = FilePath(folder) / "page.html"
            process = await asyncio.create_subprocess_exec(
                *python_command("-m", "seriatim", "inspect", str(run), "--text-file", "-", "--out", str(out)),
                *self.options,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=child_environment(),
            )

            # Whatever happens, the process does not outlive the request.
            try:
                async with asyncio.timeout(MAX_SECONDS):
                    _, errors = await unless_disconnected(process.communicate(text.encode()), request.receive)
                if process.returncode or not out.exists():
                    messages = errors.decode(errors="replace").splitlines()
                    reason = next((line for line in reversed(messages) if line.startswith(ERROR_PREFIX)), None)
                    status = 400 if process.returncode == 2 else 500
                    raise HttpError(status, (reason or "the page could not be written").removeprefix(ERROR_PREFIX))
                return out.read_text(encoding="utf-8")
            except TimeoutError:
                problem = f"the page was not written within {MAX_SECONDS:g} seconds; shorten the text"
                raise HttpError(500, problem) from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


router = new_router()


@router.post(INSPECT, response_model=PageAnswer, responses=described_errors(404, 429, 501, 503, *BODY_ERRORS))
async def inspect(fields: InspectRequest, request: Request) -> Response:
    """Write a page about a model and a text."""
    pages: InspectionPages = request.app.state.pages
    return await pages.write(fields, request)


@router.get(
    "/pages/{page}",
    response_class=Response,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **described_errors(404)},
)
async def show_page(
    request: Request, page: Annotated[str, Path(description="The name of the page.", min_length=1)]
) -> Response:
    """Show a page."""
    pages: InspectionPages = request.app.state.pages
    return pages.show(page)
