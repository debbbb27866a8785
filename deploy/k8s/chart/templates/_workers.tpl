{{/* Whether a worker, the tuner or the learner, runs beside the picker: of several pickers the leader's works: (list root name). */}}
{{- define "gorgo-epp.workerBeside" -}}
{{- $root := index . 0 -}}
{{- $worker := index $root.Values (index . 1) -}}
{{- if and $worker.enabled (or (eq (int $root.Values.replicas) 1) (include "gorgo-epp.natsUrl" $root)) (not $root.Values.shared.existingClaim) -}}true{{- end -}}
{{- end -}}

{{/* A worker's container, beside the picker or alone: (list root name). */}}
{{- define "gorgo-epp.worker" -}}
{{- $root := index . 0 -}}
{{- $worker := index $root.Values (index . 1) -}}
- name: {{ index . 1 }}
  image: {{ include "gorgo-epp.image" (list $root.Values.image $root.Chart.AppVersion) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command:
    {{- toYaml $worker.command | nindent 4 }}
  args:
    {{- toYaml $worker.args | nindent 4 }}
  resources:
    {{- toYaml $worker.resources | nindent 4 }}
  securityContext:
    {{- include "gorgo-epp.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/epp, readOnly: true}
    - {name: overrides, mountPath: /etc/epp-overrides, readOnly: true}
    - {name: shared, mountPath: /shared}
    - {name: tmp, mountPath: /tmp}
    {{- with $root.Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* What no worker can do: (list root name). */}}
{{- define "gorgo-epp.checkWorker" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- if (index $root.Values $name).enabled -}}
{{- if and (gt (int $root.Values.replicas) 1) (not (include "gorgo-epp.natsUrl" $root)) (not $root.Values.shared.existingClaim) -}}
{{- fail (printf "%s.enabled with several replicas needs nats.url, nats.server.enabled, or shared.existingClaim: one %s reads the records of all of them" $name $name) -}}
{{- end -}}
{{- if include "gorgo-epp.llmd" $root -}}
{{- fail (printf "%s.enabled goes without endpointPickerConfig: it reads epp.yaml" $name) -}}
{{- end -}}
{{- if not $root.Values.records.enabled -}}
{{- fail (printf "%s.enabled needs records.enabled: it learns from the records" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gorgo-epp.sharedVolume" -}}
- name: shared
  {{- if .Values.shared.existingClaim }}
  persistentVolumeClaim: {claimName: {{ .Values.shared.existingClaim | toYaml }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ .Values.shared.sizeLimit }}}
  {{- end }}
{{- end -}}

{{/* Changes with what is read at start alone. */}}
{{- define "gorgo-epp.checksum" -}}
{{- $text := list -}}
{{- if include "gorgo-epp.llmd" . -}}
{{- $text = append $text (toYaml .Values.endpointPickerConfig) -}}
{{- else -}}
{{- $text = append $text (include "gorgo-epp.config" .) -}}
{{- end -}}
{{- if .Values.standalone.enabled -}}
{{- $text = append $text (toYaml .Values.standalone) -}}
{{- if eq .Values.endpoints.from "list" -}}
{{- /* The picker follows its list, the Envoy beside it does not. */ -}}
{{- $text = append $text (toYaml .Values.endpoints.list) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $text | sha256sum -}}
{{- end -}}
