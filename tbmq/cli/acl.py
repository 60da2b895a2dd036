"""`tbmq acl test`: may this client do that, by which rule, and why. Asks the same code as the broker."""

import json
import re
from typing import Annotated, NamedTuple

import typer

from tbmq._trie import check_topic_filter
from tbmq.auth.model import ALLOW_ALL, Action, Rule
from tbmq.auth.rules import Rules, Verdict
from tbmq.cli.options import EXIT_REFUSED, AsJson, ConfigFile, Overrides, in_store, printable
from tbmq.storage.entities import Credentials, ProviderKind, ScramMechanism
from tbmq.storage.interfaces import EntityStore
from tbmq.topic_filters import EXCLUSIVE, PREFIXES, parse_topic_filter

app = typer.Typer(help="What clients may do.", no_args_is_help=True)

DELAYED = "$delayed/"
MAX_DELAY_S = 4_294_967
EXIT_DENIED = 1
NO_LOGIN = "no authentication is switched on: everybody is let in and may do everything"


@app.callback()
def acl() -> None:
    """What clients may do."""  # with it, `test` stays a command of its own


class Candidate(NamedTuple):
    """Rules that the client may turn out to have."""

    credentials: str | None  # their name; None if it needs none
    rules: tuple[Rule, ...]


def real_topic(text: str, action: Action) -> str:
    """Without `$share/<group>/`, `$queue/`, `$exclusive/`, `$delayed/<seconds>/`. ValueError if it is not valid."""
    if action is Action.SUBSCRIBE:
        plain = text.removeprefix(EXCLUSIVE)
        if plain != text and plain.startswith(PREFIXES):
            raise ValueError("one prefix inside another")
        return parse_topic_filter(plain).topic_filter
    topic = text
    if text.startswith(DELAYED):
        seconds, _, topic = text.removeprefix(DELAYED).partition("/")
        if not re.fullmatch("[0-9]{1,7}", seconds) or int(seconds) > MAX_DELAY_S or topic.startswith(DELAYED):
            raise ValueError(f"after $delayed/ must come 0 to {MAX_DELAY_S} seconds and a topic, as $delayed/60/a/b")
    if check_topic_filter(topic) or "+" in topic or "#" in topic:
        raise ValueError("not a topic that can be published to; for topic filters say --action subscribe")
    return topic


async def find_candidates(
    store: EntityStore, client_id: str, username: str | None, common_name: str | None
) -> list[Candidate]:
    """In the order in which the broker asks. Only those with the right password or certificate will do there, so
    several may come into question here."""
    enabled = [provider.kind for provider in await store.providers.all() if provider.is_enabled]
    if not enabled:
        return [Candidate(None, ALLOW_ALL)]
    found: list[Credentials | None] = []
    for kind in enabled:
        if kind is ProviderKind.BASIC:
            found += await store.lookup.find_basic(client_id, username)
        elif kind is ProviderKind.X509 and common_name is not None:
            found += await store.lookup.find_x509([common_name])
        elif kind is ProviderKind.SCRAM and username is not None:
            found += [await store.lookup.find_scram(username, mechanism) for mechanism in ScramMechanism]
    unique = {item.id: item for item in found if item is not None}
    return [Candidate(item.name, item.rules) for item in unique.values()]


async def find_named(store: EntityStore, name: str) -> list[Candidate]:
    item = await store.credentials.find(name)
    return [] if item is None else [Candidate(item.name, item.rules)]


@app.command()
def test(
    client_id: Annotated[str, typer.Option("--client", metavar="ID", help="Client id.")],
    text: Annotated[
        str, typer.Option("--topic", metavar="T", help="Topic or topic filter, with its prefix if it has one.")
    ],
    action: Annotated[Action, typer.Option(help="publish or subscribe.")] = Action.PUBLISH,
    username: Annotated[str | None, typer.Option(metavar="U", help="User name.")] = None,
    common_name: Annotated[
        str | None, typer.Option("--cn", metavar="CN", help="Common name of its certificate.")
    ] = None,
    credentials: Annotated[
        str | None, typer.Option(metavar="NAME", help="Judge by these credentials, whatever the client shows.")
    ] = None,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Say which rule decides. Ends with 0 if it is allowed, 1 if it is denied, 2 if it cannot be said."""
    if action is Action.ALL:
        raise typer.BadParameter("must be publish or subscribe", param_hint="--action")
    try:
        topic = real_topic(text, action)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--topic") from None

    async def read(store: EntityStore) -> list[Candidate]:
        if credentials is not None:
            return await find_named(store, credentials)
        return await find_candidates(store, client_id, username, common_name)

    try:
        candidates = in_store(config_file, overrides, read)
    except typer.Exit:
        raise typer.Exit(EXIT_REFUSED) from None  # the reason is told; 1 would mean that the client is denied
    if not candidates:
        what = (
            f"there are no credentials {credentials!r}"
            if credentials
            else "no credentials in the store fit this client"
        )
        typer.echo(
            f"{what}; `tbmq credentials list` shows all. Tokens and HTTP answers bring their own rules.", err=True
        )
        raise typer.Exit(EXIT_REFUSED)

    verdicts = [
        Rules(candidate.rules, client_id, username, common_name).explain(action, topic) for candidate in candidates
    ]
    if as_json:
        typer.echo(json.dumps(_facts(action, text, topic, candidates, verdicts), indent=2))
    else:
        _tell(action, text, topic, candidates, verdicts)
    raise typer.Exit(0 if verdicts[0].allowed else EXIT_DENIED)


def _facts(
    action: Action, text: str, topic: str, candidates: list[Candidate], verdicts: list[Verdict]
) -> dict[str, object]:
    first, *others = [
        {
            "allowed": verdict.allowed,
            "credentials": candidate.credentials,
            "rule": None if verdict.rule is None else verdict.rule + 1,
            "reason": verdict.text if candidate.credentials is not None else NO_LOGIN,
        }
        for candidate, verdict in zip(candidates, verdicts, strict=True)
    ]
    return first | {"action": str(action), "topic": text, "judged": topic, "others": others}


def _tell(action: Action, text: str, topic: str, candidates: list[Candidate], verdicts: list[Verdict]) -> None:
    if topic != text:
        typer.echo(f"Judged is {printable(topic)}: the prefix is taken off first.")
    for number, (candidate, verdict) in enumerate(zip(candidates, verdicts, strict=True)):
        answer = "allowed" if verdict.allowed else "denied"
        if candidate.credentials is None:
            typer.echo(f"{answer}: {NO_LOGIN}")
            continue
        begin = "" if number == 0 else "With other credentials that fit: "
        typer.echo(f"{begin}{answer} to {action}, credentials {candidate.credentials!r}: {printable(verdict.text)}")
