{{/* epp.yaml: what the chart knows, then what the operator wrote over it. */}}
{{- define "gorgo-epp.config" -}}
{{- $service := include "gorgo-epp.fullname" . -}}
{{- $inNamespace := printf "%s.%s" $service .Release.Namespace -}}
{{- $names := list $service $inNamespace (printf "%s.svc" $inNamespace) (printf "%s.svc.cluster.local" $inNamespace) -}}
{{- $listen := dict "http" "[::]:9090" "http_names" $names "health" "[::]:9003" -}}
{{- if .Values.standalone.enabled -}}
{{- $_ := merge $listen (dict "grpc" (ternary "[::]:9002" "127.0.0.1:9002" (eq (include "gorgo-epp.fallsBack" .) "true")) "first_token" "unix:/run/epp/first-token.sock") -}}
{{- else -}}
{{- $_ := merge $listen (dict "grpc" "[::]:9002" "first_token" "") -}}
{{- if eq .Values.tls.mode "self-signed" -}}
{{- $_ := set $listen "tls" (dict "self_signed" true) -}}
{{- else if eq .Values.tls.mode "secret" -}}
{{- $_ := set $listen "tls" (dict "cert_file" "/etc/epp-tls/tls.crt" "key_file" "/etc/epp-tls/tls.key") -}}
{{- end -}}
{{- end -}}
{{- /* Bodies that wait hold half of the memory that `resources` allows as it is, and at least one of the longest. */ -}}
{{- $longest := dig "request" "max_body_bytes" .Values.maxBodyBytes .Values.config | int64 -}}
{{- $request := dict "max_body_bytes" .Values.maxBodyBytes "max_held_body_bytes" (max 536870912 $longest) -}}
{{- if not .Values.standalone.enabled -}}
{{- /* Other Envoys wait no longer when they are asked to. */ -}}
{{- $_ := set $request "model_wait_s" 0.1 -}}
{{- end -}}
{{- $config := dict "listen" $listen "request" $request "queue" (dict "enabled" .Values.standalone.enabled) -}}
{{- $e := .Values.endpoints -}}
{{- $kubernetes := dict "namespace" .Release.Namespace "watch_nodes" $e.regionFromNodeLabel -}}
{{- if eq $e.from "inferencePool" -}}
{{- $_ := set $kubernetes "pool_name" (include "gorgo-epp.poolName" .) -}}
{{- else if eq $e.from "selector" -}}
{{- $_ := merge $kubernetes (dict "selector" (include "gorgo-epp.selector" .) "target_ports" $e.targetPorts) -}}
{{- else if eq $e.from "service" -}}
{{- $_ := merge $kubernetes (dict "service" $e.service "target_ports" $e.targetPorts) -}}
{{- end -}}
{{- if include "gorgo-epp.fromCluster" . -}}
{{- $_ := set $config "pool" (dict "kubernetes" $kubernetes) -}}
{{- /* Gateways may take a single endpoint, and original-dst does. */ -}}
{{- $_ := set $config "policy" (dict "fallbacks" 0) -}}
{{- else -}}
{{- $_ := set $config "pool" (dict "file" "/etc/epp/endpoints.yaml" "eds_file" "") -}}
{{- end -}}
{{- if .Values.records.enabled -}}
{{- $_ := set $config "records" (dict "folder" "/shared/records" "max_bytes" .Values.records.maxBytes) -}}
{{- end -}}
{{- if .Values.prefixSecret -}}
{{- $_ := set $config "prefix" (dict "secret_file" "/etc/epp-secret/secret") -}}
{{- end -}}
{{- with include "gorgo-epp.natsUrl" . -}}
{{- $_ := set $config "nats" (dict "url" .) -}}
{{- end -}}
{{- if $config.nats -}}
{{- if .Values.shared.existingClaim -}}
{{- $_ := set $config.nats "lead" false -}}
{{- end -}}
{{- end -}}
{{- if .Values.relays.regions -}}
{{- $certificates := "/etc/epp-relay" -}}
{{- $_ := set $config "relays" (dict "regions" .Values.relays.regions "connections" (int .Values.relays.connections) "ca_file" (printf "%s/ca.crt" $certificates) "cert_file" (printf "%s/tls.crt" $certificates) "key_file" (printf "%s/tls.key" $certificates)) -}}
{{- end -}}
{{- if eq .Values.tier "region" -}}
{{- $_ := set $config "federation" (dict "region" .Values.region "key_file" "/etc/epp-relay/hop.key") -}}
{{- $_ := set $config "policy" (merge (dict "name" "local-first") (default dict $config.policy)) -}}
{{- end -}}
{{- if .Values.learner.enabled -}}
{{- $_ := set $config "policy" (merge (dict "model_file" "/shared/reward.json") (default dict $config.policy)) -}}
{{- end -}}
{{- $_ := set $config "weights_file" "/shared/weights.yaml" -}}
{{- $_ := set $config "overrides_file" "/etc/epp-overrides/overrides.yaml" -}}
{{- $_ := set $config "drain_s" .Values.drainSeconds -}}
{{- $_ := set $config "drain_accept_s" (min 5 .Values.drainSeconds) -}}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) -}}
{{- end -}}

