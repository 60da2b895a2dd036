"""The documents name files that exist, and ARCHITECTURE.md names every dependency."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")]
DOCUMENTS = [*TOP, *sorted(ROOT.glob("docs/*.md")), ROOT / "bench/README.md"]
FOLDERS = "tbmq|ext|tests|bench|loadtest|docs|requirements"

LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")  # `tbmq/worker.py`, `tests/vectors/`
BARE = re.compile(r"`(_\w+\.(?:pyx|pxi|pxd))`")  # `_engine_mesh.pxi`
MADE_OR_MEANT = {"bench/results/", "bench/baseline.json", "tbmq/_x.pyi", "ext/tbmq/_x.pyx"}


def links(text: str) -> Iterator[str]:
    """Links to files, without those to the web and to places in the same document."""
    for target in LINK.findall(text):
        if not target.startswith(("https://", "#")):
            yield target.partition("#")[0]


def missing(text: str, folder: Path) -> list[str]:
    """What a document in `folder` names and does not exist."""
    targets = [(name, folder / name) for name in links(text)]
    targets += [(name, ROOT / name) for name in NAMED.findall(text) if name not in MADE_OR_MEANT]
    targets += [(name, ROOT / "ext/tbmq" / name) for name in BARE.findall(text)]
    return [name for name, path in targets if not path.exists()]


def dependencies(project: dict) -> set[str]:
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return {re.split(r"[\[<>=!~;\s]", requirement)[0] for group in groups for requirement in group}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_exists(path):
    assert missing(path.read_text("utf-8"), path.parent) == []


def test_every_dependency_has_its_reason_in_the_architecture():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = set(re.findall(r"`([^`\n]+)`", text[text.index("## Dependencies") :]))
    assert "uvloop" in named
    assert dependencies(project) - named == set()


def test_the_rules_see_what_is_missing():
    text = (
        "[a](README.md#x) [b](gone.md) [c](https://x.org/y) `tbmq/gone.py` `tbmq/worker.py` `_gone.pxi` `_engine.pyx`"
    )
    assert missing(text, ROOT) == ["gone.md", "tbmq/gone.py", "_gone.pxi"]


def test_a_dependency_is_read_without_its_version():
    project = {"dependencies": ["a-b>=1,<2"], "optional-dependencies": {"x": ["c[d]==1", "e"]}}
    assert dependencies(project) == {"a-b", "c", "e"}
