"""llm-d's flags: their names, defaults and kinds, what each means here, and their reading.

Owns the table. Whatever an operator writes is honoured, accepted with a sentence that says what it means
here, or refused with a reason; nothing is passed over in silence. Defaults are llm-d's (source [E]).
Knows neither argparse's namespace nor our configuration: `settings` translates.
"""

# ruff: noqa: E501  # the table reads by its lines, a flag each
from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from epp.config.kubernetes import POOL_GROUP
from epp.errors import ConfigError
from epp.llmd import values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: What errors call the command line.
SOURCE = "command line"


class Stance(Enum):
    """What becomes of a flag that is given."""

    HONOURED = "honoured"
    ACCEPTED = "accepted"  # taken, and a warning says what it means here
    REFUSED = "refused"


def _level(text: str) -> str:
    if text not in ("debug", "info", "error", "panic") and not re.fullmatch("-?[0-9]{1,9}", text):
        raise ValueError(f"{text!r} is not debug, info, error, panic or a number")
    return text


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return read


class Flag(NamedTuple):
    """One flag of llm-d's picker.

    Attributes:
        name: without dashes.
        default: llm-d's default, None where unset means something of its own.
        read: text to value; raises ValueError in words.
        help: what it does.
        stance: what becomes of it. For ACCEPTED and REFUSED, only of values other than ``harmless``.
        message: the warning, or the reason of the refusal.
        harmless: values that mean here what they mean there.
        fix: what to do instead of a refused value.
    """

    name: str
    default: object
    read: Callable[[str], object]
    help: str
    stance: Stance = Stance.HONOURED
    message: str = ""
    harmless: tuple[object, ...] = ()
    fix: str = ""

    @property
    def boolean(self) -> bool:
        """Whether it may stand alone."""
        return self.read is values.truth


_A, _R = Stance.ACCEPTED, Stance.REFUSED
_OWN_METRICS = "metric names are recognised by the engine that reports them; llm-d refuses this flag, too"
_B, _D, _P = values.truth, values.duration_s, values.port

FLAGS: tuple[Flag, ...] = (
    Flag("grpc-port", 9002, _P, "port of the ext_proc service"),
    Flag("grpc-health-port", 9003, _P, "port of a plaintext listener for the gRPC health service alone"),
    Flag("metrics-port", 9090, _P, "port of /metrics, /readyz, /livez and /decisions/ID"),
    Flag("pool-name", "", str, "name of the InferencePool"),
    Flag("pool-namespace", "", str, "its namespace; $NAMESPACE, then 'default', when not given"),
    Flag("pool-group", POOL_GROUP, str, "its API group", _R, "InferencePools of v1 are followed", (POOL_GROUP,), "install the CRD of inference.networking.k8s.io/v1"),
    Flag("endpoint-selector", "", str, "label selector of the pods, instead of an InferencePool"),
    Flag("endpoint-target-ports", (), str, "1 to 8 ports of every pod, with --endpoint-selector"),
    Flag("disable-endpoint-subset-filter", False, _B, "ignore the gateway's subset hint"),
    Flag("emit-endpoint-scores", False, _B, "send the score of every endpoint as metadata"),
    Flag("config-file", "", str, "an EndpointPickerConfig"),
    Flag("config-text", "", str, "an EndpointPickerConfig as text"),
    Flag("allow-experimental-plugins", False, _B, "", _A, "no plugin here is experimental: one is known, or refused", (False,)),
    Flag("refresh-metrics-interval", 0.05, _D, "time between two scrapes of an engine"),
    Flag("refresh-prometheus-metrics-interval", 5.0, _D, "", _A, "our gauges are computed whenever Prometheus asks"),
    Flag("metrics-staleness-threshold", 2.0, _D, "age at which engine metrics count as unknown"),
    Flag("drain-timeout", 30.0, _D, "how long streams may go on after SIGTERM"),
    Flag("ha-enable-leader-election", False, _B, "", _A, "there is no leader: every replica serves, with a prefix index and reservations of its own; one replica picks best", (False,)),
    Flag("secure-serving", True, _B, "TLS on the ext_proc port, self-signed without --cert-path"),
    Flag("cert-path", "", str, "folder with tls.crt and tls.key"),
    Flag("enable-cert-reload", False, _B, "certificate files are read again when they change, whatever this says"),
    Flag("tls-min-version", "", _one_of("", "VersionTLS12", "VersionTLS13"), "", _R, "the gRPC library here offers TLS 1.2 and 1.3 and cannot be told to leave 1.2 out", ("", "VersionTLS12"), "leave the flag out, or end TLS in a proxy beside the picker"),
    Flag("tls-cipher-suites", "", str, "", _R, "the gRPC library here takes its cipher suites from the environment alone", ("",), "set GRPC_SSL_CIPHER_SUITES, in OpenSSL's names"),
    Flag("health-checking", False, _B, "", _A, "the ext_proc port answers the health service whatever this says", (True,)),
    Flag("grpc-max-recv-msg-size", None, values.quantity_bytes, "longest gRPC message taken, e.g. 25M"),
    Flag("grpc-max-send-msg-size", None, values.quantity_bytes, "", _A, "messages are sent up to the longest body and its envelope", (None,)),
    Flag("metrics-endpoint-auth", True, _B, "", _R, "/metrics asks for no token here", (False,), "--metrics-endpoint-auth=false with a NetworkPolicy, or --metrics-client-ca-file"),
    Flag("metrics-client-ca-file", "", str, "clients of /metrics must present a certificate signed by it"),
    Flag("metrics-cert-dir", "", str, "folder with tls.crt and tls.key of /metrics"),
    Flag("enable-pprof", True, _B, "", _A, "there is no pprof in Python; py-spy shows a running picker from outside", (False,)),
    Flag("enable-grpc-stream-metrics", False, _B, "", _A, "stream metrics, llm_d_epp_extproc_streams_*, are always there", (True,)),
    Flag("tracing", True, _B, "export spans over OTLP, as the environment's OTEL_* say; here only where it is given"),
    Flag("v", 2, values.whole, "verbosity: 2 is normal, 4 and above is debug"),
    Flag("zap-encoder", "console", _one_of("json", "console"), "form of the log"),
    Flag("zap-log-level", "", _level, "debug, info, error, panic or a number; goes before --v"),
    Flag("zap-devel", False, _B, "console and debug, unless others say otherwise"),
    Flag("zap-time-encoding", "rfc3339", _one_of("epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"), "form of times in the log"),
    Flag("zap-stacktrace-level", "error", _one_of("info", "error", "panic"), "", _A, "a traceback follows wherever an exception is logged, and nowhere else"),
    Flag("total-queued-requests-metric", "", str, "", _R, _OWN_METRICS, ("",)),
    Flag("total-running-requests-metric", "", str, "", _R, _OWN_METRICS, ("",)),
    Flag("kv-cache-usage-percentage-metric", "", str, "", _R, _OWN_METRICS, ("",)),
    Flag("lora-info-metric", "", str, "", _R, _OWN_METRICS, ("",)),
    Flag("cache-info-metric", "", str, "", _R, _OWN_METRICS, ("",)),
)  # fmt: skip