{{/* Arguments of the picker. */}}
{{- define "gorgo-epp.args" -}}
{{- $args := list -}}
{{- if include "gorgo-epp.llmd" . -}}
{{- if include "gorgo-epp.withPool" . -}}
{{- $args = concat $args (list "--pool-name" (include "gorgo-epp.poolName" .) "--pool-group" "inference.networking.k8s.io") -}}
{{- else -}}
{{- $args = concat $args (list "--endpoint-selector" (include "gorgo-epp.selector" .) "--endpoint-target-ports" (join "," .Values.endpoints.targetPorts)) -}}
{{- end -}}
{{- $args = concat $args (list "--pool-namespace" .Release.Namespace "--config-file" "/etc/epp/picker-config.yaml" "--grpc-health-port" "9003" "--drain-timeout" (printf "%ds" (int .Values.drainSeconds))) -}}
{{- if eq .Values.tls.mode "none" -}}
{{- $args = append $args "--secure-serving=false" -}}
{{- else if eq .Values.tls.mode "secret" -}}
{{- $args = concat $args (list "--cert-path" "/etc/epp-tls" "--enable-cert-reload") -}}
{{- end -}}
{{- range $name, $value := .Values.flags -}}
{{- /* A values file's numbers are fractions here, and large ones would be written with exponents. */ -}}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) -}}{{- $value = int64 $value -}}{{- end -}}
{{- $args = append $args (printf "--%s=%v" $name $value) -}}
{{- end -}}
{{- else -}}
{{- $args = list "--config" "/etc/epp/epp.yaml" -}}
{{- end -}}
{{- if gt (int .Values.workers) 1 -}}
{{- $args = concat $args (list "--workers" (toString .Values.workers)) -}}
{{- end -}}
{{- toYaml (concat $args (list "--zap-encoder" "json")) -}}
{{- end -}}

{{/* How long Envoy waits for the picker: longer than a tokenizer may count, or picks are lost. */}}
{{- define "gorgo-epp.messageTimeout" -}}
{{- $ms := max 250 (add 200 (ceil (dig "tokens" "budget_ms" 50 .Values.config))) -}}
{{- printf "%d.%03ds" (div $ms 1000) (mod $ms 1000) -}}
{{- end -}}

{{/* How much longer Envoy waits where the picker asks for it: for engines' models, and then for room. */}}
{{- define "gorgo-epp.longestWait" -}}
{{- printf "%ds" (add 6 (ceil (dig "queue" "ttl_s" 30 .Values.config))) -}}
{{- end -}}

{{/* Requests in flight at once: twice as many as may wait. */}}
{{- define "gorgo-epp.requests" -}}
{{- max 10000 (mul 2 (dig "queue" "max_requests" 5000 .Values.config)) -}}
{{- end -}}

{{/* Patterns of the paths that the configuration opens beside those of APIs. */}}
{{- define "gorgo-epp.openPaths" -}}
{{- range dig "request" "open_paths" (list) .Values.config -}}
|{{ replace "." "\\." . }}{{ if hasSuffix "/" . }}.*{{ end }}
{{- end -}}
{{- end -}}

{{/* Whether responses tell which model answered. */}}
{{- define "gorgo-epp.tellsModel" -}}
{{- if dig "capability" "tell_model" false .Values.config -}}true{{- end -}}
{{- end -}}

{{/* Whether responses tell which endpoint answered. */}}
{{- define "gorgo-epp.tellsEndpoint" -}}
{{- if dig "request" "tell_endpoint" false .Values.config -}}true{{- end -}}
{{- end -}}

{{/* Where original-dst may go: any address, on the endpoints' ports. Only the picker can name one. */}}
{{- define "gorgo-epp.destinations" -}}
([0-9.]+|\[[0-9a-f:]+\]):({{ join "|" .Values.endpoints.targetPorts }})
{{- end -}}

{{/* Whether a listed endpoint is a host name; whether one speaks TLS. */}}
{{- define "gorgo-epp.hasNames" -}}
{{- $found := "" -}}
{{- range .Values.endpoints.list -}}
{{- if and (include "gorgo-epp.here" (list $ .)) (not (regexMatch "^(\\[|[0-9.]+:[0-9]+$)" .address)) -}}{{- $found = "true" -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- define "gorgo-epp.hasTls" -}}
{{- $found := "" -}}
{{- range .Values.endpoints.list -}}
{{- if and .tls (include "gorgo-epp.here" (list $ .)) -}}{{- $found = "true" -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Whether an endpoint is this release's to know: (list root endpoint); of one for a region, those of the region. */}}
{{- define "gorgo-epp.here" -}}
{{- $root := index . 0 -}}
{{- if or (eq $root.Values.tier "global") (eq ((index . 1).region | default "") $root.Values.region) -}}true{{- end -}}
{{- end -}}

{{/* Whether a relay is a host name. */}}
{{- define "gorgo-epp.hasRelayNames" -}}
{{- $found := "" -}}
{{- range .Values.relays.regions -}}
{{- if not (regexMatch "^(\\[|[0-9.]+:[0-9]+$)" .) -}}{{- $found = "true" -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* First port of this region's relay. */}}
{{- define "gorgo-epp.relayPort" -}}
{{- regexFind "[0-9]+$" (get .Values.relays.regions .Values.region) -}}
{{- end -}}

{{/* Which Envoy stands in the picker's pod. */}}
{{- define "gorgo-epp.envoyFile" -}}
{{- if ne .Values.endpoints.from "list" -}}files/envoy/original-dst.yaml
{{- else if .Values.relays.regions -}}files/envoy/two-tier.yaml
{{- else -}}files/envoy/standalone.yaml
{{- end -}}
{{- end -}}
