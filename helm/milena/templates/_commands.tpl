{{/* Scripts of the pods that use the cluster from within. */}}

{{/* Text as one word of a shell. */}}
{{- define "milena.word" -}}
'{{ . | replace "'" "'\\''" }}'
{{- end -}}

{{/* Creates missing topics. Without --wait the hook runs before the nodes are up; the job's deadline limits the wait. */}}
{{- define "milena.topicScript" -}}
set -eu
until milena topics list > /tmp/topics; do sleep 2; done
{{- range .Values.topics }}
milena topics create {{ include "milena.word" .name }} --if-not-exists
{{- with .partitions }} --partitions {{ int . }}{{ end }}
{{- with .replicationFactor }} --replication-factor {{ int . }}{{ end }}
{{- range $name, $value := .config }} --config {{ include "milena.word" (printf "%s=%s" $name (include "milena.plain" $value)) }}{{ end }}
{{- end }}
{{- end -}}

{{/* A setting of a topic as text; numbers of a values file arrive as floats. */}}
{{- define "milena.plain" -}}
{{- if kindIs "float64" . -}}{{ printf "%d" (int64 .) }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Writes a record, reads it back, and deletes its topic. */}}
{{- define "milena.testScript" -}}
set -eu
topic="helm-test-$(date +%s)"
record="written at $(date +%s) by $HOSTNAME"
milena topics create "$topic" --partitions 1
trap 'milena topics delete "$topic" --yes' EXIT
printf '%s\n' "$record" | milena produce "$topic"
milena consume "$topic" --from-beginning > /tmp/records
cat /tmp/records
grep -qxF "$record" /tmp/records
echo "the record came back"
{{- end -}}
