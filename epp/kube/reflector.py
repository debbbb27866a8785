"""One resource of the API server, mirrored: list, watch from there, resume, and list again when that is lost.

Owns the objects of its resource and what is wrong with it. A failure keeps what was known: only an answer of
the server, a list without the object or its deletion, takes it away.

* A watch that ends in order is resumed from the last resource version seen, bookmarks included, at once; one
  that breaks, after a back-off with jitter. 410 Gone means listing again.
* Every so often a watch is not resumed but the resource listed again, so that whatever went wrong unseen
  (etcd restored from a backup, a defect anywhere) heals by itself.
* Two lists in a row never come faster than the back-off, whatever the server does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from epp.keyed_uniform import keyed_uniform
from epp.kube.objects import Named, ObjectList, Status, WatchEvent
from epp.kube.problems import KubeError, Reason, reason_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from typing import Protocol

    from epp.clock import Clock
    from epp.kube.api import KubeApi

    class Observer(Protocol):
        """Counts what happens to a resource; names are from a closed set."""

        def failed(self, resource: str, reason: str) -> None: ...  # noqa: D102  # its name says it
        def ok(self, resource: str, *, ok: bool) -> None: ...  # noqa: D102  # its name says it


T = TypeVar("T", bound=Named)
K = TypeVar("K", bound=Named)
Sleep = Callable[[float], "Awaitable[None]"]
log = logging.getLogger(__name__)

PAGE_OBJECTS = 500
#: A watch is asked to last between these; the server ends it then in order.
WATCH_S = (240.0, 300.0)
#: Age of the last list from which on a watch that ended, or was cut, is not resumed.
RELIST_S = 900.0
#: A watch shorter than this does not count as one that worked.
SHORT_S = 1.0
#: Cuts in a row from which on they are worth a warning.
_PASSING = 3

_list = msgspec.json.Decoder(ObjectList).decode
_event = msgspec.json.Decoder(WatchEvent).decode
_bookmark = msgspec.json.Decoder(Named).decode
_status = msgspec.json.Decoder(Status).decode


#: Shortest and longest bound of a wait.
FIRST_S, LONGEST_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """What is mirrored.

    Attributes:
        name: the resource's plural, for people and metrics.
        path: path of the collection.
        decode: JSON to object.
        params: selectors.
        metadata_only: ask for metadata alone.
        spared: failures that are no reason for a warning: clusters do without it.
    """

    name: str
    path: str
    decode: Callable[[bytes | msgspec.Raw], T]
    params: Mapping[str, str] = field(default_factory=dict)
    metadata_only: bool = False
    spared: frozenset[Reason] = frozenset()


class Tools(NamedTuple):
    """What every reflector needs of its surroundings."""

    api: KubeApi
    observer: Observer
    clock: Clock
    sleep: Sleep
    seed: int


class Reflector(Generic[T]):
    """Mirrors one resource while `run` runs.

    Args:
        resource: what to mirror.
        tools: the API server, the time, where to count.
        changed: called after every change of objects or of `problem`.
        explain: what is wrong, for the log; the error's own words unless somebody knows more.
    """

    def __init__(
        self,
        resource: Resource[T],
        tools: Tools,
        changed: Callable[[], None],
        explain: Callable[[KubeError], str] = str,
    ) -> None:
        self.resource = resource
        self.objects: dict[str, T] = {}
        self.synced = False
        self.problem: KubeError | None = None
        self._tools, self._changed, self._explain = tools, changed, explain
        #: Waits in a row; 0 once it worked.
        self._failures = self._draws = 0
        self._version = ""
        self._listed_s = 0.0
        self._warned = False

    async def run(self) -> None:
        """Mirror for ever."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KubeError as error:
                await self._failed(error)

    async def _list(self) -> None:
        resource = self.resource
        found: dict[str, T] = {}
        params = {**resource.params, "limit": str(PAGE_OBJECTS)}
        while True:
            answer = await self._tools.api.get(resource.path, params, metadata_only=resource.metadata_only)
            try:
                page = _list(answer)
            except ValueError as error:
                raise KubeError(Reason.MALFORMED, f"the list of {resource.name}: {error}") from error
            for text in page.items or ():
                item = self._decode(text, resource.decode)
                if item is not None:
                    found[_key(item)] = item
            if not page.metadata.continue_:
                break
            params["continue"] = page.metadata.continue_
        if not page.metadata.resource_version:
            raise KubeError(Reason.MALFORMED, f"the list of {resource.name} has no resourceVersion")
        self.objects = found
        self._version, self._listed_s = page.metadata.resource_version, self._tools.clock.mono_s()
        self._mended()
        self.synced = True
        self._changed()

    async def _watch(self) -> None:
        resource, clock = self.resource, self._tools.clock
        low, high = WATCH_S
        params = {
            **resource.params,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(low + (high - low) * self._draw("watch"))),
        }
        began_s, events = clock.mono_s(), 0
        opened = False
        watching = self._tools.api.watch(resource.path, params, metadata_only=resource.metadata_only)
        try:
            async with watching as lines:
                opened = True
                self._mended()
                async for line in lines:
                    self._take(line)
                    events += 1
        finally:
            now_s = clock.mono_s()
            # One that was never opened has not worked, however long that took.
            if events or (opened and now_s - began_s >= SHORT_S):
                self._failures = 0
                self._warned = False
            if now_s - self._listed_s >= RELIST_S:  # however it ended: a proxy may cut every watch
                self._version = ""
        if not events and now_s - began_s < SHORT_S:
            await self._tools.sleep(self._wait_s())

    def _take(self, line: bytes) -> None:
        try:
            event = _event(line)
        except ValueError as error:
            # What this event said is lost, and with it the right to go on from here.
            self._version = ""
            raise KubeError(Reason.MALFORMED, f"a watch of {self.resource.name}: {error}") from error
        if event.type == "ERROR":
            raise self._told(event)
        if event.type == "BOOKMARK":  # a version and nothing else: custom resources come without their spec
            mark = self._decode(event.object, _bookmark)
            self._version = (mark and mark.metadata.resource_version) or self._version
            return
        item = self._decode(event.object, self.resource.decode)
        if item is None:
            return
        self._version = item.metadata.resource_version or self._version
        if event.type == "DELETED":
            self.objects.pop(_key(item), None)
        else:
            self.objects[_key(item)] = item
        self._changed()

    def _told(self, event: WatchEvent) -> KubeError:
        try:
            status = _status(event.object)
        except ValueError:
            status = Status()
        # Whatever the error, client libraries agree: the version that led to it is not to be used again.
        self._version = ""
        return KubeError(reason_of(status.code), status.message or "the watch ended with an error")

    def _decode(self, text: msgspec.Raw, decode: Callable[[msgspec.Raw], K]) -> K | None:
        try:
            return decode(text)
        except ValueError as error:
            log.warning("an object among the %s cannot be read: %s", self.resource.name, error)
            self._tools.observer.failed(self.resource.name, Reason.MALFORMED.value)
            return None

    async def _failed(self, error: KubeError) -> None:
        name = self.resource.name
        self._tools.observer.failed(name, error.reason.value)
        if error.reason in {Reason.GONE, Reason.NOT_FOUND}:
            self._version = ""
        if error.reason is Reason.GONE:
            log.info("%s: the watch is too old, listing again", name)
        else:
            # One cut connection is an event of every day; what lasts is worth a person's time, once.
            passing = error.reason is Reason.UNREACHABLE and self._failures < _PASSING
            if error.reason in self.resource.spared:
                log.debug("%s: %s", name, error)
            elif self.synced and passing:
                log.info("the watch of %s was cut, going on: %s", name, error)
            elif not self._warned:
                log.warning("%s", self._explain(error))
                self._warned = True
            self.problem = error
            if error.reason not in self.resource.spared:
                self._tools.observer.ok(name, ok=False)
            self._changed()
        await self._tools.sleep(max(error.retry_after_s, self._wait_s()))

    def _wait_s(self) -> float:
        """Seconds to wait now: between half and all of a bound that doubles."""
        bound = min(LONGEST_S, FIRST_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return bound * (0.5 + 0.5 * self._draw("retry"))

    def _draw(self, salt: str) -> float:
        """A number in [0, 1), so that pickers do not march in step."""
        self._draws += 1
        return keyed_uniform(self._tools.seed, f"{self.resource.name}/{self._draws}", salt)

    def _mended(self) -> None:
        self._tools.observer.ok(self.resource.name, ok=True)
        if self.problem is not None:
            if self._warned:
                log.info("the API server answers on %s again", self.resource.name)
            self.problem = None
            self._changed()


def _key(item: Named) -> str:
    return f"{item.metadata.namespace}/{item.metadata.name}"
