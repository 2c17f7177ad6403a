"""What documents, docstrings and comments name exists: files, links, modules, commands."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from docs.tools import pages
from extproc.base.model import Reason
from extproc.config.metadata import CLUSTER_KEYS, ENDPOINT_KEYS
from extproc.routing.policies import registry
from extproc.routing.route_settings import OWN, PREFIX
from tests.support.paths import FIXTURES, ROOT

FOLDERS: Final = ("bench", "docs", "envoy", "extproc", "loadgen", "tests", ".github")
SUFFIXES: Final = {".md", ".py", ".yaml", ".yml", ".sh", ".lua"}

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(
    r"(?<![\w./*$-])((?:bench|docs|envoy|extproc|loadgen|tests|tools|\.github|\.ci)/[\w./*{},-]*[\w*}/])"
)
_FILE = re.compile(r"(?<![\w./*{}<>-])([\w-]+\.(?:py|md|lua))\b")
_MODULE = re.compile(r"(?<![\w./-])((?:extproc|loadgen|bench)(?:\.[a-z_]+)+)")
_PRIVATE = re.compile(r"(?<![\w.])/(?:work|home|Users)/|\bissue \d|\bissue's\b|\b[Ff]inding \d")

# Files that are not in the repository: what a command writes, what a reader has.
FOREIGN: Final = {"tables.md", "sitecustomize.py", "envoy/your-envoy.yaml", "extproc/routing/policies/two_choices.py"}


def _documents() -> Iterator[Path]:
    """Everything committed that people read, but for what was recorded."""
    yield from (
        path for path in ROOT.iterdir() if path.is_file() and (path.suffix in SUFFIXES or path.name == "Makefile")
    )
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and not path.is_relative_to(FIXTURES):
                yield path


DOCUMENTS: Final = sorted(set(_documents()))
MARKDOWN: Final = [path for path in DOCUMENTS if path.suffix == ".md"]
FILES: Final = {path.name for path in DOCUMENTS}


def _prose(path: Path) -> str:
    """What is written for readers: all of a document; of a module its docstrings and comments."""
    text = path.read_text()
    if path.suffix != ".py":
        return text.replace("\\_", "_")  # Markdown's escape
    comments = (token.string for token in tokenize.generate_tokens(io.StringIO(text).readline))
    nodes = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    strings = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return "\n".join([*(each for each in comments if each.startswith("#")), *strings])


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _anchors(path: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_modules_say_their_names() -> None:
    """A link that reads `ties.py` leads to ties.py: a reader who was told another name looks in vain."""
    links = [
        (_name(path), text, target)
        for path in MARKDOWN
        for text, target in re.findall(r"\[([\w./]+\.py)\]\(([^)#\s]+)\)", _prose(path))
    ]
    assert links
    assert [
        link for link in links if Path(link[1]).name != Path(link[2]).name and Path(link[2]).name != "__init__.py"
    ] == []


def test_links_lead_somewhere() -> None:
    """Every relative link of a page names a file that exists, and a heading that it has."""
    broken = [
        f"{_name(page)}: {link}"
        for page in MARKDOWN
        for link in _LINK.findall(page.read_text())
        if not _leads(page, link)
    ]
    assert broken == []


def test_what_is_named_exists() -> None:
    """Paths, files and modules that a document, a docstring or a comment names are in the repository."""
    missing: list[str] = []
    for document in DOCUMENTS:
        text = _prose(document)
        names = {path for path in _PATH.findall(text) if path not in FOREIGN and not _exists(path)}
        names |= {name for name in _FILE.findall(text) if name not in FILES | FOREIGN}
        names |= {name for name in _MODULE.findall(text) if not _is_module(name)}
        missing += [f"{_name(document)}: {name}" for name in sorted(names)]
    assert missing == []


def test_nothing_cites_what_a_reader_lacks() -> None:
    """No path of somebody's machine, and no number of an issue that only its writers can read."""
    private = {_name(document): _PRIVATE.findall(_prose(document)) for document in DOCUMENTS}
    assert {name: found for name, found in private.items() if found} == {}


def test_every_page_is_in_the_index() -> None:
    """docs/index.md links every page of docs/."""
    index = (ROOT / "docs/index.md").read_text()
    missing = (
        {page.name for page in (ROOT / "docs").glob("*.md")}
        - set(re.findall(r"\]\(([\w-]+\.md)\)", index))
        - {"index.md"}
    )
    assert missing == set()


