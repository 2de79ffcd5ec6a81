"""The folders, their links and the layers between them are what the design says."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("boards", "hdl", "runtime", "compiler", "sim")
# DESIGN section 3: what a folder may import from the others; a dotted entry allows one module only.
MAY_IMPORT = {
    "boards": (),
    "hdl": (),
    "runtime": (),
    "compiler": ("hdl", "boards", "runtime.bundle"),
    "sim": ("hdl", "runtime"),
}


def imports_of(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_layers_hold(folder: str) -> None:
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for line, name in imports_of(path):
            parts = name.split(".")
            where = f"{path.relative_to(ROOT)}:{line}"
            if parts[0] in FOLDERS:
                wrong.append(f"{where} imports {name} without the namespace trivet")
            if parts[0] != "trivet" or len(parts) < 2 or parts[1] not in FOLDERS:
                continue
            target = ".".join(parts[1:])
            allowed = (folder, *MAY_IMPORT[folder])
            if not any(target == a or target.startswith(a + ".") for a in allowed):
                wrong.append(f"{where} imports {name}; {folder} may import {MAY_IMPORT[folder]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_lead_to_the_folders(folder: str) -> None:
    link = ROOT / "src" / "trivet" / folder
    assert link.is_symlink(), f"{link} must be a symbolic link (git: core.symlinks)"
    assert link.resolve() == (ROOT / folder).resolve()


def test_every_folder_has_content() -> None:
    for folder in FOLDERS:
        assert list((ROOT / folder).glob("*.py")), folder
