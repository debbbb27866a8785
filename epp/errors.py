"""Errors that cross module borders.

EppError
├── ConfigError      an operator's file is wrong: names the file, the key and the fix
│   └── ConfigErrors several errors at once, in the order of the files
├── ClientError      a request is wrong: carries the HTTP status and words for the client
├── NotAdmittedError a request is not let in for now: carries words for the client
├── NoEndpointError  no endpoint may serve a request: names the rule that removed the last one
└── UnreadableError  bytes of another process, or of a disk, are no message
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: Errors reported at once: a generated file may have one in each of its ten thousand endpoints.
MOST_ERRORS = 100


class EppError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(EppError):
    """A configuration file, or a value in it, cannot be used.

    Args:
        source: the file (or ``<text>``) the value came from.
        key: dotted path of the key, ``""`` for the file as a whole.
        problem: what is wrong.
        fix: what to write instead.
    """

    def __init__(self, source: str, key: str, problem: str, fix: str = "") -> None:
        self.source, self.key, self.problem, self.fix = source, key, problem, fix
        place = f"{source}: {key}" if key else source
        super().__init__(f"{place}: {problem}" + (f" ({fix})" if fix else ""))

    @property
    def errors(self) -> Sequence[ConfigError]:
        """The errors one by one."""
        return (self,)


class ConfigErrors(ConfigError):  # noqa: N818  # several of them
    """Several errors; ``source``, ``key``, ``problem`` and ``fix`` are those of the first.

    Args:
        errors: two at least; beyond `MOST_ERRORS` it is only reported that there are more.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        if len(errors) > MOST_ERRORS:
            more = ConfigError(first.source, "", "there are more errors", "correct these first")
            errors = (*errors[:MOST_ERRORS], more)
        super().__init__(first.source, first.key, first.problem, first.fix)
        self.args = ("; ".join(map(str, errors)),)
        self._errors = tuple(errors)

    @property
    def errors(self) -> Sequence[ConfigError]:
        """The errors one by one."""
        return self._errors


@contextmanager
def gather(errors: list[ConfigError]) -> Iterator[None]:
    """Add a `ConfigError` of the block to the list instead of raising it: more may be wrong after it."""
    try:
        yield
    except ConfigError as error:
        errors.extend(error.errors)


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raise what was gathered, if anything.

    Raises:
        ConfigError: the only one, or `ConfigErrors`.
    """
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)


class ClientError(EppError):
    """A request that cannot be served as sent; becomes an HTTP error in the words of its API.

    Args:
        status: HTTP status code, 4xx.
        message: one sentence for the person who wrote the client.
        param: the offending field of the body, if one can be named.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        self.status, self.message, self.param = status, message, param
        super().__init__(message)


class NotAdmittedError(EppError):
    """A request has to wait for better times; becomes 429 with the message.

    Args:
        message: for the client.
        rule: what refused it.
        retry_after_s: when it may find room, 0 where that is not known.
    """

    def __init__(self, message: str, rule: str = "saturated", retry_after_s: int = 0) -> None:
        self.rule, self.retry_after_s = rule, retry_after_s
        super().__init__(message)


class NoEndpointError(EppError):
    """No endpoint is eligible; becomes 503.

    Args:
        rule: the rule that removed the last candidate, e.g. ``"pool-empty"`` or ``"model"``.
        message: one sentence that names the rule and what it asked for.
    """

    def __init__(self, rule: str, message: str) -> None:
        self.rule, self.message = rule, message
        super().__init__(message)


class UnreadableError(EppError):
    """Bytes of another process, or of a disk, are not what they should be."""
