{{/* The tuner's container, beside the picker or alone. */}}
{{- define "gorgo-epp.tuner" -}}
- name: tuner
  image: {{ include "gorgo-epp.image" (list .Values.image .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    {{- toYaml .Values.tuner.command | nindent 4 }}
  args:
    {{- toYaml .Values.tuner.args | nindent 4 }}
  resources:
    {{- toYaml .Values.tuner.resources | nindent 4 }}
  securityContext:
    {{- include "gorgo-epp.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/epp, readOnly: true}
    - {name: overrides, mountPath: /etc/epp-overrides, readOnly: true}
    - {name: shared, mountPath: /shared}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "gorgo-epp.sharedVolume" -}}
- name: shared
  {{- if .Values.shared.existingClaim }}
  persistentVolumeClaim: {claimName: {{ .Values.shared.existingClaim }}}
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
