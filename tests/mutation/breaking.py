"""Ways to break a simulator: what its handlers are asked, what they answer, and the adapter around them.

Each gives a context manager; a simulator that is made inside is broken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from unittest.mock import patch

import msgspec

from kb_contracts.api.errors import ERRORS, EngineError, ErrorKind
from kb_contracts.api.operations import OPERATIONS
from kb_contracts.http.mount import Handler, Incoming, build_application
from kb_simulator.harness import app

Break = Callable[[], AbstractContextManager[Any]]
Around = Callable[[Incoming, Handler], Awaitable[Any]]


@dataclass(frozen=True)
class Mutant:
    """A simulator that breaks one promise. `test`, as `module::name`, is who should notice."""

    name: str
    test: str
    broken: Break


def mutant(name: str, *, module: str, test: str, broken: Break) -> Mutant:
    """One that `test`, without its `test_`, of a module of the suite should notice."""
    return Mutant(name, f"{module}::test_{test}", broken)


def around(operation_id: str, act: Around) -> Break:
    """`act` stands between the adapter and the handler of one operation."""

    def begin() -> AbstractContextManager[Any]:
        whole: Callable[[], dict[str, Handler]] = vars(app)["handlers"]

        def handlers() -> dict[str, Handler]:
            table = dict(whole())
            inner = table[operation_id]

            async def handler(incoming: Incoming) -> msgspec.Struct:
                answer: msgspec.Struct = await act(incoming, inner)
                return answer

            return {**table, operation_id: handler}

        return patch.object(app, "handlers", handlers)

    return begin


def asked(operation_id: str, change: Callable[[Incoming], dict[str, Any]]) -> Break:
    """The handler is asked something else: `change` gives other parts of the request."""

    async def act(incoming: Incoming, inner: Handler) -> Any:
        return await inner(dataclasses.replace(incoming, **change(incoming)))

    return around(operation_id, act)


def query(operation_id: str, **other: Any) -> Break:
    """Query parameters are not what was sent."""
    return asked(operation_id, lambda incoming: {"query": msgspec.structs.replace(incoming.query, **other)})


def body(operation_id: str, **other: Any) -> Break:
    """Members of the JSON body are not what was sent; a multipart body has none."""
    return asked(
        operation_id,
        lambda incoming: {"body": incoming.body and msgspec.structs.replace(incoming.body, **other)},
    )


def filters(*, operation_id: str = "search", **other: Any) -> Break:
    """Members of a search's `filters` are not what was sent."""

    def change(incoming: Incoming) -> dict[str, Any]:
        sent = incoming.body.filters
        wanted = sent and msgspec.structs.replace(sent, **other)
        return {"body": msgspec.structs.replace(incoming.body, filters=wanted)}

    return asked(operation_id, change)


def answers(operation_id: str, change: Callable[[Any], dict[str, Any]]) -> Break:
    """The answer is another one: `change` gives other members."""

    async def act(incoming: Incoming, inner: Handler) -> Any:
        answer = await inner(incoming)
        return msgspec.structs.replace(answer, **change(answer))

    return around(operation_id, act)


def says(operation_id: str, **members: Any) -> Break:
    """These members are answered, whatever is so."""
    return answers(operation_id, lambda _: members)


def results(change: Callable[[Any], dict[str, Any]]) -> Break:
    """Every result of a search is another one."""

    def changed(answer: Any) -> dict[str, Any]:
        return {"results": [msgspec.structs.replace(each, **change(each)) for each in answer.results]}

    return answers("search", changed)


def forgives(operation_id: str, code: str, instead: Around) -> Break:
    """What is to be refused with `code` is done, or answered by `instead`."""

    async def act(incoming: Incoming, inner: Handler) -> Any:
        try:
            return await inner(incoming)
        except EngineError as error:
            if error.code != code:
                raise
            return await instead(incoming, inner)

    return around(operation_id, act)


def replaced(where: Any, name: str, other: Any) -> Break:
    """Something of the simulator or the adapter is another thing."""
    return lambda: patch.object(where, name, other)


def status_of_code(code: str) -> Break:
    kind = ERRORS[code]
    other = HTTPStatus.GONE if kind.status != HTTPStatus.GONE else HTTPStatus.CONFLICT
    return lambda: patch.dict(ERRORS, {code: dataclasses.replace(kind, status=other)})


def another_code(code: str, other: str = "internal_error") -> Break:
    kind: ErrorKind = dataclasses.replace(ERRORS[code], code=other)
    return lambda: patch.dict(ERRORS, {code: kind})


def status_of_operation(operation_id: str) -> Break:
    table = tuple(
        dataclasses.replace(operation, status=HTTPStatus.ALREADY_REPORTED)
        if operation.id == operation_id
        else operation
        for operation in OPERATIONS
    )

    def build(handlers: Any, **others: Any) -> Any:
        return build_application(handlers, operations=table, **others)

    return lambda: patch.object(app, "build_application", build)
