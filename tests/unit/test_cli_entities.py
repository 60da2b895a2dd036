"""`tbmq user`, `credentials`, `provider` and `blocked`: what they do to the store, what they print, how they end."""

import contextlib
import json
import os
import pty
import sys

import pytest
from typer.testing import CliRunner

from tbmq.auth.passwords import verify_password
from tbmq.cli import app
from tbmq.cli.options import in_store
from tbmq.cli.rules import OPTIONS, parse_rule, rule_text
from tbmq.storage.entities import InvalidEntity

HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$h9IWwsnA3A/vGa4HXFhTEA"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A store of its own, by the environment; no other TBMQ_ variable of the caller reaches a command."""
    for name in [name for name in os.environ if name.startswith("TBMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TBMQ_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def run(folder):
    """Runs a command that must end well; its output."""

    def run(*arguments, input=None):
        result = CliRunner().invoke(app, arguments, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def refused(folder):
    """Runs a command that must not end well; exit code and what it says."""

    def refused(*arguments, input=None):
        result = CliRunner().invoke(app, arguments, input=input)
        assert result.exit_code != 0
        assert "Traceback" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stderr

    return refused


def read(work):
    return in_store(None, None, work)


def find(name):
    return read(lambda store: store.credentials.find(name))


# --- user


def test_user_is_added_listed_and_removed(run, folder):
    (folder / "password").write_text("correct horse\r\nsecond line\n")
    run("user", "add", "ann", "--password-file", str(folder / "password"))
    run("user", "add", "bob", "--role", "viewer", "--password-file", "-", input="from stdin")
    assert [(user["name"], user["role"]) for user in json.loads(run("user", "list", "--json"))] == [
        ("ann", "admin"),
        ("bob", "viewer"),
    ]
    ann, bob = read(lambda store: store.users.all())
    assert verify_password(ann.password_hash, b"correct horse")
    assert verify_password(bob.password_hash, b"from stdin")
    run("user", "passwd", "ann", "--password-file", "-", input="new\n")
    assert verify_password(read(lambda store: store.users.find("ann")).password_hash, b"new")
    run("user", "remove", "ann")
    listed = run("user", "list")
    assert "bob" in listed
    assert "ann" not in listed
    assert "argon2" not in listed


def test_user_is_told_what_is_wrong(run, refused, folder):
    run("user", "add", "ann", "--password-file", "-", input="x")
    assert refused("user", "add", "ann", "--password-file", "-", input="x") == (
        1,
        "there is a user 'ann' already\n",
    )
    assert refused("user", "remove", "bob") == (1, "there is no user 'bob'\n")
    assert "has no password" in refused("user", "add", "bob", "--password-file", "-", input="\n")[1]
    assert "cannot be read" in refused("user", "add", "bob", "--password-file", str(folder / "gone"))[1]
    assert "--password-file FILE" in refused("user", "add", "bob")[1]  # no terminal to ask at
    assert refused("user", "add", "bob", "--password", "secret")[0] == 2  # never on the command line


def test_password_is_asked_twice_and_not_shown_at_a_terminal(folder):
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "tbmq", "user", "add", "ann"])
    shown = b""
    try:
        # With the space: it is written when the terminal no longer shows what is typed.
        for question in (b"password: ", b"confirmation: "):
            while question not in shown.lower():
                shown += os.read(terminal, 1_024)
            os.write(terminal, b"s3cret-word\n")
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while part := os.read(terminal, 1_024):
                shown += part
    finally:
        os.close(terminal)
        _, status = os.waitpid(child, 0)
    assert b"s3cret-word" not in shown
    assert verify_password(read(lambda store: store.users.find("ann")).password_hash, b"s3cret-word")
    assert os.waitstatus_to_exitcode(status) == 0


# --- credentials


def test_rules_keep_the_order_in_which_they_stand(run):
    printed = run(
        *("credentials", "add", "dev", "--client-id", "c", "--no-password"),
        *("--deny", "all:secret/#", "--allow", "publish:sensors/${clientid}/#", "--deny-regex=subscribe:a/[0-9]"),
        *("--type", "APPLICATION", "--allow-regex", "subscribe:a/.*", "--allow=all:b"),
    )
    rules = [
        "deny all:secret/#",
        "allow publish:sensors/${clientid}/#",
        "deny-regex subscribe:a/[0-9]",
        "allow-regex subscribe:a/.*",
        "allow all:b",
    ]
    assert [line.strip() for line in printed.splitlines()[1:]] == rules
    shown = json.loads(run("credentials", "show", "dev", "--json"))
    assert (shown["rules"], shown["type"], shown["has_password"]) == (rules, "APPLICATION", False)
    assert [rule_text(rule) for rule in find("dev").rules] == rules


def test_everything_is_allowed_and_told_so_without_rules(run):
    assert "Everything is allowed" in run("credentials", "add", "dev", "--username", "u", "--no-password")
    assert json.loads(run("credentials", "show", "dev", "--json"))["rules"] == ["allow-regex all:.*"]


def test_passwords_are_hashed_and_never_shown(run):
    run("credentials", "add", "b", "--username", "u", "--password-file", "-", input="hunter2\n")
    run("credentials", "add", "s", "--kind", "scram", "--username", "u", "--password-file", "-", input="hunter2\n")
    assert verify_password(find("b").proof.password_hash, b"hunter2")
    scram = find("s").proof
    assert [(keys.mechanism, keys.iterations) for keys in scram.keys] == [
        ("SCRAM-SHA-256", 4_096),
        ("SCRAM-SHA-512", 4_096),
    ]
    shown = "".join(run("credentials", *rest) for rest in (["list"], ["list", "--json"], ["show", "b"], ["show", "s"]))
    assert "hunter2" not in shown
    assert "argon2" not in shown
    assert scram.keys[0].salt.hex() not in shown


def test_scram_keys_take_the_iterations_of_the_provider(run):
    run("provider", "set", "scram", "iterations=5000")
    run("credentials", "add", "s", "--kind", "scram", "--username", "ſu", "--password-file", "-", input="x\n")
    proof = find("s").proof
    assert {keys.iterations for keys in proof.keys} == {5_000}
    assert proof.username == "su"  # as the exchange prepares names


def test_certificates_are_added(run):
    run("credentials", "add", "x", "--kind", "x509", "--common-name", "dev-.*", "--regex", "--chain")
    shown = json.loads(run("credentials", "show", "x", "--json"))
    assert (shown["common_name"], shown["is_regex"], shown["is_whole_chain"]) == ("dev-.*", True, True)
    assert "a common name like 'dev-.*' in its chain" in run("credentials", "list")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--no-password"], "client id, a user name, or both"),
        (["--client-id", "c", "--no-password", "--allow", "publish"], "is no rule"),
        (["--client-id", "c", "--no-password", "--allow", "read:a"], "is no rule"),
        (["--client-id", "c", "--no-password", "--allow", "publish:a/#/b"], "no topic filter"),
        (["--client-id", "c", "--no-password", "--deny-regex", "publish:("], "no regular expression"),
        (["--kind", "x509", "--common-name", "n", "--username", "u"], "x509 credentials have no username"),
        (["--kind", "x509"], "the common name must not be empty"),
        (["--kind", "scram", "--no-password", "--username", "u"], "password"),
        (["--client-id", "c"], "--password-file FILE"),
    ],
)
def test_bad_credentials_are_refused(refused, arguments, reason):
    assert reason in refused("credentials", "add", "n", *arguments)[1]
    assert read(lambda store: store.credentials.page()) == []


