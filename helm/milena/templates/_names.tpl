{{/* Names, labels and addresses. */}}

{{- define "milena.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 45 characters: a pod's label holds this name, a dash and a hash within 63. */}}
{{- define "milena.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains (include "milena.name" .) .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "milena.name" .) | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "milena.headless" -}}
{{- include "milena.fullname" . }}-headless
{{- end -}}

{{- define "milena.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "milena.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Labels from the release's name only, which an upgrade never changes: selectors are immutable. */}}
{{- define "milena.releaseLabels" -}}
app.kubernetes.io/name: {{ include "milena.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Selects only the nodes, not the pods of jobs and tests. */}}
{{- define "milena.nodeLabels" -}}
{{ include "milena.releaseLabels" . }}
app.kubernetes.io/component: node
{{- end -}}

{{/* Labels of an object: (dict "root" $ "component" "..."). */}}
{{- define "milena.labels" -}}
{{- $root := .root -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "milena.releaseLabels" $root }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "milena.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* DNS name of a pod: (dict "root" $ "pod" "name of the pod"). */}}
{{- define "milena.podHost" -}}
{{ .pod }}.{{ include "milena.headless" .root }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{/* The voters for milena start --peers: 1=HOST:PORT,2=... */}}
{{- define "milena.voters" -}}
{{- $voters := list -}}
{{- range $ordinal := until (int .Values.voters) -}}
{{- $pod := printf "%s-%d" (include "milena.fullname" $) $ordinal -}}
{{- $voters = append $voters (printf "%d=%s:7082" (add1 $ordinal) (include "milena.podHost" (dict "root" $ "pod" $pod))) -}}
{{- end -}}
{{- join "," $voters -}}
{{- end -}}

{{/* Addresses of the voters for milena start --join. */}}
{{- define "milena.voterAddresses" -}}
{{- regexReplaceAll "[0-9]+=" (include "milena.voters" .) "" -}}
{{- end -}}

{{- define "milena.scheme" -}}
{{- ternary "https" "http" .Values.tls.api.enabled -}}
{{- end -}}

{{/* URL of the nodes for clients in the cluster. */}}
{{- define "milena.url" -}}
{{ include "milena.scheme" . }}://{{ include "milena.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:{{ int .Values.service.port }}
{{- end -}}

{{/* URL that a node gives to clients; the start script inserts the pod's name. */}}
{{- define "milena.advertise" -}}
{{- $url := .Values.externalAccess.perPod.advertise -}}
{{- if and .Values.externalAccess.perPod.enabled $url -}}
{{ $url | replace "{ordinal}" "${ordinal}" }}
{{- else -}}
{{ include "milena.scheme" . }}://{{ include "milena.podHost" (dict "root" . "pod" "${POD_NAME}") }}:8082
{{- end -}}
{{- end -}}

{{- define "milena.clusterSecretName" -}}
{{- default (printf "%s-cluster-secret" (include "milena.fullname" .)) .Values.clusterSecret.existingSecret -}}
{{- end -}}

{{- define "milena.clusterSecretRef" -}}
{{ include "milena.clusterSecretName" . }}/{{ .Values.clusterSecret.key }}
{{- end -}}
