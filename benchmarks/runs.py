"""The command of each record, in the order of RESULTS.md.

`python benchmarks/figures.py NAME` runs it, and keeps the record. DATA stands for the folder that `--data` names. A
script that is run by itself prints its figures.
"""

from typing import NamedTuple

import published_labels
import published_pairs
import published_texts


class Run(NamedTuple):
    """How a record is measured: its title, the command after `python benchmarks/`, and minutes on two cores."""

    title: str
    command: str
    minutes: float

    @property
    def script(self) -> str:
        return self.command.split()[0]


NAMES, SHAKESPEARE = "DATA/names-first/names.txt", "DATA/tinyshakespeare/input.txt"
MASC = "--train DATA/masc-lm/train.txt --valid DATA/masc-lm/valid.txt"
CAPTIONS = "DATA/multi30k-en-de/tok/train.lc.norm.tok"

RUNS = {
    # The tables of papers, of which a reader knows the figures
    **{
        f"published-{name}": Run("Beside published figures", f"published.py {name} --data DATA --record", 60)
        for name in [*published_labels.ROWS, *published_pairs.ROWS, *published_texts.ROWS]
    },
    # Pages, which a reader sees first
    "page_figures": Run("Numbers on pages", "page_figures.py", 25),
    "playground": Run("The playground in a browser", "playground.py", 5),
    # Speed and memory beside other libraries
    "unroll": Run("Cells of your own", "unroll.py", 25),
    "onnx_decoding": Run("Decoding beside onnxruntime", "onnx_decoding.py", 7),
    "decoding-formats": Run("Decoding", "decoding.py --only formats", 10),
    "decoding-models": Run("Decoding", "decoding.py --only models", 2),
    "decoding-prompts": Run("Decoding", "decoding.py --only prompts", 3),
    "weights": Run("Rounded weights", "weights.py", 20),
    "large_bag": Run("A bag of words and pairs of many texts", "large_bag.py", 45),
    "linear-classify": Run(
        "Linear models", "linear.py classify --train DATA/clinc150/train.tsv --test DATA/clinc150/test.tsv", 2
    ),
    "linear-tag": Run(
        "Linear models", "linear.py tag --train DATA/conll2000/train.txt --test DATA/conll2000/test.txt", 25
    ),
    "ngrams": Run("Counting n-grams", "ngrams.py --text DATA/masc-lm/train.txt", 2),
    "ngram_queries": Run("Scores of n-grams", "ngram_queries.py", 2),
    "start_up": Run("The start of a command", "start_up.py", 10),
    "trainings_at_once": Run("Two trainings at once", "trainings_at_once.py", 15),
    "spread_comparison": Run("Two rows of a comparison at once", "spread_comparison.py", 12),
    "gpu": Run("On a GPU", "gpu.py", 8),
    "attention": Run("Layers of attention", "attention.py", 5),
    "mamba": Run("Mamba without CUDA", "mamba.py", 5),
    "words": Run("A word model against a plain PyTorch loop", f"words.py {MASC}", 1),
    "recurrent_translation": Run(
        "A recurrent translator", f"recurrent_translation.py --source {CAPTIONS}.en --target {CAPTIONS}.de", 5
    ),
    "tiny": Run("A tiny encoder-decoder", "tiny.py --data DATA/inflection-de/train-medium.tsv", 2),
    "latency": Run(
        "One short text",
        "latency.py --labelled DATA/trec6/train.tsv --label coarse --tagged DATA/conll2000/train.txt",
        5,
    ),
    "speculation": Run("Drafts", "speculation.py --data DATA/masc-lm/train.txt --minutes 4", 5),
    "encoding": Run("Encoding a text", "encoding.py --mb 20", 3),
    "large_vocabulary": Run("Memory of a large vocabulary", "large_vocabulary.py", 1),
    "large_corpus": Run("Memory for two gigabytes of text", "large_corpus.py", 60),
    "streaming": Run("A long stream", "streaming.py", 6),
    "length": Run("The cost of a token as sequences grow", "length.py", 10),
    # Serving and pages
    "serving-throughput": Run("Serving", "serving.py throughput", 10),
    "serving-vanish": Run("Serving", "serving.py vanish", 5),
    "serving-soak": Run("Serving", "serving.py soak --soak 600", 15),
    "serving-classifier": Run("Serving", "serving.py classifier --soak 3600", 62),
    "serving-equality": Run("Serving", "serving.py equality", 5),
    "serving-prompts": Run("Serving", "serving.py prompts", 1),
    "pages": Run("Pages in a browser", "pages.py", 25),
    # Agreement with other libraries, and with itself
    "arpa_agreement": Run("ARPA files in KenLM", "arpa_agreement.py --data DATA", 5),
    "interchange": Run("Models of other libraries", "interchange.py", 5),
    "reproducible": Run(
        "The same comparison twice",
        "reproducible.py lm --data builtin:python-docs --layers ngram,lstm,gru,transformer,mamba --steps 60",
        10,
    ),
    "soak": Run("Killed and resumed", "soak.py --minutes 15", 25),
    # Accuracy
    "names": Run("A character model of first names", f"names.py --names {NAMES} --peer", 10),
    "minimal_pairs": Run(
        "Minimal pairs",
        "minimal_pairs.py --pairs DATA/blimp/blimp.jsonl.gz --text DATA/masc-lm/train.txt "
        "DATA/war-and-peace/warandpeace.txt --minutes 10",
        30,
    ),
    "skewed": Run("Skewed labels", "skewed.py --data DATA", 15),
    "plain_text": Run("Plain language models of words and subwords", "plain_text.py --data DATA", 125),
    "dropout": Run("The dropout of language models", "dropout.py --data DATA", 600),
    "learning_rates": Run("A learning rate for each layer", "learning_rates.py --task lm --width 192", 120),
    # What architectures can do
    "architectures": Run("Every architecture on real text", f"architectures.py --names {NAMES}", 60),
    "long_memory-adding": Run("Long memory", "long_memory.py adding", 160),
    "long_memory-copy": Run("Long memory", "long_memory.py copy --seeds 1", 35),
    "distance": Run("The benefit of gates and attention", "distance.py", 120),
    "reach": Run("The reach of gradients", "reach.py --distance 20", 10),
    "reach-mixed": Run("The reach of gradients", "reach.py --distance 30 --mixed", 10),
    "reversal": Run("Reversed names with noise", f"reversal.py --names {NAMES}", 40),
    "alignment": Run("What attention learns", "alignment.py", 5),
    # Several processes and versions
    "ranks": Run("Training on several processes", "ranks.py", 25),
    "scaling": Run("What large models would take", "scaling_estimate.py", 15),
    "two_trees": Run(
        "Before and after the source was arranged", f"two_trees.py 12241bd1f40a --data {SHAKESPEARE} --turns 9", 25
    ),
}
