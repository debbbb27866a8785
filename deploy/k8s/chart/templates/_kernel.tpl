{{/* Sets kernel settings of the pod's network namespace before anything connects: what `epp doctor` advises for
     far endpoints. Privileged, so off unless asked for. */}}
{{- define "gorgo-epp.kernel" -}}
- name: kernel
  image: {{ include "gorgo-epp.image" (list .Values.image .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    - python
    - -c
    - |
      import pathlib, sys
      for setting in sys.argv[1:]:
          name, _, value = setting.partition("=")
          path = pathlib.Path("/proc/sys", *name.split("."))
          before = path.read_text().strip()
          path.write_text(value)
          print(f"{name}: {before} -> {path.read_text().strip()}")
  args:
    {{- range $name, $value := .Values.kernel.sysctls }}
    - {{ printf "%s=%s" $name $value | quote }}
    {{- end }}
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 64Mi}
  securityContext:
    privileged: true
    readOnlyRootFilesystem: true
    runAsNonRoot: false
    runAsUser: 0
{{- end -}}
