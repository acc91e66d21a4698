"""The verb ``generate``: one text, several samples, or a text for each of many prompts."""

import argparse
import functools
from collections import deque
from collections.abc import Iterable, Iterator

from ..core.errors import ConflictError, RangeError, SizeError
from ..storage.files import json_line
from .options import (
    GENERATION,
    SAMPLING,
    Parser,
    add_code,
    add_generation,
    add_sampling,
    add_strict,
    add_weights,
    allowed,
    open_run,
    parse_biases,
    whole_number,
    write_out,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..data.repairs import Repairs
    from ..runs.generation import Prompt

MAX_TOKENS = (1 << 31) - 1
MAX_PROMPT = 1 << 24
"""The largest number of characters of a prompt from standard input."""


def add_generate(parser: Parser) -> None:
    """Add ``seriatim generate RUN [--prompt S] ...``."""
    parser.set_defaults(run_verb=generate)
    add = parser.add_argument
    add("run", metavar="RUN", help="the run of a language model")
    add("--prompt", metavar="S", help="the beginning of the text; - reads it from standard input")
    text = "write a text for each line, or the field prompt (else text) of each JSONL object; - is standard input"
    add("--prompts", metavar="FILE", help=text)
    formats = ("auto", "text", "jsonl")
    add("--format", choices=formats, default="auto", help="the format of --prompts (default: by the name)")
    text = "the largest number of tokens (default: 200, or as many as the model can read)"
    add("--max-tokens", type=whole_number, metavar="N", help=text)
    add_sampling(parser, temperature=1.0)
    add_generation(parser)
    text = "verify several drafted tokens at once: those of an n-gram run, or lookup for repetitions of the text"
    add("--draft", metavar="RUN2", help=f"{text}; the distribution stays the same; slower for small models")
    add_weights(parser)
    add("--samples", type=whole_number, metavar="N", help="the number of texts, each under a title with its seed")
    add_strict(parser)
    add("--json", action="store_true", help="print one JSON object for each text: its seed, prompt and text")
    add_code(parser)


def generate(options: argparse.Namespace) -> None:
    """Print the prompt and the text that continues it, or several texts."""
    from ..data.repairs import with_warnings
    from ..runs.generation import Prompt, choose_seed, read_prompts
    from ..runs.run import LOOKUP, load

    if options.max_tokens is not None and not 1 <= options.max_tokens <= MAX_TOKENS:
        raise RangeError(f"--max-tokens: {options.max_tokens} is out of range; give a number from 1 to {MAX_TOKENS:,}")
    if options.samples is not None and options.samples < 1:
        raise RangeError(f"--samples: {options.samples} is too small; give 1 or more")
    if options.seed is not None and not 0 <= options.seed < 2**63:
        raise RangeError(f"--seed: {options.seed} is out of range; give a number from 0 to 2^63 - 1")
    for name in ("prompt", "samples", "draft") if options.prompts is not None else ():
        if getattr(options, name) is not None:
            raise ConflictError(f"--prompts: cannot be combined with --{name}; leave one of them out")

    # Markers are left out of prompts as they were left out of the training text.
    settings = {name: getattr(options, name) for name in ("max_tokens", *SAMPLING, *GENERATION)}
    settings |= {"logit_bias": parse_biases(options.logit_bias or ()), "stop": options.stop or ()}
    run = open_run(options.run, options)
    first = settings["seed"] = choose_seed(options.seed)
    repairs = run.task.files.new_repairs(run.vocabulary)
    repairs.markers = run.task.files.markers_in([])

    # A text for each prompt of a file: these are read twice, since one that is too long must be refused before the
    # first text is written.
    if options.prompts is not None:
        read_all = functools.partial(read_prompts, options.prompts, options.format)
        located = ((prompt.location, prompt.text) for prompt in read_all(repairs.reread()))
        run.check_lengths(located, more=options.max_tokens or 0)
        read = deque[Prompt]()  # prompts whose texts have not been printed yet
        prompts = with_warnings(read_all, repairs)
        texts = run.generate_many(_noting(prompts, read), **settings)
        _print_texts(((read.popleft().text, text) for text in texts), "prompt", first, options.json)
        return

    # One prompt. A single text is printed while it is written; several are written together, as one batch.
    if options.prompt == "-":
        prompt = read_prompt(repairs)
        repairs.warn()
    else:
        prompt = run.task.files.given_text(run.vocabulary, options.prompt or "", "--prompt")
    is_path = options.draft not in (None, LOOKUP)
    draft = load(options.draft, allow_code=allowed(options)) if is_path else options.draft
    if options.samples in (None, 1) and not options.json:
        chunks = run.generate(prompt, draft=draft, **settings)
        write_out([prompt])
        write_out(chunks)
        write_out(["\n"])
        return
    count = options.samples or 1
    if draft is None:
        texts = run.iter_samples(count, prompt, **settings)
    else:  # one text at a time, because each accepts other tokens of its drafts
        seeds = range(first, first + count)
        texts = ("".join(run.generate(prompt, draft=draft, **{**settings, "seed": seed})) for seed in seeds)
    _print_texts(((prompt, text) for text in texts), "sample", first, options.json, count=count)


def read_prompt(repairs: "Repairs") -> str:
    """Read a prompt from standard input, without the line end after its last line."""
    from ..data.sources import standard_input
    from ..data.text import read_items

    lines, size = [], 0
    for line in read_items([standard_input()], repairs):
        lines.append(line)
        size += len(line) + 1
        if size > MAX_PROMPT:
            raise SizeError(f"--prompt -: more than {MAX_PROMPT:,} characters; give a shorter prompt")
    return "\n".join(lines)


def _noting(prompts: Iterable["Prompt"], read: deque["Prompt"]) -> Iterator["Prompt"]:
    """Yield prompts and append them to a list."""
    for prompt in prompts:
        read.append(prompt)
        yield prompt


def _print_texts(
    texts: Iterable[tuple[str, str]], kind: str, seed: int, as_json: bool, *, count: int | None = None
) -> None:
    """Print prompts with their texts, under titles or as JSON."""
    for number, (prompt, text) in enumerate(texts):
        if as_json:
            fields = {"seed": seed + number, "prompt": prompt, "text": text}
            write_out([json_line(fields), "\n"])
        else:
            of_all = "" if count is None else f" of {count}"
            title = f"--- {kind} {number + 1}{of_all}, seed {seed + number} ---"
            write_out(["\n" if number else "", title, "\n", prompt, text, "\n"])
