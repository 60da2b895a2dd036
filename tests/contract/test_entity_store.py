"""What every entity store promises, over SQLite and PostgreSQL; see tbmq/storage/interfaces.py."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tbmq.auth.model import ALLOW_ALL, Action, ClientType, Effect, PatternKind, Rule
from tbmq.storage.entities import (
    MAX_NAME_CHARS,
    BasicProof,
    Blocked,
    BlockedKind,
    Credentials,
    Failure,
    InvalidEntity,
    ProviderKind,
    Role,
    ScramKeys,
    ScramMechanism,
    ScramProof,
    User,
    X509Proof,
)
from tbmq.storage.interfaces import MAX_FAILURES, AlreadyThere, NotThere, StoreError
from tests.contract.conftest import on_a_loop

STRANGE = [
    "ünïcödé-名前-🦜",
    "'; DROP TABLE credentials; --",
    'a"b`c\\d%e_f',
    "${clientid}",
    "[red]x[/red]",
    "{0!r}:name",
    "x" * MAX_NAME_CHARS,
    "🦜" * MAX_NAME_CHARS,
]


def basic(name: str, client_id: str | None = None, username: str | None = None, **more: object) -> Credentials:
    return Credentials(name, BasicProof(client_id, username, "$argon2id$x"), **more)


def scram_keys(mechanism: ScramMechanism = ScramMechanism.SHA_256, size: int = 32) -> ScramKeys:
    return ScramKeys(mechanism, b"salt\0\xff", 4_096, b"s" * size, b"v" * size)


# --- users


@on_a_loop
async def test_users_are_kept_by_name(place):
    async with place.open() as store:
        await store.users.add(User("b", "hash-b", Role.VIEWER, 12.5))
        await store.users.add(User("Z", "hash-z"))
        await store.users.add(User("ä", "hash-ä"))
    async with place.open() as store:
        assert [user.name for user in await store.users.all()] == ["Z", "b", "ä"]  # code points, in both databases
        assert await store.users.find("b") == User("b", "hash-b", Role.VIEWER, 12.5)
        assert await store.users.find("B") is None
        await store.users.set_password_hash("b", "other")
        assert (await store.users.find("b")).password_hash == "other"
        await store.users.remove("b")
        assert await store.users.find("b") is None


@on_a_loop
async def test_users_are_refused_when_they_clash_or_are_missing(place):
    async with place.open() as store:
        await store.users.add(User("a", "first"))
        with pytest.raises(AlreadyThere, match="'a' already"):
            await store.users.add(User("a", "second"))
        with pytest.raises(NotThere):
            await store.users.set_password_hash("x", "hash")
        with pytest.raises(NotThere):
            await store.users.remove("x")
        assert (await store.users.find("a")).password_hash == "first"
        assert await store.changes.version() == 1


@pytest.mark.parametrize("name", ["", " a", "a\n", "a\0b", "\ud800", "x" * (MAX_NAME_CHARS + 1), "\x1b[2J"])
@on_a_loop
async def test_bad_names_are_refused(place, name):
    async with place.open() as store:
        with pytest.raises(InvalidEntity):
            await store.users.add(User(name, "hash"))
        with pytest.raises(InvalidEntity):
            await store.credentials.add([basic(name, "c")])
        with pytest.raises(InvalidEntity):
            await store.settings.put(name, 1)
        assert await store.changes.version() == 0


# --- credentials


@pytest.mark.parametrize(
    "proof",
    [
        BasicProof("c", "u", "hash"),
        BasicProof(None, "u"),
        X509Proof(".*\\.example", is_regex=True, is_whole_chain=True),
        X509Proof("device-1"),
        ScramProof("u", (scram_keys(), scram_keys(ScramMechanism.SHA_512, 64))),
    ],
)
@on_a_loop
async def test_credentials_come_back_as_they_were_written(place, proof):
    rules = (
        Rule(Effect.DENY, Action.ALL, PatternKind.FILTER, "secret/${clientid}/#"),
        Rule(Effect.ALLOW, Action.PUBLISH, PatternKind.REGEX, "a/[0-9]+"),
        *ALLOW_ALL,
    )
    written = Credentials("n", proof, ClientType.APPLICATION, rules)
    async with place.open() as store:
        await store.credentials.add([written])
    async with place.open() as store:
        assert await store.credentials.find("n") == written
        assert await store.credentials.get(written.id) == written
        assert await store.credentials.page() == [written]
        assert await store.credentials.get("other") is None


@on_a_loop
async def test_strange_texts_are_only_texts(place):
    items = [basic(text, text, text) for text in STRANGE]
    async with place.open() as store:
        await store.credentials.add(items)
        for item, text in zip(items, STRANGE, strict=True):
            assert await store.credentials.find(text) == item
            assert await store.lookup.find_basic(text, text) == [item]
            await store.settings.put(text, [text, {text: None}])
            assert await store.settings.get(text) == [text, {text: None}]
        assert await store.settings.all() == {text: [text, {text: None}] for text in STRANGE}
        assert [item.name for item in await store.credentials.page()] == sorted(STRANGE)


@on_a_loop
async def test_most_specific_basic_credentials_come_first(place):
    both, by_id, by_name = basic("x", "c", "u"), basic("y", "c"), basic("a", None, "u")
    others = [basic("o1", "c", "other"), basic("o2", "other", "u"), basic("o3", "C"), basic("o4", None, "U")]
    async with place.open() as store:
        await store.credentials.add([by_name, *others, by_id, both])
        assert await store.lookup.find_basic("c", "u") == [both, by_id, by_name]
        assert await store.lookup.find_basic("c", None) == [by_id]
        assert await store.lookup.find_basic("z", "u") == [by_name]
        assert await store.lookup.find_basic("z", "") == []
        assert await store.lookup.find_basic("", None) == []


@on_a_loop
async def test_certificates_are_matched_exact_before_pattern_and_own_before_chain(place):
    def x509(name: str, *proof: object) -> Credentials:
        return Credentials(name, X509Proof(*proof))

    own = x509("own", "leaf", False, False)
    own_chain = x509("own-chain", "leaf", False, True)
    issuer = x509("issuer", "root", False, True)
    own_pattern = x509("z-pattern", "le.f", True, False)
    chain_pattern = x509("a-pattern", "ro{2}t", True, True)
    never = [
        x509("n1", "root", False, False),
        x509("n2", "roo", True, True),
        x509("n3", "lea", True, False),
        x509("n4", "le.f", False, True),
    ]
    async with place.open() as store:
        await store.credentials.add([chain_pattern, *never, own_pattern, issuer, own_chain, own])
        found = await store.lookup.find_x509(["leaf", "middle", "root"])
        assert found == [own, own_chain, issuer, own_pattern, chain_pattern]
        assert await store.lookup.find_x509([]) == []
        assert await store.lookup.find_x509(["nobody"]) == []


@on_a_loop
async def test_scram_credentials_are_found_by_name_and_mechanism(place):
    item = Credentials("s", ScramProof("user", (scram_keys(),)))
    async with place.open() as store:
        await store.credentials.add([item, basic("b", None, "user")])
        assert await store.lookup.find_scram("user", "SCRAM-SHA-256") == item
        assert await store.lookup.find_scram("user", "SCRAM-SHA-512") is None
        assert await store.lookup.find_scram("nobody", "SCRAM-SHA-256") is None
        assert [found.name for found in await store.lookup.find_basic("c", "user")] == ["b"]


@on_a_loop
async def test_nothing_is_added_when_one_of_many_clashes(place):
    async with place.open() as store:
        await store.credentials.add([basic("taken", "c1")])
        version = await store.changes.version()
        many = [basic(f"n{n}", f"m{n}") for n in range(1_200)]
        with pytest.raises(AlreadyThere) as refused:
            await store.credentials.add(
                [*many, basic("taken", "c2"), basic("new", "c1"), basic("n3", "c4"), basic("n-new", "m4")]
            )
        assert refused.value.clashes == {
            1_200: "there are credentials 'taken' already",
            1_201: "'new' would match the same clients as 'taken'",
            1_202: "there are credentials 'n3' already",
            1_203: "'n-new' would match the same clients as 'n4'",
        }
        assert [item.name for item in await store.credentials.page()] == ["taken"]
        assert await store.changes.version() == version


@on_a_loop
async def test_credentials_are_replaced_by_id(place):
    first, second = basic("a", "c1"), basic("b", "c2")
    async with place.open() as store:
        await store.credentials.add([first, second])
        changed = replace(first, name="c", proof=BasicProof("c3"), rules=())
        await store.credentials.replace(changed)
        assert await store.credentials.page() == [second, changed]
        assert await store.lookup.find_basic("c1", None) == []
        with pytest.raises(AlreadyThere):
            await store.credentials.replace(replace(changed, name="b"))
        with pytest.raises(NotThere):
            await store.credentials.replace(basic("x", "y"))
        assert await store.credentials.page() == [second, changed]
        assert await store.credentials.remove("b") == second
        with pytest.raises(NotThere):
            await store.credentials.remove("b")


@on_a_loop
async def test_pages_go_through_all(place):
    async with place.open() as store:
        await store.credentials.add([basic(f"n{n:04}", f"c{n}") for n in range(2_500)])
        names, page = [], await store.credentials.page(limit=1_000)
        while page:
            names += [item.name for item in page]
            page = await store.credentials.page(names[-1], 1_000)
        assert names == [f"n{n:04}" for n in range(2_500)]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (basic("n"), "client id, a user name, or both"),
        (basic("n", "a\0b"), "the client id"),
        (basic("n", "c" * 4_097), "4,096 characters"),
        (Credentials("n", X509Proof("(", is_regex=True)), "no regular expression"),
        (Credentials("n", X509Proof("(?=a)", is_regex=True)), "no regular expression"),
        (Credentials("n", X509Proof("")), "the common name"),
        (Credentials("n", ScramProof("u", ())), "one mechanism or more"),
        (Credentials("n", ScramProof("u", (scram_keys(size=31),))), "32 bytes"),
        (Credentials("n", ScramProof("u", (replace(scram_keys(), iterations=100),))), "4,096 iterations"),
        (basic("n", "c", rules=(Rule(Effect.ALLOW, Action.ALL, PatternKind.FILTER, "a/#/b"),)), "no topic filter"),
        (basic("n", "c", rules=(Rule(Effect.ALLOW, Action.ALL, PatternKind.REGEX, "[a"),)), "no regular expression"),
        (basic("n", "c", rules=ALLOW_ALL * 257), "257 rules"),
    ],
)
@on_a_loop
async def test_bad_credentials_are_refused(place, item, reason):
    async with place.open() as store:
        with pytest.raises(InvalidEntity, match=reason):
            await store.credentials.add([basic("fine", "fine"), item])
        assert await store.credentials.page() == []


# --- providers, blocked clients, failures, settings


@on_a_loop
async def test_providers_are_all_there_and_off_at_first(place):
    async with place.open() as store:
        providers = await store.providers.all()
        assert [(one.kind, one.is_enabled, one.settings) for one in providers] == [
            (kind, False, {}) for kind in ("basic", "x509", "jwt", "http", "scram")
        ]


@on_a_loop
async def test_providers_change_and_keep_their_order(place):
    async with place.open() as store:
        await store.providers.set_enabled(ProviderKind.JWT, True)
        await store.providers.set_settings(ProviderKind.HTTP, {"url": "http://x", "n": [1, None, {"a": "ü"}]})
        await store.providers.order([ProviderKind.SCRAM, ProviderKind.JWT])
        with pytest.raises(InvalidEntity):
            await store.providers.order([ProviderKind.JWT, ProviderKind.JWT])
        for settings in ({"a": float("nan")}, {"a": "x" * 70_000}, {"a": object()}):
            with pytest.raises(InvalidEntity):
                await store.providers.set_settings(ProviderKind.HTTP, settings)
    async with place.open() as store:
        providers = await store.providers.all()
        assert [one.kind for one in providers] == ["scram", "jwt", "basic", "x509", "http"]
        assert [one.position for one in providers] == [0, 1, 2, 3, 4]
        assert [one.kind for one in providers if one.is_enabled] == ["jwt"]
        assert providers[4].settings == {"url": "http://x", "n": [1, None, {"a": "ü"}]}


@on_a_loop
async def test_blocked_clients_are_put_once_each(place):
    async with place.open() as store:
        first = await store.blocked.put(Blocked(BlockedKind.IP, "0::1", reason="noisy"))
        assert first.value == "::1"
        again = await store.blocked.put(Blocked(BlockedKind.IP, "::1", expires_at=time.time() + 60))
        pattern = await store.blocked.put(Blocked(BlockedKind.CLIENT_ID, "bad-.*", is_regex=True))
        plain = await store.blocked.put(Blocked(BlockedKind.CLIENT_ID, "bad-.*"))
        assert (again.id, again.created_at, again.reason) == (first.id, first.created_at, "")
        assert await store.blocked.all() == [again, pattern, plain]
        await store.blocked.remove(pattern.id)
        with pytest.raises(NotThere):
            await store.blocked.remove(pattern.id)
        assert await store.blocked.all() == [again, plain]


@on_a_loop
async def test_what_has_expired_goes_with_the_next_change(place):
    async with place.open() as store:
        old = await store.blocked.put(Blocked(BlockedKind.USERNAME, "u", expires_at=time.time() - 1))
        assert await store.blocked.all() == [old]
        new = await store.blocked.put(Blocked(BlockedKind.NETWORK, "10.0.0.0/8"))
        assert await store.blocked.all() == [new]
        assert [change.key for change in (await store.changes.changes_since(1)).items] == [old.id, new.id]


@on_a_loop
async def test_no_more_than_so_many_can_be_blocked(place, monkeypatch):
    monkeypatch.setattr("tbmq.storage.sql.blocked.MAX_BLOCKED", 2)
    async with place.open() as store:
        for value in ("a", "b", "a"):
            await store.blocked.put(Blocked(BlockedKind.CLIENT_ID, value))
        with pytest.raises(StoreError, match="2 clients are blocked"):
            await store.blocked.put(Blocked(BlockedKind.CLIENT_ID, "c"))
        assert {item.value for item in await store.blocked.all()} == {"a", "b"}


@pytest.mark.parametrize(
    ("kind", "value", "is_regex"),
    [
        (BlockedKind.IP, "nowhere", False),
        (BlockedKind.NETWORK, "10.0.0.1/8", False),
        (BlockedKind.NETWORK, "10.*", True),
        (BlockedKind.CLIENT_ID, "(", True),
        (BlockedKind.CLIENT_ID, "", False),
    ],
)
@on_a_loop
async def test_bad_blocks_are_refused(place, kind, value, is_regex):
    async with place.open() as store:
        with pytest.raises(InvalidEntity):
            await store.blocked.put(Blocked(kind, value, is_regex))
        assert await store.blocked.all() == []


@on_a_loop
async def test_last_failure_of_each_client_is_kept(place):
    async with place.open() as store:
        await store.failures.record([Failure("a", "u", "::1", "bad password", 1.0), Failure("b", None, "", "x", 2.0)])
        await store.failures.record(
            [Failure("a", None, "::2", "blocked", 3.0), Failure("a", None, "::3", "again", 4.0)]
        )
        await store.failures.record([])
        assert await store.failures.recent() == [
            Failure("a", None, "::3", "again", 4.0),
            Failure("b", None, "", "x", 2.0),
        ]
        assert await store.changes.version() == 0  # nobody is woken by strangers
        await store.failures.clear()
        assert await store.failures.recent() == []


@on_a_loop
async def test_oldest_failures_go_when_there_are_too_many(place):
    async with place.open() as store:
        items = [Failure(f"c{n}", None, "", "x", float(n)) for n in range(MAX_FAILURES + 700)]
        await store.failures.record(items[:-1])
        await store.failures.record(items[-1:])
        recent = await store.failures.recent(limit=MAX_FAILURES + 1_000)
        assert recent == items[: 700 - 1 : -1]
        assert len(recent) == MAX_FAILURES


@on_a_loop
async def test_failures_of_strangers_are_cut_and_cleaned(place):
    async with place.open() as store:
        await store.failures.record([Failure("🦜" * 65_000, "a\0\ud800b", "'", "x" * 999, 1.0)])
        (kept,) = await store.failures.recent()
        assert kept == Failure("🦜" * MAX_NAME_CHARS, "a\ufffd?b", "'", "x" * MAX_NAME_CHARS, 1.0)


@on_a_loop
async def test_settings_hold_any_json(place):
    async with place.open() as store:
        values = {"a": None, "b": [1, 2.5, "ü"], "c": {"x": True}, "d": "", "e": False}
        for key, value in values.items():
            await store.settings.put(key, value)
        assert await store.settings.all() == values
        assert await store.settings.get("a", "default") is None
        assert await store.settings.get("z", "default") == "default"
        await store.settings.remove("a")
        assert await store.settings.get("a", "default") == "default"
        with pytest.raises(NotThere):
            await store.settings.remove("a")
