"""A text read, and written, piece by piece: what a model keeps of the past is all that is kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.state import State, state_from_dict, state_leaves, state_to_dict
from ..data.arguments import check_integer, check_text
from ..data.tokenizers import END, Tokenizer
from ..decoding.sampling import WINDOW, Sampling, read, sample
from ..models.base_models import TextModel
from ..storage.parameter_names import former_names
from ..storage.weights import digest, is_finite, load_tensors, read_metadata, save_tensors


class Score(NamedTuple):
    """How likely a text is.

    Attributes:
        log_probability: nats.
        tokens: how many were predicted.
        bytes: of the text in UTF-8.
    """

    log_probability: float
    tokens: int
    bytes: int


class _Now(NamedTuple):
    """What is saved beside the state: logits ``(1, vocabulary)``, and the last token."""

    logits: Tensor
    last: Tensor


class Stream:
    """A text under way: `feed` reads on, `generate` writes on, `save` and `load` take it elsewhere.

    Args:
        model: in evaluation mode.
        tokenizer: the model's.
        stop: the token that ends a text, or None.
        identity: written with a saved state, to tell it from those of other runs.
    """

    def __init__(self, model: TextModel, tokenizer: Tokenizer, *, stop: int | None, identity: dict[str, str]) -> None:
        self.model, self.tokenizer, self.stop, self.identity = model, tokenizer, stop, identity
        self.device = model.device
        self.last = END
        self.logits, self.state = read(model, self._tensor([END]), model.initial_state(1))

    @torch.inference_mode()
    def feed(self, text: str) -> Score:
        """Reads ``text`` after what was read before, and says how likely it was.

        Raises:
            InputError: a character or word that the vocabulary does not have.
        """
        refuse_unknown(self.tokenizer, text)
        tokens, total = self.tokenizer.encode(text).tolist(), 0.0
        for start in range(0, len(tokens), WINDOW):
            window = self._tensor(tokens[start : start + WINDOW])
            logits, self.state = self.model(window, self.state)
            before = torch.cat([self.logits.unsqueeze(1), logits[:, :-1]], dim=1)
            total += torch.log_softmax(before.double(), dim=2).gather(2, window.unsqueeze(2)).sum().item()
            self.logits, self.last = logits[:, -1], tokens[start : start + WINDOW][-1]
        return Score(total, len(tokens), len(text.encode()))

    def generate(
        self,
        *,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[str]:
        """Writes on, piece by piece; half a character is never given. What is written counts as read.

        Raises:
            InputError: a setting outside its range.
        """
        check_integer("max_tokens", max_tokens, minimum=0)
        check_integer("seed", seed)
        return self._write(Sampling(temperature, top_k, top_p, min_p), max_tokens, seed)

    def _write(self, sampling: Sampling, max_tokens: int, seed: int) -> Iterator[str]:
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
        """Writes what is kept of the text to a safetensors file."""
        tensors = {f"state/{name}": leaf for name, leaf in state_to_dict(self.state).items()}
        tensors |= {"logits": self.logits, "last": torch.tensor(self.last)}
        save_tensors(tensors, Path(path), self._whose())

    def load(self, path: str | Path) -> "Stream":
        """Goes on from what `save` wrote; where that is refused, the stream stays where it was.

        Raises:
            InputError: missing, damaged, or of another model.
        """
        tensors, whose = load_tensors(Path(path)), self._whose()
        found = {"weights": whose["weights"], **read_metadata(Path(path))}  # older states do not have them
        try:
            if any(found.get(name) != value for name, value in whose.items()):
                raise ValueError("the saved state does not belong to this model")
            self.logits, self.state, self.last = self._kept(tensors)
        except ValueError as error:
            raise InputError(f"{path}: {error}; save it again from a stream of this run") from None
        return self

    def _kept(self, tensors: dict[str, Tensor]) -> tuple[Tensor, State, int]:
        """Logits, state and last token as `save` wrote them.

        Raises:
            ValueError: the tensors are not those of one text read by this model.
        """
        inner = {name.removeprefix("state/"): tensors.pop(name) for name in list(tensors) if name.startswith("state/")}
        state = state_from_dict(inner, self.model.initial_state(1))
        logits, last = state_from_dict(tensors, _Now(self.logits, torch.tensor(self.last)))
        if {leaf.shape[:1] for leaf in (logits, *state_leaves(state))} != {(1,)} or last.shape != ():
            raise ValueError("the saved state is not that of one text")
        odd = [name for name, leaf in inner.items() if not is_finite(leaf)]
        if bool(torch.isnan(logits).any() | torch.isposinf(logits).any()):  # a probability of 0 has the logit -inf
            odd.append("logits")
        if odd:
            raise ValueError(f"{odd[0]} holds NaN or infinity")
        if not 0 <= int(last) < self.model.vocabulary_size:
            raise ValueError(f"the saved state ends with token {int(last)}, which this model does not have")
        self._try(int(last), state)
        return logits, state, int(last)

    @torch.inference_mode()
    def _try(self, last: int, state: State) -> None:
        """Raises ValueError where the model cannot go on from a state."""
        try:
            self.model(self._tensor([last]), state)
        except (IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"the saved state does not belong to this model ({error})") from None

    def _whose(self) -> dict[str, str]:
        """What tells a state from those of other models: the run, and some values of each of its parameters."""
        names = former_names(self.model)  # the names of the first version, so that its states can still be read
        some = {names[name]: values.detach().flatten() for name, values in self.model.named_parameters()}
        some = {name: values[:: 1 + len(values) // 64] for name, values in some.items()}
        return {**self.identity, "weights": digest(some)}

    def _tensor(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self.device)


def refuse_unknown(tokenizer: Tokenizer, text: str) -> None:
    """Raises InputError for a text with symbols never seen in training."""
    check_text(text, "the text")
    unknown = list(dict.fromkeys(tokenizer.unknown_pieces(text)))
    if unknown:
        shown = ", ".join(repr(piece) for piece in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        kind = "words" if tokenizer.kind == "word" else "characters"
        raise InputError(f"the text has {kind} never seen in training: {shown}{more}; leave them out")


def banned_tokens(tokenizer: Tokenizer, stop: int | None) -> list[int]:
    """Tokens never written: the unknown, and the boundary where it neither ends the text nor a line."""
    banned = [] if tokenizer.unknown_id is None else [tokenizer.unknown_id]
    return banned if stop == END or tokenizer.ends_lines else [*banned, END]
