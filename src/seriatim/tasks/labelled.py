"""Reading labelled data, of which rows can be held out."""

from ..data.split import usual_share
from .data_warnings import explain_equal_rows
from .task import Data, Reader


class LabelledReader(Reader[Data]):
    """Reads data of rows: an input with its right answer. `labelled_items` reads them."""

    def default_split(self) -> str:
        """Return the fraction of the rows."""
        return usual_share(sum(1 for _ in self.labelled_items(self.files.training_source(), "train")))

    def has_content(self, source: str, split: str) -> bool:
        """Return whether there is a row."""
        return next(iter(self.labelled_items(source, split)), None) is not None

    def explain_empty_split(self, fraction: str, *, none_held_out: bool) -> str:
        """Say that all inputs are equal, or that chance puts them on one side."""
        inputs = [row for row, _ in self.labelled_items(self.files.training_source(), "train")]
        return explain_equal_rows(inputs, "inputs", none_held_out=none_held_out)

    def check_readable(self, source: str, split: str) -> None:
        """Read the data and discard it; see `Reader.check_readable`."""
        for _ in self.labelled_items(source, split):
            pass
