"""The fields of requests and of answers, as pydantic models; `openapi.json` is made from them.

The fields of completions are those of OpenAI's interface, and the settings of generation that only Seriatim has.
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, create_model

from ..tasks.task import TaskKind

Name = Annotated[str, Field(min_length=1, max_length=256)]
SESSION_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$"
SessionName = Annotated[str, Field(pattern=SESSION_NAME)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
NumAlternatives = Annotated[int, Field(ge=0, le=20)]
Penalty = Annotated[float, Field(allow_inf_nan=False, ge=-100, le=100)]
Probability = Annotated[float, Field(gt=0, le=1)]
Item = TypeVar("Item")
FailFast = Annotated[list[Item], Field(fail_fast=True)]
"""A list of which only the first wrong item is reported: one of a million has a million."""


class RequestFields(BaseModel):
    """The base of all requests: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, protected_namespaces=())

    model: Name | None = None
    """The id of the model; may be left out if only one model has this endpoint."""


class StreamOptions(BaseModel):
    """Settings of a stream."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    include_usage: bool = False
    """Send the numbers of tokens in an event of their own, before the end."""


class CompletionRequest(RequestFields):
    """Texts to generate. A field that is null has its default."""

    prompt: str | FailFast[str] | FailFast[TokenId] | FailFast[FailFast[TokenId]] | None = ""
    """The beginning of the text, or of several texts, as strings or as token ids."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """The largest number of tokens of a text (default: 16). 0 only reads the prompt."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Divides the logits; 0 always takes the most likely token (default: 1)."""
    top_p: Probability | None = None
    """Only the most likely tokens that together have this probability."""
    top_k: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    """Only so many of the most likely tokens."""
    min_p: Probability | None = None
    """Only tokens with at least this share of the probability of the most likely one."""
    typical: Probability | None = None
    """Only the most typical tokens that together have this probability."""
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    """The number of texts for each prompt (default: 1)."""
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    """Supported only if equal to n."""
    stream: bool | None = None
    """Send the text in pieces, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Settings of the stream."""
    logprobs: NumAlternatives | None = None
    """Return the log probability of each token, and so many of the most likely tokens."""
    echo: bool | None = None
    """Return the prompt, too, before the text."""
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    """Strings that end the text; it does not include them."""
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    """The same seed gives the same text. Text i of a request has the seed plus i."""
    presence_penalty: Penalty | None = None
    """Is subtracted once from the logit of each token that was generated."""
    frequency_penalty: Penalty | None = None
    """Is subtracted from the logit of a token for each time it was generated."""
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    """Makes tokens less likely that occur in the prompt or the text (default: 1, no change)."""
    logit_bias: Annotated[dict[str, Penalty], Field(max_length=1024)] | None = None
    """Numbers that are added to the logits of tokens, by token id (see /v1/tokenize)."""
    suffix: None = None
    """Not supported."""
    user: Annotated[str, Field(max_length=1024)] | None = None
    """Ignored."""
    session: SessionName | None = None
    """Continue the text of this session, which stays on the server; a new name begins one."""


class ScoreRequest(RequestFields):
    """Texts to score."""

    input: str | FailFast[str]
    """The text, or several."""
    top_logprobs: NumAlternatives = 0
    """The number of most likely tokens to return for each token."""
    session: SessionName | None = None
    """The text continues that of the session."""


class TokenizeRequest(RequestFields):
    """A text to divide into tokens."""

    input: str
    """The text."""


class InspectRequest(RequestFields):
    """A text to inspect."""

    input: Annotated[str, Field(min_length=1, max_length=20_000)]
    """The text."""


class AnswerRequest(RequestFields):
    """Inputs to answer. Each model has further settings, which `/v1/models` lists."""

    input: str | FailFast[str | FailFast[str]]
    """The text, or several; for taggers, a text may also be a list of words."""


def answer_request(task: TaskKind) -> type[AnswerRequest]:
    """Return the request that a model of a task answers: `AnswerRequest` with the settings of its answers."""
    fields: dict[str, object] = {}
    assert task.predictor is not None
    for name, field in task.predictor.settings.model_fields.items():
        # The library checks these fields itself, where they are used; the server does it before it answers.
        ranges = [limit for limit in field.metadata if type(limit).__name__ != SkipValidation.__name__]
        kind = Annotated[field.annotation, *ranges] if ranges else field.annotation
        fields[name] = (kind, Field(field.default, description=field.description))
    name = f"{task.endpoint.capitalize()}Request"
    return create_model(name, __base__=AnswerRequest, __doc__=AnswerRequest.__doc__, **fields)  # type: ignore[call-overload,no-any-return]


class Closed(BaseModel):
    """An object whose fields are all described."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


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


class Answer(BaseModel):
    """The answer to an input; its other fields depend on the task, as those of ``seriatim predict --json`` do."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

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


Settings: TypeAlias = dict[str, object]


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