def test_credentials_are_removed_once(run, refused):
    run("credentials", "add", "n", "--client-id", "c", "--no-password")
    assert refused("credentials", "add", "m", "--client-id", "c", "--no-password")[1] == (
        "'m' would match the same clients as 'n'\n"
    )
    run("credentials", "remove", "n")
    assert refused("credentials", "remove", "n") == (1, "there are no credentials 'n'\n")
    assert refused("credentials", "show", "n") == (1, "there are no credentials 'n'\n")
    assert run("credentials", "list") == "There are no credentials.\n"


def test_password_and_rules_of_credentials_are_replaced_and_nothing_else(run, refused):
    run("credentials", "add", "n", "--username", "u", "--password-file", "-", input="old\n")
    before = find("n")
    run("credentials", "passwd", "n", "--password-file", "-", input="new\n")
    assert verify_password(find("n").proof.password_hash, b"new")
    shown = run("credentials", "rules", "n", "--deny", "all:secret/#", "--allow", "publish:#")
    assert shown.splitlines()[1:] == ["  deny all:secret/#", "  allow publish:#"]
    after = find("n")
    assert (after.id, after.proof.username, after.client_type) == (before.id, "u", before.client_type)
    assert [rule.pattern for rule in after.rules] == ["secret/#", "#"]
    assert refused("credentials", "rules", "n", "--allow", "all:$share/g/t")[0] == 1
    assert refused("credentials", "rules", "nobody", "--allow", "all:t") == (1, "there are no credentials 'nobody'\n")


