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
