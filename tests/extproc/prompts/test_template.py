"""template.py: the environment that transformers gives a chat template, and what vLLM reads from its tree."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError, UndefinedError

from extproc.base.errors import ConfigError, RenderError
from extproc.prompts.template import ChatTemplate


def noon() -> datetime:
    return datetime(2026, 3, 4, 12, 0)  # noqa: DTZ001 -- local time, as transformers writes it


LIMIT = 1000  # characters


def run(source: str, **variables: Any) -> str:
    return ChatTemplate(source, noon).run(variables, LIMIT)


LOOP = "0TrueFalse21FalseTrue2"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),  # trim_blocks, lstrip_blocks
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in 'ab' %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% endfor %}", LOOP),
        ("[{% generation %}{{ x.a }}{% endgeneration %}]", "[1]"),
        ("{{ x.a }}{{ x['a'] }}{{ x.items() | list }}{{ x.missing is defined }}{{ x.missing }}", "11[('a', 1)]False"),
        ("{{ x.get('b', 3) }}{{ x.keys() | list }}{{ y['items'] }}{{ y.items() | list }}", "3['a']1[('items', 1)]"),
        ("{{ '<&\\'é\\u2028' | tojson }}", '"<&\'é\u2028"'),
        ("{{ {'b': [1, none], 'a': 1.0} | tojson }}", '{"b": [1, null], "a": 1.0}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ {'b': 'é'} | tojson(indent=1, ensure_ascii=true) }}", '{\n "b": "\\u00e9"\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "04 Mar 2026"),
        ("{{ '{}-{}'.format(1, 2) }}", "1-2"),
        ("{% set ns = namespace(n=1) %}{% for i in 'abc' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "4"),
        ("{{ 'a</think>b'.split('</think>')[-1] }}{{ ' x '.strip() }}{{ 'ab'[::-1] }}", "bxba"),
    ],
)
def test_templates_run_as_transformers_runs_them(source: str, text: str) -> None:
    """Blocks, loops, filters and functions that chat templates rely on; of equal names a dict's method goes first."""
    assert run(source, x={"a": 1}, y={"items": 1}) == text


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("{{ raise_exception('because') }}", TemplateError),
        ("{{ x.__class__ }}{{ x.__class__.mro() }}", SecurityError),
        ("{{ x.update({}) }}", SecurityError),
        ("{{ [].append(1) }}", SecurityError),
        ("{{ x.a.b.c }}", UndefinedError),
        ("{{ missing.a }}", UndefinedError),
    ],
)
def test_the_sandbox_holds(source: str, error: type[Exception]) -> None:
    """What a template must not do raises, also for the dicts that we take a short way to."""
    with pytest.raises(error):
        run(source, x={"a": {}})


def test_a_template_that_does_not_compile_is_a_configuration_error() -> None:
    """It is found when a pool is loaded, not at the first request."""
    with pytest.raises(ConfigError, match="does not compile"):
        ChatTemplate("{% if %}", noon)
    with pytest.raises(ConfigError, match="No filter named 'nope'"):
        ChatTemplate("{{ x | nope }}", noon)


def test_output_comes_as_it_is_written() -> None:
    """Fragments are computed one by one: what a template has not come to yet has not happened."""
    fragments: list[str] = []
    with pytest.raises(TemplateError):
        ChatTemplate("a{{ x }}{{ raise_exception('later') }}", noon).run({"x": "b"}, LIMIT, fragments)
    assert "".join(fragments) == "ab"
    assert len(fragments) > 1


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9) %}{{ x }}{% endfor %}",
        "{{ x | tojson }}{{ x | tojson }}",
        "{% set text = x | tojson(indent=4) %}",
        "{% set text = x | tojson(sort_keys=true) %}{% set text = x | tojson(sort_keys=true) %}",
        "{% macro show() %}{{ x | tojson(indent=4) }}{% endmacro %}{% set text = show() %}",
    ],
)
def test_a_template_stops_at_its_limit(source: str) -> None:
    """What is longer than the limit is an error, written or dumped as JSON and then dropped; what is not passes."""
    value = ["a"] * 10
    with pytest.raises(RenderError):
        ChatTemplate(source, noon).run({"x": value}, 80)
    ChatTemplate(source, noon).run({"x": value}, 800)


