"""Where values come from, which one wins, and how a wrong one is refused."""

import pickle
from pathlib import Path

import pytest
import yaml

from tbmq.config import Bind, Config, ConfigError, keys, load


def problems_of(*overrides: str, file: Path | None = None, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(file, overrides, environ or {})
    return [f"{problem.place}: {problem.reason}" for problem in refused.value.problems]


@pytest.fixture
def write(tmp_path):
    """Writes a file into a folder of its own, and gives back its path."""

    def write(text: str, name: str = "tbmq.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


# --- defaults


def test_defaults_are_the_documented_ones():
    config = load(environ={})
    assert config.profile == "embedded"
    assert config.data_dir == Path("data")
    assert config.log.level == "info"
    assert [str(listener.bind) for _, listener in config.listeners] == [
        "127.0.0.1:1883",
        "127.0.0.1:8883",
        "127.0.0.1:8083",
        "127.0.0.1:8084",
    ]
    assert str(config.admin.bind) == "127.0.0.1:18083"
    assert (
        config.mqtt.model_dump().items()
        >= {
            "max_packet_bytes": 1_048_576,
            "max_connect_packet_bytes": 65_536,
            "max_topic_levels": 128,
            "connect_timeout_s": 10,
            "max_keep_alive_s": 65_535,
            "receive_maximum": 1_024,
        }.items()
    )


def test_model_reads_no_environment_when_built_directly(monkeypatch):
    monkeypatch.setenv("TBMQ_WORKERS", "7")
    assert Config(workers=2).workers == 2
    assert load().workers == 7


def test_workers_are_the_usable_cores_when_auto(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5})
    assert load(environ={}).workers == 3
    assert load(overrides=["workers=auto"], environ={}).workers == 3


@pytest.mark.parametrize(
    ("host", "name"), [("box", "box"), ("a.b/c+#", "a-b-c"), ("...", "node"), ("x" * 99, "x" * 64), ("-a-", "a")]
)
def test_node_name_is_made_safe_when_taken_from_the_host(monkeypatch, host, name):
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert load(environ={}).node.name == name


def test_every_key_has_a_description():
    assert [".".join(key) for key, info in keys() if not info.description] == []


def test_configuration_survives_the_way_to_a_worker():
    config = load(overrides=["listeners.tcp.bind=[::1]:0", "listeners.ws.bind="], environ={})
    assert pickle.loads(pickle.dumps(config)) == config


def test_configuration_cannot_be_changed_when_loaded():
    with pytest.raises(ValueError, match="frozen"):
        load(environ={}).mqtt.receive_maximum = 5  # type: ignore[misc]


# --- precedence


def test_later_source_wins_when_several_set_a_key(write):
    file = write("workers: 1\nlog: {level: debug}\nmqtt: {receive_maximum: 10, max_topic_levels: 20}\n")
    environ = {"TBMQ_WORKERS": "2", "TBMQ_MQTT__RECEIVE_MAXIMUM": "11"}
    config = load(file, ["workers=3"], environ)
    assert (config.workers, config.mqtt.receive_maximum, config.mqtt.max_topic_levels) == (3, 11, 20)
    assert config.log.level == "debug"
    assert config.mqtt.connect_timeout_s == 10
    assert load(file, [], environ).workers == 2
    assert load(file, [], {}).workers == 1


def test_last_argument_wins_when_set_twice():
    assert load(overrides=["workers=3", "workers=4"], environ={}).workers == 4


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "mqtt:\n", "mqtt: {}\n", "listeners: {tcp: }\n"])
def test_defaults_hold_when_file_or_section_is_empty(write, text):
    assert load(write(text), environ={}) == load(environ={})


def test_dotted_key_in_a_file_is_the_nested_one(write):
    assert load(write("listeners.tcp.bind: 127.0.0.1:5\n"), environ={}).listeners.tcp.bind == Bind("127.0.0.1", 5)


