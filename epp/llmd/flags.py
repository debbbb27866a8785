"""llm-d's flags: their names, defaults and kinds, what each means here, and their reading.

Owns the table, and the values that Go programs take on their command lines and in their files: each reader
says in its error what it wants. Whatever an operator writes is honoured, accepted with a sentence that says
what it means here, or refused with a reason; nothing is passed over in silence. Defaults are llm-d's (source
[E]). Knows neither argparse's namespace nor our configuration: `settings` translates.
"""

# ruff: noqa: E501  # the table reads by its lines, a flag each
from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from epp.config.kubernetes import POOL_GROUP
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(|[kKMGTPE]|[KMGTPE]i)B?")
_FACTOR = {"": 1, "k": 10**3, "K": 10**3} | {
    letter + suffix: base ** (power + 1)
    for power, letter in enumerate("KMGTPE")
    for suffix, base in (("", 1000), ("i", 1024))
}
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def duration_s(text: str) -> float:
    """A Go duration (``50ms``, ``1m30s``, ``0``) as seconds.

    Raises:
        ValueError: it is none, or it is negative.
    """
    if text == "0":
        return 0.0
    parts = _DURATION.findall(text)
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    complete = "".join(number + unit for number, unit in parts) == text.removeprefix("+")
    if not parts or not complete or seconds == math.inf:
        raise ValueError(f"{text!r} is not a duration such as 50ms, 2s or 1m30s")
    return seconds


def quantity_bytes(text: str) -> int:
    """A Kubernetes quantity (``25M``, ``16Mi``) as bytes; a trailing ``B`` is allowed, as llm-d writes it.

    Raises:
        ValueError: it is none, or not positive.
    """
    match = _QUANTITY.fullmatch(text)
    value = float(match[1]) * _FACTOR[match[2]] if match else 0.0
    if not 1.0 <= value < math.inf:
        raise ValueError(f"{text!r} is not a size such as 25M or 16Mi")
    return int(value)


def truth(text: str) -> bool:
    """A Go boolean.

    Raises:
        ValueError: it is none.
    """
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{text!r} is not true or false")


def whole(text: str) -> int:
    """A whole number.

    Raises:
        ValueError: it is none.
    """
    try:
        return int(text, 10)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def port(text: str) -> int:
    """A port number; 0 lets the system choose.

    Raises:
        ValueError: it is none.
    """
    number = whole(text)
    if not 0 <= number <= 65535:
        raise ValueError(f"{number} is not a port")
    return number


def ports(texts: list[str]) -> list[int]:
    """Ports from one or several comma lists: at most 8, each once, none 0.

    Raises:
        ValueError: they are not.
    """
    numbers = [port(piece.strip()) for text in texts for piece in text.split(",") if piece.strip()]
    if len(numbers) > 8 or len(set(numbers)) != len(numbers) or 0 in numbers:
        raise ValueError(f"{','.join(map(str, numbers))}: 1 to 8 different ports are wanted")
    return numbers


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
        return self.read is truth


_A, _R = Stance.ACCEPTED, Stance.REFUSED
_OWN_METRICS = "metric names are recognised by the engine that reports them; llm-d refuses this flag, too"

