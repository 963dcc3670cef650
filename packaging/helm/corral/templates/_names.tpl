{{- define "corral.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "corral.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}

{{- define "corral.scheme" -}}{{ if .Values.tls.secretName }}https{{ else }}http{{ end }}{{- end }}

{{- define "corral.jobNamespace" -}}{{ .Values.kubernetes.jobNamespace | default .Release.Namespace }}{{- end }}

{{/* The server that a part belongs to is selected by these; they never change. */}}
{{- define "corral.selector" -}}
app.kubernetes.io/name: corral
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "corral.labels" -}}
{{ include "corral.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What the Pod Security standard "restricted" asks for. */}}
{{- define "corral.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "corral.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
