"""`./dev` in a made-up checkout, with a stand-in for Python and for apt-get: which steps run, when, and in which words.

The stand-ins write down how they were called, so nothing is downloaded, compiled or installed here; that the real steps
work is shown by this test run itself, which `./dev test` started.
"""

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ["run", "test", "check", "format", "bench", "bench", "soak", "build", "lock", "clean", "help"]

PYTHON = """#!/usr/bin/env bash
echo "python $*" >>"$CALLS"
case "$*" in
    -) cat >/dev/null && echo "$PYTHON" ;;
    "-m venv .venv") mkdir -p .venv/bin && cp "$PYTHON" .venv/bin/python && touch .venv/pyvenv.cfg ;;
    *"-r requirements/dev.lock") [[ ! -e broken ]] || { echo "no such package" && exit 1; } ;;
    *"-e .") printf '#!/bin/sh\\necho "$PWD" "$@"' >.venv/bin/tbmq && chmod +x .venv/bin/tbmq ;;
    "setup.py build_ext"*)
        mkdir -p build/core/lib/tbmq && touch build/core/lib/tbmq/_codec.abi.so
        [[ ! -e edit ]] || mv edit ext/tbmq/_codec.pyx ;;
    "setup.py build "*) mkdir -p build/asan/lib/tbmq && touch build/asan/lib/tbmq/_codec.so ;;
    "-m pytest"*) echo "asan=$TBMQ_ASAN full=$TBMQ_FULL ${*: -2}" ;;
esac
"""
MAKE_VENV = ["venv", "requirements", "command"]
COMPILE = ["core"]


