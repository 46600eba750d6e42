{{/* The nodes' configuration and the script that starts one. */}}

{{/* A value as TOML. Numbers of a values file arrive as floats, which TOML would show as 1.34e+08. */}}
{{- define "milena.toml" -}}
{{- if kindIs "float64" . -}}
{{ printf "%d" (int64 .) }}
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/* Host names of the cluster: those of its Kubernetes domain and of the ingress, where * allows any name. */}}
{{- define "milena.hosts" -}}
{{- $ingress := .Values.ingress -}}
{{- if and $ingress.enabled (not $ingress.hosts) -}}
*
{{- else -}}
{{- /* A star in an Ingress host stands for one label; allowed_hosts takes it as a leading dot. */ -}}
{{ regexReplaceAll "[*][.]" (join "," (concat (list (printf ".%s" .Values.clusterDomain)) (ternary $ingress.hosts list $ingress.enabled))) "." }}
{{- end -}}
{{- end -}}

{{- define "milena.config" -}}
data_dir = "/var/lib/milena/data"
listen = "0.0.0.0:8082"
peer_listen = "0.0.0.0:7082"
drain_timeout_ms = {{ mul 1000 (int .Values.drain.timeoutSeconds) }}
cluster_secret_file = "/etc/milena-secret/cluster-secret"
{{- if .Values.tls.api.enabled }}
tls_cert_file = "/etc/milena-tls/api/tls.crt"
tls_key_file = "/etc/milena-tls/api/tls.key"
{{- end }}
{{- if .Values.tls.clients.existingSecret }}
tls_client_ca_file = "/etc/milena-tls/clients/ca.crt"
tls_client_auth = "optional"
{{- with .Values.tls.clients.principalRule }}
tls_principal_rule = {{ toJson . }}
{{- end }}
{{- end }}
{{- if .Values.tls.peer.enabled }}
peer_tls_cert_file = "/etc/milena-tls/peer/tls.crt"
peer_tls_key_file = "/etc/milena-tls/peer/tls.key"
peer_tls_ca_file = "/etc/milena-tls/peer/ca.crt"
{{- end }}
{{- if .Values.kafka.enabled }}
kafka_listen = "0.0.0.0:9092"
{{- if .Values.kafka.advertise }}
kafka_external_listen = "0.0.0.0:9094"
kafka_one_address = {{ .Values.kafka.oneAddress }}
{{- end }}
{{- end }}
{{- if not (or (hasKey .Values.config "allowed_hosts") (include "milena.asksCallers" .)) }}
allowed_hosts = {{ include "milena.hosts" . | toJson }}
{{- end }}
{{- range $name, $value := .Values.config }}
{{ $name }} = {{ include "milena.toml" $value }}
{{- end }}
{{- end -}}

{{/* Pod n is node n + 1. The first pods are the voters; the others join them. exec makes the node process 1, so that
it gets SIGTERM itself. */}}
{{- define "milena.startScript" -}}
set -eu
ordinal="${POD_NAME##*-}"
export MILENA_NODE_ID="$((ordinal + 1))"
export MILENA_ADVERTISE="{{ include "milena.advertise" . }}"
export MILENA_PEER_ADVERTISE="{{ include "milena.podHost" (dict "root" . "pod" "${POD_NAME}") }}:7082"
{{- if .Values.kafka.enabled }}
export MILENA_KAFKA_ADVERTISE="{{ include "milena.podHost" (dict "root" . "pod" "${POD_NAME}") }}:9092"
{{- with .Values.kafka.advertise }}
export MILENA_KAFKA_EXTERNAL_ADVERTISE="{{ replace "{ordinal}" "${ordinal}" . }}"
{{- end }}
{{- end }}
if [ -n "${RACK:-}" ]; then export MILENA_RACK="$RACK"; fi
if [ "$ordinal" -lt {{ int .Values.voters }} ]; then
  exec milena start --peers "{{ include "milena.voters" . }}"
fi
exec milena start --join "{{ include "milena.voterAddresses" . }}"
{{- end -}}
