"""The verb ``serve``: an HTTP interface and a page for one or several runs."""

import argparse
import contextlib
import math
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import RangeError, UnavailableError, printable
from .options import Parser, add_code, add_weights, number, open_answering, whole_number

if TYPE_CHECKING:
    from ..serving.application import AccessRules
    from ..serving.limits import Limits
    from ..serving.service import Service

KEY_VARIABLE = "SERIATIM_API_KEY"
EPILOG = f"""\
The interface is that of OpenAI for completions: set the base_url of a client to http://127.0.0.1:8000/v1.
A browser shows a page to try the models at http://127.0.0.1:8000/. The key is read from the variable {KEY_VARIABLE}
or from --key-file; without a key, everybody who can connect can use the server."""
PACKAGES = ("fastapi", "prometheus_client", "starlette", "uvicorn")
"""What the server imports, and what the extra ``serve`` installs."""
LIMITS = ("max_running", "max_waiting", "max_tokens", "max_prompt_tokens", "max_sessions", "session_seconds")


def add_serve(parser: Parser) -> None:
    """Add ``seriatim serve RUN [RUN ...] --port 8000``."""
    parser.set_defaults(run_verb=serve)
    parser.epilog = EPILOG
    add = parser.add_argument
    text = "a run, or several separated by commas, whose probabilities are averaged; NAME=RUN names the model"
    add("runs", nargs="+", metavar="RUN", help=text)
    add(
        "--host",
        default="127.0.0.1",
        metavar="H",
        help="the address to listen at (default: 127.0.0.1, this machine only)",
    )
    add("--port", type=whole_number, default=8000, metavar="N", help="the port; 0 chooses a free one (default: 8000)")
    add("--key-file", metavar="FILE", help=f"a file with the key that clients must send (or set {KEY_VARIABLE})")
    text = "let web pages of this origin use the server, for instance https://example.org; may be given several times"
    add("--cors-origin", action="append", default=[], metavar="ORIGIN", help=text)
    add("--max-running", type=whole_number, metavar="N", help="texts that a model generates at once (default: 64)")
    add("--max-waiting", type=whole_number, metavar="N", help="texts that may wait for a model (default: 256)")
    add("--max-tokens", type=whole_number, metavar="N", help="the largest max_tokens of a request (default: 4096)")
    add("--max-prompt-tokens", type=whole_number, metavar="N", help="the most tokens of a prompt (default: 65536)")
    add("--max-sessions", type=whole_number, metavar="N", help="sessions of a model (default: 1000)")
    add("--session-seconds", type=number, metavar="S", help="time after which an unused session ends (default: 3600)")
    text = "time that running requests have when the server is stopped (default: 30)"
    add("--shutdown-seconds", type=number, default=30.0, metavar="S", help=text)
    add_weights(parser)
    add_code(parser)


def serve(options: argparse.Namespace) -> None:
    """Serve runs until SIGTERM or SIGINT."""
    # Threads of a matrix product that wait for the next one would keep the processor from answering clients.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # is read when PyTorch is imported
    try:
        from ..serving import application  # noqa: F401
        from ..serving.server import open_socket
        from ..serving.service import Service, model_names
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise UnavailableError(f"serve: needs {', '.join(PACKAGES)}; pip install 'seriatim[serve]'") from error

    # What can be refused is refused before the runs are loaded, which takes a while.
    limits, rules = _limits(options), _rules(options)
    names = model_names(options.runs)
    with contextlib.closing(open_socket(options.host, options.port)) as listening:
        runs = {name: open_answering(folder, options) for name, folder in names.items()}
        _serve(Service(runs, limits), rules, listening, options)


def _serve(service: "Service", rules: "AccessRules", listening: socket.socket, options: argparse.Namespace) -> None:
    """Serve models that have been loaded."""
    from ..serving.application import hosts_for, make_application
    from ..serving.server import ServerSettings, serve_app

    code = [f"--{name.replace('_', '-')}" for name in ("allow_code", "allow_changed_code") if getattr(options, name)]
    application = make_application(service, rules, tuple(code))
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if hosts_for(options.host) is None and rules.key is None:
        print(f"seriatim: {options.host}: others can connect without a key; set {KEY_VARIABLE}", file=sys.stderr)
    service.start()

    # The line is printed when clients can connect, because scripts wait for it.
    line = printable(f"serving {', '.join(service.models)} at {address}")
    settings = ServerSettings(shutdown_seconds=options.shutdown_seconds)
    try:
        serve_app(application, [listening], settings, when_ready=lambda: print(line, flush=True))
    finally:
        has_ended = service.stop(0.0)
    if not has_ended:  # Python cannot end while a thread computes
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _limits(options: argparse.Namespace) -> "Limits":
    from ..serving.limits import Limits

    given = {name: getattr(options, name) for name in LIMITS if getattr(options, name) is not None}
    for name, value in {**given, "shutdown_seconds": options.shutdown_seconds}.items():
        least = 0 if name in ("max_waiting", "shutdown_seconds") else 1
        if not value >= least:
            raise RangeError(f"--{name.replace('_', '-')}: {value} is too small; give {least} or more")
    if not math.isfinite(options.shutdown_seconds):
        raise RangeError(f"--shutdown-seconds: {options.shutdown_seconds} is not finite; give a finite number")
    return Limits(**given)


def _rules(options: argparse.Namespace) -> "AccessRules":
    """Return who may use the server."""
    from ..serving.application import AccessRules, hosts_for

    key = os.environ.get(KEY_VARIABLE) or None
    if options.key_file is not None:
        from ..storage.files import read_text

        key = read_text(Path(options.key_file), max_bytes=4096, remedy="name a text file with the key").strip()
    return AccessRules(key=key, hosts=hosts_for(options.host), origins=options.cors_origin)
