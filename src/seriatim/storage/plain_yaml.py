"""YAML restricted to plain values; tags, anchors, aliases, merge keys and duplicate keys are refused.

Numbers are decimal, as in YAML 1.2. PyYAML implements YAML 1.1, in which ``010`` is 8, ``1:30`` is 90, and ``yes``,
``no``, ``on`` and ``off`` are truth values; here ``010`` is 10 and the others are text.
"""

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
DIGITS = "-+0123456789"
SCALARS = (
    (INT, r"[-+]?[0-9]+", DIGITS),
    (FLOAT, r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+", DIGITS + "."),
    (FLOAT, r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
)
"""The values without quotes that are not text: tag, form and possible first characters."""
MAX_DEPTH = 20  # the deepest nesting of mappings and lists
MAX_DIGITS = 40  # the largest number of characters of a number


class _Loader(yaml.SafeLoader):
    """The safe loader of PyYAML without features that only a hostile file needs."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (an attribute of PyYAML)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise refused("anchors and aliases are not supported; write the value instead", event)
        if getattr(event, "tag", None) is not None:
            raise refused(f"tags such as {event.tag[:40]!r} are not supported; write the plain value", event)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise refused(f"nested more than {MAX_DEPTH} levels deep", event)
        node = super().compose_node(parent, index)
        assert node is not None
        self.depth -= 1
        if node.tag in (INT, FLOAT) and len(node.value) > MAX_DIGITS:
            raise refused(f"a number of more than {MAX_DIGITS} characters", node)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, object]:
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != self.DEFAULT_SCALAR_TAG:
                raise refused("a key that is not text", key)
            if key.value in keys:
                raise refused(f"duplicate key {key.value[:40]!r}", key)
            keys.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        """Return an integer; PyYAML would read leading zeros as octal."""
        return int(node.value)


class _Dumper(yaml.SafeDumper):
    """Writes repeated values in full, and quotes text that any version of YAML could read as a number."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Loader.add_constructor(INT, _Loader.construct_decimal)
for _tag, _form, _first in SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"(?:{_form})$"), list(_first))


def dump_plain(tree: object) -> str:
    """Return a tree of plain values as YAML that `load_plain` reads."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def refused(problem: str, where: Any) -> ConstructorError:
    """Return the error for an event or a node of a YAML file."""
    return ConstructorError(None, None, problem, where.start_mark)


def load_plain(text: str) -> object:
    """Return the only document of a text.

    Raises:
        yaml.YAMLError, ValueError: the text is not YAML, or has more than plain values.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
