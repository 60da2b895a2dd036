"""Settings of providers: JSON objects, as the entity store and the admin interface bring them.

Each provider has a model, a `Section` as those of the configuration: unknown keys are refused, nothing changes later.
Secrets take `file:///path` and are never shown, not in errors either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from tbmq.config.model import Section

Settings = TypeVar("Settings", bound=Section)

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


class SettingsError(ValueError):
    """The settings are refused; each line of the text names a key and says what to do."""


def read_settings(model: type[Settings], provider: str, values: Mapping[str, Any]) -> Settings:
    """SettingsError tells everything that is wrong, not only the first thing."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as refused:
        lines = []
        for error in refused.errors(include_input=False, include_url=False):
            key = ".".join(map(str, (provider, *error["loc"])))
            if error["type"] == "extra_forbidden":
                reason = f"unknown key; known are {', '.join(model.model_fields)}"
            else:
                reason = error["msg"].removeprefix("Value error, ").replace("Input should", "must")
            lines.append(f"{key}: {reason}")
        raise SettingsError("\n".join(lines)) from None


def check_placeholders(text: str, known: set[str]) -> str:
    """The text again; ValueError names a placeholder that nobody would fill in."""
    for name in _PLACEHOLDER.findall(text):
        if name not in known:
            raise ValueError(f"${{{name}}} is not known; known are {', '.join(f'${{{one}}}' for one in sorted(known))}")
    return text


def has_placeholder(text: str, name: str) -> bool:
    return name in _PLACEHOLDER.findall(text)


def fill_in(text: str, values: Mapping[str, str | None], quote: Callable[[str], str] = str) -> str | None:
    """Placeholders replaced, each value once and as it is, then quoted; None if one of them has no value."""
    if any(values[name] is None for name in _PLACEHOLDER.findall(text)):
        return None
    return _PLACEHOLDER.sub(lambda found: quote(values[found[1]] or ""), text)
