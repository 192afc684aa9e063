"""A Jinja environment in which a template from a stranger's file can do nothing but write a bounded text.

Jinja's sandbox keeps a template from Python's insides; what it does not bound is work and size, so loops spend from a
budget, and whatever grows text is measured. Knows no messages. Called by chat_template alone; each render makes its
own budget, so threads do not share state.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import date
from typing import Any

from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_ITERATIONS = 1_000_000
MAX_SECONDS = 5.0
MAX_TEXT_CHARS = 16_000_000
MAX_TEMPLATE_CHARS = 500_000

# Filters that templates of published models use; those that pad, repeat or format by a number are not among them.
_FILTERS = (
    "abs count default d dictsort e escape first float int items join last length list lower map max min reject "
    "rejectattr replace reverse round safe select selectattr sort string sum title capitalize tojson trim unique upper"
).split()
_GROWING_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map", "translate"})


class RefusedByTemplate(TemplateError):
    """The template itself called raise_exception."""


class Budget:
    """What one render may still spend."""

    def __init__(self) -> None:
        self.iterations = MAX_ITERATIONS
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self) -> None:
        self.iterations -= 1
        if self.iterations < 0 or (not self.iterations & 1023 and time.monotonic() > self.deadline):
            raise SecurityError("the template loops too long")


_budget: ContextVar[Budget] = ContextVar("budget")


class _CountedLoop:
    """A loop's values, each paid for. Keeps `len` where the source has one, since `loop.last` asks for it."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        budget = _budget.get()
        for value in self._source:
            budget.spend()
            yield value

    def __len__(self) -> int:
        return len(self._source)


def _counted(source: Any) -> Any:
    return _CountedLoop(source) if isinstance(source, Iterable) else source


def _measured(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MAX_TEXT_CHARS:
        raise SecurityError("the template makes a text that is too large")
    return value


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; here its body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%", "//"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.filters = {name: self.filters[name] for name in _FILTERS if name in self.filters}
        self.filters |= {"tojson": _tojson, "counted": _counted, "measured": _measured}
        for name in ("replace", "join"):
            self.filters[name] = _bounded(self.filters[name])
        self.globals = {"range": _range, "namespace": self.globals["namespace"], "dict": dict}

    def variables_of(self, source: str) -> frozenset[str]:
        """The names that a template reads without setting them. Raises TemplateError: it is not a template."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateError(f"the template has {len(source):,} characters; at most {MAX_TEMPLATE_CHARS:,} are read")
        return frozenset(meta.find_undeclared_variables(self.parse(source)))

    def compile_bounded(self, source: str) -> Any:
        """A template whose loops and concatenations are counted.

        Raises:
            TemplateError: it is not a template.
        """
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateError(f"the template has {len(source):,} characters; at most {MAX_TEMPLATE_CHARS:,} are read")
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _through(loop.iter, "counted")
        for node in list(tree.find_all((nodes.Assign, nodes.Output, nodes.Keyword))):
            if isinstance(node, nodes.Output):
                node.nodes = [n if isinstance(n, nodes.TemplateData) else _through(n, "measured") for n in node.nodes]
            elif isinstance(node, nodes.Assign):
                node.node = _through(node.node, "measured")
            elif isinstance(node, nodes.Keyword):
                node.value = _through(node.value, "measured")
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def render_bounded(self, template: Any, context: dict[str, Any]) -> str:
        """The text of `template`; raises TemplateError and whatever a template's own mistakes raise."""
        token = _budget.set(Budget())
        try:
            pieces: list[str] = []
            size = 0
            for piece in template.generate(context):
                size += len(piece)
                if size > MAX_TEXT_CHARS:
                    raise SecurityError("the template writes too much")
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _budget.reset(token)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().spend()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            if function.__name__ in _GROWING_METHODS:
                raise SecurityError(f"the template may not call {function.__name__}")
            _check_growth(function.__name__, [owner, *args])
        return _measured(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, name: str, left: Any, right: Any) -> Any:
        _budget.get().spend()
        if name == "+":
            return _measured(left + right)
        if name == "*":
            sizes = [x if isinstance(x, int) else len(x) for x in (left, right) if isinstance(x, int | str | list)]
            if len(sizes) == 2 and abs(sizes[0] * sizes[1]) > MAX_TEXT_CHARS:
                raise SecurityError("the template multiplies too far")
            return left * right
        if name == "**" or (name == "%" and isinstance(left, str)):
            raise SecurityError(f"the template may not use {name} on these")
        return {"%": operator.mod, "//": operator.floordiv}[name](left, right)


def clock(today: date) -> Callable[[str], str]:
    """`strftime_now` that always says the day the conversation began."""

    def strftime_now(form: str) -> str:
        if len(form) > 200:
            raise SecurityError("the template's date format is too long")
        return today.strftime(form)

    return strftime_now


def refuse(message: object) -> None:
    """`raise_exception` of published templates."""
    raise RefusedByTemplate(str(message)[:500])


def _through(node: Any, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _bounded(function: Any) -> Any:
    """The filter, refused before its result would grow too far."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_growth(function.__name__, [a for a in args if isinstance(a, str | list | tuple)])
        return _measured(function(*args, **kwargs))

    for mark in ("jinja_pass_arg", "jinja_async_variant"):
        if hasattr(function, mark):
            setattr(bounded, mark, getattr(function, mark))
    return bounded


def _check_growth(name: str, values: list[Any]) -> None:
    size = 0
    if name.endswith("replace") and len(values) >= 3 and all(isinstance(v, str) for v in values[:3]):
        size = values[0].count(values[1]) * len(values[2])
    elif name.endswith("join") and len(values) >= 2:
        size = len(values[0]) * len(values[1])
    if size > MAX_TEXT_CHARS:
        raise SecurityError("the template makes a text that is too large")


def _range(*args: int) -> Any:
    values = range(*args)
    if len(values) > MAX_ITERATIONS:
        raise SecurityError("the template's range is too long")
    return values


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    """As published templates expect it: plain JSON, no HTML escapes, non-ASCII kept."""
    return json.dumps(value, ensure_ascii=False, indent=min(indent, 8) if indent else None)
