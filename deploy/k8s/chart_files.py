"""Write the Envoy configurations that the Helm chart installs.

    python -m deploy.k8s.chart_files

They are rendered by the same code as `epp envoy render`, with marks where a chart's value goes; every mark
then becomes a template action. So the chart's Envoy is the renderer's, which a test checks on what Helm
makes of it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from epp.config.relays import Relays
from epp.envoy.render import render, render_relay
from epp.envoy.settings import EnvoySettings, Variant
from epp.types import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = Path(__file__).resolve().parent / "chart" / "files"

#: Socket of the picker's listener for first tokens, in a volume of the pod.
FIRST_TOKEN = "/run/epp/first-token.sock"  # noqa: S105  # a path
_HOST, _PATTERN, _CA = "listen-host.mark", "destination-pattern-mark", "/upstream-ca-mark"
_PICKERS = "pickers.mark"
_BODY_BYTES, _HEAP_BYTES, _MESSAGE_MS = 1_111_111_111, 2_222_222_222, 333_333
_OPEN_PATH = "/openpathmark"
_QUEUE_WAIT_S, _QUEUE_REQUESTS = 333_333_000, 44_444_444
_PLAIN, _TLS = Endpoint("plain.mark:1111"), Endpoint("tls.mark:2222", tls=True, server_name="name.mark")

_ACTIONS = {
    _HOST: "{{ .Values.standalone.listenHost | quote }}",
    _PICKERS: '{{ include "gorgo-epp.fullname" . }}-pickers',
    str(_BODY_BYTES): "{{ int64 .Values.maxBodyBytes }}",
    str(_BODY_BYTES + 1): "{{ add 1 (int64 .Values.maxBodyBytes) }}",
    str(_HEAP_BYTES): "{{ int64 .Values.standalone.maxHeapBytes }}",
    f"{_MESSAGE_MS / 1000}s": '{{ include "gorgo-epp.messageTimeout" . }}',
    f"{_QUEUE_WAIT_S + 6}s": '{{ include "gorgo-epp.longestWait" . }}',
    str(6 * _QUEUE_REQUESTS): '{{ mul 3 (include "gorgo-epp.requests" .) }}',
    str(2 * _QUEUE_REQUESTS): '{{ include "gorgo-epp.requests" . }}',
    _PATTERN: '{{ include "gorgo-epp.destinations" . }}',
    _CA: "{{ .Values.standalone.upstreamCa }}",
    f"|{_OPEN_PATH}": '{{ include "gorgo-epp.openPaths" . }}',
}  # fmt: skip

_BARE = '(regexReplaceAll ":[0-9]+$" .address "" | trimAll "[]")'
_HOST_OF = f"{{{{ {_BARE} | quote }}}}"
_ONE = f"""\
        {{{{- range .Values.endpoints.list }}}}
        - endpoint:
            address:
              socket_address:
                address: {_HOST_OF}
                port_value: {{{{ regexFind "[0-9]+$" .address }}}}
            hostname: {{{{ .server_name | default {_BARE} | quote }}}}
          {{{{- if .draining }}}}
          health_status: DRAINING
          {{{{- end }}}}
          {{{{- if .tls }}}}
          metadata:
            filter_metadata:
              envoy.transport_socket_match:
                tls: name
          {{{{- end }}}}
        {{{{- end }}}}
