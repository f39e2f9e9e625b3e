{{/* The container that fetches limits from git: (dict "root" $ "once" true). */}}
{{- define "sluicegate.gitSync" -}}
{{- $git := .root.Values.limits.gitSync -}}
image: {{ $git.image }}
args:
  - --repo={{ $git.repository }}
  - --ref={{ $git.ref }}
  - --depth=1
  - --root=/limits
  # git-sync replaces one symbolic link, so the service loads a revision as one change.
  - --link=current
  {{- if .once }}
  - --one-time
  {{- else }}
  - --period={{ $git.period }}
  {{- end }}
  {{- if $git.existingSecret }}
  {{- if eq $git.secretKind "ssh" }}
  - --ssh-key-file=/etc/git-secret/ssh
  - --ssh-known-hosts-file=/etc/git-secret/known_hosts
  {{- else }}
  - --password-file=/etc/git-secret/password
  {{- end }}
  {{- end }}
env:
  - {name: HOME, value: /tmp}
  {{- if and $git.existingSecret (eq $git.secretKind "basic") }}
  - name: GITSYNC_USERNAME
    valueFrom: {secretKeyRef: {name: {{ $git.existingSecret }}, key: username}}
  {{- end }}
# The user of the image: git over ssh needs a user that exists.
{{- $user := include "sluicegate.imageUser" (dict "root" .root "user" 65533) | fromYaml }}
securityContext: {{- include "sluicegate.overlay" (list $user .root.Values.securityContext $git.securityContext) | nindent 2 }}
resources: {{- toYaml $git.resources | nindent 2 }}
volumeMounts:
  - {name: limits, mountPath: /limits}
  - {name: git-tmp, mountPath: /tmp}
  {{- if $git.existingSecret }}
  - {name: git-secret, mountPath: /etc/git-secret, readOnly: true}
  {{- end }}
{{- end -}}
