{{/* Of which nodes a message speaks. */}}
{{- define "rootcellar.where" -}}
{{- with .Group }} of node group {{ . }}{{ end -}}
{{- end -}}

{{/* Refuses node groups that clash. */}}
{{- define "rootcellar.checkGroups" -}}
{{- $names := dict "resizer" "rootcellar-resizer is the Deployment of csi-resizer" "fleet" "rootcellar-fleet is the Deployment of the controller" -}}
{{- $labels := dict -}}
{{- range $group := .Values.nodeGroups -}}
{{- if not (regexMatch `^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$` .name) -}}
{{- fail (printf "node group %q: a name has at most 40 characters of a-z, 0-9 and '-', and neither begins nor ends with '-'" .name) -}}
{{- end -}}
{{- with get $names .name -}}
{{- fail (printf "node group %s: %s; choose another name" $group.name .) -}}
{{- end -}}
{{- $_ := set $names .name "another group has this name" -}}
{{- range $value := .nodeLabel.values -}}
{{- $label := printf "%s=%s" $group.nodeLabel.key $value -}}
{{- with get $labels $label -}}
{{- fail (printf "node groups %s and %s both have the nodes with the label %s; leave it out of one" . $group.name $label) -}}
{{- end -}}
{{- $_ := set $labels $label $group.name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The affinity of the pods of a group: that of the values, only nodes that fit the expressions, and no second driver. Takes
affinity, and expressions: for the labels of a node. */}}
{{- define "rootcellar.groupAffinity" -}}
{{- $affinity := deepCopy (.affinity | default dict) -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms | default (list (dict "matchExpressions" $.expressions)) -}}
{{- /* A term without any condition fits no node, and must not begin to fit some. */ -}}
{{- if and $required.nodeSelectorTerms (or .matchExpressions .matchFields) -}}
{{- $_ := set . "matchExpressions" (concat (.matchExpressions | default list) $.expressions) -}}
{{- end -}}
{{- $terms = append $terms . -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (set $required "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- /* When a node changes its group, the new driver starts after the end of the old one. */ -}}
{{- $pods := $affinity.podAntiAffinity | default dict -}}
{{- $other := dict "labelSelector" (dict "matchLabels" (include "rootcellar.selectorLabels" . | fromYaml)) "topologyKey" "kubernetes.io/hostname" -}}
{{- $_ := set $pods "requiredDuringSchedulingIgnoredDuringExecution" (append ($pods.requiredDuringSchedulingIgnoredDuringExecution | default list) $other) -}}
{{- $_ := set $affinity "podAntiAffinity" $pods -}}
{{- toJson $affinity -}}
{{- end -}}

{{/* The groups of nodes as JSON, first that of all other nodes, whose name is empty: the name, the DaemonSet, the values with
the group's own, and the pools as allPools returns them. Without pools of their own, the other nodes are no group. */}}
{{- define "rootcellar.groups" -}}
{{- include "rootcellar.checkGroups" . -}}
{{- $earlier := list -}}
{{- $groups := list -}}
{{- range $group := concat (.Values.nodeGroups | default list) (list (dict "name" "")) -}}
{{- $values := deepCopy $.Values -}}
{{- if or (hasKey . "pools") (hasKey . "poolSets") -}}
{{- $_ := set $values "pools" (.pools | default list) -}}
{{- $_ := set $values "poolSets" (.poolSets | default list) -}}
{{- end -}}
{{- $_ := set $values "resources" (mergeOverwrite $values.resources (deepCopy (.resources | default dict))) -}}
{{- $expressions := $earlier -}}
{{- with .nodeLabel -}}
{{- $expressions = prepend $earlier (dict "key" .key "operator" "In" "values" .values) -}}
{{- $earlier = append $earlier (dict "key" .key "operator" "NotIn" "values" .values) -}}
{{- end -}}
{{- if $.Values.nodeGroups -}}
{{- $_ := set $values "affinity" (include "rootcellar.groupAffinity" (dict "affinity" $values.affinity "expressions" $expressions) | fromJson) -}}
{{- end -}}
{{- if or .name $values.pools $values.poolSets (not $.Values.nodeGroups) -}}
{{- $pools := include "rootcellar.allPools" (dict "Values" $values "Group" .name) | fromJson -}}
{{- $set := printf "rootcellar%s" (.name | empty | ternary "" (printf "-%s" .name)) -}}
{{- $entry := dict "name" .name "daemonSet" $set "where" (include "rootcellar.where" (dict "Group" .name)) "values" $values "pools" $pools -}}
{{- $groups = eq .name "" | ternary (prepend $groups $entry) (append $groups $entry) -}}
{{- end -}}
{{- end -}}
{{- toJson $groups -}}
{{- end -}}
