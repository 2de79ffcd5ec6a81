"""The pages of docs/ hold: links lead somewhere, options exist, examples load, errors are real."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main

from trivet.cli import app
from trivet.compiler.rig import read_rig

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")], key=str
)
FOLDERS = ("boards", "compiler", "hdl", "runtime", "sim", "src")
SOURCE = re.compile(
    r"(?:boards|benchmarks|compiler|docs|examples|hdl|runtime|sim|src|tests)/[\w./-]*"
)
PLACEHOLDER = re.compile(r"\b(?:NAME|N)\b")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of each fenced block."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield match[1], match[2]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """GitHub's names of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", prose(page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert not broken, f"{page.name}: links to {broken}"


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose(page.read_text(encoding="utf-8")))
        todo += [(page.parent / link).resolve() for link in links if ":" not in link]
    assert not {p for p in PAGES if p.parent.name == "docs"} - seen


@pages
def test_no_output_is_a_failure(page: Path) -> None:
    assert "Traceback (most recent" not in page.read_text(encoding="utf-8")


def test_every_benchmark_is_listed() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert not [p.name for p in (ROOT / "benchmarks").glob("*.py") if p.name not in text]


def command_options() -> dict[str, set[str]]:
    """Options of every command, and under "" those before a command."""
    group = typer.main.get_command(app)
    found = {"": {"--help"}}
    commands = group.commands  # type: ignore[attr-defined]
    for name, command in [("", group), *commands.items()]:
        found[name] = {"--help"}
        for parameter in command.params:
            found[name].update(o for o in parameter.opts if o.startswith("-"))
    return found


def calls(text: str) -> Iterator[str]:
    """Every call of trivet that a page shows: in blocks, and in code within a line."""
    for _, content in blocks(text):
        for line in content.replace("\\\n", " ").splitlines():
            shown = re.sub(r"^\$ ", "", line.strip())
            for part in re.split(r"&&|\|\||;", shown):
                if part.strip().startswith("trivet "):
                    yield part.strip()
    for code in re.findall(r"`([^`\n]+)`", prose(text)):
        if code.startswith("trivet "):
            yield code


@pages
def test_options_exist(page: Path) -> None:
    known = command_options()
    every = set().union(*known.values())
    text = page.read_text(encoding="utf-8")
    wrong = []
    for call in calls(text):
        words = shlex.split(call, comments=True)
        names = [w for w in words[1:] if not w.startswith("-")]
        command = names[0] if names else ""
        if command not in known:
            wrong += [call] if re.fullmatch(r"[a-z]+", command) else []
            continue
        for word in words[1:]:
            option = word.partition("=")[0]
            if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known[command]:
                wrong.append(f"{option} of {call!r}")
    for code in re.findall(r"`([^`\n]+)`", prose(text)):
        named = re.match(r"--?[a-z][a-z-]*(?=[ =]|$)", code)
        if named and page.parent.name == "docs" and named[0] not in every:
            wrong.append(code)
    assert not wrong, f"{page.name}: the CLI has no {wrong}"


@pages
def test_files_exist(page: Path) -> None:
    """Paths of the repository that a page names in code; NAME and N are placeholders."""
    missing = []
    for code in re.findall(r"`([^`\n]+)`", prose(page.read_text(encoding="utf-8"))):
        for path in code.split():
            if SOURCE.fullmatch(path) and not PLACEHOLDER.search(path.replace("_", " ")):
                missing += [] if (ROOT / path).exists() else [path]
    assert not missing, f"{page.name}: {missing} are not there"


def test_the_rig_example_loads(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    example = re.search(r"<!-- rig\.toml -->\n```toml\n(.*?)```", text, re.S)
    assert example is not None
    path = tmp_path / "rig.toml"
    path.write_text(example[1], encoding="utf-8")
    rig = read_rig(path)
    assert [d.name for d in rig.devices] == ["cpu0", "fpga0"]
    assert rig.pins == (("softmax", "cpu0"),)
    assert rig.planner.place == "fpga"
    assert rig.link_of("fpga0") is rig.links[0]
    assert set(rig.rules) == {
        "communication_share_max", "memory_max", "budget_max", "balance_min", "link_load_max"
    }  # fmt: skip


def test_the_device_example_is_a_device() -> None:
    text = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    example = re.search(r"<!-- device -->\n```python\n(.*?)```", text, re.S)
    assert example is not None
    names: dict[str, object] = {}
    exec(compile(example[1], "docs/extend.md", "exec"), names)
    device = names["PacedCpu"]("fpga0", {"kind": "fpga"})  # type: ignore[operator]
    try:
        assert device.describe().attach == "paced"
    finally:
        device.close()


@pytest.mark.parametrize("page", ["compile.md", "run.md"])
def test_python_examples_compile(page: str) -> None:
    found = [
        c for language, c in blocks((ROOT / "docs" / page).read_text()) if language == "python"
    ]
    assert found
    for content in found:
        compile(content, page, "exec")


@cache
def source_texts() -> str:
    """Every text of the code, a formatted value as an ellipsis, one a line."""
    texts = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                    texts.append("".join(map(str, parts)))
    return "\n".join(" ".join(text.split()) for text in texts)


def error_lines() -> list[str]:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`\n]+)` \|", text, re.M)


def test_errors_are_those_of_the_code() -> None:
    lines = error_lines()
    assert len(lines) > 40
    gone = [line for line in lines if line not in source_texts()]
    assert not gone, f"docs/errors.md: in no source file: {gone}"
