"""Running somebody else's Jinja template: no attribute tricks, no mutation, bounded work and output.

The bounds stop runaway loops and the usual memory bombs. They are not a wall against an author bent on
wasting memory: an operator still chooses which models to serve.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stages.runtime.models.errors import ModelError

MAX_SOURCE = 256 << 10  # characters of a template; the longest known have about 30,000
MAX_TEXT = 16 << 20  # characters of a rendered prompt, and of any text or list built on the way
MAX_STEPS = 1_000_000  # loop rounds and calls in one render

_MISTAKES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass
class _Budget:
    """What is left of one render."""

    steps: int = MAX_STEPS
    text: int = MAX_TEXT

    def spend(self, *, steps: int = 0, text: int = 0) -> None:
        self.steps -= steps
        self.text -= text
        if self.steps < 0 or self.text < 0:
            raise TemplateError(f"more than {MAX_STEPS} steps or {MAX_TEXT} characters")


_budget: ContextVar[_Budget] = ContextVar("chat_template_budget")


def compile_template(source: str, name: str) -> Callable[..., str]:
    """A function from variables to text. Raises ModelError, and so does the function."""
    if len(source) > MAX_SOURCE:
        raise ModelError(f"{name}: chat template of {len(source)} characters; at most {MAX_SOURCE}")
    environment = _environment()
    try:
        tree = _bounded(environment.parse(source, name))
        code = environment.compile(tree, name)
        template = environment.template_class.from_code(environment, code, environment.globals)
    except (*_MISTAKES, SyntaxError) as error:
        raise ModelError(f"{name}: the chat template does not compile: {_short(error)}") from error

    def render(**variables: object) -> str:
        token = _budget.set(_Budget())
        try:
            text = template.render(**variables)
        except _MISTAKES as error:
            raise ModelError(f"{name}: the chat template failed: {_short(error)}") from error
        finally:
            _budget.reset(token)
        if len(text) > MAX_TEXT:
            raise ModelError(f"{name}: a prompt of {len(text)} characters; at most {MAX_TEXT}")
        return text

    return render


def _short(error: BaseException) -> str:
    return str(error)[:300] or type(error).__name__


def _bounded(tree: nodes.Template) -> nodes.Template:
    """Route every loop and every `~` through a check."""
    for loop in list(tree.find_all(nodes.For)):
        if loop.recursive:
            raise TemplateError("recursive loops are not supported")
        loop.iter = _check(loop.iter, "headrace_rounds", loop.lineno)
    for concat in list(tree.find_all(nodes.Concat)):
        inner = nodes.Concat(concat.nodes, lineno=concat.lineno)
        concat.nodes = [_check(inner, "headrace_size", concat.lineno)]
    return tree


def _check(node: nodes.Node, name: str, line: int) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr", node), name, [], [], None, None, lineno=line)


def _rounds(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _budget.get().spend(steps=1)
        yield item


def _size(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise TemplateError(f"a text of {len(value)} characters")
    return value


def _printed(value: object) -> object:
    if isinstance(value, str):
        _budget.get().spend(text=len(value))
    return value


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox plus limits on what `+ * ** %` may build and on the number of calls."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise TemplateError(f"the operator {operator} is not allowed here")
        if operator == "+" and _length(left) + _length(right) > MAX_TEXT:
            raise TemplateError("a text or list is too large")
        if (
            operator == "*"
            and max(_length(left) * _count(right), _length(right) * _count(left)) > MAX_TEXT
        ):
            raise TemplateError("a text or list is too large")
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().spend(steps=1)
        return super().call(__context, __obj, *args, **kwargs)


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is plain."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        finalize=_printed,
    )
    for name in ("center", "format", "wordwrap"):  # they pad to any width
        del environment.filters[name]
    environment.filters |= {"tojson": _tojson, "headrace_rounds": _rounds, "headrace_size": _size}
    environment.globals.pop("lipsum", None)
    environment.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    if indent is not None and indent > 16:
        raise TemplateError(f"tojson with an indent of {indent}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
