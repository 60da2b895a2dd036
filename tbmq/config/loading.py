"""Merges the sources, validates the result, and says what is wrong, where, and why."""

import difflib
import os
from collections.abc import Iterable, Mapping
from os.path import commonprefix
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import InitSettingsSource

from tbmq.config.model import Config, Key, keys
from tbmq.config.sources import Problem, Source, read_environment, read_file, read_overrides


class ConfigError(Exception):
    """The configuration is refused; `problems` has at least one entry."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.place}: {problem.reason}" for problem in problems))
        self.problems = problems


def read_sources(
    file: Path | None = None, overrides: Iterable[str] = (), environ: Mapping[str, str] = os.environ
) -> list[Source]:
    """All sources but the defaults, the one that wins first."""
    files = [read_file(file)] if file else []
    return [read_overrides(overrides), read_environment(environ), *files]


def build(sources: list[Source]) -> Config:
    """The merged configuration; ConfigError tells everything that is wrong, not only the first thing."""
    problems = [problem for source in sources for problem in source.problems]
    layers = tuple(InitSettingsSource(Config, source.values) for source in sources)
    try:
        config = Config(_build_sources=(layers, {}))
    except ValidationError as refused:
        problems += [_explain(error, sources) for error in refused.errors()]
    if problems:
        raise ConfigError(problems)
    return config


def load(file: Path | None = None, overrides: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> Config:
    return build(read_sources(file, overrides, environ))


def _explain(error: ErrorDetails, sources: list[Source]) -> Problem:
    context = error.get("ctx", {})
    key: Key = tuple(context["key"].split(".")) if "key" in context else tuple(map(str, error["loc"]))
    # Where it stood: the value that shares most of the key; among equals, the source that wins.
    given = [(source, known) for source in sources for known in source.places]
    source, nearest = max(given, key=lambda entry: len(commonprefix([entry[1], key])))
    if error["type"] == "extra_forbidden":
        key = nearest  # the whole key, where pydantic names only the first part that it does not know
    place, name = source.places[nearest], source.spell(key)
    reason = _reason(error, key, source)
    return Problem(place, reason if place.endswith(name) else f"{name}: {reason}")


def _reason(error: ErrorDetails, key: Key, source: Source) -> str:
    match error["type"]:
        case "extra_forbidden":
            similar = difflib.get_close_matches(".".join(key), [".".join(known) for known, _ in keys()], n=1)
            hint = f"did you mean {source.spell(tuple(similar[0].split('.')))}?" if similar else "see tbmq config show"
            return f"unknown key; {hint}"
        case "model_type":
            return "is a section: it takes keys, not a value"
        case "value_error":
            return str(error["ctx"]["error"])
    reason = error["msg"].partition(", unable")[0].replace("Input should", "must").replace("String should", "must")
    # Text only: what is nested may hold a secret. A secret itself takes any text and so never gets here.
    return f"{reason}, got {error['input']!r}" if isinstance(error["input"], str) else reason
