"""What readers repair in running text, and what they note: the user is told of it before the text is encoded."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from operator import attrgetter

from ..config import Fields
from .readers import Source, read_pieces
from .reading_progress import ReadingProgress
from .repairs import Repair, Repairs
from .source_content import expected_size, name_text, remembered


def find_repairs(sources: Sequence[Source], repairs: Repairs) -> None:
    """Record what is repaired or noted in some files; files that did not change are not read again.

    Raises:
        InputError: a file cannot be read; or ``repairs`` is strict, and a file needs a repair.
    """
    files = [source for source in sources if source.origin]
    for place, found in remembered("repairs", files, lambda: list(_find(files))) if files else ():
        repairs.include(replace(Repair(**found), file=files[place].name))


def _find(files: Sequence[Source]) -> Iterator[tuple[int, Fields]]:
    """Yield the place of each file that needs a repair, with the fields of the repair."""
    progress, done = ReadingProgress(f"looking for defects of {name_text(files)}", expected_size(files)), 0
    for place, source in enumerate(files):
        repairs = Repairs()
        repairs.looks_for_markers = True
        for piece in read_pieces([source], repairs):
            done += len(piece.text)
            progress.update(done)
        yield from ((place, asdict(found)) for found in sorted(repairs.found(), key=attrgetter("line")))
