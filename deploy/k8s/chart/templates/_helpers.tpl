{{/* Names, labels and the few facts that several templates need. Names are written by toYaml, which quotes those that
     would be numbers or the like: Kubernetes takes texts alone. */}}

{{- define "gorgo-epp.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gorgo-epp.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | toYaml }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end -}}

{{- define "gorgo-epp.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "gorgo-epp.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Metadata of an object: (list root suffix). */}}
{{- define "gorgo-epp.metadata" -}}
{{- $root := index . 0 -}}
name: {{ printf "%s%s" (include "gorgo-epp.fullname" $root) (index . 1) | toYaml }}
namespace: {{ $root.Release.Namespace | toYaml }}
labels:
  {{- include "gorgo-epp.labels" $root | nindent 2 }}
{{- end -}}

{{- define "gorgo-epp.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gorgo-epp.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The values `nats`, over them those under the old name `cluster`. */}}
{{- define "gorgo-epp.nats" -}}
{{- $old := dict -}}
{{- if .Values.cluster.url -}}{{- $_ := set $old "url" .Values.cluster.url -}}{{- end -}}
{{- if .Values.cluster.nats -}}{{- $_ := set $old "server" .Values.cluster.nats -}}{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.nats) $old) -}}
{{- end -}}

{{/* Servers of NATS by commas, the chart's own or others; empty for one picker. */}}
{{- define "gorgo-epp.natsUrl" -}}
{{- $nats := include "gorgo-epp.nats" . | fromYaml -}}
{{- if $nats.server.enabled -}}
nats://{{ include "gorgo-epp.fullname" . }}-nats:4222
{{- else -}}
{{ $nats.url }}
{{- end -}}
{{- end -}}

{{/* Whether the Envoy of a picker's pod falls back to the pickers of other pods. */}}
{{- define "gorgo-epp.fallsBack" -}}
{{- if and .Values.standalone.enabled (include "gorgo-epp.natsUrl" .) -}}true{{- end -}}
{{- end -}}

{{/* An image's reference: (list image defaultTag). */}}
{{- define "gorgo-epp.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (index . 1) $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "gorgo-epp.poolName" -}}
{{- default (include "gorgo-epp.fullname" .) .Values.inferencePool.name -}}
{{- end -}}

{{/* Whether endpoints come from the API server; empty for no. */}}
{{- define "gorgo-epp.fromCluster" -}}
{{- if ne .Values.endpoints.from "list" -}}true{{- end -}}
{{- end -}}

{{- define "gorgo-epp.withPool" -}}
{{- if eq .Values.endpoints.from "inferencePool" -}}true{{- end -}}
{{- end -}}

{{/* Whether the picker is called with llm-d's flags. */}}
{{- define "gorgo-epp.llmd" -}}
{{- if .Values.endpointPickerConfig -}}true{{- end -}}
{{- end -}}

{{/* matchLabels as a selector. */}}
{{- define "gorgo-epp.selector" -}}
{{- $pairs := list -}}
{{- range $key, $value := .Values.endpoints.matchLabels -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "gorgo-epp.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "gorgo-epp.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* A quantity of Kubernetes's as a number; 0 for what is none. */}}
{{- define "gorgo-epp.quantity" -}}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) -}}
{{- $factors := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- mulf (toString . | trimSuffix $unit | float64) (get $factors $unit | default 0) | int64 -}}
{{- end -}}

{{/* What cannot work is refused while it is rendered, with what to do instead. */}}
{{- define "gorgo-epp.check" -}}
{{- if semverCompare "<3.14.0-0" .Capabilities.HelmVersion.Version -}}
{{- fail (printf "Helm 3.14 or newer is needed, and this is %s: older ones do not know a container's sleep before its end, and fail when an upgrade changes it" .Capabilities.HelmVersion.Version) -}}
{{- end -}}
{{- $e := .Values.endpoints -}}
{{- if and (has $e.from (list "inferencePool" "selector")) (not $e.matchLabels) (or (eq $e.from "selector") .Values.inferencePool.create) -}}
{{- fail "endpoints.matchLabels is empty: write the labels of the engines' pods, e.g. --set endpoints.matchLabels.app=vllm, or inferencePool.create=false and inferencePool.name to follow a pool that exists" -}}
{{- end -}}
{{- $nats := include "gorgo-epp.nats" . | fromYaml -}}
{{- if and $nats.url $nats.server.enabled -}}
{{- fail "nats.url and nats.server.enabled: one of them says where NATS is" -}}
{{- end -}}
{{- if and (include "gorgo-epp.natsUrl" .) (not .Values.prefixSecret) -}}
{{- fail "nats.url needs prefixSecret: pickers that share name prompts by one key" -}}
{{- end -}}
{{- if and (include "gorgo-epp.natsUrl" .) (include "gorgo-epp.llmd" .) -}}
{{- fail "nats.url goes without endpointPickerConfig: name nats and prefix in it (epp-settings)" -}}
{{- end -}}
{{- if and .Values.kernel.enabled (not .Values.standalone.enabled) -}}
{{- fail "kernel.enabled sets the kernel of the pod that Envoy is in, and only standalone.enabled puts one into the picker's: set it on your gateway's pods, or kernel.enabled=false" -}}
{{- end -}}
{{- $r := .Values.relays -}}
{{- if and $r.regions (or (not .Values.standalone.enabled) (ne $e.from "list")) -}}
{{- fail "relays.regions needs standalone.enabled=true and endpoints.from=list: only that Envoy knows relays" -}}
{{- end -}}
{{- if and $r.regions (not $r.secretName) -}}
{{- fail "relays.secretName is empty: relays serve nobody without certificates; name a Secret with ca.crt, tls.crt and tls.key" -}}
{{- end -}}
{{- if $r.regions -}}
{{- range $e.list -}}
{{- if not (hasKey $r.regions (.region | default "")) -}}
{{- fail (printf "endpoints.list: %s is in region %q, which has no relay: add it to relays.regions" .address (.region | default "")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $_ := dig "relays" (dict) .Values.config -}}
{{- if ne $key "probes" -}}
{{- fail (printf "config.relays.%s reaches no Envoy: the chart's are as relays says; render your own (epp envoy render) for more" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.standalone.enabled (hasKey (dig "request" (dict) .Values.config) "max_body_bytes") -}}
{{- fail "config.request.max_body_bytes reaches the picker alone: say maxBodyBytes, which Envoy is told, too" -}}
{{- end -}}
{{- if and (ne .Values.tier "global") (not (hasKey $r.regions .Values.region)) -}}
{{- fail (printf "region %q has no relay: set region to one of relays.regions" .Values.region) -}}
{{- end -}}
{{- if and (eq .Values.tier "region") (not (include "gorgo-epp.natsUrl" .)) -}}
{{- fail "tier=region needs nats.url: regions tell each other their load over NATS, each by a server of its own whose gateways join the others'" -}}
{{- end -}}
{{- if and (eq $e.from "service") (not $e.service) -}}
{{- fail "endpoints.service is empty: name the Service of the engines" -}}
{{- end -}}
{{- if and (eq $e.from "list") (not $e.list) -}}
{{- fail "endpoints.list is empty: write at least one address" -}}
{{- end -}}
{{- if and (ne $e.from "list") (not $e.targetPorts) -}}
{{- fail "endpoints.targetPorts is empty: write the ports that the engines serve on, e.g. [8000]" -}}
{{- end -}}
{{- if and (include "gorgo-epp.withPool" .) (not .Values.inferencePool.create) (not .Values.inferencePool.name) -}}
{{- fail "inferencePool.create=false needs inferencePool.name: the pool to follow" -}}
{{- end -}}
{{- if and .Values.httpRoute.create (not (include "gorgo-epp.withPool" .)) -}}
{{- fail "httpRoute.create needs endpoints.from=inferencePool: a route's backend is the pool" -}}
{{- end -}}
{{- if and .Values.httpRoute.create (not .Values.httpRoute.gateway.name) -}}
{{- fail "httpRoute.create needs httpRoute.gateway.name: the Gateway that it hangs on" -}}
{{- end -}}
{{- if and .Values.inferenceObjectives (not (include "gorgo-epp.withPool" .)) -}}
{{- fail "inferenceObjectives need endpoints.from=inferencePool: they refer to the pool" -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "secret") (not .Values.tls.secretName) -}}
{{- fail "tls.mode=secret needs tls.secretName: a kubernetes.io/tls Secret" -}}
{{- end -}}
{{- if and (eq .Values.provider.name "gke") (not (include "gorgo-epp.withPool" .)) -}}
{{- fail "provider.name=gke needs endpoints.from=inferencePool: its policies refer to the pool" -}}
{{- end -}}
{{- if and (include "gorgo-epp.llmd" .) (not (has $e.from (list "inferencePool" "selector"))) -}}
{{- fail "endpointPickerConfig goes with endpoints.from inferencePool or selector: llm-d's flags know no others" -}}
{{- end -}}
{{- if and (include "gorgo-epp.llmd" .) (or .Values.standalone.enabled .Values.config .Values.overrides) -}}
{{- fail "endpointPickerConfig goes without standalone, config and overrides: llm-d's flags cannot say them; name policies and settings in it (epp-settings)" -}}
{{- end -}}
{{- if and .Values.standalone.enabled (include "gorgo-epp.withPool" .) .Values.inferencePool.create -}}
{{- fail "standalone.enabled goes without a pool for gateways: endpoints.from=selector needs no CRDs; inferencePool.create=false follows a pool that exists" -}}
{{- end -}}
{{- if and (eq $e.from "list") (not .Values.standalone.enabled) -}}
{{- fail "endpoints.from=list needs standalone.enabled=true: no gateway sends requests to addresses that are in no pool" -}}
{{- end -}}
{{- if and .Values.standalone.enabled (include "gorgo-epp.fromCluster" .) (dig "policy" "fallbacks" 0 .Values.config) -}}
{{- fail "config.policy.fallbacks: standalone.enabled reaches pods by original-dst, which takes a single endpoint and answers 503 to a list: leave it at 0" -}}
{{- end -}}
{{- if and .Values.records.enabled (not .Values.shared.existingClaim) (not (include "gorgo-epp.llmd" .)) -}}
{{- $size := include "gorgo-epp.quantity" .Values.shared.sizeLimit | int64 -}}
{{- if and $size (le $size (int64 .Values.records.maxBytes)) -}}
{{- fail (printf "shared.sizeLimit is %v, and records alone may grow to %d bytes: Kubernetes evicts a pod whose volume outgrows its limit; raise it, or lower records.maxBytes" .Values.shared.sizeLimit (int64 .Values.records.maxBytes)) -}}
{{- end -}}
{{- end -}}
{{- include "gorgo-epp.checkWorker" (list . "tuner") -}}
{{- include "gorgo-epp.checkWorker" (list . "learner") -}}
{{- if and .Values.tuner.enabled .Values.learner.enabled (eq (dig "policy" "name" "" .Values.config) "lodestar") -}}
{{- fail "tuner.enabled and learner.enabled both write the weights file where policy.name is lodestar: the learner tries its model by a weight; take one of them" -}}
{{- end -}}
{{- range $e.list -}}
{{- if and .tls (not (hasKey . "server_name")) (regexMatch "^(\\[|[0-9.]+:[0-9]+$)" .address) -}}
{{- fail (printf "endpoints.list: %s speaks TLS and is an address: give server_name, the name that its certificate carries" .address) -}}
{{- end -}}
{{- end -}}
{{- end -}}
