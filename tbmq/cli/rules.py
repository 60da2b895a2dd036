"""Rules on the command line: `--allow publish:sensors/# --deny-regex all:secret/.*`, in the order in which they stand.

Options of different names come from the parser sorted by name, so their order would be lost. Hence all four are names
of one option, and `RuleCommand` writes the name in front of each value before the parser sees it.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tbmq.auth.model import ALLOW_ALL, Action, Effect, PatternKind, Rule
from tbmq.auth.rules import check_rule
from tbmq.storage.entities import InvalidEntity, check_rules

OPTIONS = {
    "allow": (Effect.ALLOW, PatternKind.FILTER),
    "deny": (Effect.DENY, PatternKind.FILTER),
    "allow-regex": (Effect.ALLOW, PatternKind.REGEX),
    "deny-regex": (Effect.DENY, PatternKind.REGEX),
}

RuleOptions = Annotated[
    list[str] | None,
    typer.Option(
        *(f"--{name}" for name in OPTIONS),
        metavar="ACTION:PATTERN",
        help="ACTION is publish, subscribe or all; PATTERN is a topic filter, which may hold ${clientid}, ${username} "
        "and ${cn}, or with -regex an expression (RE2) for the whole topic. The first rule that applies decides; when "
        "none does, the answer is no. Without any rule everything is allowed. Repeatable, order counts.",
    ),
]


class RuleCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        marked: list[str] = []
        waiting = None  # the option whose value comes next
        for place, text in enumerate(args):
            name, separator, value = text.removeprefix("--").partition("=")
            if waiting is not None:
                marked.append(f"{waiting} {text}")
                waiting = None
            elif text == "--":
                return super().parse_args(ctx, [*marked, *args[place:]])
            elif text.startswith("--") and name in OPTIONS:
                marked.append(f"--{name}={name} {value}" if separator else f"--{name}")
                waiting = None if separator else name
            else:
                marked.append(text)
        return super().parse_args(ctx, marked)


def parse_rule(text: str) -> Rule:
    """`allow publish:sensors/#`; InvalidEntity says how it should look."""
    option, _, rest = text.partition(" ")
    action, separator, pattern = rest.partition(":")
    if option not in OPTIONS or action not in list(Action) or not separator:
        raise InvalidEntity(
            f"{text!r} is no rule: write allow, deny, allow-regex or deny-regex, then publish:PATTERN, "
            "subscribe:PATTERN or all:PATTERN"
        )
    effect, kind = OPTIONS[option]
    rule = Rule(effect, Action(action), kind, pattern)
    check_rules([rule])
    check_rule(rule)
    return rule


def parse_rules(texts: list[str] | None) -> tuple[Rule, ...]:
    """Everything is allowed when there are none."""
    return tuple(map(parse_rule, texts)) if texts else ALLOW_ALL


def rule_text(rule: Rule) -> str:
    """What `parse_rule` reads."""
    option = next(name for name, kinds in OPTIONS.items() if kinds == (rule.effect, rule.kind))
    return f"{option} {rule.action}:{rule.pattern}"
