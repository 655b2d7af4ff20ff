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

{{- /* What the names of pods end with. */}}
{{- define "waterclock.domain" -}}
{{ include "waterclock.fullname" . }}-headless.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- define "waterclock.pods" -}}
{{- $pods := list }}
{{- range until (int .Values.replicas) }}
{{- $pods = append $pods (printf "%s-%d.%s" (include "waterclock.fullname" $) . (include "waterclock.domain" $)) }}
{{- end }}
{{- $pods | toJson }}
{{- end }}

{{- /* Every name by which a node is reached, the one that credentials lead to first. */}}
{{- define "waterclock.hosts" -}}
{{- $name := include "waterclock.fullname" . }}
{{- $service := printf "%s.%s" $name .Release.Namespace }}
{{- $own := list (printf "%s.svc.%s" $service .Values.clusterDomain) (printf "%s.svc" $service) $service $name }}
{{- concat .Values.hosts $own (include "waterclock.pods" . | fromJsonArray) | uniq | toJson }}
{{- end }}

{{- define "waterclock.config" -}}
{{- $hosts := include "waterclock.hosts" . | fromJsonArray }}
{{- $given := dig "server" "hosts" (list) .Values.config }}
{{- $server := dict "host" "0.0.0.0" "hosts" (concat $given $hosts | uniq) }}
{{- $cluster := dict "grpc_port" 9000 "http_port" 8080 }}
{{- if gt (int .Values.replicas) 1 }}
{{- $_ := required "replicas above 1 need secure.existingSecret: nodes of a cluster share one secure folder" .Values.secure.existingSecret }}
{{- $seeds := list }}
{{- range include "waterclock.pods" . | fromJsonArray }}
{{- $seeds = append $seeds (printf "%s:7946" .) }}
{{- end }}
{{- $cluster = merge $cluster (dict "gossip_port" 7946 "peer_port" 7947 "bootstrap_nodes" $seeds) }}
{{- end }}
{{- $chart := dict "server" $server "cluster" $cluster "node" (dict "data_folder" "/var/lib/waterclock/data") }}
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
