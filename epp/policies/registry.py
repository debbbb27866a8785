"""Policies by the name that configuration uses.

Owns the list of names; a policy file knows nothing of it. Adding a policy is one file and one line here.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from epp.errors import ConfigError, raise_all
from epp.policies.dynamo import Dynamo, DynamoSoftmax
from epp.policies.gorgo import Gorgo
from epp.policies.gorgo_ms import GorgoMs
from epp.policies.gorgo_v1 import GorgoV1
from epp.policies.laar import Laar
from epp.policies.laar_paper import LaarPaper
from epp.policies.least_load import LeastLoad, LeastLoadStale
from epp.policies.least_request import LeastRequest
from epp.policies.least_request_stale import LeastRequestStale
from epp.policies.llm_d import LlmD
from epp.policies.llm_d_affinity import LlmDAffinity
from epp.policies.lmetric import Lmetric
from epp.policies.lodestar import Lodestar
from epp.policies.mooncake import Mooncake
from epp.policies.mooncake_static import MooncakeStatic
from epp.policies.power_of_two import PowerOfTwo
from epp.policies.preble_e2 import PrebleE2
from epp.policies.prefix_cache import PrefixCache, PrefixCacheAndLoad, PrefixCacheStale
from epp.policies.prefix_threshold import PrefixThreshold
from epp.policies.random import Random
from epp.policies.reward_model import RewardModel
from epp.policies.round_robin import RoundRobin
from epp.policies.session_affinity import SessionAffinity
from epp.policies.session_affinity_bounded import PrefixHash, SessionAffinityBounded
from epp.policies.session_affinity_hash256 import SessionAffinityHash256
from epp.policies.sglang_cache_aware import SglangCacheAware, SglangCacheAwareLibrary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from epp.policies.base import Policy
    from epp.policies.drawn import Drawn

POLICIES: dict[str, Callable[..., Policy]] = {
    "dynamo": Dynamo,
    "dynamo-softmax": DynamoSoftmax,
    "gorgo": Gorgo,
    "gorgo-ms": GorgoMs,
    "gorgo-v1": GorgoV1,
    "laar": Laar,
    "laar-paper": LaarPaper,
    "least-load": LeastLoad,
    "least-load-stale": LeastLoadStale,
    "least-request": LeastRequest,
    "least-request-stale": LeastRequestStale,
    "llm-d": LlmD,
    "llm-d-affinity": LlmDAffinity,
    "lmetric": Lmetric,
    "lodestar": Lodestar,
    "mooncake": Mooncake,
    "mooncake-static": MooncakeStatic,
    "power-of-two": PowerOfTwo,
    "preble-e2": PrebleE2,
    "prefix-cache": PrefixCache,
    "prefix-cache-and-load": PrefixCacheAndLoad,
    "prefix-cache-stale": PrefixCacheStale,
    "prefix-hash": PrefixHash,
    "prefix-threshold": PrefixThreshold,
    "random": Random,
    "round-robin": RoundRobin,
    "session-affinity": SessionAffinity,
    "session-affinity-bounded": SessionAffinityBounded,
    "session-affinity-hash256": SessionAffinityHash256,
    "sglang-cache-aware": SglangCacheAware,
    "sglang-cache-aware-library": SglangCacheAwareLibrary,
}

_PARAMS = "policy.params"


def draws(name: str) -> Callable[..., Drawn | None] | None:
    """What tells, of a policy's rankings, what its own draw was among (`epp.policies.drawn`).

    None of a policy that draws nothing, and of one that is not known.
    """
    told: Callable[..., Drawn | None] | None = getattr(POLICIES.get(name), "drawn", None)
    return told


def create(
    name: str,
    params: Mapping[str, object] | None = None,
    *,
    source: str = "<text>",
    key: str = "policy.name",
) -> Policy:
    """The policy of that name with the given parameters (fields of its class).

    Args:
        name: a key of `POLICIES`.
        params: parameters by name; those left out keep their defaults.
        source: file that names the policy, for the error.
        key: dotted path of the name in that file, for the error; parameters stand in `policy.params`.

    Raises:
        ConfigError: unknown policy or parameter, or a value that the policy refuses; names the nearest right
            one.
    """
    factory = POLICIES.get(name)
    if factory is None:
        raise ConfigError(source, key, f"unknown policy {name!r}", _nearest(name, POLICIES))
    known: list[str] = []
    if dataclasses.is_dataclass(factory):
        known = [field.name for field in dataclasses.fields(factory)]
    errors = []
    for param in params or {}:
        if param not in known:
            problem = f"policy {name} has no parameter {param!r}"
            errors.append(ConfigError(source, f"{_PARAMS}.{param}", problem, _nearest(param, known)))
    raise_all(errors)
    try:
        return factory(**(params or {}))
    except ValueError as error:
        raise ConfigError(source, _PARAMS, f"policy {name}: {error}") from error
    except TypeError as error:
        problem = f"policy {name}: {_of_wrong_type(factory, params or {})}: {error}"
        raise ConfigError(source, _PARAMS, problem) from error


def params_of(policy: Policy) -> dict[str, object]:
    """The parameters in which a policy differs from its defaults: what `create` needs to make it again.

    A model is told by its version: whoever makes the policy again has to bring the model itself.
    """
    if not dataclasses.is_dataclass(policy):
        return {}
    changed: dict[str, object] = {}
    for field in dataclasses.fields(policy):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        value = getattr(policy, field.name)
        if isinstance(value, RewardModel):
            changed[field.name] = value.version
        elif value != default:
            changed[field.name] = dict(value) if isinstance(value, Mapping) else value
    return changed


def _of_wrong_type(factory: Callable[..., Policy], params: Mapping[str, object]) -> str:
    for param, value in params.items():
        try:
            factory(**{param: value})
        except TypeError:
            return param
        except ValueError:  # a right type, if not a right value without the others
            continue
    return ", ".join(params)


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "it has none"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "one of: " + ", ".join(names)
