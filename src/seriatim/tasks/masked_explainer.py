"""What can be shown of masked language models."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.batches import cut
from ..data.corpus import Corpus
from ..data.tokenizers import END
from ..models import MaskedLanguageModel
from ..models.exported_forms import ExportedModel, masked_forms
from ..models.probabilities import log_softmax, softmax
from .capabilities import MAX_LINE, Example, Examples, ExplainedModel
from .explainer import Explainer, Refusal, Wording
from .filling import find_gaps, gap_includes_space, writable
from .text_explainer import InspectedText, ReadCorpus, TextScores, named_unknown

COPIES_TOGETHER = 32
"""Copies of a window, each with other masked tokens, that are read at once."""


def explain_masked_model(
    explained: ExplainedModel[MaskedLanguageModel], read_corpus: ReadCorpus, every: int
) -> Explainer:
    """Compose what can be shown of a masked language model.

    In evaluation, tokens at the distance ``every`` are masked together.
    """
    config, examples = explained.config, MaskedExamples(explained)
    text = InspectedText(explained.vocabulary.tokenizer, config.data.unit == "stream", MAX_LINE)
    scores = MaskedScores(explained, text, read_corpus, every)
    return Explainer(
        explained,
        Wording(
            title="masked language model",
            prediction="the distribution of the last token, masked",
            correct="masked tokens predicted correctly by the top guess",
        ),
        text,
        inputs=examples,
        losses=examples,
        predictions=examples.predictions,
        token_scores=scores.token_scores,
        token_losses=scores.token_losses,
        context_use=Refusal(
            sentence="a masked model reads from both sides, so that there are no last k tokens before a gap"
        ),
        export=lambda: export(explained),
        labelled=scores,
    )


def export(explained: ExplainedModel[MaskedLanguageModel]) -> ExportedModel:
    """Return the whole model, the tokens around a text, and those that may fill a gap."""
    model, tokenizer = explained.model, explained.vocabulary.tokenizer
    frame = () if model.frame is None else (model.frame.begin,)
    after = find_gaps("", tokenizer, model.mask, explained.config.data.unit).ids.tolist()
    allowed, with_space = (ids.tolist() for ids in writable(tokenizer))
    tokens = {"mask": [model.mask], "before": frame, "after": [END] if frame else after, "allowed": allowed}
    spaced = with_space if gap_includes_space(tokenizer) else []
    return replace(masked_forms(model), tokens={**tokens, "with_space": spaced})


class MaskedScores(TextScores[MaskedLanguageModel]):
    """Scores the tokens of a text, each masked by itself, or several at once to be fast."""

    def context(self, tokens: int) -> str:
        """Return in words which tokens each of so many tokens is predicted from."""
        length = self.explained.config.training.sequence_length
        window = f" in its window of {length:,} tokens" if tokens > length else ""
        return f"all other tokens{window}; each token is masked by itself"

    def log_probabilities(self, corpus: Corpus, *, every: int | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield the predictions of masked tokens, with one pass over a window for each distance below ``every``."""
        model, device = self.explained.model, self.explained.device
        windows = cut(corpus, self.explained.config.training.sequence_length)
        for start, size in zip(windows.starts.tolist(), windows.lengths.tolist(), strict=True):
            ids = torch.from_numpy(np.asarray(corpus.ids[start : start + size], dtype=np.int64)).to(device)
            passes = min(every or size, size)
            for offsets in torch.split(torch.arange(passes, device=device), COPIES_TOGETHER):
                gaps = torch.arange(size, device=device) % passes == offsets.unsqueeze(1)  # (copies, T)
                with torch.no_grad():
                    logits = model(ids.masked_fill(gaps, model.mask), gaps.flatten().nonzero().squeeze(1))
                yield start + gaps.nonzero()[:, 1].cpu().numpy(), log_softmax(logits)


class MaskedExamples(Examples[MaskedLanguageModel]):
    """Lines of a text in windows, whose targets are the tokens themselves, masked."""

    predicts = "each token"
    is_divisible = True
    masks_targets = True

    def read(self, item: object) -> list[Example]:
        """Return the lines of a text, cut into windows of the length of training.

        A ``[MASK]`` in the text is a masked token; its target is unknown.
        """
        config, examples = self.explained.config, []
        for line in str(item).split("\n"):
            if line.strip():
                ids = find_gaps(line, self.tokenizer, self.model.mask, config.data.unit).ids.tolist()
                names = list(self.token_names(ids))
                if self.model.mask not in ids:
                    names = named_unknown(self.tokenizer, names, line, ids)
                length = config.training.sequence_length
                parts = [slice(start, start + length) for start in range(0, len(ids), length)]
                examples += [self.framed(ids[part], names[part]) for part in parts]
        return examples

    def framed(self, ids: Sequence[int], names: Sequence[str]) -> Example:
        """Return what the model reads for some tokens: with the frame, if it has one."""
        if self.model.frame is not None:
            begin, end = self.model.frame
            ids, names = (begin, *ids, end), (*self.token_names([begin]), *names, *self.token_names([end]))
        return Example(tuple(ids), tuple(ids), tuple(names))

    def forward(self, batch: Sequence[Example]) -> Tensor:
        """Run the model over the examples."""
        inputs, _ = self.tensors(batch)
        logits: Tensor = self.model(inputs, inputs.new_zeros(1), framed=True)
        return logits

    def masked_logits(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return the logits ``(batch, vocabulary)`` of one token of each example, which is masked, in float64."""
        inputs, _ = self.tensors(batch)
        inputs[range(len(batch)), places] = self.model.mask
        rows = torch.arange(len(batch)) * inputs.shape[1] + torch.tensor(places)
        logits: Tensor = self.model(inputs, rows.to(self.explained.device), framed=True)
        return logits.double()

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        """Return −log P of one token of each example when it is masked.

        If the text itself masks that token, the target is the top guess.
        """
        logits = self.masked_logits(batch, places)
        truth = self.tensors(batch)[1][range(len(batch)), places]
        targets = truth.where(truth < self.model.mask, logits.argmax(1))
        return F.cross_entropy(logits, targets, reduction="none")

    def target_names(self, example: Example) -> tuple[str, ...]:
        """Return the names of the tokens."""
        return example.tokens

    def predictions(self, batch: Sequence[Example]) -> Tensor:
        """Return P(token) for the last token of each example, masked."""
        places = [self.end_place(example) for example in batch]
        return softmax(self.masked_logits(batch, places)).unsqueeze(1)

    def end_place(self, example: Example, *, at_start: bool = False) -> int:
        """Return the place of the last token of the text, or of the first one, inside the frame."""
        edge = 0 if self.model.frame is None or len(example.inputs) < 3 else 1
        return edge if at_start else len(example.inputs) - 1 - edge