def test_text_means_the_same_in_a_file_and_in_an_argument(write):
    text = "0123"  # 83 for a YAML reader
    file = write(f"listeners: {{tls: {{private_key_password: {text}}}}}")
    by_file = load(file, environ={}).listeners.tls.private_key_password
    by_argument = load(overrides=[f"listeners.tls.private_key_password={text}"], environ={})
    assert by_file.get_secret_value() == text
    assert by_argument.listeners.tls.private_key_password == by_file


def test_foreign_variable_is_left_alone_when_it_resembles_no_key():
    kubernetes = {"TBMQ_PORT": "tcp://10.0.0.1:1883", "TBMQ_SERVICE_HOST": "10.0.0.1", "TBMQ_ASAN": "1", "WORKERS": "x"}
    assert load(environ=kubernetes) == load(environ={})


def test_shown_values_give_the_same_configuration_when_loaded_again(write):
    config = load(overrides=["workers=3", "listeners.ws.bind=", "admin.bind=[::1]:99", "node.name=n1"], environ={})
    file = write(yaml.safe_dump(config.model_dump(mode="json")))
    assert load(file, environ={}) == config


# --- refusals


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("workers", "--set workers: must be key=value, such as workers=2"),
        ("workers=0", "--set workers: must be greater than or equal to 1, got '0'"),
        ("workers=many", "--set workers: must be a valid integer, got 'many'"),
        ("worker=2", "--set worker: unknown key; did you mean workers?"),
        ("max_packet_bytes=5000", "--set max_packet_bytes: unknown key; did you mean mqtt.max_packet_bytes?"),
        ("=5", "--set : unknown key; see tbmq config show"),
        ("profile=big", "--set profile: must be 'embedded' or 'cluster', got 'big'"),
        ("mqtt=5", "--set mqtt: is a section: it takes keys, not a value"),
        ("mqtt.max_packet_bytes=268435456", "--set mqtt.max_packet_bytes: must be less than or equal to 268435455"),
        ("log.level=loud", "--set log.level: must be 'debug', 'info', 'warning' or 'error', got 'loud'"),
        ("node.name=a/b", "--set node.name: must match pattern"),
        ("listeners.tls.certificate=/no/such", "--set listeners.tls.certificate: there is no file /no/such"),
        ("listeners.tcp.bind=1883", "--set listeners.tcp.bind: must be host:port, such as"),
        ("listeners.tcp.bind.host=a", "--set listeners.tcp.bind.host: listeners.tcp.bind: must be one text"),
    ],
)
def test_argument_is_refused_by_its_name_when_wrong(override, reason):
    (problem,) = problems_of(override)
    assert problem.startswith(reason)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("TBMQ_WORKERS", "x", "TBMQ_WORKERS: must be a valid integer, got 'x'"),
        ("TBMQ_WORKER", "2", "TBMQ_WORKER: unknown key; did you mean TBMQ_WORKERS?"),
        (
            "TBMQ_LISTNERS__TCP__BIND",
            "",
            "TBMQ_LISTNERS__TCP__BIND: unknown key; did you mean TBMQ_LISTENERS__TCP__BIND?",
        ),
        (
            "TBMQ_LISTENERS__TPC__BIND",
            "",
            "TBMQ_LISTENERS__TPC__BIND: unknown key; did you mean TBMQ_LISTENERS__TCP__BIND?",
        ),
        ("TBMQ_ZZZ__ZZZ", "1", "TBMQ_ZZZ__ZZZ: unknown key; see tbmq config show"),
        ("TBMQ_ADMIN__BIND", "a:99999", "TBMQ_ADMIN__BIND: the port must be 0 to 65535, got 99999"),
    ],
)
def test_variable_is_refused_by_its_name_when_wrong(name, value, reason):
    assert problems_of(environ={name: value}) == [reason]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("\nworkers: many\n", 2, "workers: must be a valid integer, got 'many'"),
        ("mqtt:\n  max_paket_bytes: 5\n", 2, "mqtt.max_paket_bytes: unknown key; did you mean mqtt.max_packet_bytes?"),
        ("workers: 1\nworkers: 2\n", 2, "workers stands here a second time"),
        ("workers: [1, 2]\n", 1, "workers: must be a valid integer"),
        ("workers:\n", 1, "workers: must be a valid integer, got ''"),
        ("mqtt: 5\n", 1, "mqtt: is a section: it takes keys, not a value"),
        ("a: &a {b: *a}\n", 1, "a.b.b.b.b.b.b.b: unknown key; see tbmq config show"),
        ("- workers\n", 1, "must hold `key: value` lines"),
        ("workers: 1\nlog: {level: info\n", 3, "is not valid YAML: expected ',' or '}', but got '<stream end>'"),
    ],
)
def test_line_of_a_file_is_named_when_it_is_wrong(write, text, line, reason):
    file = write(text)
    assert problems_of(file=file) == [f"{file}:{line}: {reason}"]


