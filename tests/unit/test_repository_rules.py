"""Rules of the repository that no linter knows. Each rule is a function over texts, tried on a case that breaks it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = {".git", ".venv", "build", "data", "dist", "__pycache__"}


def files(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        is_cache = path.name in SKIPPED or path.name.endswith(("_cache", ".egg-info")) or path.name == ".hypothesis"
        if path.is_dir() and not is_cache:
            yield from files(path)
        elif path.is_file() and path.suffix != ".so":
            yield path


def texts() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text("utf-8", errors="replace") for path in files()}


# --- length

MAX_LINES = 500
HEAD_LINES = 30
EXCUSE = "why this file is long"


def is_too_long(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) > MAX_LINES and EXCUSE not in "\n".join(lines[:HEAD_LINES]).lower()


def test_no_source_is_long_without_saying_why():
    sources = {name: text for name, text in texts().items() if name.endswith((".py", ".pyx", ".pxd", ".pxi"))}
    assert "setup.py" in sources
    assert [name for name, text in sources.items() if is_too_long(text)] == []


def test_length_rule_sees_a_long_file():
    assert not is_too_long("x\n" * MAX_LINES)
    assert is_too_long("x\n" * (MAX_LINES + 1))
    assert not is_too_long("# Why this file is long: a table.\n" + "x\n" * MAX_LINES)


# --- places that belong to one machine, and hosts that belong to a package manager's own settings

FOREIGN = re.compile(
    r"/(?:root|work)/"
    r"|\.\./shared"
    r"|py(?:pi)\.org|python(?:hosted)\.org|npm(?:js)\.(?:org|com)|repo1?\.maven|maven\.(?:org|apache)"
    r"|crates\.(?:io)|proxy\.(?:golang)\.org|deb\.(?:debian)\.org"
)


def test_no_file_names_a_machine_path_or_a_registry_host():
    found = {
        name: FOREIGN.findall(text) for name, text in texts().items() if name != "tests/unit/" + Path(__file__).name
    }
    assert {name: matches for name, matches in found.items() if matches} == {}


@pytest.mark.parametrize("text", ["/" + "root/x", "see ../" + "shared", "https://" + "py" + "pi.org/simple"])
def test_foreign_rule_sees_a_foreign_name(text):
    assert FOREIGN.search(text)


# --- imports: errors, protocol, config <- storage.interfaces <- auth <- session <- pipeline <- net <- worker
#
# A module may import from its own layer and those before it. Modules in no layer (admin, analytics, ...) are bound only
# by the rule of the back ends: a concrete one is imported by itself and by the composition roots.

LAYERS = [
    ["errors", "protocol", "packets", "rate_limits", "topic_filters", "config", "_codec", "_trie", "_batch"],
    ["auth.model"],
    ["storage.entities", "storage.interfaces"],
    ["auth"],
    ["session"],
    ["pipeline"],
    ["net"],
    ["worker"],
    ["supervisor"],
    ["cli", "__main__"],
]
BACK_ENDS = ["storage.embedded", "storage.kafka", "storage.redis", "storage.sql"]
COMPOSITION_ROOTS = ["worker", "supervisor", "first_start", "cli.options"]


def is_in(module: str, package: str) -> bool:
    return f"tbmq.{module}." == f"tbmq.{package}." or module.startswith(f"{package}.")


def layer(module: str) -> int | None:
    return next((rank for rank, names in enumerate(LAYERS) if any(is_in(module, name) for name in names)), None)


def imports(module: str, text: str, is_package: bool) -> Iterator[str]:
    """Everything of ours that a module imports, without the leading `tbmq.`; `from a import b` counts as a and a.b."""
    package = ["tbmq", *module.split(".")] if is_package else ["tbmq", *module.split(".")[:-1]]
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        yield from (name.removeprefix("tbmq.") for name in names if name.startswith("tbmq."))


def broken_imports(modules: dict[str, str]) -> list[str]:
    """`modules` maps paths such as `tbmq/net/mesh.py` to texts."""
    broken = []
    for path, text in modules.items():
        is_package = path.endswith("/__init__.py")
        module = path.removeprefix("tbmq/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for imported in imports(module, text, is_package):
            own, other = layer(module), layer(imported)
            goes_up = own is not None and other is not None and other > own
            back_end = next((name for name in BACK_ENDS if is_in(imported, name)), None)
            may_use = (
                back_end is None or is_in(module, back_end) or any(is_in(module, root) for root in COMPOSITION_ROOTS)
            )
            if goes_up or not may_use:
                broken.append(f"{module} imports {imported}")
    return broken


def test_imports_point_downwards():
    modules = {name: text for name, text in texts().items() if name.startswith("tbmq/") and name.endswith(".py")}
    assert "tbmq/config/__init__.py" in modules
    assert broken_imports(modules) == []


@pytest.mark.parametrize(
    ("path", "text", "broken"),
    [
        ("tbmq/session/connect.py", "import tbmq.net.mesh", ["session.connect imports net.mesh"]),
        ("tbmq/session/connect.py", "from ..pipeline import routes", ["pipeline", "pipeline.routes"]),
        ("tbmq/session/connect.py", "from .. import worker", ["session.connect imports worker"]),
        ("tbmq/session/__init__.py", "from ..worker import x", ["session imports worker", "session imports worker.x"]),
        ("tbmq/errors.py", "def f():\n    from tbmq import supervisor", ["errors imports supervisor"]),
        ("tbmq/admin/api.py", "from tbmq.storage.redis import x", ["storage.redis", "storage.redis.x"]),
        ("tbmq/storage/kafka/log.py", "import tbmq.storage.redis", ["storage.kafka.log imports storage.redis"]),
        (
            "tbmq/storage/interfaces.py",
            "from tbmq.session.state import State",
            ["session.state", "session.state.State"],
        ),
        ("tbmq/worker.py", "import tbmq.storage.redis, tbmq.net.mesh, tbmq.errors", []),
        ("tbmq/storage/redis/store.py", "from . import keys\nfrom tbmq.storage.interfaces import SessionStore", []),
        ("tbmq/net/mesh.py", "import asyncio, network\nfrom tbmq.session import state\nfrom .listener import x", []),
        ("tbmq/workers_guide.py", "import tbmq.worker", []),
    ],
)
def test_import_rule_sees_what_breaks_it(path, text, broken):
    found = broken_imports({path: text})
    assert len(found) == len(broken)
    assert all(line.endswith(end) for line, end in zip(found, broken, strict=True))
