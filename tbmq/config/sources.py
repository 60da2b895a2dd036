"""Where values come from: file, environment, --set. Nothing else in the package reads any of the three.

All three deliver text, and the model alone gives it a type. So `0123` and `no` mean the same wherever they are written,
while YAML by itself would read 83 and False. Each source remembers where a value stood, for the refusals.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tbmq.config.model import Config, Key


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the configuration."""

    place: str  # file and line, variable, or argument
    reason: str


@dataclass
class Source:
    """The values of one source, and where each of them stood."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)  # nested like the model
    places: dict[Key, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)  # what could not even be read

    def add(self, key: Key, value: object, place: str) -> None:
        values = self.values
        for section in key[:-1]:
            if not isinstance(values.get(section), dict):
                values[section] = {}
            values = values[section]
        values[key[-1]] = value
        self.places[key] = place

    def refuse(self, place: str, reason: str) -> None:
        self.problems.append(Problem(place, reason))

    def spell(self, key: Key) -> str:
        """The key as one writes it in this source."""
        return ".".join(key)


class EnvironmentSource(Source):
    def spell(self, key: Key) -> str:
        return "TBMQ_" + "__".join(key).upper()


def read_file(path: Path) -> Source:
    source = Source(f"file {path}")
    try:
        root = yaml.compose(path.read_text("utf-8"), yaml.SafeLoader)
    except OSError as error:
        source.refuse(str(path), f"cannot be read: {error.strerror}")
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        source.refuse(f"{path}{line}", f"is not valid YAML: {error.problem}")
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        source.refuse(str(path), f"is not YAML in UTF-8: {error}")
    else:
        if isinstance(root, yaml.MappingNode):
            _read_mapping(source, path, root, ())
        elif root is not None:
            source.refuse(f"{path}:{root.start_mark.line + 1}", "must hold `key: value` lines")
    return source


# Deeper than any section; a YAML alias can make a mapping that holds itself.
MAX_DEPTH = 8


def _read_mapping(source: Source, path: Path, node: yaml.MappingNode, section: Key) -> None:
    for name, value in node.value:
        key = (*section, *str(name.value).split("."))
        place = f"{path}:{name.start_mark.line + 1}"
        if key in source.places:
            source.refuse(place, f"{source.spell(key)} stands here a second time")
        elif isinstance(value, yaml.MappingNode) and len(key) < MAX_DEPTH:
            _read_mapping(source, path, value, key)
        else:
            source.add(key, _text(value), place)


def _text(node: yaml.Node) -> object:
    if isinstance(node, yaml.ScalarNode):
        return "" if node.tag == "tag:yaml.org,2002:null" else node.value
    return [_text(item) for item in node.value if isinstance(item, yaml.ScalarNode)]


def read_environment(environ: Mapping[str, str]) -> Source:
    """A name with `__` is ours, known or not. Another may belong to someone else (Kubernetes sets TBMQ_PORT and more
    for a service called tbmq), so it counts only when it is, or nearly is, a key."""
    source = EnvironmentSource("environment")
    for name in sorted(name for name in environ if name.startswith("TBMQ_")):
        key = tuple(name.removeprefix("TBMQ_").lower().split("__"))
        if len(key) > 1 or difflib.get_close_matches(key[0], Config.model_fields, cutoff=0.85):
            source.add(key, environ[name], name)
    return source


def read_overrides(overrides: Iterable[str]) -> Source:
    source = Source("--set")
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals:
            source.add(tuple(key.strip().split(".")), value.strip(), f"--set {key.strip()}")
        else:
            source.refuse(f"--set {override}", "must be key=value, such as workers=2")
    return source
