"""A report as one HTML page: nothing is loaded from elsewhere, and no script runs.

The page begins with what a person should do, then shows why: figures, plots, tables. Whatever comes
from topics (names, keys, reasons) is text and is escaped, so a hostile key is shown, not obeyed; a
content security policy in the page says the same to the browser.
"""

from collections.abc import Iterable, Sequence
from html import escape

from waterclock.spark.jobs.report.figures import Advice, Figures, TopicFigures
from waterclock.spark.jobs.report.number_text import (
    NONE_TEXT,
    count_text,
    rate_text,
    size_text,
    span_text,
    time_text,
)
from waterclock.spark.jobs.report.sections import sections
from waterclock.spark.jobs.report.style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_ALL_WELL = Advice(
    level="good", title="All is well", text="Nothing in these figures asks for anything to be done."
)


def page(figures: Figures) -> str:
    """Return the whole page."""
    names = [topic.topic for topic in figures.topics]
    title = f"Waterclock: {names[0]}" if len(names) == 1 else f"Waterclock: {len(names)} topics"
    body = [_head(figures)]
    if len(names) > 1:
        body.append(_overview(figures.topics))
    body += [_topic(topic, is_only=len(names) == 1) for topic in figures.topics]
    if not names:
        body.append("<p>There is no topic to report on.</p>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        + "\n".join(body)
        + f"<footer>Made by <code>waterclock pipeline report</code> on "
        f"{time_text(figures.made_ms)}. All times are UTC. Percentiles are read from a histogram "
        "and at most 3 % too high.</footer></main></body></html>\n"
    )


def _head(figures: Figures) -> str:
    since = "the beginning" if figures.since_ms is None else time_text(figures.since_ms)
    until = time_text(figures.made_ms if figures.until_ms is None else figures.until_ms)
    return (
        "<header><h1>How the messages flow</h1>"
        f'<p class="lead soft">Node {escape(figures.node)}, Waterclock {escape(figures.version)} · '
        f"from {since} to {until}</p></header>"
    )


def _overview(topics: Sequence[TopicFigures]) -> str:
    rows = []
    for topic in topics:
        late = topic.lateness.p99_ms
        behind = max((group.behind_ms for group in topic.groups), default=0)
        cells = (
            count_text(topic.messages),
            rate_text(topic.rate),
            NONE_TEXT if late is None else span_text(late),
            span_text(behind) if behind else NONE_TEXT,
            count_text(topic.dead_messages),
            size_text(topic.growth.size_bytes),
        )
        rows.append(
            f'<tr><td><a href="#{_anchor(topic.topic)}">{escape(topic.topic)}</a></td>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    heads = ("topic", "messages", "rate", "p99 late", "behind", "dead letters", "size")
    return (
        '<div class="card scroll"><table><thead><tr>'
        + "".join(f'<th scope="col">{head}</th>' for head in heads)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _topic(topic: TopicFigures, *, is_only: bool) -> str:
    partitions = len(topic.partitions)
    words = f"{partitions} partition{'s' if partitions != 1 else ''}"
    if topic.growth.is_compacted:
        words += ", compacted by key"
    cards = "".join(
        f'<section class="card{" full" if each.is_full else ""}"><h3>{escape(each.title)}</h3>'
        f'<p class="soft">{escape(each.words)}</p>{each.body}</section>'
        for each in sections(topic)
    )
    return (
        f'<article id="{_anchor(topic.topic)}"><h2>{escape(topic.topic)}</h2>'
        f'<p class="soft">{escape(words)}</p>{_tiles(topic)}{_advice(topic.advice or [_ALL_WELL])}'
        f'<div class="cards">{cards}</div></article>'
    )


def _tiles(topic: TopicFigures) -> str:
    late = topic.lateness
    behind = max((group.behind_ms for group in topic.groups), default=0)
    tiles = [
        (count_text(topic.messages), "messages"),
        (rate_text(topic.rate), "on average"),
    ]
    if late.p50_ms is not None and late.p99_ms is not None:
        tiles.append((span_text(late.p50_ms), f"late at p50, {span_text(late.p99_ms)} at p99"))
    if topic.groups:
        lag = span_text(behind) if behind else "up to date"
        groups = f"{len(topic.groups)} group{'s' if len(topic.groups) != 1 else ''}"
        tiles.append((lag, f"furthest behind of {groups}" if behind else groups))
    if topic.scheduled_messages:
        tiles.append((count_text(topic.scheduled_messages), "scheduled"))
    tiles.append((count_text(topic.dead_messages), "dead letters"))
    tiles.append((size_text(topic.growth.size_bytes), "on disk"))
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for value, name in tiles
        )
        + "</div>"
    )


def _advice(advice: Iterable[Advice]) -> str:
    items = "".join(
        f'<li class="{each.level}"><b>{escape(each.title)}</b>{_with_code(each.text)}</li>'
        for each in advice
    )
    return f'<ul class="advice">{items}</ul>'


def _with_code(text: str) -> str:
    """Escape a text, and set what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick from outside: leave them all as they are
        return escape(text)
    return "".join(
        f"<code>{escape(part)}</code>" if i % 2 else escape(part) for i, part in enumerate(parts)
    )


def _anchor(topic: str) -> str:
    return "topic-" + topic.encode().hex()
