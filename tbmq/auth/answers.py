"""What others say of a client, in claims of a token or in the answer of a server, turned into our words.

    client_type   "DEVICE" | "APPLICATION"
    rules         [{"effect": "allow", "action": "publish", "filter": "a/${clientid}/#"}, {..., "regex": "b/.*"}, ...]
                  or, shorter and with refusals first, {"deny": {"publish": [...]}, "allow": {"subscribe": [...], ...}}

All of it or nothing: one rule that cannot be read refuses the client, since what is left of a list that lost its
refusals would allow too much.
"""

from __future__ import annotations

import json
from typing import Any

from tbmq.auth.model import Action, ClientType, Effect, PatternKind, Rule
from tbmq.storage.entities import MAX_RULES, InvalidEntity, check_rules


class UnclearAnswer(ValueError):
    """It was said in a way that we do not understand; the text says what and never repeats a secret."""


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object; UnclearAnswer for everything else, however deep or odd."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise UnclearAnswer("is not JSON") from None
    if not isinstance(value, dict):
        raise UnclearAnswer("is JSON but not an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_client_type(value: object, default: ClientType) -> ClientType:
    if value is None:
        return default
    if not isinstance(value, str) or value.upper() not in ClientType.__members__:
        raise UnclearAnswer("the client type must be DEVICE or APPLICATION")
    return ClientType[value.upper()]


def read_rules(value: object, default: tuple[Rule, ...]) -> tuple[Rule, ...]:
    if value is None:
        return default
    if isinstance(value, list):
        if len(value) > MAX_RULES:
            raise UnclearAnswer(f"more than {MAX_RULES} rules")
        rules = tuple(_read_rule(item) for item in value)
    elif isinstance(value, dict):
        rules = tuple(_read_lists(value))
    else:
        raise UnclearAnswer("rules must be a list of rules, or an object with allow and deny")
    try:
        check_rules(rules)
    except InvalidEntity as error:
        raise UnclearAnswer(f"rules: {error}") from None
    return rules


def _read_rule(item: object) -> Rule:
    if not isinstance(item, dict) or set(item) - {"effect", "action", "filter", "regex"}:
        raise UnclearAnswer("a rule must have effect, action, and filter or regex, and nothing else")
    kinds = [kind for kind in PatternKind if kind.value in item]
    if len(kinds) != 1 or not isinstance(item[kinds[0].value], str):
        raise UnclearAnswer("a rule must have filter or regex, one of them, as text")
    if item.get("effect") not in list(Effect) or item.get("action") not in list(Action):
        raise UnclearAnswer("effect must be allow or deny, action must be publish, subscribe or all")
    return Rule(Effect(item["effect"]), Action(item["action"]), kinds[0], item[kinds[0].value])


def _read_lists(value: dict[str, Any]) -> list[Rule]:
    if set(value) - set(Effect):
        raise UnclearAnswer("rules as an object may have allow and deny, and nothing else")
    rules = []
    for effect in (Effect.DENY, Effect.ALLOW):
        by_action = value.get(effect.value, {})
        if not isinstance(by_action, dict) or set(by_action) - set(Action):
            raise UnclearAnswer(f"{effect} must be an object with publish, subscribe and all, and nothing else")
        for action, patterns in by_action.items():
            if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
                raise UnclearAnswer(f"{effect}.{action} must be a list of topic filters")
            rules += [Rule(effect, Action(action), PatternKind.FILTER, pattern) for pattern in patterns]
    return rules
