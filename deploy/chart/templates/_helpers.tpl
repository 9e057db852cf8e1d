{{/* The label of the selectors, which no version may change. */}}
{{- define "rootcellar.selectorLabels" -}}
app.kubernetes.io/name: rootcellar
{{- end -}}

{{/* The resizer's pod has another name, so that a selector for the driver finds one pod per node. */}}
{{- define "rootcellar.resizerLabels" -}}
app.kubernetes.io/name: rootcellar-resizer
{{- end -}}

{{/* Without managed-by: Helm sets it on its own objects, and for kubectl it would be wrong. */}}
{{- define "rootcellar.labels" -}}
{{ include "rootcellar.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* An image reference. Takes image, and tag as the default of its tag. */}}
{{- define "rootcellar.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .tag | required (printf "the image %s has neither a tag nor a digest" .image.repository) }}
{{- end -}}
{{- end -}}

{{/* The canonical path of a directory of the host, without trailing slash. Takes path, and of: its name in messages. */}}
{{- define "rootcellar.dir" -}}
{{- if not (hasPrefix "/" .path) -}}
{{- fail (printf "%s: %q is not absolute; it must begin with '/'" .of .path) -}}
{{- end -}}
{{- /* A comma, semicolon or equals sign would end the path in ROOTCELLAR_POOLS; kubelet expands $(NAME). */ -}}
{{- if not (regexMatch `^[A-Za-z0-9/._:@+~-]+$` .path) -}}
{{- fail (printf "%s: the path %q may hold only letters, digits and / . _ : @ + ~ -" .of .path) -}}
{{- end -}}
{{- if regexMatch `(^|/)\.\.?(/|$)` .path -}}
{{- fail (printf "%s: the path %q holds '.' or '..'; write it without" .of .path) -}}
{{- end -}}
{{- if eq (clean .path) "/" -}}
{{- fail (printf "%s: %q is the root directory; name one below it" .of .path) -}}
{{- end -}}
{{- clean .path -}}
{{- end -}}

{{- define "rootcellar.kubeletDir" -}}
{{ include "rootcellar.dir" (dict "of" "kubeletDir" "path" .Values.kubeletDir) }}
{{- end -}}

{{- define "rootcellar.stateDir" -}}
{{ include "rootcellar.dir" (dict "of" "stateDir" "path" .Values.stateDir) }}
{{- end -}}

{{- define "rootcellar.poolsDir" -}}
{{ include "rootcellar.dir" (dict "of" "poolsDir" "path" .Values.poolsDir) }}
{{- end -}}

{{/* Refuses directories of the host that contain each other. */}}
{{- define "rootcellar.apart" -}}
{{- $kubelet := include "rootcellar.kubeletDir" . -}}
{{- $state := include "rootcellar.stateDir" . -}}
{{- $pools := include "rootcellar.poolsDir" . -}}
{{- range $of, $at := dict "kubeletDir" $kubelet "stateDir" $state "poolsDir" $pools -}}
{{- if hasPrefix "/csi/" (printf "%s/" $at) -}}
{{- fail (printf "%s: %s is taken: /csi is where the driver's own socket is in its container; name another directory" $of $at) -}}
{{- end -}}
{{- end -}}
{{- /* Propagation is Bidirectional in kubeletDir, so a mount inside it at the start of the pod would stay on the host. */ -}}
{{- range $of, $at := dict "stateDir" $state "poolsDir" $pools -}}
{{- if hasPrefix (printf "%s/" $kubelet) (printf "%s/" $at) -}}
{{- fail (printf "%s: %s is in kubeletDir, which is %s; every start of the driver would mount it there on the host once more, so move it out" $of $at $kubelet) -}}
{{- end -}}
{{- end -}}
{{- /* The driver would see every mount of the kubelet twice. */ -}}
{{- range $of, $at := dict "stateDir" $state "poolsDir" $pools -}}
{{- if hasPrefix (printf "%s/" $at) $kubelet -}}
{{- fail (printf "kubeletDir: %s is in %s, which is %s; set %s to a directory that does not hold the kubelet's" $kubelet $of $at $of) -}}
{{- end -}}
{{- end -}}
{{- /* A disk that is mounted over stateDir would hide its records. */ -}}
{{- if hasPrefix (printf "%s/" $pools) (printf "%s/" $state) -}}
{{- fail (printf "stateDir: %s is in poolsDir, which is %s; put it beside, where no disk is mounted over it" $state $pools) -}}
{{- end -}}
{{- if hasPrefix (printf "%s/" $state) $pools -}}
{{- fail (printf "poolsDir: %s is in stateDir, which is %s; put one beside the other" $pools $state) -}}
{{- end -}}
{{- end -}}

{{/* Refuses keys that the chart itself writes. Takes of, given: the user's map, and own: a list of keys. */}}
{{- define "rootcellar.notOwn" -}}
{{- range $key := .own -}}
{{- if hasKey ($.given | default dict) $key -}}
{{- fail (printf "%s: the chart itself writes %s%s; leave it out" $.of $key ($.by | default "")) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The path of a pool. Takes pool, and dir: the directory above all pools. */}}
{{- define "rootcellar.poolPath" -}}
{{- $path := .pool.path | default .pool.name -}}
{{- if not (hasPrefix "/" $path) -}}
{{- $path = printf "%s/%s" .dir $path -}}
{{- end -}}
{{- $path = include "rootcellar.dir" (dict "of" (printf "pool %s" .pool.name) "path" $path) -}}
{{- if not (hasPrefix (printf "%s/" .dir) $path) -}}
{{- fail (printf "pool %s: %s is not below poolsDir, which is %s; the driver sees no other disks of the host, so move the pool or set poolsDir to a directory above all pools" .pool.name $path .dir) -}}
{{- end -}}
{{- $path -}}
{{- end -}}

{{/* The value of ROOTCELLAR_POOLS. Refuses the mistakes that the driver would refuse at its start. */}}
{{- define "rootcellar.pools" -}}
{{- $dir := include "rootcellar.poolsDir" . -}}
{{- include "rootcellar.apart" . -}}
{{- $seen := dict -}}
{{- $entries := list -}}
{{- range $pool := .Values.pools -}}
{{- if not (regexMatch `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$` .name) -}}
{{- fail (printf "pool %q: a name has at most 63 characters of a-z, 0-9 and '-', and neither begins nor ends with '-'" .name) -}}
{{- end -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "two pools are called %s; every pool needs a name of its own" .name) -}}
{{- end -}}
{{- $path := include "rootcellar.poolPath" (dict "pool" . "dir" $dir) -}}
{{- range $other, $at := $seen -}}
{{- if eq $path $at -}}
{{- fail (printf "pools %s and %s are both at %s; every pool needs a path of its own" $other $pool.name $path) -}}
{{- else if or (hasPrefix (printf "%s/" $at) $path) (hasPrefix (printf "%s/" $path) $at) -}}
{{- fail (printf "pools %s at %s and %s at %s: one is inside the other" $other $at $pool.name $path) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $seen .name $path -}}
{{- $entry := list (printf "%s=%s" .name $path) -}}
{{- if .init -}}
{{- $entry = append $entry "init" -}}
{{- end -}}
{{- if .requireMount -}}
{{- $entry = append $entry "require-mount" -}}
{{- end -}}
{{- if hasKey . "overcommit" -}}
{{- if not (regexMatch `^[0-9]+(\.[0-9]{1,3})?$` (toString .overcommit)) -}}
{{- fail (printf "pool %s: overcommit %v has more than 3 decimals" .name .overcommit) -}}
{{- end -}}
{{- $entry = append $entry (printf "overcommit=%v" .overcommit) -}}
{{- end -}}
{{- if hasKey . "reserve" -}}
{{- /* Helm parses a number as a float, which it would print as 5e+10. */ -}}
{{- $reserve := kindIs "string" .reserve | ternary .reserve (int64 .reserve | toString) -}}
{{- $entry = append $entry (printf "reserve=%s" $reserve) -}}
{{- end -}}
{{- $entries = append $entries (join "," $entry) -}}
{{- end -}}
{{- join ";" $entries -}}
{{- end -}}

{{/* The StorageClasses as JSON: those of the values, changed by defaultClass and sharedClass. */}}
{{- define "rootcellar.storageClasses" -}}
{{- $classes := deepCopy (.Values.storageClasses | default list) -}}
{{- range $switch := list "defaultClass" "sharedClass" -}}
{{- if and (get $.Values $switch) (not $classes) -}}
{{- fail (printf "%s is true and storageClasses is empty; add a class, or set %s to false" $switch $switch) -}}
{{- end -}}
{{- end -}}
{{- if .Values.sharedClass -}}
{{- $shared := omit (first $classes | deepCopy) "default" -}}
{{- $shared = mergeOverwrite $shared (dict "name" "rootcellar-shared" "parameters" (dict "sharing" "node")) -}}
{{- $classes = append $classes $shared -}}
{{- end -}}
{{- if .Values.defaultClass -}}
{{- $first := first $classes -}}
{{- if and (hasKey $first "default") (not $first.default) -}}
{{- fail (printf "StorageClass %s: default is false and defaultClass is true; change one of them" $first.name) -}}
{{- end -}}
{{- $_ := set $first "default" true -}}
{{- end -}}
{{- toJson $classes -}}
{{- end -}}

{{/* The systemd mount units for every directory of path below dir. Takes path and dir. */}}
{{- define "rootcellar.mountUnits" -}}
{{- $at := .dir -}}
{{- $units := list -}}
{{- range trimPrefix (printf "%s/" .dir) .path | splitList "/" -}}
{{- $at = printf "%s/%s" $at . -}}
{{- /* As systemd-escape --path; a path holds no other characters: see rootcellar.dir. */ -}}
{{- $unit := trimPrefix "/" $at | replace "-" `\x2d` | replace "@" `\x40` | replace "+" `\x2b` | replace "~" `\x7e` | replace "/" "-" -}}
{{- $units = append $units (printf "%s.mount" (regexReplaceAllLiteral `^\.` $unit `\x2e`)) -}}
{{- end -}}
{{- join " " $units -}}
{{- end -}}

{{/* The least security context of a sidecar: root, because root owns the socket, and no capability. */}}
{{- define "rootcellar.sidecarSecurity" -}}
# Root owns the socket, and an image may set another user.
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- if .Values.selinux.enabled }}
# A confined container cannot connect to the socket of a privileged one.
seLinuxOptions:
  type: spc_t
{{- end }}
{{- end -}}

{{/* The security context of a container without any privilege. */}}
{{- define "rootcellar.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The API token as a volume, for the containers that need it. */}}
{{- define "rootcellar.token" -}}
# The content that Kubernetes would otherwise mount into every container.
- name: token
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3600
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end -}}