"""
_LOOP, _END = "        {{- range .Values.endpoints.list }}\n", "        {{- end }}\n"
_ONE_OF_REGION = (
    _LOOP
    + '        {{- if include "gorgo-epp.here" (list $ .) }}\n'
    + _ONE.removeprefix(_LOOP).removesuffix(_END)
    + _END
    + _END
)

#: Where both tiers' certificates are mounted.
RELAY_CERTIFICATES = "/etc/epp-relay"
_REGION = "region-mark"
_RELAYS = Relays(
    regions={_REGION: "relay.mark:3333"},
    connections=1,
    ca_file=f"{RELAY_CERTIFICATES}/ca.crt",
    cert_file=f"{RELAY_CERTIFICATES}/tls.crt",
    key_file=f"{RELAY_CERTIFICATES}/tls.key",
)
_BARE_RELAY = '(regexReplaceAll ":[0-9]+$" $address "" | trimAll "[]")'
_RELAY_HOSTS = f"""\
      {{{{- range $region, $address := .Values.relays.regions }}}}
      {{{{- $weight := 0 }}}}
      {{{{- range $.Values.endpoints.list }}}}
      {{{{- if and (eq (.region | default "") $region) (not .draining) }}}}
      {{{{- $weight = add1 $weight }}}}
      {{{{- end }}}}
      {{{{- end }}}}
      - locality:
          region: {{{{ $region | quote }}}}
        lb_endpoints:
        {{{{- range $offset := until (int $.Values.relays.connections) }}}}
        - endpoint:
            address:
              socket_address:
                address: {{{{ {_BARE_RELAY} | quote }}}}
                port_value: {{{{ add (regexFind "[0-9]+$" $address | int) $offset }}}}
          load_balancing_weight: {{{{ max 1 $weight }}}}
        {{{{- end }}}}
      {{{{- end }}}}
"""
_RELAY_PORTS = """\
        port_value: {{ include "gorgo-epp.relayPort" . }}
    {{- if gt (int .Values.relays.connections) 1 }}
    additional_addresses:
    {{- range $offset := untilStep 1 (int .Values.relays.connections) 1 }}
    - address:
        socket_address:
          address: {{ $.Values.standalone.listenHost | quote }}
          port_value: {{ add (include "gorgo-epp.relayPort" $ | int) $offset }}
    {{- end }}
    {{- end }}
"""


def settings(variant: Variant, endpoints: tuple[Endpoint, ...], *, shared: bool = False) -> EnvoySettings:
    """Set what the chart fixes, and marks for what its values say; ``shared`` by several pickers."""
    return EnvoySettings(
        # The pods' own Service, without an address of its own: its name has those of all that are ready.
        fallback_pickers=((_PICKERS, 9002),) if shared else (),
        endpoints=endpoints,
        variant=variant,
        listener_host=_HOST,
        listener_port=8080,
        first_token_path=FIRST_TOKEN,
        first_token_port=0,
        message_timeout_ms=_MESSAGE_MS,
        queue_wait_s=_QUEUE_WAIT_S,
        queue_requests=_QUEUE_REQUESTS,
        served_model_header=True,
        endpoint_header=True,
        max_body_bytes=_BODY_BYTES,
        max_heap_bytes=_HEAP_BYTES,
        open_paths=(_OPEN_PATH,),
        upstream_ca_file=_CA,
        destination_patterns=(_PATTERN,) if variant is Variant.ORIGINAL_DST else (),
    )


def original_dst(*, shared: bool) -> str:
    """Render the Envoy that goes wherever the picker says, among the pods' ports."""
    return _conditional_headers(_marked(render(settings(Variant.ORIGINAL_DST, (), shared=shared))))


def standalone(*, shared: bool) -> str:
    """Render the Envoy that knows the endpoints listed, by name, with and without TLS."""
    text = _marked(render(settings(Variant.STANDALONE, (_PLAIN, _TLS), shared=shared)))
    return _conditional_headers(_replicas(text, _ONE))


def _replicas(text: str, hosts: str) -> str:
    """Replace the cluster of endpoints by a loop over those listed."""
    text = _replaced(text, r"      - lb_endpoints:\n(?:        .*\n)+", "      - lb_endpoints:\n" + hosts)
    # With names Envoy resolves, without it does not; matches for TLS only where there is TLS.
    resolving = '{{ ternary "STRICT_DNS" "STATIC" (eq (include "gorgo-epp.hasNames" .) "true") }}'
    text = _replaced(text, r"    type: STRICT_DNS\n", f"    type: {resolving}\n")
    text = _replaced(text, r"    dns_lookup_family: V4_PREFERRED\n", _when("hasNames", r"\g<0>"))
    matches = r"  - (transport_socket_matches:\n(?:    (?:- |  ).*\n)+)    name: replicas\n"
    return _replaced(text, matches, "  - name: replicas\n" + _when("hasTls", r"    \g<1>"))


