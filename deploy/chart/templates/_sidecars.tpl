{{/* The arguments that the chart itself gives each sidecar. */}}
{{- define "rootcellar.kubeApiArgs" -}}
- --kube-api-qps={{ .Values.kubeApi.qps }}
- --kube-api-burst={{ .Values.kubeApi.burst }}
{{- end -}}

{{/* The resources of a sidecar that keeps all claims and volumes of the cluster in memory. Takes context and resources.
A limit other than the default stays. benches/results/scale.tsv has its memory at each number of volumes. */}}
{{- define "rootcellar.watcherResources" -}}
{{- $resources := deepCopy (.resources | default dict) -}}
{{- $volumes := int .context.Values.clusterVolumes -}}
{{- $limits := $resources.limits | default dict -}}
{{- if and (gt $volumes 10000) (eq (toString (get $limits "memory")) "256Mi") -}}
{{- $_ := set $limits "memory" (printf "%dMi" (add 128 (div (mul $volumes 18) 1000))) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "rootcellar.provisionerArgs" -}}
- --csi-address=/csi/csi.sock
- --node-deployment
- --strict-topology
- --immediate-topology=false
- --enable-capacity
- --capacity-poll-interval={{ .Values.provisioner.capacityPollInterval }}
# One new claim changes the capacity of every class on the node. At the stock rate of one write per second
# the scheduler would lag behind.
- --kube-api-capacity-qps=5
- --kube-api-capacity-burst=20
# The pod owns its capacity objects, so they are deleted with the node.
- --capacity-ownerref-level=0
- --extra-create-metadata
# Its sweep would watch every VolumeSnapshot of the cluster from every node.
- --snapshot-orphan-sweep-interval=0
- --worker-threads={{ .Values.provisioner.workerThreads }}
- --timeout={{ .Values.provisioner.timeout }}
{{ include "rootcellar.kubeApiArgs" . }}
- --http-endpoint={{ .Values.httpAddress }}:9810
{{- end -}}

{{- define "rootcellar.snapshotterArgs" -}}
- --csi-address=/csi/csi.sock
- --node-deployment
- --extra-create-metadata
- --worker-threads={{ .Values.snapshots.workerThreads }}
- --timeout={{ .Values.snapshots.timeout }}
- --retry-interval-max={{ .Values.snapshots.retryInterval }}
{{ include "rootcellar.kubeApiArgs" . }}
- --http-endpoint={{ .Values.httpAddress }}:9811
{{- end -}}

{{- define "rootcellar.registrarArgs" -}}
- --csi-address=/csi/csi.sock
# The path of the driver's socket for the kubelet on the host.
- --kubelet-registration-path={{ include "rootcellar.kubeletDir" . }}/plugins/csi.rootcellar.dev/csi.sock
- --http-endpoint={{ .Values.httpAddress }}:9809
{{- end -}}

{{- define "rootcellar.resizerArgs" -}}
- --csi-address=/csi/csi.sock
# The feature is for volumes that cannot grow while in use, and would watch every pod of the cluster.
- --handle-volume-inuse-error=false
- --workers={{ .Values.resizer.workers }}
- --timeout={{ .Values.resizer.timeout }}
{{ include "rootcellar.kubeApiArgs" . }}
- --http-endpoint={{ .Values.httpAddress }}:9812
{{- end -}}

{{/* All arguments of a sidecar. Takes context, sidecar: the name of its template above, and values: of its values. */}}
{{- define "rootcellar.sidecarArgs" -}}
{{- $values := get .context.Values .values -}}
{{- $own := include (printf "rootcellar.%sArgs" .sidecar) .context -}}
{{- $taken := dict "v" (printf "set %s.logLevel" .values) "leader-election" "one sidecar does the work, and its account has no right to leases" -}}
{{- /* The older flags for a page. With both, a sidecar ends at once. */ -}}
{{- range list "metrics-address" "health-port" -}}
{{- $_ := set $taken . "the chart itself writes --http-endpoint" -}}
{{- end -}}
{{- /* Two volumes or snapshots with one name would be the same one. */ -}}
{{- range list "volume-name-prefix" "volume-name-uuid-length" "snapshot-name-prefix" "snapshot-name-uuid-length" -}}
{{- $_ := set $taken . "the driver finds volumes and snapshots by the names that the sidecar makes by default" -}}
{{- end -}}
{{- range list "kube-api-qps" "kube-api-burst" -}}
{{- $_ := set $taken . (printf "set %s" (replace "kube-api-" "kubeApi." .)) -}}
{{- end -}}
{{- range list "kubeconfig" "master" -}}
{{- $_ := set $taken . "the sidecar calls the API server of its cluster with its own account" -}}
{{- end -}}
{{- range list "mode" "plugin-registration-path" -}}
{{- $_ := set $taken . "kubelet would not find the driver" -}}
{{- end -}}
{{- $_ := set $taken "enable-pprof" "it would show the sidecar's memory to every pod" -}}
{{- range fromYamlArray $own -}}
{{- $taken = merge $taken (dict (trimPrefix "--" . | splitList "=" | first) "the chart itself writes it") -}}
{{- end -}}
{{ $own }}
{{- with $values.logLevel }}
- --v={{ . }}
{{- end }}
{{- range $values.extraArgs }}
{{- if regexMatch `(?i)^--?feature[_-]gates?=.*\btopology=` . }}
{{- fail (printf "%s.extraArgs: leave the feature gate Topology out of %s; without it a PersistentVolume names no node" $.values .) }}
{{- end }}
{{- $name := trimPrefix "--" . | splitList "=" | first | replace "_" "-" }}
{{- with get $taken $name }}
{{- fail (printf "%s.extraArgs: leave --%s out; %s" $.values $name .) }}
{{- end }}
- {{ . | quote }}
{{- end }}
{{- end -}}
