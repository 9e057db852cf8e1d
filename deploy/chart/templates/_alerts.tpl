{{/* The labels of a target that change when its pod does. An alert has none of them, so that it goes on after a restart. */}}
{{- define "rootcellar.ofPod" -}}
without (instance, pod, container, endpoint)
{{- end -}}

{{/* The names of the StorageClasses as a regular expression: those of the chart, and those of the values. */}}
{{- define "rootcellar.alertClasses" -}}
{{- $names := list -}}
{{- range include "rootcellar.storageClasses" . | fromJsonArray -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- concat $names .Values.monitoring.rules.alerts.RootcellarVolumeLowSpace.classes | join "|" -}}
{{- end -}}

{{/* The alerts about the driver, as YAML. In a text, <node>, <disk> (the pool, and the member of a set) and the like
stand for labels of the alert, and <value> for its number. docs/monitor.md has a section for each. */}}
{{- define "rootcellar.driverAlerts" -}}
{{- $alerts := .Values.monitoring.rules.alerts -}}
{{- $of := include "rootcellar.ofPod" . -}}
- alert: RootcellarDriverAway
  expr: max {{ $of }} (up{job="rootcellar"}) == 0 or absent(up{job="rootcellar"})
  summary: The driver does not answer.
  description: >-
    The metrics of the driver on <node or "every node"> cannot be read.
    While it is away, pods with volumes neither start nor end there.
- alert: RootcellarNotRegistered
  expr: max {{ $of }} (rootcellar_registered) == 0
  summary: The driver is not registered with the kubelet.
  description: >-
    The socket with which the driver on node <node> registers does not answer.
    After its next restart, the kubelet does not find the driver, and pods with volumes wait.
- alert: RootcellarPoolUnavailable
  # A disk that hangs has an alert of its own.
  expr: (max {{ $of }} (rootcellar_pool_healthy) == 0) unless (max {{ $of }} (rootcellar_pool_answering) == 0)
  summary: A pool cannot be used.
  description: >-
    The pool <disk><device> of node <node> is unavailable.
    Its pods may get I/O errors, and new ones wait.
- alert: RootcellarPoolNotAnswering
  expr: max {{ $of }} (rootcellar_pool_answering) == 0
  summary: A disk hangs.
  description: >-
    An operation on the disk of the pool <disk><device> of node <node> has not returned for 30 seconds or longer.
    Everything that uses the disk waits.
- alert: RootcellarPoolIOErrors
  expr: max {{ $of }} (rootcellar_pool_io_errors_total) > 0
  summary: A disk has errors.
  description: >-
    The filesystem of the pool <disk><device> of node <node> has errors; the kernel has counted <value>.
    Its data may be damaged.
- alert: RootcellarPoolLowSpace
  # A set has space while one of its members has. A cordoned pool is no place for new volumes.
  expr: >-
    100
    * sum without (member, instance, pod, container, endpoint) (rootcellar_pool_available_bytes and rootcellar_pool_cordoned == 0)
    / sum without (member, instance, pod, container, endpoint) (rootcellar_pool_total_bytes and rootcellar_pool_cordoned == 0)
    < {{ $alerts.RootcellarPoolLowSpace.below }}
  summary: A pool has little space for new volumes.
  description: >-
    New volumes can have <percent> % of the pool <pool> of node <node>.
    A claim that fits no node stays Pending.
- alert: RootcellarKeptEndsEarly
  expr: >-
    (100
    * sum without (member, instance, pod, container, endpoint) ((rootcellar_pool_available_bytes - rootcellar_pool_kept_bytes) and rootcellar_pool_cordoned == 0)
    / sum without (member, instance, pod, container, endpoint) (rootcellar_pool_total_bytes and rootcellar_pool_cordoned == 0)
    < {{ $alerts.RootcellarKeptEndsEarly.below }})
    and sum without (member, instance, pod, container, endpoint) (rootcellar_pool_kept) > 0
  summary: Deleted volumes will soon be lost before their time.
  description: >-
    Without its deleted volumes and snapshots, <percent> % of the pool <pool> of node <node> is free for new volumes.
    When a new volume needs more, the oldest deleted ones cannot come back.
- alert: RootcellarVolumeLowSpace
  # Without kube-state-metrics, the second half has no series, and the volumes of all drivers are watched.
  expr: >-
    100 * kubelet_volume_stats_available_bytes / kubelet_volume_stats_capacity_bytes
    < {{ $alerts.RootcellarVolumeLowSpace.below }}
    unless on (namespace, persistentvolumeclaim)
    kube_persistentvolumeclaim_info{storageclass!~"{{ include "rootcellar.alertClasses" . }}"}
  summary: A volume is nearly full.
  description: >-
    The volume of claim <namespace>/<persistentvolumeclaim> has <percent> % of its space left.
    At 0 its pods get the error "no space left on device".
