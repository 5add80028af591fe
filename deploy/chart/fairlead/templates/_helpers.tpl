{{/* One Fairlead per cluster: its names do not depend on the release. */}}
{{- define "fairlead.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "fairlead.labels" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: fairlead
{{- end -}}

{{/* The user name of one of our service accounts, for policies. */}}
{{- define "fairlead.user" -}}
system:serviceaccount:{{ index . 0 }}:{{ index . 1 }}
{{- end -}}

{{- define "fairlead.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "fairlead.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "fairlead.env" -}}
{{- with .Values.kubernetes }}
{{- if .host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ .host | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ .port | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Agents report to the leading controller with the token of their pod, which names their node. */}}
{{- define "fairlead.reportRule" -}}
{{- if .Values.reports.enabled -}}
- nonResourceURLs: [/v1/reports]
  verbs: [post]
{{- end -}}
{{- end }}

{{- define "fairlead.reportArgs" -}}
{{- if .Values.reports.enabled -}}
- --report-to=https://fairlead-controller.{{ .Release.Namespace }}.svc
- --report-token-file=/var/run/secrets/kubernetes.io/serviceaccount/token
- --report-ca-file=/etc/fairlead-ca/ca.crt
{{- end -}}
{{- end }}

{{- define "fairlead.reportMount" -}}
{{- if .Values.reports.enabled -}}
- {name: authorities, mountPath: /etc/fairlead-ca, readOnly: true}
{{- end -}}
{{- end }}

{{- define "fairlead.reportVolume" -}}
{{- if .Values.reports.enabled -}}
# The controllers write it; agents that start before them report later.
- {name: authorities, configMap: {name: fairlead-controller-ca, optional: true}}
{{- end -}}
{{- end }}