def test_a_namespace_is_not_copied_without_end() -> None:
    """Output that a template collects in a namespace, all of it copied for each message, ends at some size too."""
    source = "{% set ns = namespace(text='') %}{% for i in range(N) %}{% set ns.text = ns.text + x %}{% endfor %}"
    piece = "x" * 1_000_000
    assert run(source.replace("N", "20") + "{{ ns.text | length }}", x=piece) == "20000000"
    with pytest.raises(RenderError):
        run(source.replace("N", "60"), x=piece)


def test_a_dump_ends_where_its_limit_does() -> None:
    """Of a deep value, whose indentation is many times as long as itself, no more is dumped than may be."""

    class Counted(list[int]):
        read = 0

        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                Counted.read += 1
                yield item

    deep: Any = Counted(range(1000))
    for _ in range(200):
        deep = [deep]
    with pytest.raises(RenderError):
        ChatTemplate("{{ x | tojson(indent=4) }}", noon).run({"x": deep}, 400_000)
    assert 0 < Counted.read < 500


# Each judged by vLLM 0.32.0 (renderers/hf.py, _detect_content_format).
WANT_PARTS = """
{% for m in messages %}{% for p in m.content %}x{% endfor %}{% endfor %}
{% for m in messages %}{% for p in m['content'] %}x{% endfor %}{% endfor %}
{% for m in messages[1:] %}{% for p in m['content'] | list %}x{% endfor %}{% endfor %}
{% set a = messages %}{% set b = a | list %}{% for m in b %}{% for p in m.content %}x{% endfor %}{% endfor %}
{% for m in messages %}{% set content = m.content %}{% for p in content %}x{% endfor %}{% endfor %}
{% macro f(body) %}{% for p in body %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}
{% macro f(a, b) %}{% for p in b %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ f(1, m.content) }}{% endfor %}
{% macro f(b) %}{% for p in b %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ f(b=m['content']) }}{% endfor %}
{% for m in messages %}{% for p in m.content[1:] %}x{% endfor %}{% endfor %}
{% for p in content %}x{% endfor %}
{% for m in messages %}{% for m in m.content %}x{% endfor %}{% endfor %}
{% for m in messages %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}x{% endfor %}{% endfor %}
{% for m in messages | rejectattr('role', 'equalto', 'x') %}{% for p in m.content %}x{% endfor %}{% endfor %}
{% for m in messages %}{% generation %}{% for p in m.content %}x{% endfor %}{% endgeneration %}{% endfor %}
{% set x = messages %}{% set x = x[1:] %}{% for m in x %}{% for p in m.content %}x{% endfor %}{% endfor %}
"""
WANT_STRINGS = """
{% for m in messages %}{{ m.content }}{% endfor %}
{% for m in messages %}{% set body = m.content %}{% for p in body %}x{% endfor %}{% endfor %}
{% macro f(body) %}{% for p in body %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.text) }}{% endfor %}
{% macro f(content) %}{% for p in content %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.x) }}{% endfor %}
{% macro f(a, b) %}{% for p in a %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ f(1, m.content) }}{% endfor %}
{% for m in messages %}{% for k, v in m.content.items() %}{{ k }}{% endfor %}{% endfor %}
{% for m in messages %}{% for a, b in m.content %}{{ a }}{% endfor %}{% endfor %}
{% for a, b in messages %}{{ a }}{% endfor %}{% for content in messages[0].content %}x{% endfor %}
{% set n = namespace() %}{% set n.m = messages %}{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}
{% set (a, b) = messages %}{% for m in messages %}{% for p in m.content %}x{% endfor %}{% endfor %}
{% for p in messages[0].content %}x{% endfor %}
{% for m in conversation %}{% for p in m.content %}x{% endfor %}{% endfor %}
no tags at all
"""


@pytest.mark.parametrize("source", WANT_PARTS.strip().splitlines())
def test_templates_that_loop_over_content_want_parts(source: str) -> None:
    """vLLM gives these parts ("openai"), so we do."""
    assert ChatTemplate(source, noon).wants_parts


@pytest.mark.parametrize("source", WANT_STRINGS.strip().splitlines())
def test_other_templates_want_strings(source: str) -> None:
    """vLLM gives these strings, also where its search stumbles over a tree that it does not expect."""
    assert not ChatTemplate(source, noon).wants_parts


def test_assignments_in_a_circle_end() -> None:
    """Variables that are assigned to each other are followed once."""
    assert not ChatTemplate("{% set a = messages %}{% set messages = a %}", noon).wants_parts
