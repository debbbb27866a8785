"""What KServe makes of an LLMInferenceService with the default scheduler, as far as a picker meets it.

Facts of kserve/kserve at aaac4e29: `config/llmisvcconfig/config-llm-scheduler.yaml`, and `scheduler.go` of
`pkg/controller/v1alpha2/llmisvc`, which takes `--model-server-metrics-scheme` out of the command and into the
configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from tests.kit import kubeobjects as objects

if TYPE_CHECKING:
    from tests.kit.kubestore import Object

NAME = "qwen"
POOL, ACCOUNT, TLS_FOLDER = f"{NAME}-inference-pool", f"{NAME}-epp-sa", "/var/run/kserve/tls"
_PART = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "llminferenceservice"}
LABELS = {**_PART, "app.kubernetes.io/component": "llminferenceservice-router-scheduler"}
#: Labels of its engines.
WORKLOAD = {**_PART, "kserve.io/component": "workload", "llm-d.ai/role": "both"}
_SCORERS = {
    "queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3, "no-hit-lru-scorer": 2,
}  # fmt: skip


def config_text(*, tls: bool) -> str:
    plugins: list[Object] = [
        {"type": name} for name in ("single-profile-handler", *_SCORERS, "max-score-picker")
    ]
    if tls:
        plugins.append({"type": "metrics-data-source", "parameters": {"scheme": "https"}})
    profile = [{"pluginRef": name, "weight": weight} for name, weight in _SCORERS.items()]
    made = {
        "apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": plugins,
        "schedulingProfiles": [{"name": "default", "plugins": [*profile, {"pluginRef": "max-score-picker"}]}],
    }  # fmt: skip
    return yaml.safe_dump(made)


def deployment(*, tls: bool) -> Object:
    secured = ["--enable-cert-reload=true", "--secure-serving=true", f"--cert-path={TLS_FOLDER}"]
    command = [
        "/app/epp", "--pool-name", POOL, "--pool-namespace", objects.NAMESPACE, "--zap-encoder", "json",
        "--grpc-port", "9002", "--grpc-health-port", "9003", *(secured if tls else ["", "", "", ""]),
    ]  # fmt: skip
    names = {"grpc": 9002, "grpc-health": 9003, "metrics": 9090, "zmq": 5557}
    container = {
        "name": "main", "image": "gorgo-epp", "command": command,
        "args": ["--config-text", config_text(tls=tls)],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in names.items()],
        "livenessProbe": {"grpc": {"port": 9003, "service": "liveness"}},
        "readinessProbe": {"grpc": {"port": 9003, "service": "readiness"}},
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"mountPath": TLS_FOLDER, "name": "tls-certs", "readOnly": True}],
    }  # fmt: skip
    secret = {"name": "tls-certs", "secret": {"secretName": f"{NAME}-kserve-self-signed-certs"}}
    template = {
        "metadata": {"labels": LABELS, "annotations": {"app.kubernetes.io/version": "0.10.0"}},
        "spec": {
            "serviceAccountName": ACCOUNT, "containers": [container], "volumes": [secret],
            "terminationGracePeriodSeconds": 60,
        },
    }  # fmt: skip
    spec = {"strategy": {"type": "Recreate"}, "selector": {"matchLabels": LABELS}, "template": template}
    return _made("apps/v1", "Deployment", f"{NAME}-kserve-router-scheduler", spec=spec)


def pool(port: int) -> Object:
    picker = {
        "failureMode": "FailOpen", "kind": "Service", "name": f"{NAME}-epp-service", "port": {"number": 9002},
    }  # fmt: skip
    match = {label: value for label, value in WORKLOAD.items() if label != "llm-d.ai/role"}
    spec = {
        "endpointPickerRef": picker, "selector": {"matchLabels": match}, "targetPorts": [{"number": port}],
    }  # fmt: skip
    return _made(f"{objects.GROUP}/v1", "InferencePool", POOL, spec=spec)


def account() -> list[Object]:
    """The ServiceAccount and all that it may do."""
    read = ["get", "list", "watch"]
    old, new = objects.OLD_GROUP, objects.GROUP
    grants = [
        ([""], ["pods"]),
        ([new, old], ["inferencepools", "inferenceobjectives", "inferencemodels"]),
        ([old], ["inferencemodelrewrites", "inferencepoolimports"]),
        (["llm-d.ai"], ["inferenceobjectives", "inferencemodelrewrites"]),
        (["discovery.k8s.io"], ["endpointslices"]),
    ]
    rules = [{"apiGroups": groups, "resources": names, "verbs": read} for groups, names in grants]
    rules.append({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                  "verbs": [*read, "create", "update", "patch", "delete"]})  # fmt: skip
    rbac, role = "rbac.authorization.k8s.io", f"{NAME}-epp-role"
    return [
        _made("v1", "ServiceAccount", ACCOUNT),
        _made(f"{rbac}/v1", "Role", role, rules=rules),
        _made(f"{rbac}/v1", "RoleBinding", f"{NAME}-epp-rb",
              roleRef={"apiGroup": rbac, "kind": "Role", "name": role},
              subjects=[{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": objects.NAMESPACE}]),
    ]  # fmt: skip


def _made(version: str, kind: str, name: str, **fields: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": LABELS}, **fields}
