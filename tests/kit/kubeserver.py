"""An API server for tests, without admission, schemas or defaulting.

List with selectors and pages, watch with resume, bookmarks and 410, create, patch, delete, status, custom
resources. Made for being hurt: credentials and rights can be taken away, watches cut, history forgotten, the whole
server stopped and started again on its port.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.kit.kubestore import (
    Change,
    ConflictError,
    Kind,
    MissingError,
    Object,
    Store,
    identity,
    matches,
    merge,
)  # fmt: skip
from tests.kit.ports import free_ports

if TYPE_CHECKING:
    import ssl

REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "ConflictError", 410: "Expired"}


class KubeServer:
    """The server. Knobs may be turned while it runs.

    Attributes:
        tokens: bearer tokens that are let in; anybody when None.
        denied: plurals that nobody may read, or ``plural.group``.
        bookmark_s: seconds between bookmarks on a watch.
        requests: method, path and query of every request, in order.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.store = Store()
        self.tokens: set[str] | None = None
        self.denied: set[str] = set()
        self.bookmark_s = 60.0
        self.requests: list[str] = []
        self.port = 0
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self._watches: dict[int, web.Request] = {}

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard])
        for root in ("/api/v1", "/apis/{group}/{version}"):
            for scope in ("", "/namespaces/{namespace}"):
                path = f"{root}{scope}/{{plural}}"
                app.router.add_get(path, self._list)
                app.router.add_post(path, self._create)
                for tail in ("", "/{sub:status}"):
                    app.router.add_patch(f"{path}/{{name}}{tail}", self._patch)
                app.router.add_delete(f"{path}/{{name}}", self._delete)
                app.router.add_get(f"{path}/{{name}}", self._get)
                app.router.add_put(f"{path}/{{name}}", self._put)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        port = self.port or free_ports()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def cut_watches(self) -> int:
        """Break the connection of every watch, without a word."""
        watches = list(self._watches.values())
        for request in watches:
            if request.transport is not None:
                request.transport.abort()
        return len(watches)

    async def compact(self) -> None:
        """Forget history: running watches are told 410, and so is whoever resumes from before."""
        await self.store.compact()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            return failure(401, "Unauthorized")
        plural = request.match_info.get("plural", "")
        group = request.match_info.get("group", "")
        if {plural, f"{plural}.{group}"} & self.denied and request.method == "GET":
            return failure(
                403,
                f'{plural} is forbidden: User "picker" cannot list resource "{plural}" in API group "{group}"',
            )
        try:
            answer: web.StreamResponse = await handler(request)
        except MissingError as error:
            return failure(404, f'{plural} "{error}" not found')
        except ConflictError as error:
            return failure(409, str(error))
        return answer

    def _kind(self, request: web.Request) -> Kind:
        info = request.match_info
        kind = self.store.kinds.get((info.get("group", ""), info["plural"]))
        if kind is None or kind.version != info.get("version", "v1"):
            raise web.HTTPNotFound(
                content_type="application/json",
                text=json.dumps(status(404, "the server could not find the requested resource")),
            )
        return kind

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind = self._kind(request)
        query = request.query
        if query.get("watch", "").lower() in {"true", "1"}:
            return await self._watch(request, kind)
        # A page names the version and the place that the next one goes on from, as the real server's does.
        version, _, last = query.get("continue", "").partition("|")
        if version and int(version) < self.store.oldest:
            return failure(410, "The provided continue parameter is too old")
        found = sorted((o for o in self.store.of(kind).values() if _selected(o, request)), key=identity)
        found = [each for each in found if "/".join(identity(each)) > last]
        limit = int(query.get("limit", "0")) or len(found) or 1
        meta = {"resourceVersion": version or str(self.store.version)}
        if len(found) > limit:
            meta["continue"] = f"{meta['resourceVersion']}|{'/'.join(identity(found[limit - 1]))}"
        items = [_view(each, request) for each in found[:limit]]
        partial = _partial(request)
        return web.json_response({
            "kind": "PartialObjectMetadataList" if partial else f"{kind.kind}List",
            "apiVersion": "meta.k8s.io/v1" if partial else kind.group_version,
            "metadata": meta, "items": items,
        })  # fmt: skip

    async def _watch(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        store, query = self.store, request.query
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + float(query.get("timeoutSeconds", "3600"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        seen = int(query.get("resourceVersion", "0") or 0)
        if not seen:
            for each in sorted(store.of(kind).values(), key=identity):
                if _selected(each, request):
                    await _send(response, "ADDED", _view(each, request))
            seen = store.version
        self._watches[id(request)] = request
        try:
            while True:
                if seen < store.oldest:
                    await _send(
                        response, "ERROR", status(410, f"too old resource version: {seen} ({store.oldest})")
                    )
                    return response
                for change in store.since(seen, kind):
                    await _tell(response, request, change)
                seen = store.version
                if kind.key not in store.kinds or loop.time() >= ends_s:
                    return response
                async with store.changed:
                    if store.version == seen and not await self._quiet(ends_s - loop.time()):
                        continue
                if query.get("allowWatchBookmarks") == "true":
                    mark = {"kind": kind.kind, "apiVersion": kind.group_version,
                            "metadata": {"resourceVersion": str(seen)}}  # fmt: skip
                    await _send(response, "BOOKMARK", mark)
        except ConnectionError:
            return response
        finally:
            del self._watches[id(request)]

    async def _quiet(self, left_s: float) -> bool:
        """Wait for a change; True when it is time for a bookmark instead."""
        try:
            async with asyncio.timeout(max(0.0, min(self.bookmark_s, left_s))):
                await self.store.changed.wait()
        except TimeoutError:
            return True
        return False

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._target(request))

    async def _put(self, request: web.Request) -> web.Response:
        before, after = self._target(request), await _body(request)
        if after["metadata"].get("resourceVersion") != before["metadata"]["resourceVersion"]:
            raise ConflictError("the object has been modified")
        return web.json_response(await self.store.replace(self._kind(request), before, after))

    async def _create(self, request: web.Request) -> web.Response:
        kind = self._kind(request)
        made = await self.store.create(kind, request.match_info.get("namespace", ""), await _body(request))
        return web.json_response(made, status=201)

    async def _patch(self, request: web.Request) -> web.Response:
        before, patch = self._target(request), await _body(request)
        if request.match_info.get("sub"):
            patch = {"status": patch.get("status", {})}
        return web.json_response(await self.store.replace(self._kind(request), before, merge(before, patch)))

    async def _delete(self, request: web.Request) -> web.Response:
        asked = request.query.get("gracePeriodSeconds")
        grace_s = None if asked is None else int(asked)
        return web.json_response(await self.store.delete(self._kind(request), self._target(request), grace_s))

    def _target(self, request: web.Request) -> Object:
        info = request.match_info
        return self.store.get(self._kind(request), info.get("namespace", ""), info["name"])


def status(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
            "code": code, "reason": REASONS.get(code, "InternalError"), "message": message}  # fmt: skip


def failure(code: int, message: str) -> web.Response:
    return web.json_response(status(code, message), status=code)


async def _body(request: web.Request) -> Object:
    body: Object = await request.json()
    return body


def _selected(target: Object, request: web.Request) -> bool:
    namespace = request.match_info.get("namespace", "")
    if namespace and target["metadata"].get("namespace") != namespace:
        return False
    return matches(target, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))


def _partial(request: web.Request) -> bool:
    return "as=PartialObjectMetadata" in request.headers.get("Accept", "")


def _view(target: Object, request: web.Request) -> Object:
    if not _partial(request):
        return target
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": target["metadata"]}


async def _tell(response: web.StreamResponse, request: web.Request, change: Change) -> None:
    """What a change is to somebody who sees only what is selected."""
    was = change.before is not None and _selected(change.before, request)
    now = change.after is not None and _selected(change.after, request)
    if now and change.after is not None:
        await _send(response, "MODIFIED" if was else "ADDED", _view(change.after, request))
    elif was:
        shown = change.after or change.before
        assert shown is not None
        await _send(response, "DELETED", _view(shown, request))


async def _send(response: web.StreamResponse, event: str, target: Object) -> None:
    await response.write(json.dumps({"type": event, "object": target}).encode() + b"\n")