def test_what_is_made_from_code_is_up_to_date() -> None:
    """`make docs` would change nothing: tables and diagrams are what the code says today."""
    for page in (ROOT / "docs").glob("*.md"):
        assert pages.renewed(page.read_text()) == page.read_text(), f"{page.name}: run make docs"


def test_the_configuration_page_has_every_key_and_option() -> None:
    """Keys of the metadata, of the filter and of policies, and options of `serve`: each stands in a row."""
    page = (ROOT / "docs/configuration.md").read_text()
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    policies = {option for name in registry.names() for option in registry.options(name)}
    keys = {*CLUSTER_KEYS, *ENDPOINT_KEYS, *OWN, *(f"{PREFIX}{option.replace('_', '-')}" for option in policies)}
    done = subprocess.run(
        [sys.executable, "-m", "extproc", "serve", "--help"], capture_output=True, text=True, check=True
    )
    options = set(re.findall(r"^ +(--[a-z-]+)", done.stdout, flags=re.MULTILINE))
    assert {key for key in keys | options if f"`{key}`" not in rows} == set()


def test_the_observability_page_has_every_reason() -> None:
    """Reasons are a closed list, and each has its row."""
    page = (ROOT / "docs/observability.md").read_text()
    assert [reason.value for reason in Reason if f"\n| `{reason.value}` |" not in page] == []


def test_the_observability_page_has_every_key() -> None:
    """What `/debug/state` and the dynamic metadata for the access log consist of: each key is on the page."""
    page = (ROOT / "docs/observability.md").read_text()
    for module in ("extproc/admin/state.py", "extproc/processor/destination.py"):
        nodes = list(ast.walk(ast.parse((ROOT / module).read_text())))
        keys = [key for node in nodes if isinstance(node, ast.Dict) for key in node.keys]
        keys += [node.slice for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)]
        names = {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
        assert {name for name in names if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", page)} == set(), module


def test_the_readme_is_short_and_its_yaml_is_the_shipped_one() -> None:
    """At most 1,600 words, 15 lines of YAML, and each of them stands in envoy/drop-in.yaml."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 1600
    shown = "".join(re.findall(r"```yaml\n(.*?)```", readme, flags=re.DOTALL)).splitlines()
    assert len(shown) <= 15
    assert set(shown) <= set((ROOT / "envoy/drop-in.yaml").read_text().splitlines())


def test_make_commands_exist() -> None:
    """Each `make NAME` that a page or a workflow shows is a target of the Makefile, and each `bench.NAME` a module."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for document in [*MARKDOWN, *(ROOT / ".github").rglob("*.yml"), ROOT / ".ci/run"]:
        text = document.read_text()
        shown = set(re.findall(r"(?:^|`|run: )make ([a-z-]+)", text, flags=re.MULTILINE))
        assert shown <= targets, document
        for name in re.findall(r"-m (bench\.[a-z_]+)", text):
            assert importlib.util.find_spec(name) is not None, f"{document}: {name}"


def test_workflows_use_no_secret_and_pinned_actions() -> None:
    """A workflow runs with the token of its own run alone, and each action has a version."""
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        assert "secrets." not in path.read_text()
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for step in job["steps"]:
                assert "uses" not in step or re.search(r"@v\d+$", step["uses"]), step


def _leads(page: Path, link: str) -> bool:
    if "://" in link or link.startswith("mailto:"):
        return True
    target, _, anchor = link.partition("#")
    path = (page.parent / target).resolve() if target else page
    return path.exists() and (not anchor or anchor in _anchors(path))


def _exists(path: str) -> bool:
    """Whether a path, perhaps with `*` or `{a,b}`, names something."""
    braces = re.search(r"\{([^{}]*)\}", path)
    if braces is not None:
        return all(_exists(path[: braces.start()] + each + path[braces.end() :]) for each in braces[1].split(","))
    return any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()


def _is_module(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    at = ROOT
    for index, part in enumerate(parts):
        if (at / part).is_dir():
            at /= part
        elif (at / f"{part}.py").exists():
            return index >= len(parts) - 2
        else:
            return index == len(parts) - 1 and part in (at / "__init__.py").read_text()
    return True