def test_keys_of_scram_are_made_anew_with_a_new_password(run, refused):
    run("credentials", "add", "s", "--kind", "scram", "--username", "u", "--password-file", "-", input="old\n")
    before = find("s").proof
    run("credentials", "passwd", "s", "--password-file", "-", input="new\n")
    after = find("s").proof
    assert [one.mechanism for one in after.keys] == [one.mechanism for one in before.keys]
    assert all(new.stored_key != old.stored_key for new, old in zip(after.keys, before.keys, strict=True))
    run("credentials", "add", "x", "--kind", "x509", "--common-name", "cn")
    assert refused("credentials", "passwd", "x", "--password-file", "-", input="new\n")[0] == 1


@pytest.mark.parametrize("text", [f"{name} {action}:a:b/${{cn}}" for name in OPTIONS for action in ("all", "publish")])
def test_text_of_a_rule_is_read_back(text):
    if "regex" in text:
        text = text.replace("${cn}", "x+")
    assert rule_text(parse_rule(text)) == text


@pytest.mark.parametrize("text", ["", "allow", "allow publish", "permit all:x", "allow all:", " all:x", "allow  all:x"])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(InvalidEntity):
        parse_rule(text)


# --- credentials import


@pytest.fixture
def write(folder):
    def write(text, encoding="utf-8"):
        path = folder / "clients.csv"
        path.write_text(text, encoding=encoding)
        return str(path)

    return write


def test_all_kinds_are_imported(run, write):
    file = write(
        "\ufeffname,kind,type,client_id,username,password,password_hash,common_name,is_regex,is_whole_chain,rule,rule\n"
        'a,,,c1,,pw-a,,,,,"allow publish:x,y/#",deny all:#\n'
        f'b,basic,APPLICATION,,u,,"{HASH}",,,,,\n'
        "\n"
        "c,x509,,,,,,dev.*,yes,no,,\n"
        "d,scram,,,su,pw-d,,,,,allow all:t,\n"
    )
    assert run("credentials", "import", file) == "Added 4 credentials.\n"
    a, b, c, d = read(lambda store: store.credentials.page())
    assert verify_password(a.proof.password_hash, b"pw-a")
    assert [rule_text(rule) for rule in a.rules] == ["allow publish:x,y/#", "deny all:#"]
    assert (b.client_type, b.proof.username, b.proof.password_hash) == ("APPLICATION", "u", HASH)
    assert (c.proof.common_name, c.proof.is_regex, c.proof.is_whole_chain) == ("dev.*", True, False)
    assert (d.proof.username, len(d.proof.keys)) == ("su", 2)


def test_thousands_are_imported_at_once(run, write):
    lines = [f'n{n},c{n},"{HASH}",allow all:t/{n}' for n in range(5_000)]
    file = write("\n".join(["name,client_id,password_hash,rule", *lines]))
    assert run("credentials", "import", file) == "Added 5,000 credentials.\n"
    assert len(json.loads(run("credentials", "list", "--json"))) == 5_000


def test_nothing_is_imported_and_every_wrong_line_is_named(run, refused, write):
    run("credentials", "add", "taken", "--client-id", "taken", "--no-password")
    wrong = write(
        "name,kind,client_id,common_name,password_hash,rule\n"
        "fine,basic,c1,,,\n"
        "n2,magic,c2,,,\n"
        ",basic,c3,,,\n"
        "n4,basic,c4,,plain,\n"
        '"n\n5",basic,c5,,,\n'
        "n6,x509,c6,,,\n"
        "n7,basic,c7,,,grant all:x\n"
        "n8,basic,c8\n"
    )
    code, said = refused("credentials", "import", wrong)
    assert code == 1
    *problems, last = said.splitlines()
    assert [line.removeprefix(f"{wrong}:").split(":")[0] for line in problems] == ["3", "4", "5", "7", "8", "9", "10"]
    assert last == f"Nothing was added; lines of {wrong} that are refused: 7"
    clashing = write("name,client_id\nfine,c1\ntaken,c2\nother,c1\n")
    code, said = refused("credentials", "import", clashing)
    assert said.splitlines()[:2] == [
        f"{clashing}:3: there are credentials 'taken' already",
        f"{clashing}:4: 'other' would match the same clients as 'fine'",
    ]
    assert [item.name for item in read(lambda store: store.credentials.page())] == ["taken"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no column name"),
        ("client_id\nx\n", "no column name"),
        ("name,pasword\n", "unknown column 'pasword'"),
        ("name,name\n", "column 'name' twice"),
        ('name\n"a\n', "is not CSV"),
        ("name,client_id,password\na,c," + "x" * 2_000 + "\n", "longer than"),
    ],
)
def test_files_of_another_form_are_refused(refused, write, text, reason):
    assert reason in refused("credentials", "import", write(text))[1]


