"""The kit's API server with what Helm needs beyond it: a chart's kinds, strategic merge patches, secrets in protobuf.

Helm keeps its releases in Secrets, and its client library writes those in protobuf, whatever else is offered;
field numbers are those of the API's published types.

Of strategic merge patches only what Helm sends is here: lists of objects merged by their key, ``$patch``,
``$retainKeys`` and orders. A real server checks objects besides; this one takes anything.
"""

from __future__ import annotations

import base64
import copy
from typing import TYPE_CHECKING, Any

from aiohttp import web
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.kit.kubeserver import KubeServer, _body
from tests.kit.kubestore import Kind, merge

if TYPE_CHECKING:
    from tests.kit.kubestore import Object

RBAC = "rbac.authorization.k8s.io"
KINDS = (
    Kind("", "v1", "secrets", "Secret", status=False),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", status=False),
    Kind("apps", "v1", "deployments", "Deployment"),
    Kind(RBAC, "v1", "roles", "Role", status=False),
    Kind(RBAC, "v1", "rolebindings", "RoleBinding", status=False),
    Kind(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False, status=False),
    Kind(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False, status=False),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", status=False),
)
#: Fields by which entries of a list are the same one, tried in order; as in the API's own types.
_KEYS = ("mountPath", "containerPort", "name", "port", "key")


class HelmServer(KubeServer):
    """The server."""

    def __init__(self) -> None:
        super().__init__()
        self.store.kinds |= {kind.key: kind for kind in KINDS}

    async def _create(self, request: web.Request) -> web.Response:
        kind, namespace = self._kind(request), request.match_info.get("namespace", "")
        given = await _read(request)
        return web.json_response(await self.store.create(kind, namespace, given), status=201)

    async def _replace(self, request: web.Request) -> web.Response:
        given = await _read(request)
        return web.json_response(await self.store.replace(self._kind(request), self._target(request), given))

    async def _delete(self, request: web.Request) -> web.Response:
        return web.json_response(await self.store.delete(self._kind(request), self._target(request), 0))

    async def _patch(self, request: web.Request) -> web.Response:
        if "strategic-merge-patch" not in request.content_type:
            return await super()._patch(request)
        before, patch = self._target(request), await _body(request)
        after = strategic(before, patch)
        return web.json_response(await self.store.replace(self._kind(request), before, after))


async def _read(request: web.Request) -> Object:
    if "protobuf" not in request.content_type:
        return await _body(request)
    # "k8s" and a zero byte, then an envelope whose second field is the object.
    envelope = _fields((await request.read())[4:])
    return secret(envelope[2][0])


def secret(text: bytes) -> Object:
    """A Secret out of its protobuf: metadata 1, data 2, type 3."""
    fields = _fields(text)
    meta = _fields(fields[1][0])
    names = {1: "name", 3: "namespace", 6: "resourceVersion"}
    metadata: Object = {name: meta[number][0].decode() for number, name in names.items() if number in meta}
    metadata["labels"] = {key: value.decode() for key, value in _pairs(meta.get(11, []))}
    data = {key: base64.b64encode(value).decode() for key, value in _pairs(fields.get(2, []))}
    return {"metadata": metadata, "type": fields[3][0].decode(), "data": data}


def _pairs(entries: list[bytes]) -> list[tuple[str, bytes]]:
    """Entries of a map: key 1, value 2."""
    found = [_fields(entry) for entry in entries]
    return [(each[1][0].decode(), each[2][0]) for each in found]


def _fields(text: bytes) -> dict[int, list[bytes]]:
    """What a message holds by field number, of those that are bytes; no descriptor is needed for that."""
    message = Empty()
    message.ParseFromString(text)
    found: dict[int, list[bytes]] = {}
    for each in UnknownFieldSet(message):  # type: ignore[attr-defined]  # its stub forgets it
        if isinstance(each.data, bytes):
            found.setdefault(each.field_number, []).append(each.data)
    return found


def strategic(target: Object, patch: Object) -> Object:
    """An object after a strategic merge patch."""
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    made = copy.deepcopy(target)
    if (kept := patch.get("$retainKeys")) is not None:
        made = {key: value for key, value in made.items() if key in kept}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = strategic(made[key], value)
        elif isinstance(value, list) and isinstance(made.get(key), list):
            made[key] = _lists(made[key], value, patch.get(f"$setElementOrder/{key}"))
        else:
            made = merge(made, {key: value})
    return made


def _lists(given: list[Any], patch: list[Any], order: list[Any] | None) -> list[Any]:
    if not all(isinstance(each, dict) for each in [*given, *patch]):
        return patch
    field = next((key for key in _KEYS if all(key in each for each in [*given, *patch])), None)
    if field is None:
        return patch
    found = {each[field]: each for each in given}
    for each in patch:
        name = each[field]
        if each.get("$patch") == "delete":
            found.pop(name, None)
        else:
            found[name] = strategic(found.get(name, {}), each)
    wanted = [entry[field] for entry in order or ()] or list(found)
    return [found[name] for name in wanted if name in found]
