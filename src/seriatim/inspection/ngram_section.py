"""How an n-gram model predicts each token of a text: the order that matched, its counts, and the back-off."""

from collections.abc import Mapping

from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..data.sources import check_named_by_run
from ..pages.page import Folded, PageBlock, Prose, Table
from ..pages.strip import Values
from ..pages.wording import percent
from ..tasks.explainer import Refusal, TextOrders
from .inspected_run import InspectedRun, SectionBody

UNKNOWN = "not known"
MEANING = (
    "The longest n-gram that is in the model gives its probability, times the back-off weight of each longer context; "
    "a context that never occurs has the weight 1. Counts are those of the training text."
)


def ngrams_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on the orders of an n-gram model, and on what its counts lack."""
    look_up = inspected.explainer.ngram_orders
    if isinstance(look_up, Refusal):
        return SectionBody([])
    try:
        train = str(inspected.run.config.data.train)
        check_named_by_run(train, f"{inspected.run.path}/config.yaml")
        result = look_up(inspected.text, train)
    except InputError:  # the probabilities are known without the training text
        result = look_up(inspected.text, None)
    texts, held_out = {"this text": result.unseen}, inspected.run.summary.get("valid") or {}
    if held_out.get("ngrams"):
        texts = {"validation data": held_out, **texts}
    blocks: list[PageBlock] = [sparsity_table(texts), Folded("What this shows", [Prose(MEANING)])]
    return SectionBody(blocks, lenses=[order_lens(result)])


def order_lens(result: TextOrders) -> Values:
    """Return the order that matched at each token as a lens, with the counts and the back-off in its notes."""
    order = len(result.used.is_known)
    return Values(
        "n-gram order used",
        [float(n) for n in result.used.used],
        float(order),
        sentence=f"The length of the longest of the model's n-grams, of {order} tokens at most, that ends here.",
        first=1,
        notes=["; ".join(note_lines(result, token)) for token in range(len(result.tokens))],
    )


def note_lines(result: TextOrders, token: int) -> list[str]:
    """Return how the probability of a token follows from the tables, in short lines."""
    n = int(result.used.used[token])
    lines = [f"{n}-gram", f"P = {_product(result, token)}"]
    if result.counts is not None:
        ngram, context = (int(counts[n - 1, token]) for counts in result.counts)
        lines.insert(1, f"{ngram:,} of {context:,}")
    return lines


def _product(result: TextOrders, token: int) -> str:
    """Return the probability as a product of back-off weights, without those of unknown contexts, and of the n-gram."""
    used, n = result.used, int(result.used.used[token])
    weights = [weight for weight in used.backoffs[: n - 1 : -1, token].tolist() if weight != 1]
    product = " × ".join(f"{factor:.3g}" for factor in [*weights, float(used.probabilities[n - 1, token])])
    return f"{product} = {float(used.probabilities[-1, token]):.3g}" if weights else product


def sparsity_table(texts: Mapping[str, JsonObject]) -> Table:
    """Return how many n-grams of each order are seen and unseen, and for how many tokens they are the longest match."""
    headings = ["n", "in the training text", "seen once"]
    headings += [heading for name in texts for heading in (f"unseen, {name}", f"longest match, {name}")]
    rows = []
    for orders in zip(*(figures["ngrams"] for figures in texts.values()), strict=True):
        first = orders[0]
        types, once = first.get("types"), first.get("once")
        row = [str(first["order"]), UNKNOWN if types is None else f"{types:,}", _share(once, types)]
        for each in orders:
            matched = each.get("matched")
            row += [_share(each.get("unseen"), each.get("predicted")), UNKNOWN if matched is None else f"{matched:,}"]
        rows.append(row)
    caption = "Unseen are the n-grams of a text that are not in the model; pruned ones count as unseen."
    return Table(headings, rows, caption, range(1, len(headings)))


def _share(count: int | None, total: int | None) -> str:
    return f"{count:,} ({percent(count / total)})" if count is not None and total else UNKNOWN
