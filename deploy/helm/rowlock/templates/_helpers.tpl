{{/* Name of the pods and of the Service for clients. */}}
{{- define "rowlock.name" -}}
{{- if contains "rowlock" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-rowlock{{ end }}
{{- end -}}

{{- define "rowlock.client" -}}
{{- if .Values.tls.enabled }}{name: secure-client, port: 2481}{{ else }}{name: client, port: 2181}{{ end }}
{{- end -}}

{{- define "rowlock.check" -}}
{{- if lt (int .Values.replicas) 1 }}{{ fail "replicas must be at least 1" }}{{ end }}
{{- if eq (mod (int .Values.replicas) 2) 0 }}{{ fail "replicas must be odd: an even number tolerates no more failures" }}{{ end }}
{{- if not (has .Values.antiAffinity (list "required" "preferred" "none")) }}{{ fail "antiAffinity must be required, preferred or none" }}{{ end }}
{{- end -}}

{{- define "rowlock.config" -}}
{{- $name := include "rowlock.name" . -}}
name = {{ .Release.Name | quote }}

{{ with .Values.settings }}{{ . | trim }}

{{ end -}}
{{- if .Values.tls.enabled -}}
[tls]
cert = "secrets/node-{id}.pem"
key = "secrets/node-{id}.key"
peer_ca = "secrets/peers-ca.pem"
client_ca = "secrets/clients-ca.pem"

[peer]
security = "mtls"

[http]
tls = true
{{- if .Values.tokens.enabled }}
api = {{ .Values.http.api }}
token_file = "secrets/tokens"
{{- end }}
{{- else -}}
[peer]
security = "none"
{{- end }}
{{- range $at := until (int .Values.replicas) }}
{{- $pod := printf "%s-%d" $name $at }}
{{- $host := printf "%s.%s-nodes" $pod $name }}

[[node]]
id = {{ add $at 1 }}
{{- if $.Values.tls.enabled }}
secure_client = "{{ $host }}:2481"
secure_client_listen = "0.0.0.0:2481"
{{- else }}
client = "{{ $host }}:2181"
client_listen = "0.0.0.0:2181"
{{- end }}
peer = "{{ $host }}:2281"
peer_listen = "0.0.0.0:2281"
http = "{{ $pod }}:8081"
{{- if not $.Values.tls.enabled }}
api = "127.0.0.1:8481"
{{- end }}
{{- end }}
{{- end -}}

{{- define "rowlock.probe" -}}
httpGet: {path: {{ .path }}, port: http{{ if .tls }}, scheme: HTTPS{{ end }}}
{{ toYaml .times }}
{{- end -}}
