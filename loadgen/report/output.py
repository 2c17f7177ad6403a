"""Writes a report into a directory: the page, the tables, each figure as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from loadgen.report.figures import draw, save
from loadgen.report.material import Material
from loadgen.report.page import Section, page
from loadgen.report.tables import as_json, as_markdown

PAGE = "report.html"
MARKDOWN = "tables.md"
JSON = "tables.json"
FIGURES = "figures"


def write(material: Material, out: Path, progress: Callable[[Path], None] = lambda path: None) -> list[Path]:
    """Write everything; the paths, the page first. `progress` hears of each figure. Raises OSError."""
    figures = out / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    paths, sections = [], []
    for number, group in enumerate(material.groups, 1):
        drawings, needs = draw(group)
        images = []
        for drawn in drawings:
            name = drawn.name if len(material.groups) == 1 else f"{drawn.name}-{number}"
            svg, png = save(drawn, figures / name)
            progress(png)
            paths += [svg, png]
            images.append((drawn, svg.read_text(encoding="utf-8")))
        sections.append(Section(group, images, needs))
    (out / PAGE).write_text(page(material, sections), encoding="utf-8")
    (out / MARKDOWN).write_text(as_markdown(material), encoding="utf-8")
    (out / JSON).write_bytes(msgspec.json.format(msgspec.json.encode(as_json(material)), indent=1) + b"\n")
    return [out / PAGE, out / MARKDOWN, out / JSON, *paths]
