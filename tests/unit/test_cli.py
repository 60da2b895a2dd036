"""The commands: what they print, and how they end."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml
from pydantic import Field, create_model
from typer.testing import CliRunner

import tbmq
from tbmq.cli import app
from tbmq.cli.config import type_name
from tbmq.config import keys


@pytest.fixture
def run(monkeypatch):
    """Runs a command inside this process; no TBMQ_ variable of the caller reaches it."""
    for name in [name for name in os.environ if name.startswith("TBMQ_")]:
        monkeypatch.delenv(name)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def run_process(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60)


def test_serve_ends_with_the_result_of_the_broker(run, monkeypatch):
    served = []
    supervisor = types.ModuleType("tbmq.supervisor")
    supervisor.serve = lambda config: served.append(config) or 7
    monkeypatch.setitem(sys.modules, "tbmq.supervisor", supervisor)
    assert run("serve", "--set", "workers=2", "--set", "node.name=n1").exit_code == 7
    assert [(config.workers, config.node.name) for config in served] == [(2, "n1")]


@pytest.mark.parametrize("command", [("serve",), ("config", "check"), ("config", "show")])
def test_command_ends_with_2_and_tells_why_when_configuration_is_refused(run, command, tmp_path):
    file = tmp_path / "tbmq.yaml"
    file.write_text("workers: many\n")
    result = run(*command, "--config", str(file), "--set", "admin.bind=nowhere")
    assert result.exit_code == 2
    assert result.stdout == ""
    first, second, last = result.stderr.splitlines()
    assert first == f"{file}:1: workers: must be a valid integer, got 'many'"
    assert second.startswith("--set admin.bind: must be host:port")
    assert "tbmq config show --describe" in last


def test_check_names_the_sources_when_configuration_is_fine(run, monkeypatch, tmp_path):
    file = tmp_path / "tbmq.yaml"
    file.write_text("workers: 2\nlog: {level: debug}\n")
    monkeypatch.setenv("TBMQ_WORKERS", "3")
    result = run("config", "check", "-c", str(file), "-s", "node.name=n1")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1:] == [
        "  --set: node.name",
        "  environment: TBMQ_WORKERS",
        f"  file {file}: workers, log.level",
        "  defaults: everything else",
    ]


@pytest.mark.parametrize(("option", "parse"), [((), yaml.safe_load), (("--json",), json.loads)])
def test_show_prints_effective_values_with_secrets_masked(run, option, parse):
    secret = "listeners.wss.private_key_password=hunter2"
    result = run("config", "show", *option, "--set", "workers=3", "--set", secret)
    assert result.exit_code == 0
    assert "hunter2" not in result.output
    shown = parse(result.stdout)
    assert shown["workers"] == 3
    assert shown["listeners"]["tcp"]["bind"] == "127.0.0.1:1883"
    assert shown["listeners"]["wss"]["private_key_password"] == "********"


def test_describe_explains_every_key(run):
    described = json.loads(run("config", "show", "--describe", "--json").stdout)
    assert [row["key"] for row in described] == [".".join(key) for key, _ in keys()]
    by_key = {row["key"]: row for row in described}
    assert by_key["mqtt.connect_timeout_s"] == {
        "key": "mqtt.connect_timeout_s",
        "type": "integer, 1 to 3600",
        "default": "10",
        "unit": "seconds",
        "description": "Time that a new connection has to send its whole CONNECT.",
    }
    assert by_key["profile"]["type"] == "embedded or cluster"
    assert by_key["workers"]["default"] == "auto"
    assert by_key["listeners.tls.bind"]["type"] == "host:port"
    assert by_key["listeners.tls.private_key_password"]["type"] == "secret"
    assert by_key["data_dir"]["type"] == "path"

    table = run("config", "show", "--describe").stdout
    assert all(row["key"] in table for row in described)


@pytest.mark.parametrize(
    ("annotation", "field", "shown"),
    [
        (int, Field(default=1, ge=1, le=5), "integer, 1 to 5"),
        (int, Field(default=1, ge=0), "integer, at least 0"),
        (int, Field(default=1, le=5), "integer, at most 5"),
        (bool, Field(default=True), "true or false"),
        (float, Field(default=1.5), "number"),
        (str, Field(default="", max_length=9), "text"),
        (Path | None, Field(default=None), "path"),
        (list[str], Field(default=[]), "list"),
    ],
)
def test_describe_names_the_type_of_keys_to_come(annotation, field, shown):
    model = create_model("Model", key=(annotation, field))
    assert type_name(model.model_fields["key"]) == shown


def test_version_names_what_a_bug_report_needs(run):
    facts = json.loads(run("version", "--json").stdout)
    assert facts["tbmq"] == tbmq.__version__
    assert facts["python"] == sys.version.split()[0]
    assert list(facts) == ["tbmq", "python", "uvloop", "core"]
    assert f"tbmq    {tbmq.__version__}\n" in run("version").stdout


def test_version_says_so_when_the_core_is_not_compiled(run, monkeypatch, tmp_path):
    monkeypatch.setattr(tbmq, "__file__", str(tmp_path / "__init__.py"))
    assert "not compiled" in run("version").stdout


def test_process_shows_no_traceback_when_configuration_is_refused():
    result = run_process("-m", "tbmq", "serve", "--set", "workers=0")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("--set workers: must be greater than or equal to 1, got '0'\n")
    assert "Traceback" not in result.stderr


def test_process_ends_with_0_when_all_is_well():
    result = run_process("-m", "tbmq", "version")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [("nonsense",), ("serve", "--nonsense"), ("config", "nonsense")])
def test_process_ends_with_2_when_the_command_is_unknown(arguments):
    assert run_process("-m", "tbmq", *arguments).returncode == 2


def test_other_commands_start_without_the_broker():
    code = "import sys, tbmq.cli; sys.exit('tbmq.supervisor' in sys.modules or 'uvloop' in sys.modules)"
    assert run_process("-c", code).returncode == 0


def test_installed_command_is_beside_the_interpreter():
    command = Path(sys.executable).with_name("tbmq")
    assert subprocess.run([command, "version"], capture_output=True, timeout=60).returncode == 0
