{{/* Refuses additions to the driver's pod that clash with its own parts. */}}
{{- define "rootcellar.checkExtras" -}}
{{- range .Values.extraEnv -}}
{{- if has .name (list "NODE_NAME" "CSI_ENDPOINT" "ROOTCELLAR_POOLS" "ROOTCELLAR_POOL_SETS" "RUST_LOG") -}}
{{- fail (printf "extraEnv: the chart itself sets %s; leave it out" .name) -}}
{{- end -}}
{{- end -}}
{{- $volumes := dict -}}
{{- range list "inventory" "plugin" "registration" "kubelet" "processes" "cgroup" "state" "pools" "token" -}}
{{- $_ := set $volumes . "the chart itself has a volume of this name" -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- $name := .name -}}
{{- with get $volumes .name -}}
{{- fail (printf "extraVolumes: %s: %s; choose another" $name .) -}}
{{- end -}}
{{- $_ := set $volumes .name "two volumes have this name" -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- include "rootcellar.checkMount" (dict "Values" $.Values "mount" . "volumes" $volumes) -}}
{{- end -}}
{{- $names := dict -}}
{{- range list "driver" "csi-provisioner" "csi-snapshotter" "node-driver-registrar" -}}
{{- $_ := set $names . true -}}
{{- end -}}
{{- range .Values.initContainers -}}
{{- if hasKey $names .name -}}
{{- fail (printf "initContainers: another container of the pod is called %s; choose another name" .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- end -}}
{{- end -}}

{{/* Refuses a mount into the driver's container of no volume, or at one of the container's own directories. Takes Values,
mount, and volumes: those that exist, by name. */}}
{{- define "rootcellar.checkMount" -}}
{{- if not (hasKey .volumes .mount.name) -}}
{{- fail (printf "extraVolumeMounts: no volume is called %s; add it to extraVolumes" .mount.name) -}}
{{- end -}}
{{- $path := include "rootcellar.dir" (dict "of" "extraVolumeMounts" "path" .mount.mountPath) -}}
{{- $own := list "/csi" "/host/proc" "/host/cgroup" "/etc/rootcellar/inventory" -}}
{{- range $dir := concat $own (list (include "rootcellar.kubeletDir" .) (include "rootcellar.stateDir" .) (include "rootcellar.poolsDir" .)) -}}
{{- if or (hasPrefix (printf "%s/" $dir) (printf "%s/" $path)) (hasPrefix (printf "%s/" $path) (printf "%s/" $dir)) -}}
{{- fail (printf "extraVolumeMounts: %s would hide %s of the driver, or be inside it; mount it elsewhere" $path $dir) -}}
{{- end -}}
{{- end -}}
{{- end -}}
