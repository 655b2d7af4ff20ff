{{- define "waterclock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "waterclock.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "waterclock.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "waterclock.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "waterclock.selector" -}}
app.kubernetes.io/name: {{ include "waterclock.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "waterclock.labels" -}}
{{ include "waterclock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "waterclock.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* Every name by which the node is reached, the one that credentials lead to first. */}}
{{- define "waterclock.hosts" -}}
{{- $name := include "waterclock.fullname" . }}
{{- $service := printf "%s.%s" $name .Release.Namespace }}
{{- $pod := printf "%s-0.%s-headless.%s.svc.%s" $name $name .Release.Namespace .Values.clusterDomain }}
{{- $own := list (printf "%s.svc.%s" $service .Values.clusterDomain) (printf "%s.svc" $service) $service $name $pod }}
{{- concat .Values.hosts $own | uniq | toJson }}
{{- end }}

{{- define "waterclock.config" -}}
{{- $hosts := include "waterclock.hosts" . | fromJsonArray }}
{{- $given := dig "server" "hosts" (list) .Values.config }}
{{- $server := dict "host" "0.0.0.0" "hosts" (concat $given $hosts | uniq) }}
{{- $chart := dict "server" $server "cluster" (dict "grpc_port" 9000 "http_port" 8080) "node" (dict "data_folder" "/var/lib/waterclock/data") }}
{{- if .Values.secure.existingSecret }}
{{- $_ := set $chart "security" (dict "folder" "/run/waterclock/secure") }}
{{- end }}
{{- mergeOverwrite (deepCopy .Values.config) $chart | toYaml }}
{{- end }}

{{- define "waterclock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