FLAGS: tuple[Flag, ...] = (
    Flag("grpc-port", 9002, port, "port of the ext_proc service"),
    Flag("grpc-health-port", 9003, port, "port of a plaintext listener for the gRPC health service alone"),
    Flag("metrics-port", 9090, port, "port of /metrics, /readyz, /livez and /decisions/ID"),
    Flag("pool-name", "", str, "name of the InferencePool"),
    Flag("pool-namespace", "", str, "its namespace; $NAMESPACE, then 'default', when not given"),
    Flag("pool-group", POOL_GROUP, str, "its API group", _R, "InferencePools of v1 are followed", (POOL_GROUP,), "install the CRD of inference.networking.k8s.io/v1"),
    Flag("endpoint-selector", "", str, "label selector of the pods, instead of an InferencePool"),
    Flag("endpoint-target-ports", (), str, "1 to 8 ports of every pod, with --endpoint-selector"),
    Flag("disable-endpoint-subset-filter", False, truth, "ignore the gateway's subset hint"),
    Flag("emit-endpoint-scores", False, truth, "send the score of every endpoint as metadata"),
    Flag("config-file", "", str, "an EndpointPickerConfig"),
    Flag("config-text", "", str, "an EndpointPickerConfig as text"),
    Flag("allow-experimental-plugins", False, truth, "", _A, "no plugin here is experimental: one is known, or refused", (False,)),
    Flag("refresh-metrics-interval", 0.05, duration_s, "time between two scrapes of an engine"),
    Flag("refresh-prometheus-metrics-interval", 5.0, duration_s, "", _A, "our gauges are computed whenever Prometheus asks"),
    Flag("metrics-staleness-threshold", 2.0, duration_s, "age at which engine metrics count as unknown"),
    Flag("drain-timeout", 30.0, duration_s, "how long streams may go on after SIGTERM"),
    Flag("ha-enable-leader-election", False, truth, "", _A, "there is no leader: every replica serves. Each alone knows what it sent: a session that reaches another finds its cache unknown, and two may fill the same engine; `nats.url` and `prefix.secret_file` of epp-settings join them (docs/cluster.md), or keep one replica"),
    Flag("secure-serving", True, truth, "TLS on the ext_proc port, self-signed without --cert-path"),
    Flag("cert-path", "", str, "folder with tls.crt and tls.key"),
    Flag("enable-cert-reload", False, truth, "certificate files are read again when they change, whatever this says"),
    Flag("tls-min-version", "", _one_of("", "VersionTLS12", "VersionTLS13"), "", _R, "the gRPC library here offers TLS 1.2 and 1.3 and cannot be told to leave 1.2 out", ("", "VersionTLS12"), "leave the flag out, or end TLS in a proxy beside the picker"),
    Flag("tls-cipher-suites", "", str, "", _R, "the gRPC library here takes its cipher suites from the environment alone", ("",), "set GRPC_SSL_CIPHER_SUITES, in OpenSSL's names"),
    Flag("health-checking", False, truth, "", _A, "the ext_proc port answers the health service whatever this says", (True,)),
    Flag("grpc-max-recv-msg-size", None, quantity_bytes, "longest gRPC message taken, e.g. 25M"),
    Flag("grpc-max-send-msg-size", None, quantity_bytes, "", _A, "messages are sent up to the longest body and its envelope", (None,)),
    Flag("metrics-endpoint-auth", True, truth, "", _R, "/metrics asks for no token here", (False,), "--metrics-endpoint-auth=false with a NetworkPolicy, or --metrics-client-ca-file"),
    Flag("metrics-client-ca-file", "", str, "clients of /metrics must present a certificate signed by it"),
    Flag("metrics-cert-dir", "", str, "folder with tls.crt and tls.key of /metrics"),
    Flag("enable-pprof", True, truth, "", _A, "there is no pprof in Python; py-spy shows a running picker from outside", (False,)),
    Flag("enable-grpc-stream-metrics", False, truth, "", _A, "stream metrics, llm_d_epp_extproc_streams_*, are always there", (True,)),
    Flag("tracing", True, truth, "export spans over OTLP, as the environment's OTEL_* say; here only where it is given"),
    Flag("v", 2, whole, "verbosity: 2 is normal, 4 and above is debug"),
    Flag("zap-encoder", "console", _one_of("json", "console"), "form of the log"),
    Flag("zap-log-level", "", _level, "debug, info, error, panic or a number; goes before --v"),
    Flag("zap-devel", False, truth, "console and debug, unless others say otherwise"),
    Flag("zap-time-encoding", "rfc3339", _one_of("epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"), "form of times in the log"),
    Flag("zap-stacktrace-level", "error", _one_of("info", "error", "panic"), "", _A, "a traceback follows wherever an exception is logged, and nowhere else"),
    Flag("model-server-metrics-scheme", "http", _one_of("http", "https"), "how engines are scraped and probed, unless the plugin metrics-data-source says it"),
    Flag("model-server-metrics-path", "", str, "where their metrics are, unless that plugin says it"),
    Flag("model-server-metrics-https-insecure-skip-verify", True, truth, "with https, engines may show any certificate, unless that plugin says it"),
    Flag("model-server-metrics-port", 0, port, "", _R, "metrics are read where the endpoint serves", (0,), "leave it out, or serve metrics on the endpoint's port"),
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


def as_pflag(words: Sequence[str]) -> list[str]:
    """Words after `serve` as Go's pflag reads them, for a parser that knows ``--flag=value`` alone.

    What follows a flag is its value, whatever it begins with; a boolean takes one after ``=`` only. Words of
    no flag come last, without empty ones. Source: spf13/pflag, ``parseArgs``.
    """
    read, loose, rest = list[str](), list[str](), iter(words)
    for word in rest:
        name = "--v" if word == "-v" else word
        flag = _BY_NAME.get(name.removeprefix("--"))
        if word == "--":
            loose += rest
        elif not word.startswith("-") or word == "-":
            loose.append(word)
        elif "=" in word or name in ("-h", "--help") or name.startswith("-v"):
            read.append(word)
        elif flag and flag.boolean:
            read.append(f"{name}=true")
        elif name.startswith("--") and (value := next(rest, None)) is not None:
            read.append(f"{name}={value}")
        else:
            read.append(word)
    return [*read, *(["--", *found] if (found := [word for word in loose if word]) else [])]


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
            value = ports(list(raw)) if flag.default == () else flag.read(str(raw))
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
