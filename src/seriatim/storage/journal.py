"""Files that grow part by part, with a journal of the parts: what a killed process wrote whole is used again.

Every part is appended to the files first and to the journal afterwards, with its sizes and checksums. A part that is
not in the journal, or that differs from its checksums, is cut off when the files are opened again. So is everything
after a line of the journal that differs from its own checksum.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from .atomic_files import write_all
from .disk_cache import SCRATCH
from .safe_files import open_regular

JOURNAL = f"journal{SCRATCH}"
MAX_LINE = 1 << 20  # the number of bytes of a line of the journal


class JournaledFiles:
    """Some files of a folder that are appended to together.

    Args:
        folder: the folder.
        names: the files.
        settings: what the parts depend on. Files that were written with other settings are written again from the
            beginning.
    """

    def __init__(self, folder: Path, names: tuple[str, ...], settings: object) -> None:
        self.folder, self.names = folder, names
        self.parts: list[str] = []
        """What identifies each part, in order; see `append`."""
        self.facts = ""
        """The facts given with the last part; empty if there is none."""
        self.sizes = dict.fromkeys(names, 0)
        """The number of bytes of each file."""
        self._first_line = json.dumps({"files": names, "settings": settings})
        whole_bytes = self._read_whole_parts()
        self._files = {name: (folder / name).open("ab", buffering=0) for name in (*names, JOURNAL)}
        for name, size in {**self.sizes, JOURNAL: whole_bytes}.items():
            self._files[name].truncate(size)
        if not whole_bytes:
            write_all(self._files[JOURNAL], f"{self._first_line}\n".encode())

    def __enter__(self) -> "JournaledFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def append(self, part: str, contents: Mapping[str, bytes], facts: str) -> None:
        """Append to the files.

        Args:
            part: identifies the part, for instance by a digest of what it was made from.
            contents: the bytes to append to each file.
            facts: a text that replaces the one of the part before.
        """
        checksums = {name: zlib.crc32(contents[name]) for name in self.names}
        sizes = {name: self.sizes[name] + len(contents[name]) for name in self.names}
        for name in self.names:
            write_all(self._files[name], contents[name])
        entry = json.dumps({"part": part, "sizes": sizes, "checksums": checksums, "facts": facts}).encode()
        write_all(self._files[JOURNAL], b"%08x %s\n" % (zlib.crc32(entry), entry))
        self.parts.append(part)
        self.facts, self.sizes = facts, sizes

    def clear(self) -> None:
        """Remove all parts."""
        for file in self._files.values():
            file.truncate(0)
        write_all(self._files[JOURNAL], f"{self._first_line}\n".encode())
        self.parts, self.facts, self.sizes = [], "", dict.fromkeys(self.names, 0)

    def _read_whole_parts(self) -> int:
        """Read the journal up to the first part that is missing or damaged, and return the bytes of these lines."""
        try:
            with ExitStack() as stack:
                journal, *files = (
                    stack.enter_context(open(open_regular(self.folder / name), "rb")) for name in (JOURNAL, *self.names)
                )
                if (first := journal.readline(MAX_LINE)) != f"{self._first_line}\n".encode():
                    return 0
                lines = iter(lambda: journal.readline(MAX_LINE), b"")
                return len(first) + sum(map(len, self._whole_lines(lines, dict(zip(self.names, files, strict=True)))))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):  # a missing file, or one of another program
            return 0

    def _whole_lines(self, lines: Iterator[bytes], files: Mapping[str, BinaryIO]) -> Iterator[bytes]:
        for line in lines:
            checksum, _, text = line.removesuffix(b"\n").partition(b" ")
            if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
                return
            entry = json.loads(text)
            sizes, checksums = entry["sizes"], entry["checksums"]
            for name, file in files.items():
                added = sizes[name] - self.sizes[name]
                content = file.read(added) if sizes[name] <= os.fstat(file.fileno()).st_size else b""
                if len(content) < added or zlib.crc32(content) != checksums[name]:
                    return
            self.parts.append(entry["part"])
            self.facts, self.sizes = entry["facts"], sizes
            yield line