def test_key_is_named_when_the_path_of_the_file_holds_its_name_too(write):
    file = write("workers: many\n", "workers")
    assert problems_of(file=file) == [f"{file}:1: workers: must be a valid integer, got 'many'"]


def test_file_is_named_when_it_cannot_be_read(tmp_path):
    assert problems_of(file=tmp_path / "no.yaml") == [f"{tmp_path}/no.yaml: cannot be read: No such file or directory"]
    assert problems_of(file=tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]
    (tmp_path / "latin.yaml").write_bytes(b"workers: \xe9")
    assert problems_of(file=tmp_path / "latin.yaml")[0].startswith(f"{tmp_path}/latin.yaml: is not YAML in UTF-8: ")


def test_every_problem_is_told_when_there_are_several(write):
    file = write("workers: many\nlog: {level: loud}\n")
    places = [problem.split(": ")[0] for problem in problems_of("bad", file=file, environ={"TBMQ_PROFILE": "x"})]
    assert places == ["--set bad", "TBMQ_PROFILE", f"{file}:1", f"{file}:2"]


def test_listener_is_refused_when_it_takes_the_address_of_another():
    (problem,) = problems_of("listeners.ws.bind=127.0.0.1:1883")
    assert problem.startswith("--set listeners.ws.bind: 127.0.0.1:1883 is the address of listeners.tcp.bind too")
    both_free = ["listeners.tcp.bind=127.0.0.1:0", "listeners.ws.bind=127.0.0.1:0"]
    assert load(overrides=both_free, environ={}).listeners.ws.bind == Bind("127.0.0.1", 0)


# --- listeners and secrets


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("127.0.0.1:1883", Bind("127.0.0.1", 1883)),
        ("0.0.0.0:0", Bind("0.0.0.0", 0)),
        ("broker.example-1.org:65535", Bind("broker.example-1.org", 65535)),
        ("[::1]:1883", Bind("::1", 1883)),
        ("[::]:1", Bind("::", 1)),
    ],
)
def test_bind_is_read_and_written_alike(text, bind):
    assert Bind.parse(text) == bind
    assert str(bind) == text


@pytest.mark.parametrize(
    "text",
    [
        "1883",
        ":1883",
        "localhost",
        "localhost:",
        "a:b",
        "a:-1",
        "a:65536",
        "a:1:2",
        "a b:1",
        "a:1 ",
        "a:٣",
        "a:" + "9" * 5000,
        "::1:1883",
        "[::1]",
        "[::1]1883",
        "[localhost]:1",
        "[127.0.0.1]:1",
        "[::1::]:1",
        "[]:1",
        "999.0.0.1:1",
        "1.2.3:1",
    ],
)
def test_bind_is_refused_when_malformed(text):
    with pytest.raises(ValueError):
        Bind.parse(text)


def test_listener_is_off_when_bind_is_empty(write):
    assert load(overrides=["listeners.tcp.bind="], environ={}).listeners.tcp.address is None
    assert load(environ={"TBMQ_LISTENERS__TCP__BIND": ""}).listeners.tcp.address is None
    assert load(write("listeners: {tcp: {bind: ''}}"), environ={}).listeners.tcp.address is None


