"""What the endpoints answer, for `openapi.json`."""

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict


class Closed(BaseModel):
    """An object whose fields are all described."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Open(BaseModel):
    """An object that may have more fields."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


Settings: TypeAlias = dict[str, object]


class ErrorFields(Closed):
    """What is wrong."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str
    """What is wrong, and what to do, in one line."""
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    """The field of the request that is wrong."""
    code: str | None
    """A name that programs can compare."""


class Error(Closed):
    """The answer to a request that is refused, or that failed."""

    error: ErrorFields


class PromptDetails(Closed):
    """More about the tokens of prompts."""

    cached_tokens: int


class Usage(Closed):
    """Numbers of tokens. ``cached_tokens`` were read for an earlier text with the same beginning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TokenScores(Closed):
    """The tokens of a text, with natural logarithms of probabilities; −9999 is the logarithm of 0.

    The boundary at the beginning of a prompt of token ids has null, because nothing predicts it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]]
    text_offset: list[int]


class Choice(Closed):
    """A generated text."""

    index: int
    text: str
    logprobs: TokenScores | None
    finish_reason: Literal["stop", "length"] | None


class CompletionAnswer(Closed):
    """Generated texts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage


class Alternative(Closed):
    """A token that the model found likely, with its natural log probability; null for the logarithm of 0."""

    id: int
    text: str
    logprob: float | None


class Span(Closed):
    """A token of a text, which covers the characters from ``start`` up to ``end``."""

    id: int
    text: str
    start: int
    end: int


class ScoredSpan(Span):
    """A token with its natural log probability; null for the logarithm of 0."""

    logprob: float | None
    top: list[Alternative]


class Score(Closed):
    """A scored text; ``log_probability`` is in nats.

    ``bits_per_byte`` includes the cost of spelling unknown words or characters, so that models with different
    vocabularies can be compared.
    """

    object: Literal["score"]
    index: int
    text: str
    log_probability: float | None
    bits_per_byte: float | None
    bytes: int
    unknown_tokens: int
    tokens: list[ScoredSpan]


class ScoreAnswer(Closed):
    """Scored texts."""

    object: Literal["list"]
    model: str
    data: list[Score]
    usage: Usage


class Answer(Open):
    """The answer to an input; its other fields depend on the task, as those of ``seriatim predict --json`` do."""

    object: Literal["answer"]
    index: int
    text: str
    seconds: float


class AnswerList(Closed):
    """Answers in the order of the inputs."""

    object: Literal["list"]
    model: str
    data: list[Answer]


class TokenList(Closed):
    """The tokens of a text."""

    object: Literal["list"]
    model: str
    data: list[Span]


class ModelObject(Closed):
    """A model. The first of its ``endpoints`` is what it is for; ``settings`` is the JSON Schema of its settings.

    ``context`` is the largest number of tokens that it can read, null for any number; ``max_tokens`` is the largest
    number that one text may generate.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    task: str
    endpoints: list[str]
    layer: str
    parameters: int
    vocabulary_size: int
    tokenizer: str
    weights: str
    context: int | None
    max_tokens: int | None
    sessions: bool
    settings: Settings | None


class ModelList(Closed):
    """The models of the server."""

    object: Literal["list"]
    data: list[ModelObject]


class SessionObject(Closed):
    """A text whose state is on the server. Times are seconds since 1970, sizes are bytes."""

    id: str
    object: Literal["session"]
    tokens: int
    state_bytes: int
    created: int
    last_used: int
    busy: bool


class SessionList(Closed):
    """The sessions of a model."""

    object: Literal["list"]
    model: str
    data: list[SessionObject]


class DeletedSession(Closed):
    """A session that was removed."""

    id: str
    object: Literal["session"]
    deleted: Literal[True]


class PageAnswer(Closed):
    """The address of a page, which is kept for some seconds."""

    object: Literal["page"]
    url: str
    expires_in: int


class Health(Closed):
    """Whether the models answer."""

    status: Literal["ok", "dead"]
    models: dict[str, Literal["ok", "dead"]]
