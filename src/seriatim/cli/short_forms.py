"""Options of the command line that set fields of the configuration: full names, short forms, and hints.

A field is set by its dotted name (``--training.steps 100``) or by its last part where that is unambiguous
(``--steps 100``). ``-`` and ``_`` are the same in every option. A verb's own options come first: ``--minutes`` of
``compare`` is its budget.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.errors import InputError, ProblemsError, closest, nearest

CONFIGURED = ("train", "check", "compare")
"""Verbs that take every field of the configuration."""
READING = ("evaluate", "predict", "inspect")
"""Verbs that read data for a run, and take the fields that say how."""
READING_FIELDS = ("data.text", "data.label", "data.column", "data.strict")
SHORT = {"data": "data.train", "layer": "model.layer"}
"""Short forms that are not the last part of the field's name."""
SYNONYMS = {"lr": "learning_rate", "max_steps": "steps", "num_epochs": "epochs", "wd": "weight_decay"}
"""Names that other programs have for a field, for hints."""
OPTIONS = "model.options."


def split(verb: str, arguments: Sequence[str], flags: Iterable[str]) -> tuple[list[str], list[str]]:
    """Separates a verb's own arguments from fields of the configuration.

    Args:
        verb: which may take fields, or none.
        arguments: what follows it.
        flags: the verb's own options, as ``--name``.

    Returns:
        Its own arguments, and the fields as ``--a.b=value``.

    Raises:
        InputError: an option that is given twice, a short form of several fields, a field without a value, or one that
            the verb does not take.
    """
    own: list[str] = []
    fields: list[str] = []
    known, seen, rest = set(flags), set(), list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*own, argument, *rest], fields
        option, equals, value = argument.partition("=")
        field = field_of(option) if option.startswith("--") and option not in known else None
        field = None if field is None else _taken(verb, option, field)
        if option.startswith("--") and (field or option) in seen:
            raise InputError(_repeated(option))
        seen.add(field or option)
        if field is None:
            own.append(argument)
        elif not equals and (not rest or rest[0].startswith("--")):
            raise InputError(f"{option}: no value given; a value that begins with -- needs {option}=VALUE")
        else:
            fields.append(f"--{field}={value if equals else rest.pop(0)}")
    return own, fields


def _taken(verb: str, option: str, field: str) -> str | None:
    """The field that an option sets for this verb; None where the verb has no such option.

    Raises:
        InputError: a field, by its dotted name, that only other verbs take.
    """
    if verb in CONFIGURED or (verb in READING and field in READING_FIELDS):
        return field
    if verb in READING and option.startswith("--data."):
        known = [f"--{name}" for name in READING_FIELDS]
        raise InputError(f"{option}: {verb} does not take this option; {nearest(option, known)}")
    return None


def _repeated(option: str) -> str:
    if option in ("--data", "--valid", "--data.train", "--data.valid", "--data.test"):
        return (
            f"{option}: given twice, and only one would be read; to read several files, give their folder, or a glob "
            "in quotes such as 'texts/*.txt'"
        )
    return f"{option}: given twice; give it once"


def spelled(arguments: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Arguments with the options among ``flags`` spelled as there, whether they were given with ``-`` or with ``_``."""
    names = {flag.replace("_", "-"): flag for flag in flags}
    end = arguments.index("--") if "--" in arguments else len(arguments)
    found = []
    for argument in arguments[:end]:
        name, equals, value = argument.partition("=")
        flag = names.get(name.replace("_", "-"), name) if name.startswith("--") else name
        found.append(f"{flag}{equals}{value}")
    return [*found, *arguments[end:]]


def field_of(option: str) -> str | None:
    """The dotted name of the field that an option sets; None where it sets none.

    A dotted name is returned as it is, also where no such field exists; `dotted` refuses it with a hint.

    Raises:
        InputError: a short form of several fields.
    """
    from ..config import fields

    name = option.removeprefix("--").replace("-", "_")
    if name in SHORT:
        return SHORT[name]
    if "." in name:
        return name
    matches = [field for field in fields() if field.endswith(f".{name}")]
    if len(matches) > 1:
        listed = " or ".join(f"--{field}" for field in matches)
        raise InputError(f"{option}: ambiguous; write {listed}")
    return matches[0] if matches else None


def dotted(arguments: Sequence[str]) -> dict[str, Any]:
    """Fields of the configuration, by dotted names, from ``--a.b value``, ``--a.b=value`` and the short forms.

    Raises:
        InputError: an unknown field, or one without a value.
    """
    from ..config import fields, parse_value, text_fields

    known, plain, found = fields(), text_fields(), {}
    wrong, rest = [], list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        name = field_of(option) or option.removeprefix("--")
        if name not in known and not name.startswith(OPTIONS):
            hint = _hint(name, [option for option in _field_options() if "." in option])
            wrong.append(f"unknown option --{name}; {hint or 'seriatim docs configuration lists every field'}")
        if not equals:
            if not rest:
                raise InputError(f"--{name}: no value given")
            value = rest.pop(0)
        found[name] = value if name in plain else parse_value(value)
    if wrong:
        raise ProblemsError(wrong)
    return found


def unknown(argument: str, verb: str | None, flags: Mapping[str | None, Sequence[str]]) -> str:
    """What to say of an argument that a verb does not take.

    Args:
        argument: as it was given.
        verb: None before any verb.
        flags: the options of every verb, as ``--name``; those of the command itself under None.
    """
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; options begin with --"
    option = argument.partition("=")[0]
    if verb not in CONFIGURED and option.startswith("--") and (field := _existing(option)):
        return f"unknown option {option} of {verb or 'seriatim'}; --{field} is an option of {_listed(CONFIGURED)}"
    names = [*flags[verb], *(_field_options() if verb in CONFIGURED else ())]
    names += [f"--{name}" for name in READING_FIELDS] if verb in READING else []
    if hint := _hint(option, names):
        return f"unknown option {option}; {hint}"
    owners = [other for other in flags if other is not None and option in flags[other]]
    if owners:
        return f"unknown option {option} of {verb or 'seriatim'}; it is an option of {_listed(owners)}"
    return f"unknown option {option}; see seriatim {f'{verb} ' if verb else ''}--help"


def _hint(option: str, names: Sequence[str]) -> str | None:
    """The nearest of some options, by their full names or the last parts of them."""

    def plain(name: str) -> str:
        return name.strip("-").replace("-", "_")

    known = {plain(name).rpartition(".")[2]: name for name in reversed(names)} | {plain(name): name for name in names}
    word = SYNONYMS.get(plain(option), plain(option))
    parts = [part for part in (word, word.rpartition(".")[2]) if part in known]
    close = parts[0] if parts else closest(word, list(known))
    return None if close is None else f"did you mean {known[close]!r}?"


def _existing(option: str) -> str | None:
    """The field of the configuration that an option of another verb would set."""
    from ..config import fields

    field = field_of(option)
    return field if field is not None and (field in fields() or field.startswith(OPTIONS)) else None


def _field_options() -> list[str]:
    """Every way to set a field, options of layers and tasks included: their full names, and the short forms."""
    from .. import layers
    from ..config import fields
    from ..tasks import TASKS

    inner = {name for layer in layers.names() for name in layers.options_of(layer)}
    inner |= {name for task in TASKS.values() if task.own_options for name in task.own_options.model_fields}
    full = fields()
    return [
        *(f"--{name}" for name in SHORT),
        *(f"--{name.rpartition('.')[2]}" for name in full),
        *(f"--{name}" for name in full),
        *(f"--{OPTIONS}{name}" for name in sorted(inner)),
    ]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
