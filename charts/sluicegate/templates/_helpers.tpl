{{/* Names and labels. */}}
{{- define "sluicegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "sluicegate.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* The labels that select pods: (list $ "service"). */}}
{{- define "sluicegate.component" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ include "sluicegate.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "sluicegate.selector" }}{{ include "sluicegate.component" (list . "service") }}{{ end -}}
{{- define "sluicegate.redis.selector" }}{{ include "sluicegate.component" (list . "redis") }}{{ end -}}
{{- define "sluicegate.start.selector" }}{{ include "sluicegate.component" (list . "fleet-start") }}{{ end -}}
{{- define "sluicegate.test.selector" }}{{ include "sluicegate.component" (list . "test") }}{{ end -}}

{{/*
Labels of an object or a pod, each key once: (dict "root" $ "selector" "sluicegate.selector" "labels" dict). The user's value
wins, except for the keys of the selector.
*/}}
{{- define "sluicegate.labels" -}}
{{- $chart := dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service "app.kubernetes.io/part-of" "sluicegate" -}}
{{- $selector := include (default "sluicegate.selector" .selector) .root | fromYaml -}}
{{- include "sluicegate.overlay" (list (ternary dict $chart (default false .isPod)) .root.Values.commonLabels (default dict .labels) $selector) -}}
{{- end -}}

{{/* One mapping from a list of mappings: each key of a later one replaces that of an earlier one, and null removes it. */}}
{{- define "sluicegate.overlay" -}}
{{- $all := dict -}}
{{- range . }}{{ range $key, $value := . }}{{ $_ := set $all $key $value }}{{ end }}{{ end -}}
{{- range $key, $value := $all }}{{ if kindIs "invalid" $value }}{{ $_ := unset $all $key }}{{ end }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{/*
The user of a container whose image has one: (dict "root" $ "user" 999). Empty if the cluster chooses the users, because
podSecurityContext.runAsUser is null.
*/}}
{{- define "sluicegate.imageUser" -}}
{{- if not (kindIs "invalid" .root.Values.podSecurityContext.runAsUser) }}{{ toYaml (dict "runAsUser" .user) }}{{ end -}}
{{- end -}}

{{/* The secret with the admin token, and the key in it. */}}
{{- define "sluicegate.adminSecret" -}}
{{- $own := printf "%s-admin" (include "sluicegate.fullname" .) -}}
{{- with .Values.admin -}}
{name: {{ default $own .existingSecret }}, key: {{ ternary .tokenKey "token" (ne .existingSecret "") }}}
{{- end -}}
{{- end -}}

{{/* metadata of an object: (dict "root" $ "suffix" "-limits"), with "namespace" in another one. */}}
{{- define "sluicegate.metadata" -}}
name: {{ include "sluicegate.fullname" .root }}{{ .suffix }}
namespace: {{ default .root.Release.Namespace .namespace }}
labels: {{- include "sluicegate.labels" . | nindent 2 }}
{{- end -}}

{{/* The IP families of a service; nothing by default. */}}
{{- define "sluicegate.ipFamilies" -}}
{{- with .Values.service -}}
{{- if .ipFamilyPolicy }}ipFamilyPolicy: {{ .ipFamilyPolicy }}{{ end }}
{{- if .ipFamilies }}
ipFamilies: {{ toJson .ipFamilies }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "sluicegate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "sluicegate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.image" -}}
{{- with .Values.image -}}
{{- with .registry }}{{ . }}/{{ end -}}
{{- .repository -}}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The image with the module for Envoy, for extraObjects. */}}
{{- define "sluicegate.moduleImage" -}}
{{- with .Values.image -}}
{{- with .registry }}{{ . }}/{{ end -}}
sluicegate-envoy-module
{{- if .moduleDigest }}@{{ .moduleDigest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The URL of the store; empty for counters in memory, and for a URL in a secret. */}}
{{- define "sluicegate.store" -}}
{{- if .Values.redis.enabled -}}
redis://{{ include "sluicegate.fullname" . }}-redis:6379
{{- else if .Values.persistence.enabled -}}
file:///var/lib/sluicegate/counters
{{- else -}}
{{- default .Values.redis.external.url .Values.postgres.url -}}
{{- end -}}
{{- end -}}

{{/* The directory of the limits in the container. */}}
{{- define "sluicegate.limits.directory" -}}
{{- if .Values.limits.gitSync.enabled -}}
{{- printf "/limits/current/%s" (trimAll "/" .Values.limits.gitSync.path) | trimSuffix "/" -}}
{{- else -}}
/limits
{{- end -}}
{{- end -}}

{{/* The secret with the certificate of the grpc port; empty without TLS. */}}
{{- define "sluicegate.grpcTLS.secret" -}}
{{- with .Values.grpcTLS }}{{ if .issue.enabled }}{{ include "sluicegate.fullname" $ }}-grpc-tls{{ else }}{{ .existingSecret }}{{ end }}{{ end -}}
{{- end -}}

{{/* The data of a secret in the cluster, as JSON: (list "namespace" "name"). `helm template` has no cluster. */}}
{{- define "sluicegate.issued" -}}
{{- (lookup "v1" "Secret" (first .) (last .)).data | default dict | toJson -}}
{{- end -}}

{{/* Certificates from a mounted secret: (dict "at" "/etc/grpc-tls" "keys" (dict "cert_file" "tls.crt")). */}}
{{- define "sluicegate.tls" -}}
{{- $files := dict -}}
{{- $at := .at -}}
{{- range $key, $file := .keys }}{{ $_ := set $files $key (printf "%s/%s" $at $file) }}{{ end -}}
{{- toJson $files -}}
{{- end -}}

{{/* The port of `listen.syslog_port`; nothing for `none`, of which `int` is 0. */}}
{{- define "sluicegate.syslogPort" -}}
{{- with int (dig "listen" "syslog_port" 0 .Values.settings) }}{{ . }}{{ end -}}
{{- end -}}

{{/* Settings of block `listen` that the chart sets, as JSON. */}}
{{- define "sluicegate.settings.listen" -}}
{{- $listen := dict -}}
{{- $everywhere := ternary "0.0.0.0" "::" (contains "." (dig "listen" "host" "" .Values.settings)) -}}
{{- if .Values.admin.existingSecret }}{{ $_ := set $listen "admin_host" $everywhere }}{{ end -}}
{{- with .Values.grpcTLS -}}
{{- $keys := dict -}}
{{- if include "sluicegate.grpcTLS.secret" $ }}{{ $keys = dict "cert_file" "tls.crt" "key_file" "tls.key" }}{{ end -}}
{{- if or .clientCertificates .issue.enabled }}{{ $_ := set $keys "client_ca_file" "ca.crt" }}{{ end -}}
{{- if $keys }}{{ $_ := set $listen "tls" (include "sluicegate.tls" (dict "at" "/etc/grpc-tls" "keys" $keys) | fromJson) }}{{ end -}}
{{- end -}}
{{- toJson $listen -}}
{{- end -}}

{{/* Settings of block `store` that the chart sets, as JSON. */}}
{{- define "sluicegate.settings.store" -}}
{{- $store := dict -}}
{{- with include "sluicegate.store" . }}{{ $_ := set $store "url" . }}{{ end -}}
{{- with .Values.redis -}}
{{- if .existingSecret }}{{ $_ := set $store "password_file" "/etc/redis-password/password" }}{{ end -}}
{{- $sentinel := dict -}}
{{- with .sentinel.user }}{{ $_ := set $sentinel "user" . }}{{ end -}}
{{- if .sentinel.existingSecret }}{{ $_ := set $sentinel "password_file" "/etc/sentinel-password/password" }}{{ end -}}
{{- if $sentinel }}{{ $_ := set $store "sentinel" $sentinel }}{{ end -}}
{{- $keys := dict -}}
{{- if .tls.existingSecret }}{{ $_ := set $keys "ca_file" "ca.crt" }}{{ end -}}
{{- if .tls.clientCertificate }}{{ $_ := set $keys "cert_file" "tls.crt" }}{{ $_ := set $keys "key_file" "tls.key" }}{{ end -}}
{{- $tls := include "sluicegate.tls" (dict "at" "/etc/redis-tls" "keys" $keys) | fromJson -}}
{{- with .tls.serverName }}{{ $_ := set $tls "server_name" . }}{{ end -}}
{{- if $tls }}{{ $_ := set $store "tls" $tls }}{{ end -}}
{{- end -}}
{{- with .Values.postgres -}}
{{- if .existingSecret }}{{ $_ := set $store "password_file" "/etc/postgres-password/password" }}{{ end -}}
{{- if .tls.existingSecret }}{{ $_ := set $store "tls" (dict "ca_file" "/etc/postgres-tls/ca.crt") }}{{ end -}}
{{- end -}}
{{- toJson $store -}}
{{- end -}}

{{/* Settings of block `fleet.peers` that the chart sets, as JSON. */}}
{{- define "sluicegate.settings.peers" -}}
{{- $peers := dict -}}
{{- if .Values.peers.existingSecret }}{{ $_ := set $peers "secret_file" "/etc/peer-secret/secret" }}{{ end -}}
{{- if .Values.peers.tls.existingSecret }}
{{- $keys := dict "cert_file" "tls.crt" "key_file" "tls.key" "ca_file" "ca.crt" -}}
{{- $tls := include "sluicegate.tls" (dict "at" "/etc/peer-tls" "keys" $keys) | fromJson -}}
{{- $_ := set $tls "server_name" .Values.peers.tls.name }}{{ $_ := set $peers "tls" $tls -}}
{{- end -}}
{{- toJson $peers -}}
{{- end -}}

{{/* The settings of the service (server.yaml), each block as JSON. YAML would round large numbers. */}}
{{- define "sluicegate.settings" -}}
{{- $all := dict -}}
{{- if not (dig "limits" "xds" "server" "" .Values.settings) }}{{ $_ := set $all "limits" (dict "paths" (list (include "sluicegate.limits.directory" .))) }}{{ end -}}
{{- with include "sluicegate.settings.listen" . | fromJson }}{{ $_ := set $all "listen" . }}{{ end -}}
{{- with include "sluicegate.settings.store" . | fromJson }}{{ $_ := set $all "store" . }}{{ end -}}
{{- with include "sluicegate.settings.peers" . | fromJson }}{{ $_ := set $all "fleet" (dict "peers" .) }}{{ end -}}
{{- with .Values.redis.external.perSecondUrl }}{{ $_ := set $all "compat" (dict "store" (dict "per_second_url" .)) }}{{ end -}}
{{- $lines := list -}}
{{- range $name, $value := merge $all .Values.settings }}{{ $lines = append $lines (printf "%s: %s" $name (toJson $value)) }}{{ end -}}
{{- join "\n" $lines -}}
{{- end -}}

{{/* A duration in whole seconds, rounded up. */}}
{{- define "sluicegate.seconds" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- if eq $unit "d" }}{{ mul $number 86400 }}
{{- else if eq $unit "h" }}{{ mul $number 3600 }}
{{- else if eq $unit "m" }}{{ mul $number 60 }}
{{- else if eq $unit "ms" }}{{ div (add $number 999) 1000 }}
{{- else if eq $unit "us" }}{{ div (add $number 999999) 1000000 }}
{{- else if eq $unit "ns" }}{{ div (add $number 999999999) 1000000000 }}
{{- else }}{{ $number }}
{{- end -}}
{{- end -}}

{{/*
The grace period: the preStop hook, the drain and 10 s. Fails if the configured one is shorter. In these 10 s, a replica
returns leases (at most 2 s), forwards releases (0.5 s), leaves the fleet (1.6 s) and exports its last spans and metrics
(2 s each).
*/}}
{{- define "sluicegate.grace" -}}
{{- $delay := include "sluicegate.seconds" (dig "listen" "drain_delay" "5s" .Values.settings) | int64 -}}
{{- $timeout := include "sluicegate.seconds" (dig "listen" "drain_timeout" "20s" .Values.settings) | int64 -}}
{{- $drain := add $delay $timeout -}}
{{- $hook := (default dict .Values.lifecycle).preStop | default dict -}}
{{- $sleep := ($hook.sleep | default dict).seconds | int64 -}}
{{- $least := add $sleep $drain 10 -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- if and $hook (not $hook.sleep) -}}
{{- fail (printf "lifecycle.preStop is part of the grace period, and the chart knows only the duration of `sleep`: set terminationGracePeriodSeconds to the duration of the hook plus %d s for the shutdown" $least) -}}
{{- end -}}
{{- $least -}}
{{- else -}}
{{- $grace := int64 .Values.terminationGracePeriodSeconds -}}
{{- if lt $grace $least -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but a shutdown can take %d s: %d s of lifecycle.preStop.sleep, %d s of draining (settings.listen.drain_delay and drain_timeout) and 10 s of cleanup. Pods would be killed with requests in flight. Set at least %d, remove it, or drain for less time" $grace $least $sleep $drain $least) -}}
{{- end -}}
{{- $grace -}}
{{- end -}}
{{- end -}}

{{/* Not empty if replicas forward releases to each other. */}}
{{- define "sluicegate.peers" -}}
{{- with .Values.peers }}{{ if or .existingSecret .tls.existingSecret }}yes{{ end }}{{ end -}}
{{- end -}}

{{/*
Fails for settings that the pods would reject at startup, and for a password of the bundled Redis, which has none. Skipped
if a secret or an environment variable contains the URL or its settings.
*/}}
{{- define "sluicegate.check.redis" -}}
{{- $redis := .Values.redis -}}
{{- $given := list -}}
{{- range $name, $value := dict "redis.existingSecret" $redis.existingSecret "redis.tls.existingSecret" $redis.tls.existingSecret "redis.tls.serverName" $redis.tls.serverName "redis.sentinel.user" $redis.sentinel.user "redis.sentinel.existingSecret" $redis.sentinel.existingSecret -}}
{{- if $value }}{{ $given = append $given $name }}{{ end -}}
{{- end -}}
{{- if and $redis.enabled $given -}}
{{- fail (printf "redis.enabled starts a Redis without a password, TLS and sentinels, but %s is set: remove it, or set redis.external.url instead of redis.enabled" (join " and " $given)) -}}
{{- end -}}
{{- $elsewhere := or $redis.external.urlSecret.name .Values.extraEnvFrom -}}
{{- range .Values.extraEnv }}{{ if regexMatch "^SLUICEGATE_(COMPAT_)?STORE_" .name }}{{ $elsewhere = true }}{{ end }}{{ end -}}
{{- $urls := list $redis.external.url $redis.external.perSecondUrl | compact -}}
{{- if not $elsewhere -}}
{{- if and $redis.existingSecret (not $urls) }}{{ fail "redis.existingSecret has a password, but no Redis is configured: set redis.external.url" }}{{ end -}}
{{- if and (or $redis.tls.existingSecret $redis.tls.serverName) (not (regexMatch "(^| )(redis|valkey)s[+:]" (join " " $urls))) -}}
{{- fail "redis.tls is set, but redis.external.url does not use TLS: write rediss:// instead of redis://, or remove redis.tls" -}}
{{- end -}}
{{- if and (or $redis.sentinel.user $redis.sentinel.existingSecret) (not (contains "+sentinel://" (join " " $urls))) -}}
{{- fail "redis.sentinel is set, but redis.external.url has no sentinels: write redis+sentinel://, or remove redis.sentinel" -}}
{{- end -}}
{{- if and $redis.sentinel.user (not $redis.sentinel.existingSecret) }}{{ fail "redis.sentinel.user requires redis.sentinel.existingSecret with the password of this user" }}{{ end -}}
{{- range $name, $url := dict "url" $redis.external.url "perSecondUrl" $redis.external.perSecondUrl -}}
{{- if and (regexMatch "://[^/@]+@" $url) (not $redis.existingSecret) -}}
{{- fail (printf "redis.external.%s has a user without a password: set redis.existingSecret, or remove the user" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails for values of PostgreSQL that the pods would reject at startup, or that contradict those of Redis. */}}
{{- define "sluicegate.check.postgres" -}}
{{- $postgres := .Values.postgres -}}
{{- $given := list -}}
{{- range $name, $value := dict "postgres.existingSecret" $postgres.existingSecret "postgres.tls.existingSecret" $postgres.tls.existingSecret "postgres.migrate" $postgres.migrate -}}
{{- if $value }}{{ $given = append $given $name }}{{ end -}}
{{- end -}}
{{- if and $given (not $postgres.url) (not $postgres.urlSecret.name) -}}
{{- fail (printf "%s is set, but no PostgreSQL is configured: set postgres.url" (join " and " $given)) -}}
{{- end -}}
{{- if regexMatch "://[^@]*:.*@|[?&]password=" $postgres.url -}}
{{- fail "postgres.url contains a password, which would be stored in a ConfigMap: move the password to postgres.existingSecret, or the URL to postgres.urlSecret" -}}
{{- end -}}
{{- if and $postgres.tls.existingSecret $postgres.url (not (regexMatch "[?&]sslmode=(require|verify-ca|verify-full)" $postgres.url)) -}}
{{- fail "postgres.tls is set, but postgres.url does not use TLS: add ?sslmode=require, or remove postgres.tls" -}}
{{- end -}}
{{- end -}}

{{/*
Fails for values that may be secrets and would be stored in a ConfigMap, or in the arguments of a container.
*/}}
{{- define "sluicegate.check.secrets" -}}
{{- if dig "compat" "xds" "headers" "" .Values.settings -}}
{{- fail "settings.compat.xds.headers may contain credentials, and would be stored in a ConfigMap: remove it, and set SLUICEGATE_COMPAT_XDS_HEADERS from a secret, in extraEnv" -}}
{{- end -}}
{{- if regexMatch "^[a-z]+://[^/?]*([?/].|.*@)" (dig "events" "url" "" .Values.settings) -}}
{{- fail "settings.events.url has a path or a query, which may be a secret and would be stored in a ConfigMap: remove it, and set SLUICEGATE_EVENTS_URL from a secret, in extraEnv" -}}
{{- end -}}
{{- if regexMatch "://[^@]*:.*@" .Values.limits.gitSync.repository -}}
{{- fail "limits.gitSync.repository contains a password, which every reader of the Deployment sees: move it to limits.gitSync.existingSecret with secretKind basic" -}}
{{- end -}}
{{- end -}}

{{/* Fails for labels that would replace those by which services and deployments select their pods. */}}
{{- define "sluicegate.check.labels" -}}
{{- $reserved := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- $values := .Values -}}
{{- range $name, $labels := dict "commonLabels" $values.commonLabels "podLabels" $values.podLabels "service.labels" $values.service.labels "metrics.serviceMonitor.labels" $values.metrics.serviceMonitor.labels "metrics.prometheusRule.labels" $values.metrics.prometheusRule.labels "dashboards.labels" $values.dashboards.labels -}}
{{- range $reserved -}}
{{- if hasKey (default dict $labels) . }}{{ fail (printf "%s sets %s, by which the chart selects its pods: remove it, and set nameOverride for another name" $name .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails for values that contradict each other. */}}
{{- define "sluicegate.check" -}}
{{- include "sluicegate.check.labels" . -}}
{{- if and (eq .Values.service.ipFamilyPolicy "SingleStack") (gt (len .Values.service.ipFamilies) 1) }}{{ fail "service.ipFamilies has two families, but service.ipFamilyPolicy is SingleStack: use PreferDualStack or RequireDualStack" }}{{ end -}}
{{- $redis := .Values.redis -}}
{{- $postgres := .Values.postgres -}}
{{- $named := or $redis.enabled $redis.external.url $redis.external.urlSecret.name $postgres.url $postgres.urlSecret.name -}}
{{- $many := or (gt (int .Values.replicaCount) 1) (and .Values.autoscaling.enabled (gt (int .Values.autoscaling.maxReplicas) 1)) -}}
{{- if and .Values.persistence.enabled $many -}}
{{- fail "persistence.enabled keeps the counters of one replica, but several are configured: set replicaCount=1 and autoscaling.enabled=false, or use Redis instead of persistence.enabled" -}}
{{- end -}}
{{- if and .Values.persistence.enabled $named }}{{ fail "persistence.enabled keeps the counters in a volume, but a Redis or PostgreSQL is configured: set only one of them" }}{{ end -}}
{{- if and $many (not $named) (not $redis.countApart) -}}
{{- fail "several replicas without Redis or PostgreSQL: each replica would allow the full limit. Set redis.external.url (redis.enabled=true for a trial) or postgres.url, or redis.countApart=true to accept this" -}}
{{- end -}}
{{- if and (include "sluicegate.peers" .) (not $named) }}{{ fail "peers.existingSecret and peers.tls require a shared Redis or PostgreSQL: set redis.external.url or postgres.url" }}{{ end -}}
{{- with .Values.peers.tls -}}
{{- if and .existingSecret (not .name) }}{{ fail "peers.tls.existingSecret requires peers.tls.name, the DNS name in its tls.crt" }}{{ end -}}
{{- if and .name (not .existingSecret) }}{{ fail "peers.tls.name requires peers.tls.existingSecret" }}{{ end -}}
{{- end -}}
{{- $sources := list -}}
{{- if $redis.enabled }}{{ $sources = append $sources "redis.enabled" }}{{ end -}}
{{- if $redis.external.url }}{{ $sources = append $sources "redis.external.url" }}{{ end -}}
{{- if $redis.external.urlSecret.name }}{{ $sources = append $sources "redis.external.urlSecret" }}{{ end -}}
{{- if $postgres.url }}{{ $sources = append $sources "postgres.url" }}{{ end -}}
{{- if $postgres.urlSecret.name }}{{ $sources = append $sources "postgres.urlSecret" }}{{ end -}}
{{- if gt (len $sources) 1 }}{{ fail (printf "%s are set: set only one of them" (join " and " $sources)) }}{{ end -}}
{{- range $name, $url := dict "url" $redis.external.url "perSecondUrl" $redis.external.perSecondUrl -}}
{{- if regexMatch "://[^@]*:.*@" $url -}}
{{- fail (printf "redis.external.%s contains a password, which would be stored in a ConfigMap: move the password to redis.existingSecret, or the URL to redis.external.urlSecret" $name) -}}
{{- end -}}
{{- end -}}
{{- if and $redis.external.perSecondUrl (not $named) }}{{ fail "redis.external.perSecondUrl is a second Redis: it requires redis.external.url or redis.external.urlSecret" }}{{ end -}}
{{- include "sluicegate.check.secrets" . -}}
{{- include "sluicegate.check.redis" . -}}
{{- include "sluicegate.check.postgres" . -}}
{{- with .Values.grpcTLS -}}
{{- if and .clientCertificates (not (include "sluicegate.grpcTLS.secret" $)) }}{{ fail "grpcTLS.clientCertificates requires grpcTLS.existingSecret" }}{{ end -}}
{{- if and .issue.enabled .existingSecret }}{{ fail "grpcTLS.issue.enabled and grpcTLS.existingSecret are set: set only one of them" }}{{ end -}}
{{- if and .issue.clientNamespace (not .issue.enabled) }}{{ fail "grpcTLS.issue.clientNamespace requires grpcTLS.issue.enabled" }}{{ end -}}
{{- end -}}
{{- if and $redis.tls.clientCertificate (not $redis.tls.existingSecret) }}{{ fail "redis.tls.clientCertificate requires redis.tls.existingSecret" }}{{ end -}}
{{- $limits := list -}}
{{- if .Values.limits.inline }}{{ $limits = append $limits "limits.inline" }}{{ end -}}
{{- if .Values.limits.existingConfigMap }}{{ $limits = append $limits "limits.existingConfigMap" }}{{ end -}}
{{- if dig "limits" "xds" "server" "" .Values.settings }}{{ $limits = append $limits "settings.limits.xds.server" }}{{ end -}}
{{- if .Values.limits.gitSync.enabled }}{{ $limits = append $limits "limits.gitSync" }}{{ end -}}
{{- if gt (len $limits) 1 }}{{ fail (printf "%s are set: set only one source of limits" (join " and " $limits)) }}{{ end -}}
{{- if and .Values.limits.gitSync.enabled (not .Values.limits.gitSync.repository) }}{{ fail "limits.gitSync.enabled requires limits.gitSync.repository" }}{{ end -}}
{{- if and (eq (dig "compat" "metrics" "names" "" .Values.settings) "compat") (or .Values.metrics.prometheusRule.enabled .Values.dashboards.enabled) -}}
{{- fail "settings.compat.metrics.names is compat, which omits the metrics that metrics.prometheusRule and dashboards use: the alert SluicegateGone would always fire. Set it to all" -}}
{{- end -}}
{{- with dig "listen" dict .Values.settings -}}
{{- if and (include "sluicegate.syslogPort" $) (not .syslog_from) }}{{ fail "settings.listen.syslog_port requires settings.listen.syslog_from, the addresses of the pods that send datagrams: without it, only datagrams from the pod itself are accepted" }}{{ end -}}
{{- end -}}
{{- end -}}
