"""One HTML page that needs nothing else: figures are inside as SVG, each an image of its own, for ids must not meet."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from loadgen.report.figures.style import Drawn
from loadgen.report.material import MOST, Group, Material
from loadgen.report.tables import Table, tables

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem }
h1, h2, h3 { line-height: 1.2; font-weight: 600 } h2 { margin-top: 3rem; border-bottom: 1px solid #ccc }
figure { margin: 2rem 0 } figure img { max-width: 100%; height: auto } figcaption { color: #555; font-size: .9rem }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e4e4 }
th:first-child, td:first-child { text-align: left } th { vertical-align: bottom }
.note { background: #fff6df; border-left: 3px solid #e69f00; padding: .4rem .8rem }
"""


@dataclass(frozen=True)
class Section:
    """A group with its figures, each with the text of its SVG, and what would be needed for more."""

    group: Group
    figures: Sequence[tuple[Drawn, str]]
    needs: Sequence[str]


def page(material: Material, sections: Sequence[Section]) -> str:
    """The page's text."""
    body = [*(f'<p class="note">{escape(note)}</p>' for note in material.notes)]
    for section in sections:
        body += _section(section)
    title = "loadgen report"
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>{_STYLE}</style>\n<h1>{title}</h1>\n" + "\n".join(body) + "\n</html>\n"
    )


def _section(section: Section) -> Iterator[str]:
    group = section.group
    yield f"<h2>{escape(group.title)}</h2>"
    hidden = len(group.policies) - len(group.shown)
    if hidden:
        yield (
            f'<p class="note">Curves show options that were tried at most rates and provisionings, and if they are '
            f"more than {MOST}, each policy's with the highest TPS within SLO. {hidden} others are in the tables.</p>"
        )
    for drawn, svg in section.figures:
        data = b64encode(svg.encode()).decode()
        yield (
            f"<figure><h3>{escape(drawn.title)}</h3>"
            f'<img alt="{escape(drawn.title)}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{escape(drawn.caption)}</figcaption></figure>"
        )
    for table in tables(group):
        yield from _table(table)
    if section.needs:
        yield "<h3>Figures that need more</h3><ul>"
        yield from (f"<li>{escape(need)}</li>" for need in section.needs)
        yield "</ul>"


def _table(table: Table) -> Iterator[str]:
    yield f'<h3>{escape(table.title)}</h3><div class="table"><table><thead><tr>'
    yield "".join(f"<th>{escape(name)}</th>" for name in table.header) + "</tr></thead><tbody>"
    for row in table.rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"
