"""Generates texts from many prompts in one batch, and returns them in the order of the prompts."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..core.errors import InputError
from ..data.readers import find_sources, numbered_lines, read_objects, string_field
from ..data.repairs import Repairs
from ..data.tokenizers import END, Tokenizer
from ..decoding.continuous_batch import ContinuousBatch, PromptRead, TokenDrawn
from ..decoding.sampling import TextRequest
from ..decoding.stop_strings import StopStrings
from ..models.base_models import TextModel
from .generation_settings import Generation, tokens_to_generate

AHEAD = 512
"""Texts that are in progress or complete while an earlier one is not."""
READ_TOGETHER = 16
"""Prompts that are read between two tokens."""


class Prompt(NamedTuple):
    """The beginning of a text, and its file and line for messages."""

    text: str
    place: str = ""


class _Text:
    """The text of one prompt, as far as it is known."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: list[int], settings: Generation, max_tokens: int, seed: int
    ) -> None:
        self.request = TextRequest(prompt, seed, max_tokens, settings.sampling, settings.biases)
        self.decoder, self.stops = tokenizer.decoder(after=prompt[-1]), StopStrings(settings.stops)
        self.pieces: list[str] = []
        self.is_complete = max_tokens == 0

    def feed(self, token: int | None) -> None:
        """Add a token, or note that the text has ended."""
        if self.is_complete:
            return
        if token is None:
            self.pieces += [self.stops.feed(self.decoder.finish()), self.stops.finish()]
        else:
            self.pieces.append(self.stops.feed(self.decoder.feed(token)))
        self.is_complete = token is None or self.stops.has_ended


def read_prompts(spec: str, file_format: str, repairs: Repairs) -> Iterator[Prompt]:
    """Read prompts: the lines of files, or the field ``prompt`` (or else ``text``) of each object of JSONL.

    ``file_format`` is ``text``, ``jsonl``, or ``auto`` to choose by the name of a file; ``repairs`` records repairs.

    Raises:
        InputError: a file cannot be read, or an object has neither field.
    """
    for source in find_sources(spec, file_format=file_format):
        if source.format != "jsonl":
            for number, line in numbered_lines(source, repairs):
                yield Prompt(repairs.text(line, source.name, number), f"{source.name}:{number}")
            continue
        for number, record in read_objects(source, repairs):
            place = f"{source.name}:{number}"
            field = "text" if "text" in record and "prompt" not in record else "prompt"
            yield Prompt(repairs.text(string_field(record, field, place), source.name, number), place)


def generate_texts(
    model: TextModel,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    settings: Generation,
    *,
    max_tokens: int | None,
    seed: int,
    stop: int | None,
) -> Iterator[str]:
    """Generate a text for each prompt, in order; text i depends on its own prompt and the seed ``seed + i`` only.

    A text ends with the token ``stop``, before a stop string, or after ``max_tokens``; see `tokens_to_generate` for
    None. Prompts are read while texts are generated, at most `AHEAD` before the text that is returned next. If reading
    one of them fails, the texts before it are completed first.

    Raises:
        InputError: a prompt has symbols that the tokenizer does not know, or is too long for the model.
    """
    batch = ContinuousBatch(model, stop=stop, banned=banned_tokens(tokenizer, stop))
    arriving = _encode(model, tokenizer, prompts, settings, max_tokens, seed)
    texts, in_progress = deque[_Text](), dict[TextRequest, _Text]()
    problem: Exception | None = None
    has_more = True
    while texts or has_more:
        while has_more and len(texts) < AHEAD and len(batch.waiting) < READ_TOGETHER:
            try:
                text = next(arriving, None)
            except Exception as error:  # raised again below
                text, problem = None, error
            if text is None:
                has_more = False
            else:
                texts.append(text)
                if not text.is_complete:
                    in_progress[text.request] = text
                    batch.add(text.request)
        while texts and texts[0].is_complete:
            yield "".join(texts.popleft().pieces)
        for event in batch.advance():
            text = in_progress.get(event.request)
            if text is None or isinstance(event, PromptRead):  # None: it ended with a stop string
                continue
            text.feed(event.token if isinstance(event, TokenDrawn) else None)
            if text.is_complete:
                del in_progress[event.request]
                batch.end(event.request)
    if problem is not None:
        raise problem


def _encode(
    model: TextModel,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    settings: Generation,
    max_tokens: int | None,
    seed: int,
) -> Iterator[_Text]:
    """Encode prompts; equal ones that follow each other are encoded once."""
    before, tokens = None, list[int]()
    for number, prompt in enumerate(prompts):
        if prompt.text != before:
            try:
                tokenizer.check_known(prompt.text)
            except InputError as error:
                raise InputError(f"{prompt.place}: {error}" if prompt.place else str(error)) from None
            before, tokens = prompt.text, [tokenizer.begin, *tokenizer.encode(prompt.text).tolist()]
        count = tokens_to_generate(model, len(tokens), max_tokens, prompt.place or "prompt")
        yield _Text(tokenizer, tokens, settings, count, seed + number)


def banned_tokens(tokenizer: Tokenizer, stop: int | None) -> list[int]:
    """Return the tokens that are never generated: the unknown one, and the boundary if it ends no text and no line."""
    banned = [] if tokenizer.unknown_id is None else [tokenizer.unknown_id]
    return banned if stop == END or tokenizer.ends_lines else [*banned, END]
