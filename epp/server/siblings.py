"""What a worker does for the others of its host: reports, /metrics and decisions that are theirs.

A report of Envoy's goes to the worker that made the decision, which its id names. /metrics shows the series
of all workers, told apart by the label ``worker``; a decision, and a verdict on one, is looked for at each.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from functools import partial
from http import HTTPStatus
from itertools import pairwise
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from epp.cluster.host_link import HostLink, Mailbox
from epp.config.address import UNIX
from epp.request.routed_reports import RoutedReports
from epp.rpc.connection_balancer import ConnectionBalancer
from epp.server.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aiohttp.typedefs import Handler

    from epp.clock import Clock
    from epp.cluster.link import Link
    from epp.cluster.messages import Group
    from epp.request.access_log import Reports
    from epp.server.process import DecisionIds
    from epp.server.workers import Worker
    from epp.signals.datastore import Datastore

#: Kind of datagrams (`Mailbox`) with a report.
_REPORT = b"R"
#: Marks what one worker asks another: the answer is that worker's own.
_ASKED = "x-epp-worker"
_ANSWER_S = 3.0
_FAMILY = re.compile(rb"^# HELP (\S+)", re.MULTILINE)
_SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", re.MULTILINE)


class Siblings(Host):
    """The other workers, as one of them sees them.

    Args:
        worker: which one.
    """

    one_signal_s = 1.0  # a terminal, or systemd, tells all processes, and so does the parent

    def __init__(self, worker: Worker) -> None:
        self._worker, self.index = worker, worker.index
        self._mailbox = Mailbox(worker.folder, worker.index, worker.count)
        self.balancer: ConnectionBalancer = ConnectionBalancer(worker.board, worker.index)
        self.http = f"{UNIX}{self._http(worker.index)}"
        self.middlewares = (self._with_others,)
        self._orphaned = False

    def _http(self, index: int) -> Path:
        return self._worker.folder / f"{index}.http"

    def link(self, group: Callable[[], Group], datastore: Datastore, clock: Clock) -> Link:
        """Make what shares with the others."""
        return HostLink(self._mailbox, group(), datastore, clock)

    def route(self, own: Reports, ids: DecisionIds) -> Reports:
        """Make what takes Envoy's reports, of which ``own`` takes this worker's."""
        mailbox = self._mailbox

        def maker_of(decision_id: str) -> int | None:
            worker = ids.worker_of(decision_id)
            return worker if worker in mailbox.others else None

        routed = RoutedReports(own, maker_of, lambda worker, report: mailbox.send(worker, _REPORT, report))
        mailbox.handlers[_REPORT] = routed.take
        return routed

    def listen(self) -> None:
        """Hear the others from now on."""
        self._mailbox.listen()

    def beat(self, *, ready: bool) -> bool:
        """Show that this worker goes on; without a parent it ends in order. Whether another one is ready."""
        if os.getppid() != self._worker.parent and not self._orphaned:
            self._orphaned = True
            os.kill(os.getpid(), signal.SIGTERM)
        return self.balancer.beat(ready=ready)

    def close(self) -> None:
        """Hear them no more."""
        self._mailbox.close()

    @web.middleware
    async def _with_others(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if _ASKED not in request.headers:
            if request.path == "/metrics":
                return await self._page(request, handler)
            if request.path.startswith("/decisions/"):
                return await self._found(request, handler)
        return await handler(request)

    async def _page(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        others = self._mailbox.others
        asked = asyncio.gather(*(self._ask(index, request) for index in others))
        own = await handler(request)
        found = dict(zip(others, await asked, strict=True))
        if isinstance(own, web.Response) and own.status == HTTPStatus.OK and isinstance(own.body, bytes):
            pages = {index: page for index, (status, page) in found.items() if status == HTTPStatus.OK}
            own.body = merged({self.index: own.body, **pages})
        return own

    async def _found(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await handler(request)
        if answer.status == HTTPStatus.NOT_FOUND:
            for index in self._mailbox.others:
                status, content = await self._ask(index, request)
                if status not in (0, HTTPStatus.NOT_FOUND):
                    return web.Response(status=status, body=content, content_type="application/json")
        return answer

    async def _ask(self, index: int, request: web.Request) -> tuple[int, bytes]:
        """Ask a worker the same; status 0 where it does not answer."""
        body = await request.read()
        connector, limit = aiohttp.UnixConnector(str(self._http(index))), aiohttp.ClientTimeout(_ANSWER_S)
        url = f"http://localhost{request.rel_url}"
        headers = {_ASKED: "1", "content-type": request.content_type}
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=limit) as http,
                http.request(request.method, url, data=body, headers=headers) as answer,
            ):
                return answer.status, await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, b""


def merged(pages: Mapping[int, bytes]) -> bytes:
    """Join pages of /metrics: each family once, its series with the label ``worker``."""
    families: dict[bytes, list[bytes]] = {}
    for index, page in sorted(pages.items()):
        labelled = partial(_labelled, b'worker="%d"' % index)
        for start, end in pairwise([*(found.start() for found in _FAMILY.finditer(page)), len(page)]):
            helps, kind, samples = page[start:end].split(b"\n", 2)
            family = families.setdefault(helps, [helps + b"\n" + kind + b"\n"])
            family.append(_SAMPLE.sub(labelled, samples))
    return b"".join(part for family in families.values() for part in family)


def _labelled(label: bytes, sample: re.Match[bytes]) -> bytes:
    name, labels = sample.groups()
    return b"%s{%s} " % (name, b",".join(filter(None, (label, labels))))
