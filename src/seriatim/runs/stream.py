"""Streams: a text is read and generated piece by piece, with the state of the model as the memory of it.

Beside this state, a stream only remembers which tokens occurred, for the repetition penalty.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from ..core.contract import KIND, saved_kind
from ..core.errors import ConflictError, MismatchError, RangeError, UnwritableError, check_integer, shown
from ..core.state import State, require_kind, state_bytes, state_from_dict, state_leaves, state_to_dict
from ..data.tokenizers import Tokenizer
from ..decoding.sampling import DrawsNext, StopStrings, TextState, read, sample
from ..decoding.speculative import Draft, Generated, speculate
from ..layers.positions import learned_positions
from ..models.base_models import TextModel
from ..models.probabilities import named, naming, token_log_probabilities
from ..storage.weights import is_finite, load_tensors, read_metadata, save_tensors
from ..tasks.data_files import check_lengths
from ..training.run_files import weights_digest
from .generation import Generation, SamplingSettings, banned_tokens, tokens_to_generate
from .scoring import LineScore

SCORED_TOGETHER = 64
"""Tokens whose logits are held together while their probability is computed."""


class _Position(NamedTuple):
    """What is saved with the state: the logits of the next token ``(1, vocabulary)``, and the last token."""

    logits: Tensor
    last: Tensor


class Stream:
    """A text in progress: `feed` reads more of it, `generate` continues it, `save` and `load` move it elsewhere.

    Args:
        model: a language model in evaluation mode.
        tokenizer: the tokenizer of the model.
        stop: the token that ends a text, or None.
        identity: is written with a saved state, to tell it from those of other runs.
        unrounded: digests of weights before they were rounded, by those after.
        place: the folder of the run, as messages name it.
    """

    def __init__(
        self,
        model: TextModel,
        tokenizer: Tokenizer,
        *,
        stop: int | None,
        identity: dict[str, str],
        unrounded: Mapping[str, str] | None = None,
        place: str = "",
    ) -> None:
        self.model, self.tokenizer, self.stop, self.identity = model, tokenizer, stop, identity
        self.unrounded, self.place = unrounded or {}, place
        self.device = model.device
        self.last = tokenizer.begin
        self.seen_tokens = torch.zeros(model.vocabulary_size, dtype=torch.bool)  # which tokens the text has
        self.num_tokens = 0  # that were read or generated
        self._unread: list[int] = []
        self._logits: Tensor | None
        self._logits, self.state = read(model, self._tensor([self.last]), model.initial_state(1))

    @property
    def logits(self) -> Tensor:
        """The logits of the next token ``(1, vocabulary)``, computed when they are needed if the model allows this."""
        if self._logits is None:
            assert isinstance(self.model, DrawsNext)
            self._logits = self.model.next_logits(self.state)
        return self._logits

    def __repr__(self) -> str:
        last = self.tokenizer.describe(self.last)
        return f"Stream({type(self.model).__name__}, last token {last!r}, state of {state_bytes(self.state):,} bytes)"

    @property
    def state(self) -> State:
        """The state of the model after the text; tokens from a draft that are not part of it yet are read first."""
        if self._unread:
            self.state = read(self.model, self._tensor(self._unread), self._state)[1]
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state, self._unread = state, []

    @torch.inference_mode()
    def feed(self, text: str) -> LineScore:
        """Read ``text`` after what was read before, and return its probability.

        Raises:
            InputError: a character or word that is not in the vocabulary, or more tokens than learned positions.
        """
        tokens, total = self._encode(text), 0.0
        for start in range(0, len(tokens), SCORED_TOGETHER):
            window = self._tensor(tokens[start : start + SCORED_TOGETHER])
            first = self.logits  # perhaps computed from the state, which changes now
            logits, self.state = self.model(window, self.state)
            before = torch.cat([first.unsqueeze(1), logits[:, :-1]], dim=1)
            with naming(self.place):
                of_all = token_log_probabilities(self.model, before)
            total += of_all.gather(2, window.unsqueeze(2)).sum().item()
            self._logits, self.last = logits[:, -1], tokens[start : start + SCORED_TOGETHER][-1]
        return LineScore(total, len(tokens), len(text.encode()))

    def read(self, text: str) -> None:
        """Read ``text`` as `feed` does, without its probability, which takes less time.

        Raises:
            InputError: as for `feed`.
        """
        if tokens := self._encode(text):
            self._logits, self.state = read(self.model, self._tensor(tokens), self.state)
            self.last = tokens[-1]

    def _encode(self, text: str) -> list[int]:
        self.tokenizer.check_known(text)
        is_first = self.last == self.tokenizer.begin
        encode = self.tokenizer.encode if is_first else self.tokenizer.encode_continued
        tokens: list[int] = encode(text).tolist()
        check_lengths(learned_positions(self.model), [1 + self.num_tokens + len(tokens)], lambda _: "the text")
        self.seen_tokens[tokens] = True
        self.num_tokens += len(tokens)
        return tokens

    def generate(
        self,
        *,
        max_tokens: int | None = None,
        seed: int = 0,
        draft: Draft | None = None,
        **sampling: Unpack[SamplingSettings],
    ) -> Iterator[str]:
        """Continue the text, in pieces of whole characters. What is generated counts as read.

        If the text ends before a stop string, the tokens of this string were generated and count as read, too.

        Args:
            max_tokens: largest number of tokens; None for 200, or as many as a model with learned positions can read.
            seed: of the random choices.
            draft: proposes tokens, so that fewer passes of the model are needed; it must have read the text so far.
                The text has the same distribution as without a draft; see `decoding.speculative`.
            sampling: as in `SamplingSettings`. ``repetition_penalty`` applies to all tokens of the stream, also before
                it was saved and loaded; ``frequency_penalty`` and ``presence_penalty`` apply to those of this call.

        Raises:
            InputError: a setting outside its range, a token that the model does not have, or more tokens than learned
                positions.
        """
        if max_tokens is not None:
            max_tokens = check_integer("max_tokens", max_tokens, minimum=0)
        seed = check_integer("seed", seed)
        settings = Generation.parse(self.tokenizer, sampling)
        max_tokens = tokens_to_generate(self.model, 1 + self.num_tokens, max_tokens, "max_tokens")
        if draft is not None and (settings.biases or settings.sampling.penalizes):
            raise ConflictError("draft: cannot be combined with penalties or biases; leave these out, or the draft")
        return self._generate(settings, max_tokens, seed, draft)

    def _generate(self, settings: Generation, max_tokens: int, seed: int, draft: Draft | None) -> Iterator[str]:
        decoder, stops = self.tokenizer.decoder(after=self.last), StopStrings(settings.stops)
        for drawn in named(self.place, self._draw(settings, max_tokens, seed, draft)):
            self._logits, self.state, self.last = drawn.logits, drawn.state, drawn.token
            self._unread = drawn.unread
            self.seen_tokens[drawn.token] = True
            self.num_tokens += 1
            if chunk := stops.feed(decoder.feed(drawn.token)):
                yield chunk
            if stops.has_ended:
                return
        if rest := stops.feed(decoder.finish()) + stops.finish():
            yield rest

    def _draw(self, settings: Generation, max_tokens: int, seed: int, draft: Draft | None) -> Iterator[Generated]:
        banned = banned_tokens(self.tokenizer, self.stop)
        if draft is not None:
            start = (self.model, self.logits, self.state, settings.sampling, draft)
            yield from speculate(*start, max_tokens=max_tokens, seed=seed, stop=self.stop, banned=banned)
            return
        for drawn in sample(
            self.model, self.logits, self.state, settings.sampling,
            max_tokens=max_tokens, seeds=[seed], stop=self.stop, banned=banned,
            biases=settings.biases, read_before=self.seen_tokens.nonzero().squeeze(1).tolist(),
        ):  # fmt: skip
            (token,) = drawn.tokens
            assert token is not None
            yield Generated(token, drawn.logits, drawn.state, [])

    def continue_from(self, text: TextState, last: int, seen_tokens: Tensor, num_tokens: int) -> None:
        """Continue a text of the same model.

        Args:
            text: its state.
            last: its last token.
            seen_tokens: which tokens it has ``(vocabulary,)``.
            num_tokens: the number of its tokens.
        """
        self._logits, self.state = text.logits, text.state
        if text.unread:
            self._logits, self.state = read(self.model, self._tensor(list(text.unread)), text.state)
        self.last, self.seen_tokens, self.num_tokens = last, seen_tokens.clone(), num_tokens

    def save(self, path: str | Path) -> None:
        """Write the state of the text to a safetensors file.

        Raises:
            InputError: there can be no file of this name.
            OSError: the disk is full.
        """
        path = _path_of(path)
        tensors = {f"state/{name}": leaf for name, leaf in state_to_dict(self.state).items()}
        tensors |= {"logits": self.logits, "last": torch.tensor(self.last)}
        tensors["occurred"] = self.seen_tokens.nonzero().view(1, -1)
        about = {KIND: saved_kind(self.model, self.state), "num_tokens": str(self.num_tokens)}
        try:
            save_tensors(tensors, path, {**self._owner(), **about})
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            reason = f"cannot be written ({error.strerror})"
            raise UnwritableError(f"{path}: {reason}; give a file in a folder that exists and can be written") from None

    def load(self, path: str | Path) -> "Stream":
        """Continue from a file that `save` wrote. After an error the stream is unchanged.

        Raises:
            InputError: the file is missing, damaged, or of another model.
        """
        path = _path_of(path)
        tensors, owner = load_tensors(path), self._owner()
        metadata = read_metadata(path)
        try:
            if any(metadata.get(name) != value for name, value in owner.items()):
                raise ValueError("the saved state does not belong to this model")
            seen = self._parse_seen(tensors.pop("occurred", torch.empty(0)))
            num_tokens = _parse_count(metadata.get("num_tokens", ""))
            require_kind(metadata.get(KIND, ""), saved_kind(self.model, self.state), "this model")
            self._logits, self.state, self.last = self._parse(tensors)
            self.seen_tokens, self.num_tokens = seen, num_tokens
        except ValueError as error:
            reason = str(error).partition("; ")[0]
            raise MismatchError(f"{path}: {reason}; save it again from a stream of this run") from None
        return self

    def _parse_seen(self, tokens: Tensor) -> Tensor:
        """Return which tokens occurred, given their ids; raise ValueError for other tensors than `save` writes."""
        seen = torch.zeros_like(self.seen_tokens)
        is_row = tokens.shape[:-1] == (1,) and tokens.dtype == torch.long
        if not is_row or bool(((tokens < 0) | (tokens >= len(seen))).any()):
            raise ValueError("the saved state does not hold the tokens that occurred")
        seen[tokens[0]] = True
        return seen

    def _parse(self, tensors: dict[str, Tensor]) -> tuple[Tensor, State, int]:
        """Return the logits, the state and the last token that `save` wrote; raise ValueError for other tensors."""
        inner = {name.removeprefix("state/"): tensors.pop(name) for name in list(tensors) if name.startswith("state/")}
        state = state_from_dict(inner, self.model.initial_state(1))

        # A file may come from anybody: what does not fit would fail later, or give figures made from a NaN.
        logits, last = state_from_dict(tensors, _Position(self.logits, torch.tensor(self.last)))
        if {leaf.shape[:1] for leaf in (logits, *state_leaves(state))} != {(1,)} or last.shape != ():
            raise ValueError("the saved state is not that of one text")
        nonfinite = [name for name, leaf in inner.items() if not is_finite(leaf)]
        if bool(torch.isnan(logits).any() | torch.isposinf(logits).any()):  # a probability of 0 has the logit -inf
            nonfinite.append("logits")
        if nonfinite:
            raise ValueError(f"{nonfinite[0]} holds NaN or infinity")
        if not 0 <= int(last) < self.model.vocabulary_size:
            raise ValueError(f"the saved state ends with token {int(last)}, which this model does not have")

        # Whether the sizes inside the state agree is best known to the model itself.
        try:
            with torch.inference_mode():
                self.model(self._tensor([int(last)]), state)
        except (IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"the saved state does not belong to this model ({error})") from None
        return logits, state, int(last)

    def _owner(self) -> dict[str, str]:
        """Return what identifies the model of a state: the run, and its weights before they were rounded."""
        digest = weights_digest(self.model)
        return {**self.identity, "weights": self.unrounded.get(digest, digest)}

    def _tensor(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self.device)


def _path_of(path: object) -> Path:
    """Return the path of a saved state; raise InputError for what cannot be the name of a file."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or "\0" in name or not Path(name).name:
        raise RangeError(f"state: {shown(path)} is not the path of a file; give that of a saved state")
    return Path(name)


def _parse_count(text: str) -> int:
    """Return the number of tokens in the metadata of a saved state; raise ValueError if it is none."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError("the saved state does not hold the number of its tokens")
    return int(text)