@pytest.mark.parametrize("name", ["tls", "wss"])
def test_tls_listener_is_off_until_certificate_and_key_are_set(write, name):
    assert getattr(load(environ={}).listeners, name).address is None

    certificate, key = write("c", "c.pem"), write("k", "k.pem")
    overrides = [f"listeners.{name}.certificate={certificate}", f"listeners.{name}.private_key={key}"]
    listener = getattr(load(overrides=overrides, environ={}).listeners, name)
    assert listener.address == listener.bind
    assert (listener.certificate, listener.private_key) == (certificate, key)

    for alone in overrides:
        (problem,) = problems_of(alone)
        assert problem.startswith(f"--set {alone.split('=')[0]}: ")
        assert problem.endswith("certificate and private_key must be set together")


def test_secret_is_read_from_its_file_when_referenced(write):
    path = write("s3cret\n", "password")
    config = load(overrides=[f"listeners.tls.private_key_password=file://{path}"], environ={})
    assert config.listeners.tls.private_key_password.get_secret_value() == "s3cret"


def test_secret_is_refused_when_its_file_cannot_be_read():
    (problem,) = problems_of("listeners.tls.private_key_password=file:///no/such")
    assert problem == (
        "--set listeners.tls.private_key_password: the file /no/such cannot be read: No such file or directory"
    )


def test_secret_never_shows(write):
    config = load(overrides=["listeners.tls.private_key_password=hunter2"], environ={})
    shown = config.model_dump(mode="json")
    assert shown["listeners"]["tls"]["private_key_password"] == "********"
    assert shown["listeners"]["wss"]["private_key_password"] == ""
    assert "hunter2" not in repr(config) + str(config) + repr(shown)

    misspelt = problems_of("listeners.tls.private_key_pasword=hunter2")
    misplaced = problems_of(file=write("listeners: {tls: {private_key_password: [hunter2]}}"))
    assert misspelt and misplaced and "hunter2" not in repr(misspelt + misplaced)


# --- limits, proxies and origins of listeners


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("listeners.tcp.proxy_protocol=true", "proxy_protocol needs trusted_proxies"),
        (
            "listeners.tcp.trusted_proxies=10.0.0.1/8",
            "must be networks such as 10.0.0.0/8, but 10.0.0.1/8 has host bits",
        ),
        ("listeners.tcp.trusted_proxies=10.0.0.0/8,here", "must be networks such as 10.0.0.0/8, but 'here' does not"),
        ("listeners.ws.origins=example.org", "must be *, same-host, or origins such as https://app.example.org"),
        ("listeners.ws.path=mqtt", "must match pattern"),
        ("listeners.tcp.max_connections=0", "must be greater than or equal to 1"),
        ("listeners.tls.min_version=1.1", "must be '1.2' or '1.3'"),
        ("listeners.tls.requires_client_certificate=true", "requires_client_certificate and crl need ca"),
    ],
)
def test_listener_is_refused_when_an_option_is_wrong(override, reason):
    (problem,) = problems_of(override)
    assert reason in problem


def test_lists_are_read_alike_from_a_file_and_from_text(write):
    file = write(
        "listeners: {tcp: {trusted_proxies: [10.0.0.0/8, 'fd00::/8']}, ws: {origins: [https://A.example, '*']}}"
    )
    text = ["listeners.tcp.trusted_proxies=10.0.0.0/8, fd00::/8", "listeners.ws.origins=https://a.example,*"]
    config = load(file, environ={})
    assert config == load(overrides=text, environ={})
    assert [str(network) for network in config.listeners.tcp.trusted_proxies] == ["10.0.0.0/8", "fd00::/8"]
    assert config.listeners.ws.origins == ["https://a.example", "*"]
    assert load(write(yaml.safe_dump(config.model_dump(mode="json")), "again.yaml"), environ={}) == config
