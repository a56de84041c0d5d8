"""The layers of docs/architecture.md hold: who imports whom, and who imports torch."""

import ast
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "workflow" / "scripts" / "crsbench"
DOCUMENT = ROOT / "docs" / "architecture.md"
HEAVY = {"torch", "torchvision", "timm", "transformers", "open_clip", "safetensors"}
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
}


class Layer(NamedTuple):
    """A row of the table: its modules in their order (each a list: a pattern has several)."""

    modules: list[list[str]]
    torch: bool
    may_import: list[str]


def read_layers() -> dict[str, Layer]:
    header = "| layer | modules |"
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(header)) + 2
    layers: dict[str, Layer] = {}
    named = {name for line in lines[start:] for name in _code(line)} & set(FILES)
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        name, modules, _, torch, may_import = (cell.strip() for cell in line.strip("|").split("|"))
        expanded = [_matching(pattern, named) for pattern in _code(modules)]
        others = [other for other in may_import.split(", ") if other]
        layers[name] = Layer(expanded, torch == "torch", others)
    return layers


def _code(text: str) -> list[str]:
    return text.split("`")[1::2]


def _matching(pattern: str, named: set[str]) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    depth = pattern.count(".")
    return [
        name
        for name in FILES
        if fnmatchcase(name, pattern) and name.count(".") == depth and name not in named
    ]


LAYERS = read_layers()


def imports(path: Path) -> set[str]:
    """Return every dotted name that a file imports, `from a import b` also as ``a.b``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_the_table_names_every_module_once():
    listed = [name for layer in LAYERS.values() for group in layer.modules for name in group]
    assert sorted(listed) == sorted(FILES)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_what_the_table_allows(layer):
    row = LAYERS[layer]
    above = list(LAYERS)[: list(LAYERS).index(layer)]
    assert set(row.may_import) <= set(above), "a layer imports only from layers above it"
    allowed = {m for name in row.may_import for group in LAYERS[name].modules for m in group}
    for group in row.modules:
        for module in group:
            inside = {name.removeprefix("crsbench.") for name in imports(FILES[module])}
            assert inside & set(FILES) <= allowed, module
        allowed |= set(group)


def test_only_the_marked_layers_import_torch_and_none_imports_snakemake():
    for layer, row in LAYERS.items():
        for module in (name for group in row.modules for name in group):
            tops = {name.partition(".")[0] for name in imports(FILES[module])}
            assert "snakemake" not in tops, module
            assert row.torch or not tops & HEAVY, f"{module} of {layer} imports torch"


def test_planning_scoring_and_figures_start_without_torch():
    code = (
        "import sys, crsbench.plan, crsbench.cli, crsbench.figures, crsbench.paper_check\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=True)
