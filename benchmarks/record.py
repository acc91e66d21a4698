"""Records of benchmarks: what was claimed, measured and set, on which machine and at which commit.

    python benchmarks/record.py

A script measures and calls `save`, which writes `records/NAME.json`. This command writes RESULTS.md from all records,
and what README.md and docs/ show of them:

- ``<!-- record: NAME, table 1 -->`` up to ``<!-- end of record -->`` is a table of a record;
- ``[1.24][NAME: KEY .2f]`` is a figure of it, shown with this format and linked to its section.

A record holds a fingerprint of the defaults where its trainings depend on some (`plain`). If the defaults are others
now, the section says so.
"""

import ast
import functools
import hashlib
import inspect
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import machine
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from runs import RUNS

import seriatim

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("SERIATIM_RECORDS", ROOT / "benchmarks" / "records"))
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MAX_LINES, MAX_CLAIMS = 600, 25
"""Limits of RESULTS.md; its longest tables are cut first, then the claims of each record, then tables of the end."""
FEW_ROWS, FEW_CLAIMS = 4, 2
"""To how many rows and claims of a record they are cut."""
INTRODUCTION = """
`python benchmarks/record.py` writes this page from the records in `benchmarks/records/`, and `make figures` measures
them again. What does not fit here is in the records. A ratio above 1 means that ours is better. Peers were measured in
the same run, in turn. The ratio is the median of the ratios of the turns, and may differ from the quotient of the two
medians beside it. Published figures were not measured here. Figures of different machines cannot be compared. A limit
is a rate of the machine; a model that fits into the processor's cache can be faster than the limit of its memory.
`DATA` is a folder of corpora, which are not part of the project.
""".strip()
STARTED = time.monotonic()

TABLE = re.compile(r"<!-- record: (\w[\w-]*), table (\d) -->\n\n(?:.*?\n\n)??<!-- end of record -->", re.DOTALL)
FIGURE = re.compile(r"\[[^\[\]]*\]\[((\w[\w-]*): ([^\[\]]+?)(?: ([.,]\S*))?)\]")
SOURCE = re.compile(r"^\[\w[\w-]*: [^\[\]]+\]: \S*RESULTS\.md#\S*\n", re.MULTILINE)


class RecordError(Exception):
    """A record, or a page that shows one, cannot be used; the message says which and what to do."""


