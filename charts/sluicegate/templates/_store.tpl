{{/*
The store of a container: its environment variables, mounts and volumes. They serve the replicas and the Job that starts
the fleet.
*/}}
{{- define "sluicegate.store.env" -}}
{{- range list .Values.redis.external.urlSecret .Values.postgres.urlSecret }}
{{- if .name }}
- name: SLUICEGATE_STORE_URL
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluicegate.store.mounts" -}}
{{- if .Values.redis.existingSecret }}
- {name: redis-password, mountPath: /etc/redis-password, readOnly: true}
{{- end }}
{{- if .Values.redis.sentinel.existingSecret }}
- {name: sentinel-password, mountPath: /etc/sentinel-password, readOnly: true}
{{- end }}
{{- if .Values.redis.tls.existingSecret }}
- {name: redis-tls, mountPath: /etc/redis-tls, readOnly: true}
{{- end }}
{{- if .Values.postgres.existingSecret }}
- {name: postgres-password, mountPath: /etc/postgres-password, readOnly: true}
{{- end }}
{{- if .Values.postgres.tls.existingSecret }}
- {name: postgres-tls, mountPath: /etc/postgres-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "sluicegate.store.volumes" -}}
{{- with .Values.redis }}
{{- if .existingSecret }}
- name: redis-password
  secret:
    secretName: {{ .existingSecret }}
    items: [{key: {{ .passwordKey }}, path: password}]
{{- end }}
{{- if .sentinel.existingSecret }}
- name: sentinel-password
  secret:
    secretName: {{ .sentinel.existingSecret }}
    items: [{key: {{ .sentinel.passwordKey }}, path: password}]
{{- end }}
{{- with .tls.existingSecret }}
- name: redis-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- end }}
{{- with .Values.postgres }}
{{- if .existingSecret }}
- name: postgres-password
  secret:
    secretName: {{ .existingSecret }}
    items: [{key: {{ .passwordKey }}, path: password}]
{{- end }}
{{- with .tls.existingSecret }}
- name: postgres-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- end }}
{{- end -}}
