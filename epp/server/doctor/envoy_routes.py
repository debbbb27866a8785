"""Checks of routes: time limits, retries and body limits, of those that the picker is asked about. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.server.doctor.envoy_tree import Tree, seconds

if TYPE_CHECKING:
    from epp.server.doctor.findings import Report

#: Default of a route's timeout, which counts to the end of the answer.
ROUTE_TIMEOUT_S = 15.0
#: An answer of some thousand tokens takes minutes.
SHORT_S = 120.0
_RETRIED = ("connect-failure", "5xx", "gateway-error", "reset", "reset-before-request")


def check_routes(
    report: Report, configurations: list[Tree], *, buffered: bool, nowhere: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Check the routes on which the picker is asked; the clusters that they lead to.

    Args:
        report: gets the findings.
        configurations: route configurations.
        buffered: whether request bodies are held for the picker.
        nowhere: clusters without hosts; routes to them only refuse.
    """
    targets = set()
    for configuration in configurations:
        for host in configuration.get("virtual_hosts", []):
            for route in host.get("routes", []):
                action = route.get("route")
                if (
                    action is None
                    or _not_asked(host)
                    or _not_asked(route)
                    or action.get("cluster") in nowhere
                ):
                    continue
                name = route.get("name") or action.get("cluster") or "without a name"
                weighted = action.get("weighted_clusters", {}).get("clusters", [])
                targets |= {action.get("cluster", ""), *(one.get("name", "") for one in weighted)}
                _timeout(report, name, action)
                _retries(report, name, action.get("retry_policy", host.get("retry_policy")))
                if buffered:
                    _body_limit(report, name, route, host)
    return frozenset(targets - {""})


def _not_asked(holder: Tree) -> bool:
    return any(
        config.get("disabled", False)
        for config in holder.get("typed_per_filter_config", {}).values()
        if str(config.get("@type", "")).endswith("ExtProcPerRoute")
    )


def _timeout(report: Report, name: str, action: Tree) -> None:
    timeout_s = seconds(action.get("timeout"), ROUTE_TIMEOUT_S)
    if 0.0 < timeout_s <= SHORT_S:
        report.error(
            "envoy",
            f"route {name} ends a request after {timeout_s:g} s",
            "longer answers are cut, while tokens still flow",
            "set timeout: 0s on the route, and let idle_timeout find what hangs",
        )


def _retries(report: Report, name: str, policy: Tree | None) -> None:
    conditions = (policy or {}).get("retry_on", "").split(",")
    if not any(condition.strip() in _RETRIED for condition in conditions):
        report.warning(
            "envoy",
            f"route {name} does not retry when an endpoint cannot be reached",
            "a dead endpoint fails requests until it is ejected",
            "set retry_on: connect-failure,refused-stream,reset-before-request",
        )
    elif any(condition.strip() in ("5xx", "gateway-error") for condition in conditions):
        report.advice(
            "envoy",
            f"route {name} retries answers of the engine itself ({', '.join(conditions)})",
            "an engine that is overloaded gets its work twice",
            "retry only what an endpoint never saw: connect-failure,refused-stream,reset-before-request",
        )


def _body_limit(report: Report, name: str, route: Tree, host: Tree) -> None:
    """Without a limit here Envoy buffers as much as the connection's buffer holds, 1 MiB by default."""
    keys = ("request_body_buffer_limit", "per_request_buffer_limit_bytes")
    if not any(key in holder for key in keys for holder in (route, host)):
        report.advice(
            "envoy",
            f"route {name} sets no limit on buffered request bodies",
            "bodies over the connection's buffer (1 MiB by default, some 200,000 tokens of text) get 413",
            "set request_body_buffer_limit on the route",
        )
