"""Measure the speed at which a text is encoded, beside that of the `tokenizers` library alone.

Claim: encoding a text with BPE, with reading, checking, counting and writing, is at least 0.8 times as fast as
`encode_batch` of the `tokenizers` library with the same tokenizer and all processors, on a text in memory.

    python benchmarks/encoding.py [--data FILE] [--mb 100] [--repeats 5] [--folder /tmp]

Without ``--data`` the text is made on the spot. The peer gets the text as a list of its parts of 20,000 characters, and
the ids of all parts are collected in one array. Both encode the whole text in turns, and so do the other tokenizers.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import machine
import numpy as np
import record
from large_text import make_text

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.encoding import write_encoded
from seriatim.data.source_content import content_of
from seriatim.data.sources import find_sources
from seriatim.data.text import read_chunks
from seriatim.data.vocabulary import fit_tokenizer

PART = 20_000
"""The number of characters of a part that the peer encodes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default=None)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default=None, help="where the files are written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        path = options.data or str(make_text(Path(place) / "text.txt", int(options.mb * 1e6)))
        sources = find_sources(path)
        content = content_of(sources)
        size = content.bytes / 1e6
        text = "".join(chunk.text for chunk in read_chunks(sources))
        tokenizers = {
            kind: fit_tokenizer(TokenizerConfig(kind=kind), [text[:5_000_000]])
            for kind in ("bpe", "byte", "char", "word")
        }
        parts = [text[start : start + PART] for start in range(0, len(text), PART)]
        inner = tokenizers["bpe"].inner

        def ours(kind: str, unit: str) -> None:
            with tempfile.TemporaryDirectory(dir=place) as folder:
                write_encoded(Path(folder), sources, tokenizers[kind], unit=unit, content=content)

        def peer() -> None:
            encoded = inner.encode_batch(parts, add_special_tokens=False)
            np.concatenate([np.array(part.ids, dtype=np.uint16) for part in encoded])

        works: dict[str, Callable[[], object]] = {
            "bpe, running text": lambda: ours("bpe", "stream"),
            "`encode_batch` of tokenizers": peer,
            "bpe, lines": lambda: ours("bpe", "line"),
            "byte": lambda: ours("byte", "stream"),
            "char": lambda: ours("char", "stream"),
            "word": lambda: ours("word", "stream"),
        }
        times = machine.times_in_turn(works, options.repeats)
    rates = {name: [size / seconds for seconds in found] for name, found in times.items()}
    rows = [
        [name, f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})"] for name, each in rates.items()
    ]
    first, second = (statistics.median(each) for each in list(rates.values())[:2])
    claim = record.Claim(
        text="encoding a file with BPE is at least 0.8 times as fast as `encode_batch` on a text in memory",
        reached=first >= 0.8 * second,
        peer="tokenizers",
        ours=f"{first:.1f} MB/s",
        theirs=f"{second:.1f} MB/s",
        ratio=first / second,
    )
    record.save(
        "encoding",
        claims=[claim],
        settings=vars(options),
        figures=rates,
        tables=[[["tokenizer", "MB/s"], *rows]],
        peers=["tokenizers"],
        notes="""
            Ours reads, checks, counts and writes, with all processors, and calls `encode_batch_fast`, which does not
            compute the places of tokens; the peer gets the text in memory, in parts of 20,000 characters.
        """,
    )


if __name__ == "__main__":
    main()