class Figure(NamedTuple):
    """A figure with the range in which it is expected again: of its repetitions, or its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g}" if self.low == self.high else f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    def has_moved(self, now: "Figure") -> bool:
        """Return whether the ranges do not overlap; a figure without a range may differ by 1 %, of rounding."""
        slack = 0.01 * abs(self.value) if self.low == self.high else 0.0
        return now.low > self.high + slack or now.high < self.low - slack


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Claim(_Model):
    """One claim, with what it is compared with; ``ratio`` is how many times as good ours is as the peer."""

    text: str
    reached: bool | None  # None: not measured
    peer: str = ""
    ours: str = ""
    theirs: str = ""
    ratio: float | None = None
    limit: str = ""  # what the machine, the data or the paper allows

    @property
    def verdict(self) -> str:
        return {True: "**reached**", False: "**not reached**", None: "not measured"}[self.reached]


class Machine(_Model):
    """The machine of a record, as `machine.facts` describes it."""

    name: str
    threads: int
    torch: str
    python: str
    best_product: dict[str, float]  # GF/s
    load: float


class Record(_Model):
    """What a script found."""

    name: str
    title: str
    command: str = Field(min_length=1, pattern=r"\S")
    date: str
    commit: str
    minutes: float | None = Field(ge=0)
    machine: Machine
    peers: dict[str, str]
    claims: list[Claim]
    settings: dict[str, dict[str, Any]]
    figures: dict[str, Figure]
    tables: list[Annotated[list[list[str]], Field(min_length=1)]]
    notes: str
    has_plot: bool  # plots/NAME.png

    @field_validator("settings")
    @classmethod
    def _defaults_have_a_task(cls, settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        from seriatim.tasks import TASKS

        for one in settings.values():
            if "defaults" not in one:
                continue
            model = one.get("model")
            has_layer = isinstance(model, dict) and isinstance(model.get("layer"), str)
            if not has_layer or not isinstance(one["defaults"], str) or str(one.get("task")) not in TASKS:
                raise ValueError("defaults of no task and layer")
        return settings

    @field_validator("tables")
    @classmethod
    def _rows_are_as_long_as_the_headings(cls, tables: list[list[list[str]]]) -> list[list[list[str]]]:
        if any(len(row) != len(table[0]) for table in tables for row in table):
            raise ValueError("rows of different lengths")
        return tables

    @property
    def anchor(self) -> str:
        return re.sub(r"[^\w -]", "", self.title).lower().replace(" ", "-")

    @property
    def has_old_defaults(self) -> bool:
        """Return whether a training left a value to a default, and the defaults are others now."""
        known = [one for one in self.settings.values() if "defaults" in one]
        return any(one["defaults"] != fingerprint(one["task"], one["model"]["layer"]) for one in known)


# Write a record


def save(
    name: str,
    *,
    claims: Mapping[str, bool | None] | Sequence[Claim],
    settings: Mapping[str, Any],
    figures: Mapping[str, Any],
    tables: Sequence[Sequence[Sequence[object]]],
    peers: Iterable[str] | Mapping[str, str] = (),
    notes: str = "",
    minutes: float | None = None,
    draw: Callable[[Path], object] | None = None,
) -> None:
    """Print the tables and the claims, and write the record if `figures.py` has started the script.

    Args:
        name: the name of the file, without its ending.
        claims: the claims, or whether each, in words, is reached.
        settings: everything that the figures depend on, beside the code: the trainings by name (`settled`, `plain`),
            or the arguments of the script.
        figures: numbers, lists of repeated numbers, and `Figure`, in nested mappings; a ``loss`` with ``loss_low`` and
            ``loss_high`` beside it is one figure.
        tables: the figures as they are shown; the first row of each table has the headings.
        peers: the versions of other programs; of packages, the names are enough, and absent ones are left out.
        notes: what a reader must know to compare: sizes, data, what is not comparable.
        minutes: what all of it took, if a part was done before this process began.
        draw: writes a picture to this file.
    """
    if isinstance(claims, Mapping):
        claims = [Claim(text=text, reached=reached) for text, reached in claims.items()]
    if not isinstance(peers, Mapping):
        peers = {one: metadata.version(one) for one in peers if is_installed(one)}
    if not all(isinstance(one, Mapping) for one in settings.values()):
        settings = {"arguments": settings}
    settings = {name: {key: without_folder(value) for key, value in one.items()} for name, one in settings.items()}
    expected, is_started = RUNS.get(name), os.environ.get("SERIATIM_RECORD") == name
    if expected and is_started:  # with the options that were added to it
        added = map(str, map(without_folder, sys.argv[len(expected.command.split()) :]))
        command = " ".join([expected.command, *added])
    else:
        command = _command()
    record = Record(
        name=name,
        title=expected.title if expected else name,
        command=command,
        date=date.today().isoformat(),
        commit=commit(),
        minutes=round((time.monotonic() - STARTED) / 60 if minutes is None else minutes, 1),
        machine=Machine(**machine.facts()),
        peers=dict(peers),
        claims=list(claims),
        settings=json.loads(json.dumps(settings, default=_plain_value)),
        figures=dict(_flat(figures)),
        tables=[[[str(cell) for cell in row] for row in table] for table in tables],
        notes=" ".join(notes.split()),
        has_plot=draw is not None,
    )
    print("\n" + "\n\n".join(_section_parts([record])))
    if expected and not is_started:
        print(f"\nnot written: `python benchmarks/figures.py {name}` writes the record")
        return
    FOLDER.mkdir(exist_ok=True, parents=True)
    path = FOLDER / f"{name}.json"
    if not _is_measured(record) and _was_measured(name):
        print(f"\nnot written: nothing could be measured here, and {path} holds what was")
        return
    if draw is not None:
        draw(RESULTS.parent / "plots" / f"{name}.png")
    path.write_text(as_text(record), encoding="utf-8")
    print(f"\nwritten: {path}")


def without_folder(value: object) -> object:
    """Return the name of a file that a string names by its whole path, which differs between machines."""
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else value


def _is_measured(record: Record) -> bool:
    return any(claim.reached is not None for claim in record.claims)


def _was_measured(name: str) -> bool:
    try:
        return _is_measured(read(name))
    except RecordError:  # there is none, or it is of no use
        return False


def is_installed(package: str) -> bool:
    """Return whether a package is installed, by the name that pip uses."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def ratios(ours: Sequence[float], theirs: Sequence[float], *, are_rates: bool = False) -> list[float]:
    """Return how many times as good ours was as the peer in each turn, of seconds or of rates."""
    pairs = zip(ours, theirs, strict=True)
    return [mine / other if are_rates else other / mine for mine, other in pairs]