- alert: RootcellarSizesNotEnforced
  expr: >-
    max {{ $of }} (rootcellar_pool_volumes_not_enforced
    {{- with $alerts.RootcellarSizesNotEnforced.exceptPools }}{pool!~"{{ join "|" . }}"}{{ end }}) > 0
  summary: Volumes can exceed their size.
  description: >-
    In the pool <disk> of node <node>, volumes without an enforced size: <value>.
    One of them can take the space of all others.
- alert: RootcellarDeletionStuck
  expr: max {{ $of }} (rootcellar_pool_trash_resisting) > 0
  summary: Deleted data stays on the disk.
  description: >-
    In the pool <disk> of node <node>, deleted volumes and snapshots that cannot be removed: <value>.
    Their space stays in use.
- alert: RootcellarQuarantined
  expr: max {{ $of }} (rootcellar_pool_quarantined) > 0
  summary: A pool has damaged records or unknown directories.
  description: >-
    In the pool <disk> of node <node>, records and directories in quarantine: <value>.
    Their volumes cannot be used, and their space stays in use.
{{- end -}}

{{/* The alerts of the controller, likewise. */}}
{{- define "rootcellar.fleetAlerts" -}}
{{- $of := include "rootcellar.ofPod" . -}}
- alert: RootcellarControllerAway
  expr: max {{ $of }} (up{job="rootcellar-fleet"}) == 0 or absent(up{job="rootcellar-fleet"})
  summary: The controller does not answer.
  description: >-
    The metrics of the controller cannot be read.
    While it is away, restores, clones and snapshots wait, and nobody reports lost volumes.
- alert: RootcellarNodeAbsent
  expr: max {{ $of }} (rootcellar_fleet_absent_node_volumes) > 0
  summary: A node with volumes is not in the cluster.
  description: >-
    Node <node> is not in the cluster.
    PersistentVolumes on its disks: <value>.
    Pods that need them stay Pending.
- alert: RootcellarDifference
  expr: max {{ $of }} (rootcellar_fleet_differences) > 0
  summary: The disks and the objects of the cluster differ.
  description: >-
    Differences of the kind <reason>: <value>.
    An event of the controller has the command for each.
- alert: RootcellarPageSilent
  expr: max {{ $of }} (rootcellar_fleet_page_answers) == 0
  summary: The controller knows nothing about a node.
  description: >-
    The driver on node <node> does not answer the controller, or still loads its records.
    Differences on this node are not reported.
{{- end -}}

{{/* A text of an alert for Prometheus, with the templates that the words in <> stand for. */}}
{{- define "rootcellar.alertText" -}}
{{- $text := . | replace "<value>" "{{ $value }}" | replace "<percent>" `{{ $value | printf "%.0f" }}` -}}
{{- $text = $text | replace `<node or "every node">` `{{ with $labels.node }}node {{ . }}{{ else }}every node{{ end }}` -}}
{{- $text = $text | replace "<disk>" "{{ $labels.pool }}{{ with $labels.member }}/{{ . }}{{ end }}" -}}
{{- /* The driver does not know the device of an absent disk. A name may be that of another disk by now, and after a reboot
the pool had another name before: the latest counts. */ -}}
{{- $info := `topk(1, max_over_time(timestamp(rootcellar_pool_info{node='%s',pool='%s',member='%s',device!=''})[1d:1m]))` -}}
{{- $query := printf "printf %q $labels.node $labels.pool $labels.member | query" $info -}}
{{- $text = $text | replace "<device>" (printf `{{ with %s }} (last seen as {{ . | first | label "device" }}){{ end }}` $query) -}}
{{- regexReplaceAll `<([a-z]+)>` $text "{{ $$labels.${1} }}" -}}
{{- end -}}

{{/* The labels of an object for Prometheus or Grafana. Takes context, of and given: the user's labels. */}}
{{- define "rootcellar.monitoringLabels" -}}
{{- $own := include "rootcellar.labels" .context -}}
{{- include "rootcellar.notOwn" (dict "of" .of "given" .given "own" (fromYaml $own | keys)) -}}
{{ $own }}
{{- with .given }}
{{ toYaml . }}
{{- end }}
{{- end -}}
