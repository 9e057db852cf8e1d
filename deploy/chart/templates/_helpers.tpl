{{/* The label of the selectors, which no version may change. */}}
{{- define "rootcellar.selectorLabels" -}}
app.kubernetes.io/name: rootcellar
{{- end -}}

{{/* The resizer's pod has another name, so that a selector for the driver finds one pod per node. */}}
{{- define "rootcellar.resizerLabels" -}}
app.kubernetes.io/name: rootcellar-resizer
{{- end -}}

{{/* The same holds for the controller's pod. */}}
{{- define "rootcellar.fleetLabels" -}}
app.kubernetes.io/name: rootcellar-fleet
{{- end -}}

{{/* Without managed-by: Helm sets it on its own objects, and for kubectl it would be wrong. */}}
{{- define "rootcellar.labels" -}}
{{ include "rootcellar.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The driver's service account. */}}
{{- define "rootcellar.account" -}}
{{- with .Values.serviceAccount -}}
{{- if not (or .create .name) -}}
{{- fail "serviceAccount.create is false and serviceAccount.name empty; name the account that exists" -}}
{{- end -}}
{{- if has .name (list "rootcellar-resizer" "rootcellar-fleet") -}}
{{- fail (printf "serviceAccount.name: %s is the account of another pod, which has other rights; choose another name" .name) -}}
{{- end -}}
{{- if eq .name "default" -}}
{{- fail "serviceAccount.name: default is the account of every pod of the namespace that names none, and would give them the driver's rights; choose another name" -}}
{{- end -}}
{{- .name | default "rootcellar" -}}
{{- end -}}
{{- end -}}

{{/* An image reference. Takes context, image, and tag as the default of its tag. */}}
{{- define "rootcellar.image" -}}
{{- $repository := .image.repository -}}
{{- with .context.Values.imageRegistry -}}
{{- /* As for container engines: the first part is a registry if it has a dot or a port, or is localhost. */ -}}
{{- $repository = printf "%s/%s" . (regexReplaceAllLiteral `^([^/]*[.:][^/]*|localhost)/` $repository "") -}}
{{- end -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ .image.tag | default .tag | required (printf "the image %s has neither a tag nor a digest" $repository) }}
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

{{/* The directory of the host in which the driver limits I/O, or finds the cgroup for that. */}}
{{- define "rootcellar.podsCgroup" -}}
{{ include "rootcellar.dir" (dict "of" "podsCgroup" "path" (.Values.podsCgroup | default "/sys/fs/cgroup")) }}
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
{{- fail (printf "stateDir: %s is in poolsDir, which is %s; put it next to poolsDir, where no disk is mounted over it" $state $pools) -}}
{{- end -}}
{{- if hasPrefix (printf "%s/" $state) $pools -}}
{{- fail (printf "poolsDir: %s is in stateDir, which is %s; put them next to each other" $pools $state) -}}
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

{{/* The path of a pool or a pool set. Takes of: its name in messages, kind (pool or pool set), entry,
and dir: the directory above all pools. */}}
{{- define "rootcellar.poolPath" -}}
{{- $path := .entry.path | default .entry.name -}}
{{- if and (eq $path ".") (eq .kind "pool set") -}}
{{- $path = .dir -}}
{{- else if not (hasPrefix "/" $path) -}}
{{- $path = printf "%s/%s" .dir $path -}}
{{- end -}}
{{- $path = include "rootcellar.dir" (dict "of" .of "path" $path) -}}
{{- /* The disks of a set are below its path, so it may be poolsDir itself. */ -}}
{{- $above := eq .kind "pool" | ternary $path (printf "%s/" $path) -}}
{{- if not (hasPrefix (printf "%s/" .dir) $above) -}}
{{- fail (printf "%s: %s is not below poolsDir, which is %s; the driver sees no other disks of the host, so move the %s or set poolsDir to a directory above all pools" .of $path .dir .kind) -}}
{{- end -}}
{{- $path -}}
{{- end -}}

{{/* The pools and the pool sets as JSON: the kind, path and entry of each, by its name. Refuses the mistakes that the
driver would refuse at its start. Takes Values, and Group: the name of a node group. */}}
{{- define "rootcellar.allPools" -}}
{{- $dir := include "rootcellar.poolsDir" . -}}
{{- include "rootcellar.apart" . -}}
{{- if not (or .Values.pools .Values.poolSets) -}}
{{- fail (printf "pools and poolSets%s are both empty; name a pool or a pool set" (include "rootcellar.where" .)) -}}
{{- end -}}
{{- $seen := dict -}}
{{- $where := include "rootcellar.where" . -}}
{{- range $kind, $entries := dict "pool" .Values.pools "pool set" .Values.poolSets -}}
{{- range $entry := $entries -}}
{{- $of := printf "%s %s%s" $kind .name $where -}}
{{- if not (regexMatch `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$` .name) -}}
{{- fail (printf "%s %q%s: a name has at most 63 characters of a-z, 0-9 and '-', and neither begins nor ends with '-'" $kind .name $where) -}}
{{- end -}}
{{- with get $seen .name -}}
{{- fail (printf "a %s and a %s%s are both called %s; each needs a name of its own" .kind $kind $where $entry.name) -}}
{{- end -}}
{{- if not (regexMatch `^[][A-Za-z0-9._*?!-]*$` (.match | default "")) -}}
{{- fail (printf "%s: match %q may hold only letters, digits and - _ . * ? ! [ ]" $of .match) -}}
{{- end -}}
{{- if and (hasKey . "overcommit") (not (regexMatch `^[0-9]+(\.[0-9]{1,3})?$` (toString .overcommit))) -}}
{{- fail (printf "%s: overcommit %v has more than 3 decimals" $of .overcommit) -}}
{{- end -}}
{{- $path := include "rootcellar.poolPath" (dict "of" $of "kind" $kind "entry" . "dir" $dir) -}}
{{- range $name, $other := $seen -}}
{{- $both := printf "%s %s and %s" $other.kind $name $of -}}
{{- $sets := and (eq $kind "pool set") (eq $other.kind "pool set") -}}
{{- if and $sets (eq $path $other.path) -}}
{{- if not (and $entry.match $other.entry.match) -}}
{{- fail (printf "%s are both at %s; give each a match, so that no disk is in both" $both $path) -}}
{{- end -}}
{{- else if eq $path $other.path -}}
{{- fail (printf "%s are both at %s; each needs a path of its own" $both $path) -}}
{{- else if or (hasPrefix (printf "%s/" $other.path) $path) (hasPrefix (printf "%s/" $path) $other.path) -}}
{{- fail (printf "%s %s at %s and %s at %s: one is inside the other" $other.kind $name $other.path $of $path) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $seen .name (dict "kind" $kind "path" $path "entry" .) -}}
{{- end -}}
{{- end -}}
{{- toJson $seen -}}
{{- end -}}

{{/* The value of ROOTCELLAR_POOLS or ROOTCELLAR_POOL_SETS. Takes entries, and all: the result of allPools. */}}
{{- define "rootcellar.pools" -}}
{{- $all := fromJson .all -}}
{{- $pools := list -}}
{{- range .entries -}}
{{- $pool := list (printf "%s=%s" .name (get $all .name).path) -}}
{{- with .match -}}
{{- $pool = append $pool (printf "match=%s" .) -}}
{{- end -}}
{{- if .init -}}
{{- $pool = append $pool "init" -}}
{{- end -}}
{{- if .requireMount -}}
{{- $pool = append $pool "require-mount" -}}
{{- end -}}
{{- with .keep -}}
{{- $pool = append $pool (printf "keep=%s" .) -}}
{{- end -}}
{{- if hasKey . "overcommit" -}}
{{- $pool = append $pool (printf "overcommit=%v" .overcommit) -}}
{{- end -}}
{{- if hasKey . "reserve" -}}
{{- /* Helm parses a number as a float, which it would print as 5e+10. */ -}}
{{- $reserve := kindIs "string" .reserve | ternary .reserve (int64 .reserve | toString) -}}
{{- $pool = append $pool (printf "reserve=%s" $reserve) -}}
{{- end -}}
{{- $pools = append $pools (join "," $pool) -}}
{{- end -}}
{{- join ";" $pools -}}
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

{{/* The systemd mount units for every directory of path below dir; none if path is dir. Takes path and dir. */}}
{{- define "rootcellar.mountUnits" -}}
{{- $at := .dir -}}
{{- $units := list -}}
{{- range trimPrefix .dir .path | splitList "/" | compact -}}
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

{{/* The volume with the key of the drivers' pages. The driver starts without it, and then has no inventory. */}}
{{- define "rootcellar.inventoryKey" -}}
- name: inventory
  secret:
    secretName: {{ .Values.fleet.key.secretName | default "rootcellar-inventory" | quote }}
    optional: true
{{- end -}}

{{/* The start of a policy for the controller's account. Takes context, name, groups, resources and operation. */}}
{{- define "rootcellar.fleetPolicy" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels:
    {{- include "rootcellar.labels" .context | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      # RBAC grants the account no other operation and no subresource.
      - apiGroups: [{{ .group | quote }}]
        apiVersions: ["*"]
        operations: [{{ .operation }}]
        resources: [{{ .resource }}]
  matchConditions:
    - name: account
      expression: request.userInfo.username == {{ printf "system:serviceaccount:%s:rootcellar-fleet" .context.Release.Namespace | squote }}
{{- end -}}

{{/* CEL: these lists or maps of the metadata are as before. An absent one counts as an empty one. */}}
{{- define "rootcellar.fleetSame" -}}
{{- $empty := dict "finalizers" "[]" "ownerReferences" "[]" -}}
{{- $same := list -}}
{{- range . -}}
{{- $or := get $empty . | default "{}" -}}
{{- $same = append $same (printf "object.metadata.?%s.orValue(%s) == oldObject.metadata.?%s.orValue(%s)" . $or . $or) -}}
{{- end -}}
{{ join " && " $same }}
{{- end -}}

{{/* CEL: a map of the metadata is as before but for one key. Takes of and key. */}}
{{- define "rootcellar.fleetSameBut" -}}
{{- $before := printf "oldObject.metadata.?%s.orValue({})" .of -}}
{{- $after := printf "object.metadata.?%s.orValue({})" .of -}}
{{ $after }}.all(k, k == '{{ .key }}' || (k in {{ $before }} && {{ $before }}[k] == {{ $after }}[k])) && {{ $before }}.all(k, k == '{{ .key }}' || k in {{ $after }})
{{- end -}}

{{/* CEL: the value of a key of a map of the metadata. Takes which (object or oldObject), of and key. */}}
{{- define "rootcellar.fleetValue" -}}
{{ .which }}.metadata.?{{ .of }}.orValue({})[?'{{ .key }}'].orValue('')
{{- end -}}

{{/* CEL: an object in deletion loses this finalizer and nothing else. */}}
{{- define "rootcellar.fleetWithout" -}}
has(oldObject.metadata.deletionTimestamp) && oldObject.metadata.?finalizers.orValue([]).exists(f, f == '{{ . }}') && object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([]).filter(f, f != '{{ . }}')
{{- end -}}

{{/* The binding of a policy with the same name. Takes context and name. */}}
{{- define "rootcellar.fleetBinding" }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "rootcellar.labels" .context | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end -}}
