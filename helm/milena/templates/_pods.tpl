{{/* Parts that the pods of nodes, jobs and tests share. */}}

{{- define "milena.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "milena.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "milena.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "milena.affinity" -}}
{{- if .Values.affinity }}
{{- toYaml .Values.affinity }}
{{- else if eq .Values.podAntiAffinity "hard" }}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "milena.nodeLabels" . | nindent 10 }}
{{- else if eq .Values.podAntiAffinity "soft" }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "milena.nodeLabels" . | nindent 12 }}
{{- end }}
{{- end -}}

{{- define "milena.topologySpread" -}}
{{- range $key, $when := dict "kubernetes.io/hostname" .Values.topologySpread.hosts "topology.kubernetes.io/zone" .Values.topologySpread.zones }}
{{- if ne $when "none" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: {{ $when }}
  labelSelector:
    matchLabels: {{- include "milena.nodeLabels" $ | nindent 6 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "milena.probe" -}}
httpGet:
  path: {{ .path }}
  port: api
  scheme: {{ .scheme | upper }}
periodSeconds: {{ int .values.periodSeconds }}
timeoutSeconds: {{ int .values.timeoutSeconds }}
failureThreshold: {{ int .values.failureThreshold }}
{{- end -}}

{{/* The authority of the API's certificate, for commands that call the API. */}}
{{- define "milena.trustEnv" -}}
{{- if .Values.tls.api.enabled }}
- name: SSL_CERT_FILE
  value: /etc/milena-tls/api/ca.crt
{{- end }}
{{- end -}}

{{/* Pod of a command that uses the cluster from within: (dict "root" $ "component" "..." "name" "..." "script" "..."). */}}
{{- define "milena.clientPodSpec" -}}
{{- $root := .root -}}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
serviceAccountName: {{ include "milena.serviceAccountName" $root }}
{{- include "milena.pullSecrets" $root }}
securityContext: {{- include "milena.podSecurity" $root | nindent 2 }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .name }}
    image: {{ include "milena.image" $root }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: [/bin/sh, -c]
    args:
      - |
        {{- .script | nindent 8 }}
    env:
      - name: MILENA_URL
        value: {{ include "milena.url" $root }}
      {{- with include "milena.trustEnv" $root | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "milena.credentialsEnv" $root | trim }}
      {{- . | nindent 6 }}
      {{- end }}
    securityContext: {{- include "milena.containerSecurity" $root | nindent 6 }}
    resources:
      requests: {cpu: 50m, memory: 128Mi}
      limits: {memory: 256Mi}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      {{- with include "milena.adminMount" $root | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if $root.Values.tls.api.enabled }}
      - name: tls-api
        mountPath: /etc/milena-tls/api
        readOnly: true
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  {{- with include "milena.adminVolume" $root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if $root.Values.tls.api.enabled }}
  - name: tls-api
    secret:
      secretName: {{ include "milena.apiTlsSecret" $root }}
      items:
        - key: ca.crt
          path: ca.crt
  {{- end }}
{{- end -}}
