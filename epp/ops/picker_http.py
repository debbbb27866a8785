"""What the commands ask of a running picker's HTTP side, and what they say where it does not answer."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from http.client import HTTPResponse

_TIMEOUT_S = 5
#: Name of the temporary folder of a run of `epp up`, and of its files: the one that it has locked, and the
#: picker's addresses.
UP_FOLDER, UP_LOCK, UP_READY = "epp-up-", "lock", "ready.json"


def newest_up() -> str:
    """Find the picker of this user's newest running `epp up`.

    Raises:
        EppError: none runs.
    """
    found: list[tuple[float, str]] = []
    for ready in Path(tempfile.gettempdir()).glob(f"{UP_FOLDER}*/{UP_READY}"):
        # Another user's folder is passed over, and one that goes meanwhile.
        with contextlib.suppress(OSError, ValueError):
            if ready.parent.stat().st_uid == os.getuid() and _is_locked(ready.with_name(UP_LOCK)):
                found.append((ready.stat().st_mtime, json.loads(ready.read_bytes())["http"]))
    if found:
        return f"http://{max(found)[1]}"
    raise EppError("no `epp up` runs here: name a picker by --url, or records by --records")


def _is_locked(path: Path) -> bool:
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def answered(
    url: str,
    path: str,
    body: Mapping[str, object] | bytes | None = None,
    *,
    timeout_s: float = _TIMEOUT_S,
) -> Iterator[HTTPResponse]:
    """A picker's answer, read within the block.

    Args:
        url: the picker's HTTP side, as an operator wrote it.
        path: what is asked for there, quoted.
        body: what is told, as JSON; None to ask only.
        timeout_s: how long it may be silent.

    Raises:
        EppError: nobody answers, it is refused, or what is read makes no sense (a ValueError of the block).
    """
    address = f"{url.rstrip('/')}/{path}"
    if not address.startswith(("http://", "https://")):
        raise EppError(f"{url} is not an http address, e.g. http://{url}")
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    header = {} if body is None else {"content-type": "application/json"}
    try:
        request = Request(address, data, header)  # noqa: S310  # scheme checked above
        with urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # scheme checked above
            yield answer
    except HTTPError as error:
        raise EppError(f"{address}: {_reason(error)}") from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        why = error.reason if isinstance(error, URLError) else error
        words = getattr(why, "strerror", None) or why
        raise EppError(f"{address}: {words} (--url is the picker's listen.http; does it run?)") from error


def _reason(error: HTTPError) -> str:
    """What a picker says of a request that it refused, in its own words where it gave any."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return str(error)