#: Flags about the log, which go with `--config` as well.
LOG_FLAGS = frozenset(
    {"v", "zap-encoder", "zap-log-level", "zap-devel", "zap-time-encoding", "zap-stacktrace-level"}
)
_BY_NAME = {flag.name: flag for flag in FLAGS}


@dataclass(frozen=True, slots=True)
class Flags:
    """Values of all flags.

    Attributes:
        values: every flag by name; what was not given has its default.
        given: names of those that were given.
        warnings: a sentence for each that means something else here.
    """

    values: Mapping[str, Any]
    given: frozenset[str]
    warnings: tuple[str, ...]

    def __getitem__(self, name: str) -> Any:
        """The value of a flag."""
        return self.values[name]


def read_flags(given: Mapping[str, str | Sequence[str]], *, beside_config: bool = False) -> Flags:
    """Texts of the flags that were given to values of all.

    Args:
        given: flag name -> text, or texts where a flag may be repeated.
        beside_config: they stand beside a configuration of ours, so that only the log is theirs to say.

    Raises:
        ConfigError: a value that is none, or that is refused, with what to do instead.
    """
    found = {flag.name: flag.default for flag in FLAGS}
    warnings = []
    for name, raw in given.items():
        flag = _BY_NAME[name]
        try:
            value = values.ports(list(raw)) if flag.default == () else flag.read(str(raw))
        except ValueError as error:
            raise ConfigError(SOURCE, f"--{name}", str(error)) from None
        found[name] = value
        if flag.stance is Stance.HONOURED or value in flag.harmless:
            continue
        if flag.stance is Stance.REFUSED:
            raise ConfigError(SOURCE, f"--{name}", flag.message, flag.fix)
        warnings.append(f"--{name}: {flag.message}")
    if not beside_config:
        _check_together(found)
    elif others := sorted(given.keys() - LOG_FLAGS):
        fix = (
            "our configuration says it all; with llm-d's flags, put what is ours into the plugin epp-settings"
        )
        raise ConfigError(SOURCE, f"--{others[0]}", "does not go with --config", fix)
    return Flags(found, frozenset(given), tuple(warnings))


def _check_together(found: Mapping[str, Any]) -> None:
    if found["config-file"] and found["config-text"]:
        raise ConfigError(SOURCE, "--config-text", "--config-file is given, too", "one of them")
    if bool(found["endpoint-selector"]) != bool(found["endpoint-target-ports"]):
        key = "--endpoint-target-ports"
        raise ConfigError(SOURCE, key, "goes together with --endpoint-selector", "e.g. 8000")
    if bool(found["metrics-client-ca-file"]) > bool(found["metrics-cert-dir"]):
        raise ConfigError(SOURCE, "--metrics-client-ca-file", "needs --metrics-cert-dir: mTLS is TLS first")
