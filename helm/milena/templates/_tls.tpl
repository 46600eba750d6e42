{{/* Secrets of certificates. */}}

{{- define "milena.apiTlsSecret" -}}
{{- default (printf "%s-api-tls" (include "milena.fullname" .)) .Values.tls.api.existingSecret -}}
{{- end -}}

{{- define "milena.peerTlsSecret" -}}
{{- default (printf "%s-peer-tls" (include "milena.fullname" .)) .Values.tls.peer.existingSecret -}}
{{- end -}}

{{/* "true" if cert-manager makes the API's certificate, and the peers'. */}}
{{- define "milena.makesApiCertificate" -}}
{{- if and .Values.tls.certManager.enabled .Values.tls.api.enabled (not .Values.tls.api.existingSecret) -}}true{{- end -}}
{{- end -}}

{{- define "milena.makesPeerCertificate" -}}
{{- if and .Values.tls.certManager.enabled .Values.tls.peer.enabled (not .Values.tls.peer.existingSecret) -}}true{{- end -}}
{{- end -}}
