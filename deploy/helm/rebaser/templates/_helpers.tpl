{{- define "rebaser.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* 57 characters, so that "-spark" fits */ -}}
{{- define "rebaser.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 57 | trimSuffix "-" -}}
{{- else if contains (include "rebaser.name" .) .Release.Name -}}
{{- .Release.Name | trunc 57 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "rebaser.name" .) | trunc 57 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rebaser.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "rebaser.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "rebaser.selector" -}}
app.kubernetes.io/name: {{ include "rebaser.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: rebaser
{{- end -}}

{{- define "rebaser.sparkSelector" -}}
app.kubernetes.io/name: {{ include "rebaser.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: spark
{{- end -}}

{{- define "rebaser.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: rebaser
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "rebaser.labels" -}}
{{ include "rebaser.selector" . }}
{{ include "rebaser.commonLabels" . }}
{{- end -}}

{{- define "rebaser.sparkLabels" -}}
{{ include "rebaser.sparkSelector" . }}
{{ include "rebaser.commonLabels" . }}
{{- end -}}

{{- /* Whether the chart starts a Spark Connect server: "true" or nothing */ -}}
{{- define "rebaser.ownSpark" -}}
{{- if and (eq .Values.spark.mode "connect") (not .Values.spark.connect.remote) -}}true{{- end -}}
{{- end -}}

{{- define "rebaser.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else if eq .Values.spark.mode "connect" -}}
{{ .Values.image.repository }}:{{ $tag }}-thin
{{- else -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end -}}
{{- end -}}

{{- define "rebaser.natsNamespace" -}}
{{- .Values.nats.namespace | default .Release.Namespace -}}
{{- end -}}

{{- /* Name of its Service, as NATS's chart makes it */ -}}
{{- define "rebaser.natsName" -}}
{{- contains "nats" .Values.nats.release | ternary .Values.nats.release (printf "%s-nats" .Values.nats.release) -}}
{{- end -}}

{{- define "rebaser.natsUrl" -}}
{{- .Values.nats.url | default (printf "%s://%s.%s.svc:4222" (ternary "tls" "nats" (ne .Values.nats.tls.secretName "")) (include "rebaser.natsName" .) (include "rebaser.natsNamespace" .)) -}}
{{- end -}}

{{- /* Each server by its full name, with commas */ -}}
{{- define "rebaser.natsMonitoring" -}}
{{- if .Values.nats.url -}}
{{- join "," .Values.nats.monitoring -}}
{{- else -}}
{{- $servers := list -}}
{{- $name := include "rebaser.natsName" . -}}
{{- range $number := until (int .Values.nats.replicas) -}}
{{- $servers = append $servers (printf "http://%s-%d.%s-headless.%s.svc:8222" $name $number $name (include "rebaser.natsNamespace" $)) -}}
{{- end -}}
{{- join "," $servers -}}
{{- end -}}
{{- end -}}

{{- /* Ports of NATS and its monitoring, as rules of a network policy have them */ -}}
{{- define "rebaser.natsPorts" -}}
{{- $ports := list -}}
{{- range concat (splitList "," (include "rebaser.natsUrl" .)) (splitList "," (include "rebaser.natsMonitoring" .)) -}}
{{- if . -}}
{{- $host := get (urlParse (contains "://" . | ternary . (printf "nats://%s" .))) "host" -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" $host | trimPrefix ":" | default "4222" | int) -}}
{{- end -}}
{{- end -}}
{{- range uniq $ports }}
- {protocol: TCP, port: {{ . }}}
{{- end -}}
{{- end -}}

{{- define "rebaser.claimName" -}}
{{- .Values.store.claim.existingClaim | default (printf "%s-store" (include "rebaser.fullname" .)) -}}
{{- end -}}

{{- /* Settings that follow from the values, as one object */ -}}
{{- define "rebaser.settings" -}}
REBASER_NATS__URL: {{ include "rebaser.natsUrl" . | quote }}
{{- with include "rebaser.natsMonitoring" . }}
REBASER_NATS__MONITORING: {{ . | quote }}
{{- end }}
REBASER_NATS__INBOX_PREFIX: {{ .Values.nats.inboxPrefix | quote }}
REBASER_NATS__BATCHES_ROLLUP: "false"
REBASER_NATS__REPLICAS: {{ .Values.nats.replicas | quote }}
{{- if .Values.nats.credsSecret }}
REBASER_NATS__CREDS: /etc/rebaser/nats-creds/creds
{{- end }}
{{- with .Values.nats.tls }}
{{- if .secretName }}
{{- with .ca }}
REBASER_NATS__TLS__CA: /etc/rebaser/nats-tls/{{ . }}
{{- end }}
{{- with .cert }}
REBASER_NATS__TLS__CERTIFICATE: /etc/rebaser/nats-tls/{{ . }}
{{- end }}
{{- with .key }}
REBASER_NATS__TLS__KEY: /etc/rebaser/nats-tls/{{ . }}
{{- end }}
{{- end }}
{{- end }}
REBASER_STORE__ROOT: {{ ternary "/var/lib/rebaser/store" .Values.store.root .Values.store.claim.enabled | quote }}
{{- with .Values.store.options }}
REBASER_STORE__OPTIONS: {{ toJson . | quote }}
{{- end }}
{{- if eq .Values.spark.mode "connect" }}
REBASER_SPARK__MASTER: {{ .Values.spark.connect.remote | default (printf "sc://%s-spark:15002" (include "rebaser.fullname" .)) | quote }}
{{- else }}
REBASER_SPARK__MASTER: local[{{ .Values.spark.cores }}]
{{- end }}
{{- with .Values.spark.conf }}
REBASER_SPARK__CONF: {{ toJson . | quote }}
{{- end }}
REBASER_OPS__HOST: 0.0.0.0
REBASER_OPS__PORT: {{ .Values.ops.port | quote }}
{{- if .Values.ops.tls.secretName }}
REBASER_OPS__CERTIFICATE: /etc/rebaser/ops-tls/tls.crt
REBASER_OPS__KEY: /etc/rebaser/ops-tls/tls.key
{{- end }}
REBASER_SHUTDOWN_GRACE: {{ .Values.shutdownGrace | quote }}
{{- end -}}

{{- /* Values that fit together in no deployment are refused */ -}}
{{- define "rebaser.check" -}}
{{- $most := ternary .Values.autoscaling.keda.maxReplicas .Values.replicaCount .Values.autoscaling.keda.enabled | int -}}
{{- if and .Values.store.claim.enabled .Values.store.root -}}
{{- fail "store.root and store.claim.enabled: choose an object store or a volume" -}}
{{- else if not (or .Values.store.claim.enabled .Values.store.root) -}}
{{- fail "no store: set store.root (s3://bucket/path), or store.claim.enabled=true for a volume that all pods can mount" -}}
{{- end -}}
{{- if and .Values.store.claim.enabled (not .Values.store.claim.existingClaim) (eq .Values.store.claim.accessMode "ReadWriteOnce") (or (gt $most 1) (include "rebaser.ownSpark" .)) -}}
{{- fail "store.claim.accessMode=ReadWriteOnce: only one node can mount it; use ReadWriteMany or an object store, or one Rebaser without Spark Connect" -}}
{{- end -}}
{{- if and .Values.store.options .Values.store.optionsSecret -}}
{{- fail "store.options and store.optionsSecret: put all options into the secret" -}}
{{- end -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) (add (int .Values.shutdownGrace) 15 | int) -}}
{{- fail (printf "terminationGracePeriodSeconds=%d: at least 15 above shutdownGrace (%d), or a Rebaser is killed before it gave its tasks back" (int .Values.terminationGracePeriodSeconds) (int .Values.shutdownGrace)) -}}
{{- end -}}
{{- if and .Values.nats.tls.secretName (ne (empty .Values.nats.tls.cert) (empty .Values.nats.tls.key)) -}}
{{- fail "nats.tls.cert and nats.tls.key: give both, or none" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.keda.minReplicas) (int .Values.autoscaling.keda.maxReplicas) -}}
{{- fail "autoscaling.keda.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and .Values.autoscaling.keda.enabled .Values.nats.url (not .Values.autoscaling.keda.monitoringEndpoint) -}}
{{- fail "autoscaling.keda.monitoringEndpoint: say at which HOST:PORT KEDA reaches the monitoring of nats.url" -}}
{{- end -}}
{{- end -}}

{{- /* What the pods of Rebasers and of Spark have in common */ -}}
{{- define "rebaser.pod" -}}
serviceAccountName: {{ include "rebaser.serviceAccountName" . }}
automountServiceAccountToken: false # it asks nothing of Kubernetes
enableServiceLinks: false # no variables for each Service of the namespace
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext: {{ toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "rebaser.dns" -}}
- to: [{namespaceSelector: {}}]
  ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
{{- end -}}

{{- define "rebaser.storeEgress" -}}
{{- if not .Values.store.claim.enabled }}
- {{ toYaml .Values.networkPolicy.store | nindent 2 | trim }}
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}
