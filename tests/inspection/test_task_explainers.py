"""A task from outside the package is inspected, without an explainer and with one of its own."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.inspection.influence import MEANING
from seriatim.tasks.explainer import Example, Examples, ExplainedModel, Explainer, Wording

from ..tasks.outside_task import Rater

pytestmark = pytest.mark.usefixtures("outside_registered")


class RaterExamples(Examples[Rater]):
    """What a user would write to see a rater's gates and gradients."""

    def read(self, item: object) -> list[Example]:
        ids = tuple(self.tokenizer.encode(str(item)).tolist())
        return [Example(ids, (1,), self.token_names(ids))]

    def forward(self, batch: Sequence[Example]) -> Tensor:
        inputs, _ = self.tensors(batch)
        return self.model(inputs, torch.full((len(batch),), inputs.shape[1]))

    def place_losses(self, batch: Sequence[Example], places: Sequence[int]) -> Tensor:
        return -torch.nn.functional.logsigmoid(self.forward(batch).double())


def explain(rated: ExplainedModel[Rater]) -> Explainer:
    """Add the embeddings, and say what the model is called."""
    examples, embeddings = RaterExamples(rated), rated.model.embedding.weight
    return Explainer(rated, Wording("rater"), inputs=examples, embeddings=embeddings)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> seriatim.Run:
    folder = tmp_path_factory.mktemp("rated")
    path = folder / "train.txt"
    path.write_text("".join(f"{letter * 30}\t{rating}\n" for letter, rating in (("a", 1), ("b", 0), ("ab", 0.5))) * 4)
    return seriatim.train(
        {
            "task": "rate",
            "data": {"train": str(path)},
            "model": {"layer": "leaky", "embedding_size": 4, "hidden_size": 4},
            "training": {"steps": 2},
            "out": str(folder / "run"),
        }
    )


def test_a_task_without_an_explainer_has_a_page(run: seriatim.Run, tmp_path: Path) -> None:
    page = seriatim.inspect(run, "ab", out=tmp_path / "a.html", permute=2).path.read_text()
    assert "A model (leaky" in page
    for missing in ("embeddings", "examples to read", "state"):
        assert f"this task offers no {missing}" in page
    assert "inside the model" in page


def test_an_explainer_adds_sections(run: seriatim.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "task", dataclasses.replace(run.task, explain=explain))
    monkeypatch.setattr("seriatim.inspection.first_screen.below_baseline", lambda run: None)
    page = seriatim.inspect(run, "ab" * 20, out=tmp_path / "a.html").path.read_text()
    assert "A rater (leaky" in page
    assert "how far back it reaches" in page
    assert "Which tokens are alike?" in page
    assert "Units and gates" in page
    assert MEANING in page, "a lens over the tokens that the model reads"
