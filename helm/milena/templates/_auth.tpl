{{/* The first user's password, for the nodes and for the chart's own commands. */}}

{{/* "true" if the nodes ask for credentials. */}}
{{- define "milena.asksCallers" -}}
{{- if not .Values.auth -}}
{{- fail "\nThere is no value auth: --reuse-values takes the values of a chart without it.\nUse --reset-then-reuse-values (helm 3.14 or later), or --values with your own file." -}}
{{- end -}}
{{- if .Values.auth.enabled -}}true{{- end -}}
{{- end -}}

{{- define "milena.adminSecretName" -}}
{{- default (printf "%s-admin" (include "milena.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{/* Name of the Secret that names the first user to Prometheus' operator. */}}
{{- define "milena.scraperSecretName" -}}
{{- include "milena.fullname" . }}-scraper
{{- end -}}

{{/* Settings from which a node creates the first user. They name the password's file; only the Secret has its text. */}}
{{- define "milena.firstUserEnv" -}}
{{- if include "milena.asksCallers" . }}
- name: MILENA_ADMIN_USER
  value: {{ .Values.auth.adminUser | quote }}
- name: MILENA_ADMIN_PASSWORD_FILE
  value: /etc/milena-admin/admin-password
- name: MILENA_ACCESS_MODE
  value: {{ .Values.auth.mode }}
{{- end }}
{{- end -}}

{{/* Credentials of the chart's commands. */}}
{{- define "milena.credentialsEnv" -}}
{{- if include "milena.asksCallers" . }}
- name: MILENA_USER
  value: {{ .Values.auth.adminUser | quote }}
- name: MILENA_PASSWORD_FILE
  value: /etc/milena-admin/admin-password
{{- end }}
{{- end -}}

{{- define "milena.adminMount" -}}
{{- if include "milena.asksCallers" . }}
- name: admin
  mountPath: /etc/milena-admin
  readOnly: true
{{- end }}
{{- end -}}

{{- define "milena.adminVolume" -}}
{{- if include "milena.asksCallers" . }}
- name: admin
  secret:
    secretName: {{ include "milena.adminSecretName" . }}
    defaultMode: 0440
    items:
      - key: admin-password
        path: admin-password
{{- end }}
{{- end -}}
