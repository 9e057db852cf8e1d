package main

import (
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const withSnapshots = "--set=snapshots.enabled=true"

// snapshotter returns the container of csi-snapshotter in the DaemonSet's pod.
func snapshotter(t *testing.T, found []runtime.Object) corev1.Container {
	t.Helper()
	pod, _ := driver(t, found)
	at := slices.IndexFunc(pod.Containers, func(container corev1.Container) bool { return container.Name == "csi-snapshotter" })
	if at < 0 {
		t.Fatal("no csi-snapshotter")
	}
	return pod.Containers[at]
}

// csi-snapshotter has the driver's socket and the token, and nothing else of the node.
func TestSnapshotter(t *testing.T) {
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		container := snapshotter(t, found)
		same(t, container.Image, "registry.k8s.io/sig-storage/csi-snapshotter:v8.7.0")
		same(t, container.Args, []string{
			"--csi-address=/csi/csi.sock", "--node-deployment", "--extra-create-metadata",
			"--worker-threads=32", "--timeout=60s", "--retry-interval-max=30s", "--kube-api-qps=50", "--kube-api-burst=100",
			"--http-endpoint=0.0.0.0:9811",
		})
		same(t, len(container.Env), 1)
		same(t, container.Env[0].Name, "NODE_NAME")
		same(t, container.Env[0].ValueFrom.FieldRef.FieldPath, "spec.nodeName")
		var mounts []string
		for _, mount := range container.VolumeMounts {
			mounts = append(mounts, mount.Name+" "+mount.MountPath)
		}
		same(t, mounts, []string{"plugin /csi", "token /var/run/secrets/kubernetes.io/serviceaccount"})
		pod, _ := driver(t, found)
		same(t, container.SecurityContext, pod.Containers[1].SecurityContext)
		// The rest of the pod is the same as without snapshots.
		bare, _ := driver(t, objects(t, presetValues(preset)))
		pod.Containers = slices.DeleteFunc(pod.Containers, func(other corev1.Container) bool { return other.Name == container.Name })
		same(t, pod, bare)
	}, withSnapshots)
}

// The rules for snapshots are a role of their own, which exists only with them.
func TestSnapshotRules(t *testing.T) {
	const group, name = "snapshot.storage.k8s.io", "rootcellar-snapshots"
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		var without, with []string
		for _, role := range all[*rbacv1.ClusterRole](objects(t, presetValues(preset))) {
			without = append(without, role.Name)
		}
		for _, role := range all[*rbacv1.ClusterRole](found) {
			with = append(with, role.Name)
			if role.Name == name {
				same(t, role.Rules, []rbacv1.PolicyRule{
					rule("volumesnapshots", "get"),
					rule("volumesnapshotcontents", "get", "list", "watch", "patch"),
					rule("volumesnapshotcontents/status", "update", "patch"),
					rule("volumesnapshotclasses", "list", "watch"),
				})
				continue
			}
			for _, rule := range role.Rules {
				same(t, slices.Contains(rule.APIGroups, group), false)
			}
		}
		slices.Sort(with)
		same(t, with, slices.Sorted(slices.Values(append(without, name))))
		bindings := all[*rbacv1.ClusterRoleBinding](found)
		at := slices.IndexFunc(bindings, func(binding *rbacv1.ClusterRoleBinding) bool { return binding.RoleRef.Name == name })
		same(t, bindings[at].Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: "rootcellar", Namespace: "rootcellar-system"}})
	}, withSnapshots)
}

// Snapshots add a class, a role and its binding. Without them no object needs an API that a cluster may lack.
func TestSnapshotObjects(t *testing.T) {
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		bare, err := helm(t, "--set=namespace.create=true", presetValues(preset))
		same(t, strings.Contains(string(bare), "snapshot.storage.k8s.io"), false)
		same(t, len(found), len(decoded(t, bare, err))+3)
		class := one[*snapshotv1.VolumeSnapshotClass](t, found)
		same(t, class.Name, "rootcellar")
		same(t, class.Driver, "csi.rootcellar.dev")
		same(t, class.DeletionPolicy, snapshotv1.VolumeSnapshotContentDelete)
		same(t, len(class.Parameters)+len(class.Annotations), 0)
		same(t, class.Labels["app.kubernetes.io/name"], "rootcellar")
	}, withSnapshots)
}

// A snapshot class has the settings of its entry, and csi-snapshotter has those of its values.
func TestSnapshotValues(t *testing.T) {
	found := objects(t, values(t, `
snapshots:
  enabled: true
  image: {repository: my/s, tag: v9, pullPolicy: Always}
  workerThreads: 7
  timeout: 5s
  retryInterval: 1m
  resources: {limits: {memory: 2Gi}}
  classes:
    - name: plain
    - name: full
      default: true
      deletionPolicy: Retain
      parameters: {inUse: refuse, copy: allowed, maxStall: 500ms}
      annotations: {a: b}
      labels: {velero.io/csi-volumesnapshot-class: "true"}
`))
	container := snapshotter(t, found)
	same(t, container.Image, "my/s:v9")
	same(t, container.ImagePullPolicy, corev1.PullAlways)
	same(t, container.Args[3:], []string{"--worker-threads=7", "--timeout=5s", "--retry-interval-max=1m", "--kube-api-qps=50", "--kube-api-burst=100", "--http-endpoint=0.0.0.0:9811"})
	same(t, container.Resources.Limits.Memory().String(), "2Gi")
	same(t, container.Resources.Requests.Memory().String(), "32Mi")
	classes := all[*snapshotv1.VolumeSnapshotClass](found)
	same(t, len(classes), 2)
	plain, full := classes[0], classes[1]
	same(t, plain.DeletionPolicy, snapshotv1.VolumeSnapshotContentDelete)
	same(t, len(plain.Parameters)+len(plain.Annotations), 0)
	same(t, full.DeletionPolicy, snapshotv1.VolumeSnapshotContentRetain)
	same(t, full.Parameters, map[string]string{"inUse": "refuse", "copy": "allowed", "maxStall": "500ms"})
	same(t, full.Annotations, map[string]string{"snapshot.storage.kubernetes.io/is-default-class": "true", "a": "b"})
	same(t, full.Labels["velero.io/csi-volumesnapshot-class"], "true")
}
