"""Chat templates: a sandboxed jinja environment which renders exactly what model authors test against.

That means the settings of Hugging Face's renderer: blocks trimmed, ``tojson`` without HTML escapes,
``raise_exception``, ``strftime_now``, loop controls and the ``generation`` block. A template can read what
it is given and nothing else, and it runs against a clock (limits.py). What it writes is data, never code.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlxplatform.inference.contract import Refusal
from workers.prepare import limits

#: The alarm of an overdue template repeats after this long (seconds).
ALARM_REPEAT = 0.1

#: Compiled templates kept; a model has one or two.
COMPILED_TEMPLATES = 16


class TemplateRaised(Exception):
    """The template called ``raise_exception``; its text is the reason."""


class RenderTimeout(Exception):
    """The template ran past its clock."""


class GenerationBlock(Extension):
    """``{% generation %}…{% endgeneration %}`` marks trained text; rendering a prompt keeps the inside as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise TemplateRaised(str(message))


def _strftime_now(pattern: str) -> str:
    return time.strftime(pattern)


@lru_cache(maxsize=1)
def environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


@lru_cache(maxsize=COMPILED_TEMPLATES)
def compiled(source: str) -> jinja2.Template:
    return environment().from_string(source)


_armed = False


def _expired(_signal: int, _frame: Any) -> None:
    if _armed:
        raise RenderTimeout


def _disarm() -> None:
    global _armed
    _armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _clock(seconds: float) -> Iterator[None]:
    """Interrupt pure Python after ``seconds``. A native call that never returns is ended by the client's kill.

    The alarm goes off again and again: Python swallows an exception raised while it collects garbage.
    """
    global _armed
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGALRM, _expired)
    _armed = True
    signal.setitimer(signal.ITIMER_REAL, seconds, ALARM_REPEAT)
    try:
        yield
    finally:
        _disarm()


def render(source: str, variables: dict[str, Any], *, seconds: float = limits.RENDER_SECONDS) -> str:
    """The text the template writes.

    Raises:
        Refusal: 400 with the template's own reason, or what went wrong, in words fit for a client.
    """
    try:
        with _clock(seconds):
            pieces = []
            size = 0
            for piece in compiled(source).generate(variables):
                size += len(piece)
                if size > limits.RENDERED_CHARACTERS:
                    raise Refusal(
                        400, "template_too_long", "The model's chat template writes more text than allowed.", param="messages"
                    )
                pieces.append(piece)
            return "".join(pieces)
    except TemplateRaised as reason:
        raise Refusal(
            400, "template_refused", f"The model's chat template refused these messages: {reason}", param="messages"
        ) from None
    except RenderTimeout:
        _disarm()
        raise Refusal(
            400, "template_timeout", f"The model's chat template did not finish within {seconds:g} s.", param="messages"
        ) from None
    except jinja2.exceptions.SecurityError:
        raise Refusal(
            400, "template_unsafe", "The model's chat template tried to reach outside its sandbox and was stopped.", param="model"
        ) from None
    except jinja2.exceptions.TemplateSyntaxError as error:
        raise Refusal(
            400, "template_invalid", f"The model's chat template is not valid (line {error.lineno}).", param="model"
        ) from None
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError):
        raise Refusal(
            400, "template_failed", "The model's chat template cannot render these messages.", param="messages"
        ) from None
    except RecursionError:
        raise Refusal(
            400, "template_failed", "The messages are nested too deeply for the chat template.", param="messages"
        ) from None
    except MemoryError:
        raise Refusal(
            400, "template_too_long", "The model's chat template needs more memory than allowed.", param="messages"
        ) from None