def test_file_in_another_encoding_or_missing_is_refused(refused, write, folder):
    assert "is not UTF-8 text" in refused("credentials", "import", write("name\nä\n", "latin-1"))[1]
    assert "cannot be read" in refused("credentials", "import", str(folder / "gone.csv"))[1]


# --- provider


def test_providers_are_switched_and_ordered(run):
    assert [one["is_enabled"] for one in json.loads(run("provider", "list", "--json"))] == [False] * 5
    run("provider", "enable", "basic")
    run("provider", "enable", "x509")
    run("provider", "disable", "basic")
    assert run("provider", "order", "jwt", "x509") == "jwt x509 basic http scram\n"
    listed = json.loads(run("provider", "list", "--json"))
    assert [one["kind"] for one in listed if one["is_enabled"]] == ["x509"]
    assert "x509" in run("provider", "list")


def test_settings_are_checked_merged_and_masked(run, refused, folder):
    (folder / "http.json").write_text('{"url": "https://auth.example/login", "timeout_s": 2}')
    (folder / "token").write_text("t0ken")
    run("provider", "set", "http", "--from", str(folder / "http.json"))
    run("provider", "set", "http", "max_at_once=7", 'headers={"Authorization": "hunter2"}', "--unset", "timeout_s")
    stored = {one.kind: one.settings for one in read(lambda store: store.providers.all())}["http"]
    assert stored == {
        "url": "https://auth.example/login",
        "max_at_once": 7,
        "headers": {"Authorization": "hunter2"},
    }
    for option in ((), ("--json",)):
        shown = run("provider", "list", *option)
        assert "hunter2" not in shown
        assert "https://auth.example/login" in shown
    code, said = refused("provider", "set", "http", "max_at_once=0", "nonsense=1", 'headers={"X": "hunter3"}')
    assert code == 1
    assert "http.max_at_once" in said
    assert "http.nonsense: unknown key" in said
    assert "hunter3" not in said
    assert {one.kind: one.settings for one in read(lambda store: store.providers.all())}["http"] == stored


def test_provider_is_not_enabled_with_settings_that_are_not_complete(refused):
    code, said = refused("provider", "enable", "http")
    assert (code, said.splitlines()[0].split(":")[0]) == (1, "http.url")
    assert not any(one.is_enabled for one in read(lambda store: store.providers.all()))


@pytest.mark.parametrize("arguments", [["http"], ["http", "url"], ["http", "=x"], ["magic", "a=b"]])
def test_wrong_use_of_set_ends_with_2(refused, arguments):
    assert refused("provider", "set", *arguments)[0] == 2


# --- blocked


def test_clients_are_blocked_and_let_in_again(run, refused):
    run("blocked", "add", "client_id", "bad-.*", "--regex", "--reason", "noise")
    printed = run("blocked", "add", "network", "10.0.0.0/8", "--for", "2h")
    assert printed.startswith("Blocked until 20")
    first, second = json.loads(run("blocked", "list", "--json"))
    assert (first["kind"], first["value"], first["is_regex"], first["reason"]) == ("client_id", "bad-.*", True, "noise")
    assert (second["value"], second["is_expired"]) == ("10.0.0.0/8", False)
    run("blocked", "remove", first["id"])
    assert refused("blocked", "remove", first["id"])[0] == 1
    assert "10.0.0.0/8" in run("blocked", "list")


@pytest.mark.parametrize("time", ["0s", "1", "5 m", "-1h", "1w", "99999999999d"])
def test_times_that_are_none_are_refused(refused, time):
    assert refused("blocked", "add", "username", "u", "--for", time)[0] == 2


def test_what_strangers_wrote_does_not_steer_the_terminal(run):
    run("blocked", "add", "client_id", "\x1b[2J[bold]x", "--reason", "\x1b]0;title")
    shown = run("blocked", "list")
    assert "\x1b" not in shown
    assert "[bold]x" in shown


# --- the store


def test_refused_configuration_and_lost_database_are_told(refused):
    code, said = refused("user", "list", "--set", "database.url=mysql://user:hunter2@host/x")
    assert code == 2
    assert "postgresql://user:password@host:port/database" in said
    assert "hunter2" not in said
    code, said = refused("user", "list", "--set", "database.url=postgresql://u:hunter2@127.0.0.1:1/x")
    assert code == 1
    assert said.startswith("PostgreSQL at 127.0.0.1:1/x does not work:")
    assert "hunter2" not in said
