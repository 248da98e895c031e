"""The README's tree, a line per file, made from the modules' own first sentences: `python tests/readme_tree.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("configs", "workers", "pipeline", "jobs")
START, END = "<!-- tree: made by tests/readme_tree.py -->\n", "<!-- end of tree -->\n"


def tree() -> str:
    """Markdown: a code block in which every module stands with what it is for."""
    return "```text\n" + "\n".join(line for room in ROOMS for line in _folder(ROOT / room)) + "\n```\n"


def readme_with(tree: str, readme: str) -> str:
    """The README with this tree in place of its own."""
    head, rest = readme.split(START)
    return head + START + tree + END + rest.split(END)[1]


def _folder(folder: Path, depth: int = 0) -> Iterator[str]:
    yield _line(f"{'  ' * depth}{folder.name}/", folder / "__init__.py")
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.suffix == ".py" and path.name != "__init__.py":
            yield _line(f"{'  ' * (depth + 1)}{path.name}", path)
        elif (path / "__init__.py").exists():
            yield from _folder(path, depth + 1)


def _line(name: str, module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    sentence = " ".join(docstring.split("\n\n")[0].split())
    return f"{name:<24} {sentence}"


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(readme_with(tree(), readme.read_text()))


if __name__ == "__main__":
    main()
