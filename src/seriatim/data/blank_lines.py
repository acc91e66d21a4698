"""The blank lines of JSONL files, which readers of running text leave out: they are counted for the user."""

from collections.abc import Iterator, Sequence

from .readers import MARK, UNREADABLE, Source, add_blank_line, unreadable
from .reading_progress import ReadingProgress
from .repairs import Repairs
from .source_content import expected_size, remembered


def find_blank_lines(sources: Sequence[Source], repairs: Repairs) -> None:
    """Record the blank lines of those of some files that are JSONL; files that did not change are not read again.

    Raises:
        InputError: a file cannot be read; or ``repairs`` is strict, and there is a blank line.
    """
    files = [source for source in sources if source.format == "jsonl" and source.origin]
    for place, first, count in remembered("blank-lines", files, lambda: list(_count(files))) if files else ():
        add_blank_line(repairs, files[place].name, first, count)


def _count(files: Sequence[Source]) -> Iterator[tuple[int, int, int]]:
    """Yield the place of each file that has blank lines, the number of the first one, and how many there are."""
    progress, done = ReadingProgress("looking for blank lines", expected_size(files)), 0
    for place, source in enumerate(files):
        first = count = 0
        try:
            with source.open() as file:
                for number, line in enumerate(file, start=1):
                    done += len(line)
                    progress.update(done)
                    if line[:1] != b"{" and not line.removeprefix(MARK).decode(errors="replace").strip():
                        first, count = first or number, count + 1
        except UNREADABLE as error:
            raise unreadable(source, error) from None
        if count:
            yield place, first, count
