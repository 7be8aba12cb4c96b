"""Ways to break a simulator: the requests to its handlers, their results, and the adapter around them.

Each function returns a context manager; a simulator that is created inside it is broken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from unittest.mock import patch

import msgspec

from kb_contracts.api.errors import ERRORS, EngineError, ErrorKind
from kb_contracts.api.operations import OPERATIONS
from kb_http import mount
from kb_http.mount import Handler, build_application
from kb_http.requests import Incoming
from kb_simulator.harness import app

Break = Callable[[], AbstractContextManager[Any]]
Breaks = Mapping[str, Mapping[str, Break]]
"""The mutants by their names, for each test of a module, without its prefix `test_`."""
Around = Callable[[Incoming, Handler], Awaitable[Any]]


@dataclass(frozen=True)
class Mutant:
    """A simulator that breaks one promise. `test` is the test that should notice, as `module::name`."""

    name: str
    test: str
    broken: Break


def mutant(name: str, *, module: str, test: str, broken: Break) -> Mutant:
    """A mutant for `test` (without its prefix `test_`) of a module of the suite."""
    return Mutant(name, f"{module}::test_{test}", broken)


def mutants_of(module: str, breaks: Breaks) -> Iterator[Mutant]:
    """Yield the mutants of a module's tests."""
    for test, mutants in breaks.items():
        for name, broken in mutants.items():
            yield mutant(name, module=module, test=test, broken=broken)


def around(operation_id: str, act: Around) -> Break:
    """Put `act` between the adapter and the handler of one operation."""

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
    """Change the request before the handler gets it: `change` returns the replaced parts."""

    async def act(incoming: Incoming, inner: Handler) -> Any:
        return await inner(dataclasses.replace(incoming, **change(incoming)))

    return around(operation_id, act)


def query(operation_id: str, **other: Any) -> Break:
    return asked(operation_id, lambda incoming: {"query": msgspec.structs.replace(incoming.query, **other)})


def body(operation_id: str, **other: Any) -> Break:
    """Replace members of the JSON body; a multipart body is left as it is."""
    return asked(
        operation_id,
        lambda incoming: {"body": incoming.body and msgspec.structs.replace(incoming.body, **other)},
    )


def filters(*, operation_id: str = "search", **other: Any) -> Break:
    """Replace members of a search's `filters`."""

    def change(incoming: Incoming) -> dict[str, Any]:
        sent = incoming.body.filters
        wanted = sent and msgspec.structs.replace(sent, **other)
        return {"body": msgspec.structs.replace(incoming.body, filters=wanted)}

    return asked(operation_id, change)


def answers(operation_id: str, change: Callable[[Any], dict[str, Any]]) -> Break:
    """Change the result of a handler: `change` returns the replaced members."""

    async def act(incoming: Incoming, inner: Handler) -> Any:
        answer = await inner(incoming)
        return msgspec.structs.replace(answer, **change(answer))

    return around(operation_id, act)


def says(operation_id: str, **members: Any) -> Break:
    """Replace members of the result with constants."""
    return answers(operation_id, lambda _: members)


def results(change: Callable[[Any], dict[str, Any]]) -> Break:

    def changed(answer: Any) -> dict[str, Any]:
        return {"results": [msgspec.structs.replace(each, **change(each)) for each in answer.results]}

    return answers("search", changed)


def forgives(operation_id: str, code: str, instead: Around) -> Break:
    """Use the result of `instead` where the handler would refuse the request with `code`."""

    async def act(incoming: Incoming, inner: Handler) -> Any:
        try:
            return await inner(incoming)
        except EngineError as error:
            if error.code != code:
                raise
            return await instead(incoming, inner)

    return around(operation_id, act)


def replaced(where: Any, name: str, other: Any) -> Break:
    """Replace an attribute of the simulator or the adapter."""
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

    return lambda: patch.object(mount, "build_application", build)