def compared(
    text: str,
    ours: Sequence[float],
    theirs: Sequence[float] | None,
    *,
    peer: str,
    unit: str,
    least: float = 1.0,
    are_rates: bool = False,
    limit: str = "",
    absent: str = "not installed",
) -> Claim:
    """Return a claim about figures of both that were measured in turn: the median of the ratios is at least ``least``.

    Args:
        text: the claim in words.
        ours: seconds, or rates, of each turn.
        theirs: those of the peer; None or empty if it is ``absent``, so that nothing is claimed.
        peer: its name.
        unit: of the figures, such as ``s``.
        least: the smallest ratio that reaches the claim.
        are_rates: whether more is better.
        limit: what the machine, the data or the paper allows.
        absent: why there is no peer.
    """
    shown = f"{_short(statistics.median(ours))} {unit}" if ours else ""
    if not ours or not theirs:
        return Claim(text=text, reached=None, peer=peer, ours=shown, theirs=absent, limit=limit)
    ratio = statistics.median(ratios(ours, theirs, are_rates=are_rates))
    return Claim(
        text=text,
        reached=ratio >= least,
        peer=peer,
        ours=shown,
        theirs=f"{_short(statistics.median(theirs))} {unit}",
        ratio=ratio,
        limit=limit,
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_text(record: Record) -> str:
    """Return the content of the file of a record: JSON with a line for each figure and each row of a table."""
    text = json.dumps(record.model_dump(), indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^\[\]{}]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def _flat(figures: object, key: str = "") -> Iterator[tuple[str, Figure]]:
    """Yield all figures by their dotted keys; what is no number is left out."""
    if isinstance(figures, Figure):
        yield key, Figure(*map(float, figures))
    elif isinstance(figures, int | float) and not isinstance(figures, bool):
        yield key, Figure(*[float(figures)] * 3)
    elif isinstance(figures, Sequence) and figures and all(isinstance(one, int | float) for one in figures):
        yield key, Figure(float(statistics.median(figures)), float(min(figures)), float(max(figures)))
    elif isinstance(figures, Mapping):
        ends = {f"{name}_{end}" for name in figures for end in ("low", "high")}
        for name, value in figures.items():
            if f"{name}_low" in figures:
                value = Figure(value, figures[f"{name}_low"], figures[f"{name}_high"])
            if name not in ends:
                yield from _flat(value, f"{key}.{name}" if key else str(name))


def _plain_value(value: object) -> str:
    return value.name if isinstance(value, Path) else str(value)


def _command() -> str:
    """Return the command of the running script, with the names of files without their folders."""
    return " ".join(Path(word).name if "/" in word else word for word in sys.argv)


def commit() -> str:
    """Return the commit of the source, marked if files of the package or of the benchmarks differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    found = git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    return found or os.environ.get("SERIATIM_COMMIT", "unknown")


# The settings of trainings

TRAINING: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "cosine",
    "weight_decay": 0.0,
    "clip": 1.0,
    "average": 0.0,
    "precision": "float32",
    "baseline": "none",
    "baseline_weight": 0.0,
    "seed": 1,
}
"""What trainings of benchmarks have in common, if these do not study the defaults."""


def settled(run: seriatim.Run, stated: Mapping[str, Any], *, but: Collection[str] = ()) -> dict[str, Any]:
    """Return all settings of a run, the names of its files left out.

    The script must have ``stated`` every setting that is otherwise chosen from the data, so that its figures do not
    depend on a default; ``but`` names those that it leaves open, because it studies them.
    """
    chosen = {}
    for name in ("tokenizer", "model", "training"):
        section, given = getattr(run.config, name), stated.get(name, {})
        chosen |= {f"{name}.{key}": value for key, value in _chosen(section, given).items()}
    declared = run.task.kind.options.model_fields if run.task.kind.options else {}
    given = stated.get("model", {}).get("options", {})
    usual = {key: field.get_default() for key, field in declared.items()}
    options = {key: value for key, value in run.config.model.options.items() if key not in given}
    chosen |= {f"model.options.{key}": value for key, value in options.items() if value != usual.get(key)}
    if unstated := sorted(chosen.keys() - set(but)):
        sys.exit(f"{run.config.task}: {', '.join(unstated)} must be stated, or the figures depend on a default")
    return _dumped(run)


def plain(run: seriatim.Run) -> dict[str, Any]:
    """Return all settings of a run that leaves some to the defaults, with the fingerprint of these."""
    return {**_dumped(run), "defaults": fingerprint(run.config.task, run.config.model.layer)}


def _dumped(run: seriatim.Run) -> dict[str, Any]:
    return dict(run.config.model_dump(exclude={"out": True, "data": {"train", "valid", "test"}}))


def _chosen(section: Any, given: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields of a section that were neither given nor have the value of the section's declaration."""
    fields = type(section).model_fields.items()
    values = {key: getattr(section, key) for key, field in fields if key not in given and key != "options"}
    return {key: value for key, value in values.items() if value != type(section).model_fields[key].get_default()}


@functools.cache
def fingerprint(task: str, layer: str) -> str:
    """Return a hash of what decides the defaults of a task and a layer: values, rules, and the constants in them."""
    from seriatim import config
    from seriatim.layers import REGISTRY, split_names
    from seriatim.tasks import TASKS
    from seriatim.training.settle import settle_amounts

    kind = TASKS[task]
    sections = [config.Tokenizer, config.Model, config.Training, *([kind.options] if kind.options else [])]
    parts: list[object] = [[(key, repr(field.default)) for key, field in one.model_fields.items()] for one in sections]
    layers = [REGISTRY[name] for name in split_names(layer) if name in REGISTRY]
    parts += [kind.learning_rate, [one.learning_rates.get(task) for one in layers]]
    rules, seen = [kind.defaults, kind.choose, kind.data_defaults, settle_amounts], set()
    while rules:  # and the functions that they call
        rule = rules.pop()
        tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                del node.body[0]
        parts.append(ast.dump(tree))
        for name in sorted(
            {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & rule.__globals__.keys()
        ):
            value = rule.__globals__[name]
            if name.isupper():
                parts.append((name, repr(value) if isinstance(value, int | float | str | tuple) else ""))
            elif inspect.isfunction(value) and value not in seen and value.__module__.startswith("seriatim.t"):
                seen.add(value)
                rules.append(value)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def remembered(file: Path, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was measured under a key and is kept in a file, or else measure and keep it.

    A script of many trainings can so be interrupted. Remove the file if the code has changed.
    """
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if key not in known:
        known[key] = measure()
        file.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return dict(known[key])


# Read records, and write the pages


def read(name: str) -> Record:
    """Return a record.

    Raises:
        RecordError: it is missing, damaged, or of another claim.
    """
    path, remedy = FOLDER / f"{name}.json", f"`python benchmarks/figures.py {name}` measures it"
    if not path.exists():
        raise RecordError(f"{path}: is missing; {remedy}")
    try:
        record = Record.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; {remedy}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(f"{path}: is damaged: {place + ': ' if place else ''}{first['msg']}; {remedy}") from None
    if record.name != name:
        raise RecordError(f"{path}: is the record of {record.name}, not of {name}; {remedy}")
    expected = RUNS[name].command if name in RUNS else record.command
    if not f"{record.command} ".startswith(f"{expected} "):  # options may follow
        raise RecordError(f"{path}: is a record of {record.command}, not of {expected}; {remedy}")
    return record


def read_all() -> list[Record]:
    """Return all records, in the order of `runs.py`."""
    names = {path.stem for path in FOLDER.glob("*.json")}
    return [read(name) for name in [*(name for name in RUNS if name in names), *sorted(names - RUNS.keys())]]


def results(records: Sequence[Record]) -> str:
    """Return RESULTS.md."""
    lines = [
        "# Results",
        INTRODUCTION,
        counted(records),
        "\n".join(claims_page(records)),
    ]
    groups = [list(group) for _, group in itertools.groupby(records, key=lambda record: record.title)]
    for most, claims, with_tables in _cuts(records, len(groups)):
        # the first section has the tables of papers, which are what a reader looks for, and is never cut
        limits = [
            (most if 0 < i < with_tables else 0 if i else 1000, claims if i else 1000) for i in range(len(groups))
        ]
        parts = [
            part
            for i, group in enumerate(groups)
            for part in (f"## {group[0].title}", *_section_parts(group, *limits[i]))
        ]
        text = "\n\n".join([*lines, *parts, *_not_measured(records)]) + "\n"
        if text.count("\n") <= MAX_LINES:
            break
    return text


def counted(records: Sequence[Record]) -> str:
    """Return the sentence that says how many claims there are, and how many of them are shown first."""
    verdicts = [claim.reached for record in records for claim in record.claims]
    reached, missed, open_ = (verdicts.count(verdict) for verdict in (True, False, None))
    shown = min(MAX_CLAIMS, len(verdicts))
    return (
        f"The records hold {len(verdicts)} claims: {reached} are reached, {missed} are not, and {open_} could not be "
        f"measured. The table shows {shown} of them."
    )


def _cuts(records: Sequence[Record], groups: int) -> Iterator[tuple[int, int, int]]:
    """Yield how many rows of a table, claims of a record, and sections with tables are shown: ever fewer."""
    longest = max((len(table) for one in records for table in one.tables), default=0)
    claims = max((len(one.claims) for one in records), default=0)
    yield longest, claims, groups
    yield from ((most, claims, groups) for most in range(longest - 1, FEW_ROWS - 1, -1))
    yield from ((FEW_ROWS, few, groups) for few in range(claims - 1, FEW_CLAIMS - 1, -1))
    yield from ((FEW_ROWS, FEW_CLAIMS, shown) for shown in range(groups - 1, -1, -1))
    yield from ((FEW_ROWS, few, 0) for few in range(FEW_CLAIMS - 1, -1, -1))


def claims_page(records: Sequence[Record]) -> list[str]:
    """Return the table of claims: one of each record, then further ones; records with peers come before others.

    A record shows what it has not reached before what it has.
    """
    places = {
        (record.name, i): (rank, not any(one.peer for one in record.claims))
        for record in records
        for rank, (i, claim) in enumerate(
            sorted(enumerate(record.claims), key=lambda place: place[1].reached is not False)
        )
    }
    shown = set(sorted(places, key=lambda place: places[place])[:MAX_CLAIMS])
    rows = [["job", "claim", "beside", "ours", "theirs", "ratio", "limit", ""]]
    for record in records:
        for i, claim in enumerate(record.claims):
            if (record.name, i) in shown:
                ratio = "" if claim.ratio is None else f"{claim.ratio:.2f}"
                verdict = claim.verdict + (", older defaults" if record.has_old_defaults else "")
                job = f"[{record.title}](#{record.anchor})"
                rows.append([job, claim.text, claim.peer, claim.ours, claim.theirs, ratio, claim.limit, verdict])
    return _table(rows)


def _not_measured(records: Sequence[Record]) -> list[str]:
    measured = {one.name for one in records}
    missing = dict.fromkeys(f"{run.title} (`{name}`)" for name, run in RUNS.items() if name not in measured)
    return ["## Not measured yet", "; ".join(missing) + "."] if missing else []


def _section_parts(records: Sequence[Record], most: int = 1000, most_claims: int = 1000) -> Iterator[str]:
    """Yield the paragraphs of a section; tables of several records that have equal headings are joined.

    Only the first rows of a table are shown, and of each record the first claims and those that are not reached; of 0
    rows there is no table.
    """
    commands = [_command_line(record) for record in records]
    yield "\n".join(commands if len(commands) == 1 else (f"- {line}" for line in commands))
    if old := [record.name for record in records if record.has_old_defaults]:
        yield f"**Measured with older defaults{'' if len(records) == 1 else ': ' + ', '.join(old)}.**"
    tables: list[list[list[str]]] = []
    for head, *rows in (table for record in records for table in record.tables):
        same = next((table for table in tables if len(records) > 1 and table[0] == head), None)
        if same is None:
            tables.append(same := [head])
        same += [row for row in rows if row not in same]
    for table in tables if most else ():
        cut = len(table) - 1 - most
        if cut > 2:  # the line that says so takes the place of two
            yield "\n".join([*_table(table[: most + 1]), f"\n{cut} more rows in the record."])
        else:
            yield "\n".join(_table(table))
    claims = [
        claim
        for record in records
        for i, claim in enumerate(record.claims)
        if i < most_claims or claim.reached is False
    ]
    lines = [f"- {claim.text}{_beside(claim)}: {claim.verdict}." for claim in claims]
    cut = sum(len(record.claims) for record in records) - len(lines)
    if lines:
        yield "\n".join(lines) + (f" {cut} more in the record." if cut else "")
    yield from (f"![{record.title}](plots/{record.name}.png)" for record in records if record.has_plot)
    yield from dict.fromkeys(record.notes for record in records if record.notes)


def _command_line(record: Record) -> str:
    where = f"{record.machine.name}, {record.machine.threads} thread{'s' if record.machine.threads > 1 else ''}"
    took = "" if record.minutes is None else f", {record.minutes:g} minutes"
    peers = "".join(f"; {name} {version}" for name, version in record.peers.items())
    return f"`python benchmarks/{record.command}` ({where}{peers}; commit {record.commit}, {record.date}{took}):"


def _beside(claim: Claim) -> str:
    if claim.reached is None:
        parts = [claim.ours, f"{claim.peer}: {claim.theirs}" if claim.theirs else ""]
    else:
        parts = [claim.ours + (f" beside {claim.theirs} of {claim.peer}" if claim.theirs else "")]
    parts = [part for part in parts if part]
    parts += [f"ratio {claim.ratio:.2f}"] if claim.ratio is not None else []
    parts += [f"limit: {claim.limit}"] if claim.limit else []
    return f" ({'; '.join(parts)})" if parts else ""


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|---" * len(rows[0]) + "|", *rest]


def with_figures(text: str, page: Path) -> str:
    """Return the text of a page with its tables and figures as the records have them.

    Raises:
        RecordError: the page shows a record, a table or a figure that does not exist.
    """
    known: dict[str, Record] = {}
    results_at = os.path.relpath(RESULTS, page.parent)

    def record_of(name: str) -> Record:
        return known.setdefault(name, read(name))

    def table(found: re.Match[str]) -> str:
        name, number = found[1], int(found[2])
        if name in RUNS and not (FOLDER / f"{name}.json").exists():
            shown = f"(Not measured yet: `python benchmarks/figures.py {name}`.)"
        elif number > len(record_of(name).tables):
            raise RecordError(f"{page}: the record {name} has no table {number}; name another one")
        else:
            shown = "\n".join(_table(record_of(name).tables[number - 1]))
        return f"<!-- record: {name}, table {number} -->\n\n{shown}\n\n<!-- end of record -->"

    sources = {}

    def figure(found: re.Match[str]) -> str:
        label, name, key, form = found.groups()
        record = record_of(name)
        if key not in record.figures:
            raise RecordError(f"{page}: the record {name} has no figure {key!r}; name another one")
        sources[label] = f"[{label}]: {results_at}#{record.anchor}\n"
        return f"[{format(record.figures[key].value, form or 'g').replace('%', ' %')}][{label}]"

    text = FIGURE.sub(figure, TABLE.sub(table, SOURCE.sub("", text)))
    return text.rstrip("\n") + "\n" + ("\n" + "".join(sorted(sources.values())) if sources else "")


def pages() -> dict[Path, str]:
    """Return the pages that show records, as they should be."""
    found = {page: with_figures(page.read_text(encoding="utf-8"), page) for page in PAGES}
    return {**found, RESULTS: results(read_all())}


def write_pages() -> None:
    """Write the pages that show records."""
    for page, text in pages().items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(f"written: {page}")


def main() -> None:
    try:
        write_pages()
    except RecordError as error:
        sys.exit(f"record: error: {error}")


if __name__ == "__main__":
    main()
