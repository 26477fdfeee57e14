{{- define "telapi.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "telapi.media" -}}{{ include "telapi.fullname" . }}-media{{- end -}}

{{- define "telapi.secret" -}}{{ .Values.secret.existing | default (include "telapi.fullname" .) }}{{- end -}}

{{- define "telapi.mediaTLS" -}}{{ .Values.media.tls.existingSecret | default (printf "%s-tls" (include "telapi.media" .)) }}{{- end -}}

{{/* Labels that select the pods of a component. Call it with (list . "api"). */}}
{{- define "telapi.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "telapi.labels" -}}
{{ include "telapi.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end -}}

{{- define "telapi.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end -}}

{{/* A variable from the Secret. Call it with (list . "NAME" "KEY"). */}}
{{- define "telapi.fromSecret" -}}
- name: {{ index . 1 }}
  valueFrom: {secretKeyRef: {name: {{ include "telapi.secret" (index . 0) }}, key: {{ index . 2 }}}}
{{- end -}}

{{/* What the pods of both components have in common. */}}
{{- define "telapi.pod" -}}
automountServiceAccountToken: false
# Otherwise Kubernetes adds variables of Services, such as TELAPI_PORT=tcp://…
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add .Values.preStopSeconds .Values.shutdownSeconds 10 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "telapi.container" -}}
image: {{ include "telapi.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end -}}
