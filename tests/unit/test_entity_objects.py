"""Entities as objects: no secret in their text. And the key of the configuration that says where they are kept."""

import pytest

from tbmq.config import ConfigError, load
from tbmq.storage.entities import BasicProof, Credentials, Provider, ProviderKind, ScramKeys, ScramMechanism, User
from tbmq.storage.interfaces import AlreadyThere
from tbmq.storage.sql.schema import match_key


@pytest.mark.parametrize(
    "entity",
    [
        User("u", "hunter2"),
        Credentials("n", BasicProof("c", "u", "hunter2")),
        ScramKeys(ScramMechanism.SHA_256, b"hunter2", 4_096, b"hunter2", b"hunter2"),
        Provider(ProviderKind.HTTP, True, 0, {"token": "hunter2"}),
    ],
)
def test_secrets_are_not_in_the_text_of_an_entity(entity):
    assert "hunter2" not in f"{entity!r} {entity}"


def test_keys_differ_where_parts_do():
    parts = [(None, "a"), ("a", None), ("", "a"), ("None", "a"), ("a",), ("a", "b"), ('a", "b',), (True,), ("true",)]
    assert len({match_key(*one) for one in parts}) == len(parts)


def test_clashes_are_all_told():
    assert str(AlreadyThere({3: "a", 5: "b"})) == "a; b"


def test_database_is_sqlite_unless_a_url_is_set(tmp_path):
    assert load(environ={}).database.url.get_secret_value() == ""
    (tmp_path / "url").write_text("postgresql://u:p@h/d\n")
    config = load(overrides=[f"database.url=file://{tmp_path}/url"], environ={})
    assert config.database.url.get_secret_value() == "postgresql://u:p@h/d"
    assert "u:p" not in repr(config)


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "sqlite:///x", "postgresql:/x", "hunter2"])
def test_other_urls_are_refused_without_repeating_them(url):
    with pytest.raises(ConfigError) as refused:
        load(overrides=[f"database.url={url}"], environ={})
    assert "postgresql://" in str(refused.value)
    assert "hunter2" not in str(refused.value)
