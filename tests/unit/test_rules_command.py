"""`tbmq acl test`: what it says, and how it ends. With a real entity store."""

import asyncio
import json
import os

import pytest
from typer.testing import CliRunner

from tbmq.auth.model import Action, Effect, PatternKind, Rule
from tbmq.cli.acl import app
from tbmq.config import Config
from tbmq.storage.entities import BasicProof, Credentials, ProviderKind, X509Proof
from tbmq.storage.sql import open_entities

OWN = Rule(Effect.ALLOW, Action.ALL, PatternKind.FILTER, "d/${clientid}/#")
SECRET = Rule(Effect.DENY, Action.ALL, PatternKind.FILTER, "d/+/secret")
NAME = Rule(Effect.ALLOW, Action.PUBLISH, PatternKind.FILTER, "by/${cn}")


async def fill(data_dir) -> None:
    store = await open_entities(Config(data_dir=data_dir))
    try:
        await store.credentials.add(
            [
                Credentials("device", BasicProof("c1", None, "hash"), rules=(SECRET, OWN)),
                Credentials("user", BasicProof(None, "u1"), rules=()),
                Credentials("cert", X509Proof("n1"), rules=(NAME,)),
            ]
        )
        for kind in (ProviderKind.BASIC, ProviderKind.X509):
            await store.providers.set_enabled(kind, True)
    finally:
        await store.close()


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("TBMQ_")]:
        monkeypatch.delenv(name)
    asyncio.run(fill(tmp_path))
    return lambda *options: CliRunner().invoke(app, ["test", "--set", f"data_dir={tmp_path}", *options])


def test_allowed_ends_with_0_and_names_rule_and_credentials(run):
    result = run("--client", "c1", "--topic", "d/c1/t")
    assert result.exit_code == 0
    assert result.stdout == (
        "allowed to publish, credentials 'device': rule 2 decides: allow all filter d/${clientid}/# (here d/c1/#)\n"
    )


def test_denied_ends_with_1(run):
    result = run("--client", "c1", "--topic", "d/c1/#", "--action", "subscribe")
    assert (result.exit_code, "rule 1 decides: deny" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    ("action", "topic", "judged"),
    [
        ("subscribe", "$share/g/d/c1/t", "d/c1/t"),
        ("subscribe", "$queue/d/c1/t", "d/c1/t"),
        ("subscribe", "$exclusive/d/c1/t", "d/c1/t"),
        ("publish", "$delayed/60/d/c1/t", "d/c1/t"),
    ],
)
def test_prefix_is_taken_off_and_told(run, action, topic, judged):
    result = run("--client", "c1", "--topic", topic, "--action", action)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Judged is {judged}: the prefix is taken off first.\nallowed")


def test_json_is_for_programs(run):
    result = run(
        "--client", "c1", "--topic", "$share/g/d/c1/secret", "--action", "subscribe", "--json", "--username", "u1"
    )
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "allowed": False,
        "credentials": "device",
        "rule": 1,
        "reason": "rule 1 decides: deny all filter d/+/secret",
        "action": "subscribe",
        "topic": "$share/g/d/c1/secret",
        "judged": "d/c1/secret",
        "others": [
            {
                "allowed": False,
                "credentials": "user",
                "rule": None,
                "reason": "there are no rules, so everything is denied",
            }
        ],
    }


def test_credentials_that_fit_as_well_are_told(run):
    result = run("--client", "c1", "--username", "u1", "--topic", "d/c1/t")
    assert result.exit_code == 0
    assert "With other credentials that fit: denied to publish, credentials 'user'" in result.stdout


def test_certificate_finds_its_credentials(run):
    assert run("--client", "x", "--cn", "n1", "--topic", "by/n1").exit_code == 0
    assert run("--client", "x", "--cn", "n1", "--topic", "by/n2").exit_code == 1


def test_named_credentials_are_used_whatever_the_client_shows(run):
    result = run("--client", "c9", "--credentials", "device", "--topic", "d/c9/t")
    assert (result.exit_code, "(here d/c9/#)" in result.stdout) == (0, True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--client", "nobody", "--topic", "a"), "no credentials in the store fit this client"),
        (("--client", "c", "--credentials", "gone", "--topic", "a"), "there are no credentials 'gone'"),
        (("--client", "c1", "--topic", "a/+"), "--action subscribe"),
        (("--client", "c1", "--topic", ""), "not a topic"),
        (("--client", "c1", "--topic", "a", "--action", "all"), "must be publish or subscribe"),
        (("--client", "c1", "--topic", "$delayed/x/a"), "seconds and a topic"),
        (("--client", "c1", "--topic", "$delayed/9999999/a"), "seconds and a topic"),
        (("--client", "c1", "--topic", "$share/g", "--action", "subscribe"), "not a valid topic filter"),
        (("--client", "c1", "--topic", "$exclusive/$share/g/a", "--action", "subscribe"), "one prefix inside another"),
        (("--client", "c1"), "--topic"),
        (("--client", "c1", "--topic", "a", "--set", "workers=many"), "workers"),
        (("--client", "c1", "--topic", "a", "--set", "data_dir=/dev/null/x"), ""),
    ],
)
def test_it_ends_with_2_and_a_reason_when_it_cannot_be_said(run, options, reason):
    result = run(*options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in " ".join(result.stderr.replace("│", " ").split())
    assert result.stderr


def test_everything_is_allowed_when_no_authentication_is_on(tmp_path):
    result = CliRunner().invoke(app, ["test", "--set", f"data_dir={tmp_path}", "--client", "c", "--topic", "a"])
    assert (result.exit_code, result.stdout.startswith("allowed: no authentication")) == (0, True)


def test_what_a_stranger_chose_does_not_steer_the_terminal(run):
    result = run("--client", "c\x1b[2J", "--credentials", "device", "--topic", "d/c\x1b[2J/t")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