class Checkout:
    """A folder with `dev` and what it looks at; `calls` are the steps since the last look."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"  # with a space on purpose
        self.bin = folder / "bin"
        self.log = folder / "calls"
        for name in ("requirements", "ext/tbmq", "tbmq"):
            (self.root / name).mkdir(parents=True)
        for name in ("requirements/dev.lock", "ext/tbmq/_codec.pyx", "setup.py", "pyproject.toml"):
            (self.root / name).write_text("first")
        shutil.copy(ROOT / "dev", self.root)
        self.bin.mkdir()
        self.stand_in("python", PYTHON)
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHON": str(self.bin / "python"),
            "CALLS": str(self.log),
            "CC": "sh",
        }

    def stand_in(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, *arguments: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.root / "dev", *arguments],
            cwd=cwd or self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def dev(self, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
        process = self.start(*arguments, cwd=cwd)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def steps(self) -> list[str]:
        """The names of the steps that ran since the last call."""
        calls = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        names = {
            "-m venv": "venv",
            "-m pip install -r": "requirements",
            "-m pip install --no-deps": "command",
            "setup.py build_ext": "core",
            "setup.py build ": "asan",
            "-m pytest": "pytest",
        }
        found = [name for call in calls for start, name in names.items() if call.startswith(f"python {start}")]
        return found + [call for call in calls if call.startswith("apt-get")]


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_script_is_valid_bash():
    for script in ("dev", ".ci/run"):
        assert subprocess.run(["bash", "-n", ROOT / script]).returncode == 0
        assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",)])
def test_help_lists_every_command(checkout, arguments):
    code, out, _ = checkout.dev(*arguments, cwd=Path("/"))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")] == COMMANDS


def test_unknown_command_ends_with_2(checkout):
    code, out, err = checkout.dev("tset")
    assert (code, out) == (2, "")
    assert "unknown command: tset" in err


def test_second_run_does_nothing_when_nothing_changed(checkout):
    code, _, err = checkout.dev("build")
    assert code == 0
    assert [line.split()[1] for line in err.splitlines()] == [
        "making",
        "installing",
        "installing",
        "compiling",
        "ready:",
    ]
    assert checkout.steps() == MAKE_VENV + COMPILE
    assert checkout.dev("build")[2] == f"==> ready: {checkout.root}/.venv/bin/tbmq\n"
    assert checkout.steps() == []


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        ("requirements/dev.lock", MAKE_VENV + COMPILE),
        ("pyproject.toml", ["command", "core"]),
        ("setup.py", ["command", "core"]),
        ("ext/tbmq/_codec.pyx", COMPILE),
        ("ext/tbmq/new.pxd", COMPILE),
        ("tbmq/module.py", []),
    ],
)
def test_only_what_a_change_concerns_is_made_anew(checkout, changed, steps):
    checkout.dev("build")
    checkout.steps()
    (checkout.root / changed).write_text("second")
    assert checkout.dev("build")[0] == 0
    assert checkout.steps() == steps


def test_core_is_compiled_when_a_module_was_lost(checkout):
    checkout.dev("build")
    checkout.steps()
    (checkout.root / "tbmq/_codec.abi.so").unlink()
    checkout.dev("build")
    assert checkout.steps() == COMPILE


def test_core_is_compiled_again_when_a_source_was_edited_meanwhile(checkout):
    (checkout.root / "edit").write_text("second")
    checkout.dev("build")
    checkout.steps()
    checkout.dev("build")
    assert checkout.steps() == COMPILE


def test_everything_is_made_anew_when_the_checkout_was_moved(checkout):
    checkout.dev("build")
    checkout.steps()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    checkout.dev("build")
    assert checkout.steps() == MAKE_VENV + COMPILE


def test_failure_shows_its_log_and_the_next_run_heals(checkout):
    (checkout.root / "broken").touch()
    code, _, err = checkout.dev("build")
    assert code == 1
    assert "no such package" in err
    assert re.search(r"failed after \d+ s: installing requirements/dev.lock; the whole log is in", err)
    checkout.steps()
    (checkout.root / "broken").unlink()
    assert checkout.dev("build")[0] == 0
    assert checkout.steps() == MAKE_VENV + COMPILE


def test_run_starts_the_broker_in_the_folder_of_the_caller(checkout, tmp_path):
    code, out, _ = checkout.dev("run", "--config", "my file.yaml", cwd=tmp_path)
    assert (code, out) == (0, f"{tmp_path} serve --config my file.yaml\n")


def test_tests_run_on_the_build_that_was_asked_for(checkout):
    (checkout.root / "tests/unit").mkdir(parents=True)
    for name in ("test_codec_decode.py", "test_other.py"):
        (checkout.root / "tests/unit" / name).touch()
    assert checkout.dev("test", "-q", "-x")[1] == "asan= full= -q -x\n"
    assert checkout.steps() == [*MAKE_VENV, *COMPILE, "pytest"]
    assert (
        checkout.dev("test", "--asan", "--full", "-q")[1]
        == "asan=1 full=1 tests/fuzz tests/unit/test_codec_decode.py\n"
    )
    assert checkout.steps() == ["asan", "pytest"]
    assert checkout.dev("test", "--asan", "-q", "tests/unit")[1] == "asan=1 full= -q tests/unit\n"
    assert checkout.steps() == ["pytest"]


def test_second_script_waits_when_another_sets_up(checkout):
    with (checkout.root / "dev").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = checkout.start("build")
        assert process.stderr.readline() == "==> waiting for another ./dev\n"
        assert checkout.steps() == []
    assert process.communicate(timeout=60)[1].endswith("/.venv/bin/tbmq\n")
    assert checkout.steps() == MAKE_VENV + COMPILE


def test_clean_removes_what_was_made(checkout):
    before = sorted(checkout.root.rglob("*"))
    checkout.dev("build")
    assert checkout.dev("clean")[0] == 0
    assert sorted(checkout.root.rglob("*")) == before


# --- system packages: no usable Python, and an apt-get of ours


@pytest.fixture
def bare(checkout):
    """A machine without Python, where python3 of the system is too old."""
    checkout.environment["PYTHON"] = "/no/such/python"
    checkout.stand_in("apt-get", '#!/bin/sh\necho "apt-get $*" >>"$CALLS"\n')
    checkout.stand_in("apt-cache", "#!/bin/sh\necho '  Candidate: 3.10.6-1~22.04'\n")
    checkout.stand_in("dpkg", '#!/bin/sh\n[ "$2 $3 $4" = "3.10.6-1~22.04 ge 3.11" ] && exit 1\n')
    return checkout


PACKAGES = "gcc libc6-dev python3.11 python3.11-venv python3.11-dev"


def test_exact_command_is_printed_when_not_root(bare):
    bare.stand_in("id", "#!/bin/sh\necho 1000\n")
    code, _, err = bare.dev("build")
    assert code == 1
    assert err.splitlines()[-1] == f"==>     sudo apt-get update && sudo apt-get install -y {PACKAGES}"
    assert bare.steps() == []


def test_packages_are_installed_when_root(bare):
    bare.stand_in("id", "#!/bin/sh\necho 0\n")
    code, _, err = bare.dev("build")
    assert bare.steps() == ["apt-get update", f"apt-get install -y --no-install-recommends {PACKAGES}"]
    assert code == 1
    assert "name one by PYTHON=" in err  # the stand-in installed nothing