def two_tier(*, shared: bool) -> str:
    """Render the Envoy that reaches the endpoints listed through the relays of their regions."""
    plain = replace(_PLAIN, region=_REGION)
    base = settings(Variant.STANDALONE, (plain,), shared=shared)
    text = _marked(render(replace(base, relays=_RELAYS)))
    resolving = '{{ ternary "STRICT_DNS" "STATIC" (eq (include "gorgo-epp.hasRelayNames" .) "true") }}'
    text = _replaced(text, r"    type: STRICT_DNS\n", f"    type: {resolving}\n")
    return _conditional_headers(_replaced(text, r"      - locality:\n(?:        .*\n)+", _RELAY_HOSTS))


def relay() -> str:
    """Render the Envoy of one region that takes requests from the global one alone."""
    ends = tuple(replace(endpoint, region=_REGION) for endpoint in (_PLAIN, _TLS))
    base = replace(settings(Variant.STANDALONE, ends), relays=_RELAYS)
    text = _marked(render_relay(base, _REGION)).replace(_REGION, "{{ .Values.region }}")
    text = _replaced(text, r"        port_value: 3333\n", _RELAY_PORTS)
    return _replicas(text, _ONE_OF_REGION)


def _conditional_headers(text: str) -> str:
    """Set response headers that name model and endpoint only where the picker's configuration says so."""
    header = r" +- header:\n +key: x-epp-(?:served-model|untried-models)\n +value: .*\n +append_action: .*\n"
    text = _replaced(text, f"(?:{header}){{2}}", _when("tellsModel", r"\g<0>"))
    served = header.replace("(?:served-model|untried-models)", "endpoint")
    return _replaced(text, served, _when("tellsEndpoint", r"\g<0>"))


def _either(make: Callable[..., str]) -> str:
    """Write what differs where pickers share under a condition."""
    alone, shared = (make(shared=shared).splitlines(keepends=True) for shared in (False, True))
    parts = []
    for kind, start, end, start_shared, end_shared in SequenceMatcher(None, alone, shared).get_opcodes():
        if kind == "equal":
            parts += alone[start:end]
            continue
        parts += ['{{- if include "gorgo-epp.fallsBack" . }}\n', *shared[start_shared:end_shared]]
        parts += ["{{- else }}\n", *alone[start:end]] if kind != "insert" else []
        parts += ["{{- end }}\n"]
    return "".join(parts)


def _when(test: str, block: str) -> str:
    return f'    {{{{- if include "gorgo-epp.{test}" . }}}}\n{block}    {{{{- end }}}}\n'


def _replaced(text: str, pattern: str, by: str) -> str:
    text, count = re.subn(pattern, by, text, count=1)
    if count != 1:
        raise ValueError(f"the renderer writes no {pattern!r} any more")
    return text


def _marked(text: str) -> str:
    if "{{" in text or "}}" in text:
        raise ValueError("the configuration holds braces that a template would take for its own")
    body = text.split("\n", 1)[1]
    for mark, action in _ACTIONS.items():
        body = body.replace(mark, action)
    return body


def contents() -> dict[Path, str]:
    """Return every file that this writes, and its text."""
    return {
        FILES / "envoy" / "original-dst.yaml": _either(original_dst),
        FILES / "envoy" / "standalone.yaml": _either(standalone),
        FILES / "envoy" / "two-tier.yaml": _either(two_tier),
        FILES / "envoy" / "relay.yaml": relay(),
    }


def main() -> None:
    """Write them."""
    for path, text in contents().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
