"""Streams: a text is read and generated piece by piece, with the state of the model as the only memory of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.state import State, state_bytes, state_from_dict, state_leaves, state_to_dict
from ..data.arguments import check_integer, check_text
from ..data.tokenizers import END, Tokenizer
from ..decoding.sampling import WINDOW, Sampling, read, sample
from ..models.base_models import TextModel
from ..storage.parameter_names import former_names
from ..storage.weights import digest, is_finite, load_tensors, read_metadata, save_tensors


class Score(NamedTuple):
    """The probability of a text.

    Attributes:
        log_probability: in nats.
        tokens: number of tokens that were predicted.
        bytes: size of the text in UTF-8.
    """

    log_probability: float
    tokens: int
    bytes: int


class SamplingSettings(TypedDict, total=False):
    """The fields of `Sampling` as keyword arguments."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None


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
    """

    def __init__(self, model: TextModel, tokenizer: Tokenizer, *, stop: int | None, identity: dict[str, str]) -> None:
        self.model, self.tokenizer, self.stop, self.identity = model, tokenizer, stop, identity
        self.device = model.device
        self.last = END
        self.logits, self.state = read(model, self._tensor([END]), model.initial_state(1))

    def __repr__(self) -> str:
        last = self.tokenizer.describe(self.last)
        return f"Stream({type(self.model).__name__}, last token {last!r}, state of {state_bytes(self.state):,} bytes)"

    @torch.inference_mode()
    def feed(self, text: str) -> Score:
        """Read ``text`` after what was read before, and return its probability.

        Raises:
            InputError: a character or word that is not in the vocabulary.
        """
        check_known(self.tokenizer, text)
        tokens, total = self.tokenizer.encode(text).tolist(), 0.0
        for start in range(0, len(tokens), WINDOW):
            window = self._tensor(tokens[start : start + WINDOW])
            logits, self.state = self.model(window, self.state)
            before = torch.cat([self.logits.unsqueeze(1), logits[:, :-1]], dim=1)
            total += torch.log_softmax(before.double(), dim=2).gather(2, window.unsqueeze(2)).sum().item()
            self.logits, self.last = logits[:, -1], tokens[start : start + WINDOW][-1]
        return Score(total, len(tokens), len(text.encode()))

    def generate(self, *, max_tokens: int = 200, seed: int = 0, **sampling: Unpack[SamplingSettings]) -> Iterator[str]:
        """Continue the text, in pieces of whole characters. What is generated counts as read.

        Args:
            max_tokens: largest number of tokens.
            seed: of the random choices.
            sampling: fields of `Sampling`: ``temperature``, ``top_k``, ``top_p`` and ``min_p``.

        Raises:
            InputError: a setting outside its range.
        """
        check_integer("max_tokens", max_tokens, minimum=0)
        check_integer("seed", seed)
        return self._generate(Sampling(**sampling), max_tokens, seed)

    def _generate(self, sampling: Sampling, max_tokens: int, seed: int) -> Iterator[str]:
        decoder = self.tokenizer.decoder(after=self.last)
        for drawn in sample(
            self.model,
            self.logits,
            self.state,
            sampling,
            max_tokens=max_tokens,
            seeds=[seed],
            stop=self.stop,
            banned=banned_tokens(self.tokenizer, self.stop),
        ):
            (token,) = drawn.tokens
            assert token is not None
            self.logits, self.state, self.last = drawn.logits, drawn.state, token
            if piece := decoder.feed(token):
                yield piece
        if rest := decoder.finish():
            yield rest

    def save(self, path: str | Path) -> None:
        """Write the state of the text to a safetensors file."""
        tensors = {f"state/{name}": leaf for name, leaf in state_to_dict(self.state).items()}
        tensors |= {"logits": self.logits, "last": torch.tensor(self.last)}
        save_tensors(tensors, Path(path), self._owner())

    def load(self, path: str | Path) -> "Stream":
        """Continue from a file that `save` wrote. After an error the stream is unchanged.

        Raises:
            InputError: the file is missing, damaged, or of another model.
        """
        tensors, owner = load_tensors(Path(path)), self._owner()
        metadata = {"weights": owner["weights"], **read_metadata(Path(path))}  # older states do not have them
        try:
            if any(metadata.get(name) != value for name, value in owner.items()):
                raise ValueError("the saved state does not belong to this model")
            self.logits, self.state, self.last = self._parse(tensors)
        except ValueError as error:
            raise InputError(f"{path}: {error}; save it again from a stream of this run") from None
        return self

    def _parse(self, tensors: dict[str, Tensor]) -> tuple[Tensor, State, int]:
        """Return the logits, the state and the last token that `save` wrote.

        Raises:
            ValueError: the tensors are not those of one text read by this model.
        """
        inner = {name.removeprefix("state/"): tensors.pop(name) for name in list(tensors) if name.startswith("state/")}
        state = state_from_dict(inner, self.model.initial_state(1))
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
        self._try(int(last), state)
        return logits, state, int(last)

    @torch.inference_mode()
    def _try(self, last: int, state: State) -> None:
        """Raise ValueError if the model cannot continue from a state."""
        try:
            self.model(self._tensor([last]), state)
        except (IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"the saved state does not belong to this model ({error})") from None

    def _owner(self) -> dict[str, str]:
        """Return what identifies the model of a state: the run, and some values of each of its parameters."""
        names = former_names(self.model)  # the names of the first version, so that its states can still be read
        some = {names[name]: values.detach().flatten() for name, values in self.model.named_parameters()}
        some = {name: values[:: 1 + len(values) // 64] for name, values in some.items()}
        return {**self.identity, "weights": digest(some)}

    def _tensor(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self.device)


def check_known(tokenizer: Tokenizer, text: str) -> None:
    """Check that a text contains only symbols that occur in training.

    Raises:
        InputError: it contains others, or is not a text.
    """
    check_text(text, "the text")
    unknown = list(dict.fromkeys(tokenizer.unknown_pieces(text)))
    if unknown:
        shown = ", ".join(repr(piece) for piece in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        kind = "words" if tokenizer.kind == "word" else "characters"
        raise InputError(f"the text has {kind} never seen in training: {shown}{more}; leave them out")


def banned_tokens(tokenizer: Tokenizer, stop: int | None) -> list[int]:
    """Return the tokens that are never generated: the unknown one, and the boundary if it ends no text and no line."""
    banned = [] if tokenizer.unknown_id is None else [tokenizer.unknown_id]
    return banned if stop == END or tokenizer.ends_lines else [*banned, END]
