"""``/v1/inspect``: the page of ``seriatim inspect`` for a run that is served.

The page is written by a process of its own, because inspection records what every layer computes, which would slow down
the texts in progress, and takes memory of its own.
"""

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from ..processes.child import child_environment, python_command
from .http_errors import HttpError
from .json_bodies import BodyLimits, read_request
from .request_fields import InspectRequest
from .server import until_disconnect
from .service import INSPECT, Service, can_inspect
from .strict_json import JsonResponse

MAX_PAGES = 32
MAX_SECONDS = 300.0
ERROR_PREFIX = "seriatim: error: "


@dataclass(frozen=True)
class _Page:
    html: str
    until: float


class InspectionPages:
    """Writes pages, one at a time, and keeps them for a while at addresses that cannot be guessed.

    Args:
        service: the server.
        options: more options of the command, for instance ``--allow-code``.
    """

    def __init__(self, service: Service, options: tuple[str, ...] = ()) -> None:
        self.service, self.options = service, options
        self._pages: OrderedDict[str, _Page] = OrderedDict()
        self._writing = asyncio.Lock()

    async def write(self, request: Request) -> Response:
        """Write a page, and return its address."""
        fields = await read_request(request, InspectRequest, BodyLimits(self.service.limits.max_body))
        if not can_inspect():
            raise HttpError(501, "pages need matplotlib and jinja2 on the server; pip install 'seriatim[report]'")
        model = self.service.find(fields.model, INSPECT)
        if model.was_replaced:
            raise HttpError(400, "the run was replaced or removed since the server was started; restart the server")
        if self._writing.locked():
            raise HttpError(
                429, "another page is being written; try again in a few seconds", headers={"Retry-After": "5"}
            )
        async with self._writing:
            html = await self._run(model.run.path, fields.input, request)
        self._remove_old()
        name, seconds = secrets.token_urlsafe(24), self.service.limits.page_seconds
        self._pages[name] = _Page(html, time.monotonic() + seconds)
        return JsonResponse({"object": "page", "url": f"/pages/{name}", "expires_in": int(seconds)})

    async def show(self, request: Request) -> Response:
        """Return a page."""
        self._remove_old()
        page = self._pages.get(request.path_params["page"])
        if page is None:
            raise HttpError(404, "the page does not exist or has expired; ask for it again")
        return HTMLResponse(page.html, headers={"Content-Security-Policy": "frame-ancestors 'self'"})

    def _remove_old(self) -> None:
        while self._pages:
            name, page = next(iter(self._pages.items()))
            if page.until > time.monotonic() and len(self._pages) < MAX_PAGES:
                return
            del self._pages[name]

    async def _run(self, run: Path, text: str, request: Request) -> str:
        """Return the page that the command writes; it ends if the client goes away."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "page.html"
            process = await asyncio.create_subprocess_exec(
                *python_command("-m", "seriatim", "inspect", str(run), "--text-file", "-", "--out", str(out)),
                *self.options,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=child_environment(),
            )
            gone = asyncio.ensure_future(until_disconnect(request.receive))
            ended = asyncio.ensure_future(process.communicate(text.encode()))
            try:
                await asyncio.wait((gone, ended), timeout=MAX_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    raise ClientDisconnect
                if not ended.done():
                    raise HttpError(500, f"the page was not written within {MAX_SECONDS:g} seconds; shorten the text")
                messages = ended.result()[1].decode(errors="replace").splitlines()
                if process.returncode or not out.exists():
                    reason = next((line for line in reversed(messages) if line.startswith(ERROR_PREFIX)), None)
                    status = 400 if process.returncode == 2 else 500
                    raise HttpError(status, (reason or "the page could not be written").removeprefix(ERROR_PREFIX))
                return out.read_text(encoding="utf-8")
            finally:
                gone.cancel()
                ended.cancel()
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
