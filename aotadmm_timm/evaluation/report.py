"""One self-contained HTML page about a run: what it scored, how it got there, what its layers do."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; font-size: 14px }
td, th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top }
th { color: #666; font-weight: 600 } td { font-variant-numeric: tabular-nums } img { max-width: 100% } p { color: #555 }
.columns { display: flex; gap: 3em; flex-wrap: wrap; align-items: flex-start }
"""


def render_report(
    title: str,
    *,
    scores: Sequence[Sequence[str]],
    note: str,
    tables: Mapping[str, Sequence[Sequence[str]]],
    sections: Mapping[str, tuple[Any, str]],
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> str:
    """The page.

    Args:
        scores: rows of text, the first one the header.
        note: what the scores are of.
        tables: title -> rows of text, the first one the header.
        sections: title -> (matplotlib figure or path of a PNG, caption).
        config, environment: shown as two tables.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", "<h2>Scores of frozen features</h2>", _table(scores[1:], scores[0])]
    parts.append(f"<p>{html.escape(note)}</p>")
    for heading, rows in tables.items():
        parts += [f"<h2>{html.escape(heading)}</h2>", _table(rows[1:], rows[0])]
    for heading, (picture, caption) in sections.items():
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        parts.append(f'<img alt="{html.escape(heading)}" src="data:image/png;base64,{_encoded(picture)}">')
        parts.append(f"<p>{html.escape(caption)}</p>")
    parts.append('<h2>Configuration and environment</h2><div class="columns">')
    parts += [_table([(key, _plain(value)) for key, value in pairs.items()]) for pairs in (config, environment)]
    parts.append("</div>")
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table(rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + (line(header, "th") if header else "") + "".join(line(row, "td") for row in rows) + "</table>"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return " ".join(map(_plain, value))
    return "-" if value is None else str(value)


def _encoded(picture: Any) -> str:
    if isinstance(picture, Path):
        return base64.b64encode(picture.read_bytes()).decode()
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()
