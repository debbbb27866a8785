{{/* Renders the Envoy of a region, which knows the others, where it is to run. */}}
{{- define "gorgo-epp.render" -}}
- name: render
  image: {{ include "gorgo-epp.image" (list .Values.image .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    {{- $listen := ternary "[::]:8080" (printf "%s:8080" .Values.standalone.listenHost) (eq .Values.standalone.listenHost "::") }}
    {{- toYaml (list "epp" "envoy" "render" "--config" "/etc/epp/epp.yaml" "--region" .Values.region "--listen" $listen "--upstream-ca" .Values.standalone.upstreamCa "--max-heap-bytes" (int64 .Values.standalone.maxHeapBytes | toString) "--fallback-picker" (printf "%s-pickers:9002" (include "gorgo-epp.fullname" .)) "--out" "/etc/envoy/envoy.yaml") | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    {{- include "gorgo-epp.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/epp, readOnly: true}
    - {name: envoy, mountPath: /etc/envoy}
{{- end -}}
