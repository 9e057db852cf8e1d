package main

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const (
	chart   = "../../../deploy/chart"
	presets = "../../../deploy/presets"
)

// helm renders the chart as it is installed.
func helm(t *testing.T, arguments ...string) ([]byte, error) {
	t.Helper()
	return release(t, "rootcellar", append([]string{"--namespace=rootcellar-system"}, arguments...)...)
}

// helmBinary returns the program that HELM names.
func helmBinary(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("HELM")
	if binary == "" {
		t.Fatal("HELM is not set: run hack/lint/check-manifests.sh, which builds it")
	}
	return binary
}

// release renders the chart without the objects of its test.
func release(t *testing.T, name string, arguments ...string) ([]byte, error) {
	t.Helper()
	arguments = append([]string{"template", name, chart, "--kube-version=1.37.2", "--skip-tests"}, arguments...)
	command := exec.Command(helmBinary(t), arguments...)
	var complaint bytes.Buffer
	command.Stderr = &complaint
	text, err := command.Output()
	if err != nil {
		return complaint.Bytes(), err
	}
	return text, nil
}

// objects renders the chart and decodes the result.
func objects(t *testing.T, arguments ...string) []runtime.Object {
	t.Helper()
	text, err := helm(t, arguments...)
	return decoded(t, text, err)
}

func decoded(t *testing.T, text []byte, err error) []runtime.Object {
	t.Helper()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	found, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// values passes helm a values file with this content.
func values(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--values=" + file
}

// all returns the objects of one type.
func all[T runtime.Object](found []runtime.Object) []T {
	var matching []T
	for _, object := range found {
		if object, ok := object.(T); ok {
			matching = append(matching, object)
		}
	}
	return matching
}

// one returns the only object of a type.
func one[T runtime.Object](t *testing.T, found []runtime.Object) T {
	t.Helper()
	matching := all[T](found)
	if len(matching) != 1 {
		t.Fatalf("%d objects of type %T, not 1", len(matching), *new(T))
	}
	return matching[0]
}

// driver returns the pod of the DaemonSet and its first container.
func driver(t *testing.T, found []runtime.Object) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	pod := one[*appsv1.DaemonSet](t, found).Spec.Template.Spec
	if pod.Containers[0].Name != "driver" {
		t.Fatalf("the first container is %s", pod.Containers[0].Name)
	}
	return pod, pod.Containers[0]
}

// resizer returns the pod of the Deployment.
func resizer(t *testing.T, found []runtime.Object) corev1.PodSpec {
	t.Helper()
	return one[*appsv1.Deployment](t, found).Spec.Template.Spec
}

func variable(container corev1.Container, name string) string {
	for _, env := range container.Env {
		if env.Name == name {
			return env.Value
		}
	}
	return ""
}

// The chart refuses every mistake in the values and names it, before anything reaches a cluster.
func TestMistakesAreRefused(t *testing.T) {
	tests := []mistake{
		{"unknown value", "poolz: []", "additional properties 'poolz' not allowed"},
		{"unknown value below", "image: {registry: x}", "at '/image': additional properties 'registry' not allowed"},
		{"unknown pool option", "pools: [{name: a, size: 1Gi}]", "additional properties 'size' not allowed"},
		{"unknown parameter", "storageClasses: [{name: a, parameters: {gruop: \"1\"}}]", "additional properties 'gruop' not allowed"},
		{"unknown mount option", "storageClasses: [{name: a, mountOptions: [notime]}]", "at '/storageClasses/0/mountOptions/0'"},
		{"octal as a number", "storageClasses: [{name: a, parameters: {mode: 0770}}]", "at '/storageClasses/0/parameters/mode': got number, want string"},
		{"bad reclaim policy", "storageClasses: [{name: a, reclaimPolicy: Recycle}]", "at '/storageClasses/0/reclaimPolicy'"},
		{"registry with a scheme", "imageRegistry: https://harbor.example", "at '/imageRegistry'"},
		{"registry with a slash", "imageRegistry: harbor.example/", "at '/imageRegistry'"},
		{"bad digest", "image: {digest: \"sha256:12\"}", "at '/image/digest'"},
		{"bad duration", "provisioner: {timeout: 1 minute}", "at '/provisioner/timeout'"},
		{"surge", "updateStrategy: {rollingUpdate: {maxSurge: 1}}", "additional properties 'maxSurge' not allowed"},
		{"unknown resizer value", "resizer: {leaderElection: true}", "at '/resizer': additional properties 'leaderElection' not allowed"},
		{"no workers", "resizer: {workers: 0}", "at '/resizer/workers'"},
		{"unknown enforcement", "storageClasses: [{name: a, parameters: {enforcement: strict}}]", "at '/storageClasses/0/parameters/enforcement'"},
		{"unknown kind", "storageClasses: [{name: a, parameters: {kind: file}}]", "at '/storageClasses/0/parameters/kind'"},
		{"unknown allocation", "storageClasses: [{name: a, parameters: {kind: image, allocation: sparse}}]", "at '/storageClasses/0/parameters/allocation'"},
		{"allocation of a directory", "storageClasses: [{name: a, parameters: {allocation: thin}}]", "StorageClass a: allocation is for images; add kind: image, or remove it"},
		{"allocation of a named directory", "storageClasses: [{name: a, parameters: {kind: directory, allocation: thick}}]", "StorageClass a: allocation is for images"},
		{"exclusive image", "{poolSets: [{name: s}], storageClasses: [{name: a, pool: s, parameters: {kind: image, exclusive: \"true\"}}]}",
			"StorageClass a: exclusive is true and kind is image; only a directory can have a disk to itself"},
		{"image without a size", "storageClasses: [{name: a, parameters: {kind: image, enforcement: none}}]",
			"StorageClass a: enforcement is none and kind is image; an image always has its size"},
		{"image with another filesystem", "storageClasses: [{name: a, parameters: {kind: image, csi.storage.k8s.io/fstype: btrfs}}]",
			"StorageClass a: csi.storage.k8s.io/fstype is \"btrfs\" and kind is image; an image has ext4 or xfs"},
		{"class that cannot grow", "{resizer: {enabled: false}, storageClasses: [{name: a, allowVolumeExpansion: true}]}",
			"StorageClass a: allowVolumeExpansion is true and resizer.enabled false, so claims could ask to grow and never would"},
		{"unknown snapshots value", "snapshots: {controller: true}", "at '/snapshots': additional properties 'controller' not allowed"},
		{"unknown snapshot parameter", "snapshots: {classes: [{name: a, parameters: {inuse: refuse}}]}", "additional properties 'inuse' not allowed"},
		{"unknown word for snapshots in use", "snapshots: {classes: [{name: a, parameters: {inUse: refused}}]}", "at '/snapshots/classes/0/parameters/inUse'"},
		{"stall without a unit", "snapshots: {classes: [{name: a, parameters: {maxStall: \"500\"}}]}", "at '/snapshots/classes/0/parameters/maxStall'"},
		{"stall of nothing", "storageClasses: [{name: a, parameters: {maxStall: 0s}}]", "at '/storageClasses/0/parameters/maxStall'"},
		{"bad deletion policy", "snapshots: {classes: [{name: a, deletionPolicy: Recycle}]}", "at '/snapshots/classes/0/deletionPolicy'"},
		{"no tag", "provisioner: {image: {tag: \"\"}}", "csi-provisioner has neither a tag nor a digest"},
		{"no pools", "pools: []", "pools and poolSets are both empty; name a pool or a pool set"},
		{"unknown set option", "poolSets: [{name: a, requireMount: true}]", "additional properties 'requireMount' not allowed"},
		{"set without a name", "poolSets: [{path: a}]", "at '/poolSets/0': missing property 'name'"},
		{"limit of bytes as a number", "storageClasses: [{name: a, parameters: {writeBytesPerSecond: 50000000}}]", "at '/storageClasses/0/parameters/writeBytesPerSecond'"},
		{"limit of operations with a unit", "storageClasses: [{name: a, parameters: {readsPerSecond: 1k}}]", "at '/storageClasses/0/parameters/readsPerSecond'"},
		{"nodatacow as a boolean", "storageClasses: [{name: a, parameters: {nodatacow: true}}]", "at '/storageClasses/0/parameters/nodatacow'"},
		{"exclusive as a boolean", "storageClasses: [{name: a, parameters: {exclusive: true}}]", "at '/storageClasses/0/parameters/exclusive'"},

		{"pool outside", "pools: [{name: a, path: /srv/a}]", "pool a: /srv/a is not below poolsDir, which is /var/lib/rootcellar/pools"},
		{"pool beside", "pools: [{name: a, path: /var/lib/rootcellar/pools2}]", "is not below poolsDir"},
		{"pool is poolsDir", "pools: [{name: a, path: /var/lib/rootcellar/pools/}]", "is not below poolsDir"},
		{"pool climbs out", "pools: [{name: a, path: ../a}]", "holds '.' or '..'; write it without"},
		{"pool inside a pool", "pools: [{name: a}, {name: b, path: a/b}]", "pool a at /var/lib/rootcellar/pools/a and pool b at /var/lib/rootcellar/pools/a/b: one is inside the other"},
		{"pool around a pool", "pools: [{name: b, path: a/b}, {name: a}]", "one is inside the other"},
		{"two of one name", "pools: [{name: a}, {name: a, path: b}]", "a pool and a pool are both called a; each needs a name of its own"},
		{"two of one path", "pools: [{name: a}, {name: b, path: a/}]", "pool a and pool b are both at /var/lib/rootcellar/pools/a; each needs a path of its own"},
		{"semicolon in a path", "pools: [{name: a, path: \"a;b\"}]", "pool a: the path \"/var/lib/rootcellar/pools/a;b\" may hold only"},
		{"comma in a path", "pools: [{name: a, path: \"a,init\"}]", "may hold only"},
		{"equals sign in a path", "pools: [{name: a, path: \"a=b\"}]", "may hold only"},
		{"variable in a path", "pools: [{name: a, path: \"$(NODE_NAME)\"}]", "may hold only"},
		{"blank in a path", "pools: [{name: a, path: \"a b\"}]", "may hold only"},
		{"semicolon in a name", "pools: [{name: \"a;b\", path: a}]", "pool \"a;b\": a name has at most 63 characters"},
		{"comma in a name", "pools: [{name: \"a,b\", path: a}]", "a name has at most 63 characters"},
		{"equals sign in a name", "pools: [{name: \"a=b\", path: a}]", "a name has at most 63 characters"},
		{"long name", "pools: [{name: " + strings.Repeat("a", 64) + "}]", "a name has at most 63 characters"},
		{"overcommit too fine", "pools: [{name: a, overcommit: 1.0001}]", "overcommit 1.0001 has more than 3 decimals"},
		{"overcommit nothing", "pools: [{name: a, overcommit: 0}]", "at '/pools/0/overcommit'"},
		{"keep without a unit", "pools: [{name: a, keep: \"24\"}]", "at '/pools/0/keep'"},
		{"reserve too much", "pools: [{name: a, reserve: 101%}]", "at '/pools/0/reserve'"},

		{"set outside", "poolSets: [{name: a, path: /srv}]", "pool set a: /srv is not below poolsDir, which is /var/lib/rootcellar/pools"},
		{"set above poolsDir", "poolSets: [{name: a, path: /var/lib/rootcellar}]", "move the pool set or set poolsDir"},
		{"set climbs out", "poolSets: [{name: a, path: ..}]", "holds '.' or '..'; write it without"},
		{"pool at poolsDir", "pools: [{name: a, path: .}]", "holds '.' or '..'; write it without"},
		{"pool in a set", "poolSets: [{name: a, path: .}]", "pool default at /var/lib/rootcellar/pools/default and pool set a at /var/lib/rootcellar/pools: one is inside the other"},
		{"pool as a member", "{pools: [{name: b, path: a/b}], poolSets: [{name: a}]}", "one is inside the other"},
		{"set in a pool", "poolSets: [{name: a, path: default/a}]", "one is inside the other"},
		{"set at a pool", "poolSets: [{name: a, path: default}]", "pool default and pool set a are both at /var/lib/rootcellar/pools/default; each needs a path of its own"},
		{"set in a set", "poolSets: [{name: a}, {name: b, path: a/b}]", "pool set a at /var/lib/rootcellar/pools/a and pool set b at /var/lib/rootcellar/pools/a/b: one is inside the other"},
		{"two sets of one path", "poolSets: [{name: a, match: a*}, {name: b, path: a}]", "pool set a and pool set b are both at /var/lib/rootcellar/pools/a; give each a match, so that no disk is in both"},
		{"two sets of one name", "poolSets: [{name: a}, {name: a, path: b}]", "a pool set and a pool set are both called a"},
		{"set of a pool's name", "poolSets: [{name: default, path: a}]", "a pool and a pool set are both called default; each needs a name of its own"},
		{"semicolon in a set's name", "poolSets: [{name: \"a;b\", path: a}]", "pool set \"a;b\": a name has at most 63 characters"},
		{"slash in a set's name", "poolSets: [{name: a/b, path: a}]", "a name has at most 63 characters"},
		{"comma in a set's path", "poolSets: [{name: a, path: \"a,init\"}]", "may hold only"},
		{"comma in a match", "poolSets: [{name: a, match: \"a*,b*\"}]", "pool set a: match \"a*,b*\" may hold only letters, digits and - _ . * ? ! [ ]"},
		{"semicolon in a match", "poolSets: [{name: a, match: \"a;b\"}]", "may hold only"},
		{"slash in a match", "poolSets: [{name: a, match: \"a/*\"}]", "may hold only"},
		{"quote in a match", "poolSets: [{name: a, match: \"a'b\"}]", "may hold only"},
		{"variable in a match", "poolSets: [{name: a, match: \"$(NODE_NAME)\"}]", "may hold only"},
		{"empty match", "poolSets: [{name: a, match: \"\"}]", "at '/poolSets/0/match'"},
		{"overcommit of a set too fine", "poolSets: [{name: a, overcommit: 1.0001}]", "pool set a: overcommit 1.0001 has more than 3 decimals"},
		{"reserve of a set too much", "poolSets: [{name: a, reserve: 101%}]", "at '/poolSets/0/reserve'"},
		{"kubelet in a set", "{poolsDir: /var, pools: [], poolSets: [{name: lib}]}", "kubeletDir: /var/lib/kubelet is in poolsDir, which is /var;"},

		{"poolsDir relative", "poolsDir: pools", "poolsDir: \"pools\" is not absolute"},
		{"poolsDir root", "poolsDir: //", "poolsDir: \"//\" is the root directory"},
		{"poolsDir semicolon", "poolsDir: \"/a;b\"", "poolsDir: the path \"/a;b\" may hold only"},
		{"cgroup of pods relative", "podsCgroup: kubepods.slice", "podsCgroup: \"kubepods.slice\" is not absolute"},
		{"kubeletDir relative", "kubeletDir: var/lib/kubelet", "kubeletDir: \"var/lib/kubelet\" is not absolute"},
		{"stateDir dots", "stateDir: /var/../state", "stateDir: the path \"/var/../state\" holds '.' or '..'"},
		{"state in a pool", "stateDir: /var/lib/rootcellar/pools/default/state", "stateDir: /var/lib/rootcellar/pools/default/state is in poolsDir"},
		{"state in poolsDir", "poolsDir: /var/lib/rootcellar", "stateDir: /var/lib/rootcellar/state is in poolsDir, which is /var/lib/rootcellar; put it next to"},
		{"state is poolsDir", "{poolsDir: /a, stateDir: /a/}", "stateDir: /a is in poolsDir, which is /a;"},
		{"pools in the state", "{poolsDir: /a/b, stateDir: /a}", "poolsDir: /a/b is in stateDir, which is /a"},
		{"state in kubelet", "stateDir: /var/lib/kubelet/state", "stateDir: /var/lib/kubelet/state is in kubeletDir, which is /var/lib/kubelet; every start"},
		{"state is kubelet", "{stateDir: /k, kubeletDir: /k}", "stateDir: /k is in kubeletDir, which is /k;"},
		{"pools in kubelet", "poolsDir: /var/lib/kubelet//pools", "poolsDir: /var/lib/kubelet/pools is in kubeletDir"},
		{"pools are kubelet", "{poolsDir: /k, kubeletDir: /k}", "poolsDir: /k is in kubeletDir, which is /k;"},
		{"kubelet in poolsDir", "poolsDir: /var/lib", "kubeletDir: /var/lib/kubelet is in poolsDir, which is /var/lib;"},
		{"kubelet in a pool", "{poolsDir: /var, pools: [{name: lib}]}", "kubeletDir: /var/lib/kubelet is in poolsDir, which is /var;"},
		{"kubelet in the state", "stateDir: /var/lib", "kubeletDir: /var/lib/kubelet is in stateDir, which is /var/lib;"},
		{"state is the socket's", "stateDir: /csi/", "stateDir: /csi is taken"},
		{"state at the socket", "stateDir: /csi/state", "stateDir: /csi/state is taken: /csi is where the driver's own socket is"},
		{"pools are the socket's", "poolsDir: /csi", "poolsDir: /csi is taken"},
		{"pools at the socket", "poolsDir: /csi/pools", "poolsDir: /csi/pools is taken"},
		{"kubelet at the socket", "kubeletDir: /csi/kubelet", "kubeletDir: /csi/kubelet is taken"},

		{"two default classes", "storageClasses: [{name: a, default: true}, {name: b, default: true}]", "StorageClasses a and b are both the default"},
		{"second default class", "{defaultClass: true, storageClasses: [{name: a}, {name: b, default: true}]}", "StorageClasses a and b are both the default"},
		{"default class that is none", "{defaultClass: true, storageClasses: [{name: a, default: false}]}", "StorageClass a: default is false and defaultClass is true; change one of them"},
		{"default of no class", "{defaultClass: true, storageClasses: []}", "defaultClass is true and storageClasses is empty; add a class, or set defaultClass to false"},
		{"copy of no class", "{sharedClass: true, storageClasses: []}", "sharedClass is true and storageClasses is empty"},
		{"shared class of a name in use", "{sharedClass: true, storageClasses: [{name: a}, {name: rootcellar-shared}]}",
			"two StorageClasses are called rootcellar-shared; sharedClass adds one of this name, so rename yours"},
		{"default class as a name", "defaultClass: rootcellar", "at '/defaultClass': got string, want boolean"},
		{"shared class as a string", "sharedClass: \"true\"", "at '/sharedClass': got string, want boolean"},
		{"two classes of one name", "storageClasses: [{name: a}, {name: a}]", "two StorageClasses are called a"},
		{"class of no pool", "storageClasses: [{name: a, pool: b}]", "StorageClass a: no pool or pool set is called b; there are: default"},
		{"class of a member", "{pools: [], poolSets: [{name: a}], storageClasses: [{name: c, pool: a/disk1}]}", "StorageClass c: no pool or pool set is called a/disk1; there are: a"},
		{"class that cannot choose a set", "{pools: [{name: a}], poolSets: [{name: b}], storageClasses: [{name: c}]}", "StorageClass c: it names no pool, there are 2, and none is called default"},
		{"exclusive volumes of a pool", "storageClasses: [{name: a, pool: default, parameters: {exclusive: \"true\"}}]",
			"StorageClass a: exclusive is true and default is a pool; an exclusive volume needs the disks of a pool set"},
		{"exclusive volumes of the only pool", "storageClasses: [{name: a, parameters: {exclusive: \"true\"}}]", "exclusive is true and default is a pool"},
		{"exclusive volumes of the pool default", "{poolSets: [{name: b}], storageClasses: [{name: a, parameters: {exclusive: \"true\"}}]}", "exclusive is true and default is a pool"},
		{"class that cannot choose", "{pools: [{name: a}, {name: b}], storageClasses: [{name: c}]}", "StorageClass c: it names no pool, there are 2, and none is called default"},
		{"class that annotates itself", "storageClasses: [{name: a, default: true, annotations: {storageclass.kubernetes.io/is-default-class: \"true\"}}]",
			"StorageClass a: annotations: the chart itself writes storageclass.kubernetes.io/is-default-class, where the class has `default: true`; leave it out"},
		{"class that is a default unseen", "storageClasses: [{name: a, annotations: {storageclass.kubernetes.io/is-default-class: \"true\"}}]", "the chart itself writes"},
		{"class of another's label", "storageClasses: [{name: a, labels: {app.kubernetes.io/instance: b}}]", "StorageClass a: labels: the chart itself writes app.kubernetes.io/instance; leave it out"},
		{"two default snapshot classes", "snapshots: {enabled: true, classes: [{name: a, default: true}, {name: b, default: true}]}",
			"VolumeSnapshotClasses a and b are both the default"},
		{"two snapshot classes of one name", "snapshots: {enabled: true, classes: [{name: a}, {name: a}]}", "two VolumeSnapshotClasses are called a"},
		{"snapshot class that annotates itself", "snapshots: {enabled: true, classes: [{name: a, annotations: {snapshot.storage.kubernetes.io/is-default-class: \"true\"}}]}",
			"VolumeSnapshotClass a: annotations: the chart itself writes snapshot.storage.kubernetes.io/is-default-class, where the class has `default: true`; leave it out"},
		{"snapshot class of another's label", "snapshots: {enabled: true, classes: [{name: a, labels: {helm.sh/chart: b}}]}",
			"VolumeSnapshotClass a: labels: the chart itself writes helm.sh/chart; leave it out"},
		{"unknown value of the controller", "fleet: {replicas: 2}", "at '/fleet': additional properties 'replicas' not allowed"},
		{"controller without a function", "fleet: {enabled: true, steering: false, labels: false, inventory: false}",
			"fleet.enabled is true, and all its functions are false, so it would do nothing; enable one of them"},
		{"release without pages", "fleet: {enabled: true, inventory: false, releaseClaims: true}",
			"fleet.releaseClaims is true and fleet.inventory is false; a claim is released only if no other node shows its disk, so change one of them"},
		{"delay without a unit", "fleet: {delays: {absent: '30'}}", "at '/fleet/delays/absent'"},
		{"old snapshots without labels", "fleet: {enabled: true, labels: false, oldSnapshots: true}",
			"fleet.oldSnapshots is true and fleet.labels is false; it is a part of the labels, so change one of them"},
		{"pod of another's label", "podLabels: {app.kubernetes.io/name: a}", "podLabels: the chart itself writes app.kubernetes.io/name; leave it out"},
		{"pod of another's annotation", "podAnnotations: {kubectl.kubernetes.io/default-container: a}", "podAnnotations: the chart itself writes kubectl.kubernetes.io/default-container"},
		{"driver that is evicted", "podAnnotations: {cluster-autoscaler.kubernetes.io/enable-ds-eviction: \"true\"}", "podAnnotations: the chart itself writes cluster-autoscaler"},

		{"unknown alert", "monitoring: {rules: {alerts: {RootcellarDriverGone: {enabled: false}}}}", "additional properties 'RootcellarDriverGone' not allowed"},
		{"alert of nothing", "monitoring: {rules: {alerts: {RootcellarDriverAway: null}}}", "at '/monitoring/rules/alerts': missing property 'RootcellarDriverAway'"},
		{"threshold of an alert without one", "monitoring: {rules: {alerts: {RootcellarDriverAway: {below: 5}}}}", "additional properties 'below' not allowed"},
		{"threshold as a fraction of a word", "monitoring: {rules: {alerts: {RootcellarPoolLowSpace: {below: 10%}}}}", "at '/monitoring/rules/alerts/RootcellarPoolLowSpace/below'"},
		{"alert after no time", "monitoring: {rules: {alerts: {RootcellarDriverAway: {for: 5}}}}", "at '/monitoring/rules/alerts/RootcellarDriverAway/for'"},
		{"quote in a pool without sizes", "monitoring: {rules: {alerts: {RootcellarSizesNotEnforced: {exceptPools: ['a\"b']}}}}", "at '/monitoring/rules/alerts/RootcellarSizesNotEnforced/exceptPools/0'"},
		{"interval in words", "monitoring: {podMonitor: {interval: 1 minute}}", "at '/monitoring/podMonitor/interval'"},
		{"severity by a label", "monitoring: {rules: {enabled: true, alertLabels: {severity: page}}}",
			"monitoring.rules.alertLabels: the chart itself writes severity, from the severity of the alert; leave it out"},
		{"rules of another's label", "monitoring: {rules: {enabled: true, labels: {helm.sh/chart: a}}}", "monitoring.rules.labels: the chart itself writes helm.sh/chart; leave it out"},
		{"PodMonitor of another's label", "monitoring: {podMonitor: {enabled: true, labels: {helm.sh/chart: a}}}", "monitoring.podMonitor.labels: the chart itself writes helm.sh/chart"},

		{"address without brackets", "httpAddress: \"::\"", "at '/httpAddress'"},
		{"address with a port", "httpAddress: 0.0.0.0:9808", "at '/httpAddress'"},
		{"address too large", "httpAddress: 0.0.0.256", "at '/httpAddress'"},
		{"address too short", "httpAddress: 10.0.1", "at '/httpAddress'"},
		{"address in empty brackets", "httpAddress: \"[]\"", "at '/httpAddress'"},
		{"IPv4 in brackets", "httpAddress: \"[0.0.0.0]\"", "at '/httpAddress'"},
		{"host's name", "httpAddress: localhost", "at '/httpAddress'"},
	}
	refused(t, tests)
}

// mistake is a name, values that the chart must refuse, and a part of its message.
type mistake struct{ name, values, message string }

func refused(t *testing.T, tests []mistake) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			text, err := helm(t, values(t, test.values))
			if err == nil {
				t.Fatal("it is accepted")
			}
			if !strings.Contains(string(text), test.message) {
				t.Fatalf("it is refused without saying %q: %s", test.message, text)
			}
		})
	}
}

// An old Kubernetes is refused. A vendor's suffix in the version is not.
func TestKubernetesVersions(t *testing.T) {
	for version, good := range map[string]bool{"1.26.15": false, "1.27.0": true, "1.31.4-eks-1": true, "1.33.1+k3s1": true} {
		if text, err := helm(t, "--kube-version="+version); (err == nil) != good {
			t.Errorf("Kubernetes %s: %s", version, text)
		}
	}
}

// Without the policies, which are newer than the chart's oldest Kubernetes, the controller is refused.
func TestKubernetesOfTheController(t *testing.T) {
	for version, good := range map[string]bool{"1.29.15": false, "1.30.0": true, "1.30.4-eks-1": true} {
		text, err := helm(t, "--kube-version="+version, withFleet)
		if (err == nil) != good || !good && !strings.Contains(string(text), "the policy that limits its account needs 1.30") {
			t.Errorf("Kubernetes %s: %s", version, text)
		}
	}
}

// By default the CSIDriver lacks the field, which a Kubernetes older than it would refuse or ignore.
func TestPreventPodSchedulingIfMissing(t *testing.T) {
	prevented := values(t, "preventPodSchedulingIfMissing: true")
	same(t, one[*storagev1.CSIDriver](t, objects(t)).Spec.PreventPodSchedulingIfMissing, nil)
	same(t, *one[*storagev1.CSIDriver](t, objects(t, prevented)).Spec.PreventPodSchedulingIfMissing, true)
	for version, good := range map[string]bool{"1.35.4": false, "1.36.0": true, "1.36.3-eks-1": true} {
		text, err := helm(t, "--kube-version="+version, prevented)
		if (err == nil) != good || !good && !strings.Contains(string(text), "the CSIDriver has this field since 1.36") {
			t.Errorf("Kubernetes %s: %s", version, text)
		}
	}
}

// The spelling of a path does not change the result.
func TestPathsHaveOneSpelling(t *testing.T) {
	spellings := []string{
		"{kubeletDir: /k, stateDir: /s, poolsDir: /p, pools: [{name: default}]}",
		"{kubeletDir: /k/, stateDir: /s/, poolsDir: /p/, pools: [{name: default, path: default/}]}",
		"{kubeletDir: /k//, stateDir: //s, poolsDir: /p///, pools: [{name: default, path: /p/default}]}",
		"{kubeletDir: /k, stateDir: /s, poolsDir: /p, pools: [{name: default, path: /p//default//}]}",
	}
	first, err := helm(t, values(t, spellings[0]))
	if err != nil {
		t.Fatalf("%s", first)
	}
	for _, spelling := range spellings[1:] {
		if text, err := helm(t, values(t, spelling)); err != nil || !bytes.Equal(text, first) {
			t.Errorf("%s: %v: not as %s", spelling, err, spellings[0])
		}
	}
}

// Directories whose names start alike are not nested.
func TestDirectoriesBeside(t *testing.T) {
	for _, content := range []string{
		"{kubeletDir: /a/k, stateDir: /a/k2, poolsDir: /a/k3}",
		"{stateDir: /csi2, poolsDir: /csi3}",
		"{stateDir: /var/mnt2, poolsDir: /var/mnt}",
	} {
		if text, err := helm(t, values(t, content)); err != nil {
			t.Errorf("%s: %s", content, text)
		}
	}
}

// A given cgroup is the only directory of cgroups that the driver has.
func TestPodsCgroup(t *testing.T) {
	pod, container := driver(t, objects(t, "--set=podsCgroup=/sys/fs/cgroup/pods.slice/"))
	if !slices.Contains(container.Args, "--pods-cgroup=/host/cgroup") {
		t.Error(container.Args)
	}
	for _, volume := range pod.Volumes {
		if volume.Name == "cgroup" {
			same(t, volume.HostPath.Path, "/sys/fs/cgroup/pods.slice")
		}
	}
}

// The listening address reaches the driver unchanged.
func TestHTTPAddress(t *testing.T) {
	for _, address := range []string{"0.0.0.0", "127.0.0.1", "10.255.249.199", "[::]", "[::1]", "[fd00:1::A]", "[::ffff:10.0.0.1]"} {
		_, container := driver(t, objects(t, values(t, "httpAddress: \""+address+"\"")))
		same(t, container.Args[6], "--http="+address+":9808")
	}
}

// A name stays a string even if YAML would read it as another type.
func TestNamesAreStrings(t *testing.T) {
	for _, name := range []string{"123", "1e3", "0x1f", "true", "null", "on"} {
		text, err := release(t, name, "--namespace="+name, "--set=namespace.create=true", values(t, strings.ReplaceAll(`
pools: [{name: "NAME"}]
storageClasses: [{name: "NAME", pool: "NAME", annotations: {a: "NAME"}, labels: {b: "NAME"}}]
priorityClassName: "NAME"
resizer: {priorityClassName: "NAME", nodeSelector: {a: "NAME"}}
image: {repository: "NAME", tag: "20"}
imagePullSecrets: [{name: "NAME"}]
nodeSelector: {a: "NAME"}
podLabels: {a: "NAME"}
podAnnotations: {a: "NAME"}
openshift: {securityContextConstraints: true, machineConfig: {create: true, role: "NAME"}}
snapshots: {enabled: true, classes: [{name: "NAME", annotations: {a: "NAME"}, labels: {b: "NAME"}}]}
`, "NAME", name)))
		found := decoded(t, text, err)
		class := one[*storagev1.StorageClass](t, found)
		same(t, class.Name, name)
		same(t, class.Parameters["pool"], name)
		same(t, one[*snapshotv1.VolumeSnapshotClass](t, found).Name, name)
		same(t, one[*corev1.Namespace](t, found).Name, name)
		same(t, one[*rbacv1.RoleBinding](t, found).Subjects[0].Namespace, name)
		for _, binding := range all[*rbacv1.ClusterRoleBinding](found) {
			same(t, binding.Subjects[0].Namespace, name)
		}
		same(t, one[*appsv1.DaemonSet](t, found).Labels["app.kubernetes.io/instance"], name)
		pod, container := driver(t, found)
		same(t, pod.PriorityClassName, name)
		same(t, container.Image, name+":20")
		same(t, resizer(t, found).PriorityClassName, name)
		same(t, variable(container, "ROOTCELLAR_POOLS"), name+"=/var/lib/rootcellar/pools/"+name)
	}
}

// The pools reach the driver in its own syntax.
func TestPools(t *testing.T) {
	tests := map[string]string{
		"[{name: a}]": "a=/var/lib/rootcellar/pools/a",
		"[{name: a, path: b/c, init: true}, {name: d}]":   "a=/var/lib/rootcellar/pools/b/c,init;d=/var/lib/rootcellar/pools/d",
		"[{name: a, requireMount: true, init: false}]":    "a=/var/lib/rootcellar/pools/a,require-mount",
		"[{name: a, overcommit: 1.5, reserve: 10%}]":      "a=/var/lib/rootcellar/pools/a,overcommit=1.5,reserve=10%",
		"[{name: a, overcommit: 2, reserve: 0}]":          "a=/var/lib/rootcellar/pools/a,overcommit=2,reserve=0",
		"[{name: a, reserve: 1Gi}]":                       "a=/var/lib/rootcellar/pools/a,reserve=1Gi",
		"[{name: a, keep: 24h, reserve: 1Gi}]":            "a=/var/lib/rootcellar/pools/a,keep=24h,reserve=1Gi",
		"[{name: a, overcommit: 1000}]":                   "a=/var/lib/rootcellar/pools/a,overcommit=1000",
		"[{name: a, reserve: 500000000000}]":              "a=/var/lib/rootcellar/pools/a,reserve=500000000000",
		"[{name: a, reserve: 50Gi}, {name: b, path: aa}]": "a=/var/lib/rootcellar/pools/a,reserve=50Gi;b=/var/lib/rootcellar/pools/aa",
	}
	for pools, want := range tests {
		_, container := driver(t, objects(t, values(t, "{storageClasses: [], pools: "+pools+"}")))
		if got := variable(container, "ROOTCELLAR_POOLS"); got != want {
			t.Errorf("%s: %q, not %q", pools, got, want)
		}
	}
}

// The pool sets reach the driver in its own syntax, with the pools or without any.
func TestPoolSets(t *testing.T) {
	tests := map[string]string{
		"[{name: a}]":                                   "a=/var/lib/rootcellar/pools/a",
		"[{name: a, path: b/c/, init: true}]":           "a=/var/lib/rootcellar/pools/b/c,init",
		"[{name: a, path: .}]":                          "a=/var/lib/rootcellar/pools",
		"[{name: a, path: /var/lib/rootcellar/pools/}]": "a=/var/lib/rootcellar/pools",
		"[{name: a, init: true, reserve: 5%, overcommit: 1.5, match: \"[!x]?-*.d\"}]": "a=/var/lib/rootcellar/pools/a,match=[!x]?-*.d,init,overcommit=1.5,reserve=5%",
		"[{name: a, path: d, match: a*}, {name: b, path: d, match: b*}]":              "a=/var/lib/rootcellar/pools/d,match=a*;b=/var/lib/rootcellar/pools/d,match=b*",
		"[{name: a, init: false, reserve: 500000000000}]":                             "a=/var/lib/rootcellar/pools/a,reserve=500000000000",
	}
	for sets, want := range tests {
		found := objects(t, values(t, "{pools: [], poolSets: "+sets+", storageClasses: [{name: c, pool: a, parameters: {exclusive: \"true\"}}]}"))
		_, container := driver(t, found)
		if got := variable(container, "ROOTCELLAR_POOL_SETS"); got != want {
			t.Errorf("%s: %q, not %q", sets, got, want)
		}
		same(t, variable(container, "ROOTCELLAR_POOLS"), "")
		same(t, one[*storagev1.StorageClass](t, found).Parameters, map[string]string{
			"class": "c", "reclaimPolicy": "Delete", "pool": "a", "exclusive": "true"})
	}
	_, container := driver(t, objects(t, values(t, "poolSets: [{name: a}]")))
	same(t, variable(container, "ROOTCELLAR_POOLS"), "default=/var/lib/rootcellar/pools/default,init")
	same(t, variable(container, "ROOTCELLAR_POOL_SETS"), "a=/var/lib/rootcellar/pools/a")
	// The only set is the pool of a class that names none.
	objects(t, values(t, "{pools: [], poolSets: [{name: a}], storageClasses: [{name: c, parameters: {exclusive: \"true\"}}]}"))
}

// A digest takes precedence over the tag.
func TestImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	found := objects(t, values(t, "{image: {repository: my/r, tag: t, digest: \""+digest+"\", pullPolicy: Always}, "+
		"provisioner: {image: {digest: \""+digest+"\"}}, registrar: {image: {tag: v9}}, resizer: {image: {repository: my/z, tag: v8}}, "+
		"imagePullSecrets: [{name: s}]}"))
	pod, _ := driver(t, found)
	var images []string
	for _, container := range slices.Concat(pod.Containers, resizer(t, found).Containers) {
		images = append(images, container.Image)
	}
	same(t, images, []string{"my/r@" + digest, "registry.k8s.io/sig-storage/csi-provisioner@" + digest,
		"registry.k8s.io/sig-storage/csi-node-driver-registrar:v9", "my/z:v8", "my/r@" + digest})
	for _, pod := range []corev1.PodSpec{pod, resizer(t, found)} {
		for _, container := range pod.Containers {
			want := corev1.PullIfNotPresent
			if container.Name == "driver" {
				want = corev1.PullAlways
			}
			same(t, container.ImagePullPolicy, want)
		}
		same(t, pod.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "s"}})
	}
}

// images returns the image of each container of each pod.
func images(found []runtime.Object) []string {
	var pods []corev1.PodSpec
	for _, set := range all[*appsv1.DaemonSet](found) {
		pods = append(pods, set.Spec.Template.Spec)
	}
	for _, deployment := range all[*appsv1.Deployment](found) {
		pods = append(pods, deployment.Spec.Template.Spec)
	}
	var names []string
	for _, pod := range pods {
		for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
			names = append(names, container.Image)
		}
	}
	return names
}

// One value replaces the registry of every image, also of those with a digest, a port or no registry.
func TestImageRegistry(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0a", 32)
	settings := values(t, strings.ReplaceAll(`
image: {repository: registry.example/team/rootcellar, digest: "DIGEST"}
provisioner: {image: {digest: "DIGEST"}}
registrar: {image: {repository: localhost:5000/registrar}}
resizer: {image: {repository: localhost/resizer}}
snapshots: {enabled: true, image: {repository: sig-storage/csi-snapshotter}}
fleet: {enabled: true}
`, "DIGEST", digest[1:]))
	for registry, prefix := range map[string]string{"": "", "mirror:5000": "mirror:5000/", "harbor.example/a/proxy": "harbor.example/a/proxy/"} {
		want := []string{"registry.example/team/rootcellar" + digest, "registry.k8s.io/sig-storage/csi-provisioner" + digest,
			"sig-storage/csi-snapshotter:v8.7.0", "localhost:5000/registrar:v2.18.0",
			"registry.example/rootcellar-fleet:" + chartVersion(t), "localhost/resizer:v2.3.0", "registry.example/team/rootcellar" + digest}
		for i := range want {
			if prefix != "" {
				want[i] = prefix + regexp.MustCompile(`^(registry\.example|registry\.k8s\.io|localhost:5000|localhost)/`).ReplaceAllString(want[i], "")
			}
		}
		same(t, images(objects(t, settings, "--set=imageRegistry="+registry)), want)
	}
}

// sidecars returns the rows of the table of sidecars in the README.
func sidecars(t *testing.T) [][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Sidecars\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| -") {
			rows = append(rows, strings.Split(strings.Trim(line, "| \n"), " | "))
		}
	}
	if len(rows) < 2 {
		t.Fatal("the README has no table of sidecars")
	}
	return rows
}

// For each Kubernetes, the README names the versions of the sidecars that the chart installs. csi-resizer may be off.
func TestSidecarsOfTheREADME(t *testing.T) {
	rows := sidecars(t)
	found := objects(t, "--set", "snapshots.enabled=true")
	pod, _ := driver(t, found)
	for _, container := range slices.Concat(pod.Containers, resizer(t, found).Containers) {
		if container.Name == "driver" {
			continue
		}
		_, version, _ := strings.Cut(container.Image, ":")
		column := slices.IndexFunc(rows[0], func(names string) bool { return slices.Contains(strings.Split(names, ", "), container.Name) })
		if column < 0 {
			t.Errorf("%s is not in the table of sidecars", container.Name)
			continue
		}
		for _, row := range rows[1:] {
			cell, _, _ := strings.Cut(row[column], ",")
			off := container.Name == "csi-resizer" && cell == "none: `resizer.enabled: false`"
			if cell != version && !off {
				t.Errorf("%s of Kubernetes %s is %s, not %s", container.Name, row[0], cell, version)
			}
		}
	}
}

// The rows follow each other, down to the first Kubernetes that the chart accepts.
func TestKubernetesOfTheSidecars(t *testing.T) {
	minors := func(text string) []int {
		var found []int
		for _, minor := range regexp.MustCompile(`\b1\.(\d+)`).FindAllStringSubmatch(text, -1) {
			number, err := strconv.Atoi(minor[1])
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, number)
		}
		if len(found) == 0 {
			t.Fatalf("no version of Kubernetes in %q", text)
		}
		return found
	}
	var first int
	for i, row := range sidecars(t)[1:] {
		found := minors(row[0])
		if i > 0 {
			same(t, slices.Max(found), first-1)
		}
		first = slices.Min(found)
	}
	about, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, accepted, _ := strings.Cut(string(about), "\nkubeVersion: ")
	same(t, first, minors(accepted)[0])
}

// A class has the settings of its entry. Without any it waits for a pod.
func TestStorageClasses(t *testing.T) {
	classes := all[*storagev1.StorageClass](objects(t, values(t, `
pools: [{name: a}, {name: default}]
storageClasses:
  - name: plain
  - name: full
    default: true
    pool: a
    reclaimPolicy: Retain
    volumeBindingMode: Immediate
    mountOptions: [noatime, nodev]
    allowVolumeExpansion: false
    parameters: {enforcement: required, mode: "0770", gid: "1000", sharing: node, copy: allowed, maxStall: 2s, csi.storage.k8s.io/fstype: xfs}
    allowedTopologies:
      - matchLabelExpressions: [{key: topology.rootcellar.dev/node, values: [n1]}]
    annotations: {a: b}
    labels: {c: d}
`)))
	if len(classes) != 2 {
		t.Fatalf("%d classes", len(classes))
	}
	plain, full := classes[0], classes[1]
	same(t, plain.Provisioner, "csi.rootcellar.dev")
	same(t, *plain.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	same(t, *plain.VolumeBindingMode, storagev1.VolumeBindingWaitForFirstConsumer)
	same(t, plain.Parameters, map[string]string{"class": "plain", "reclaimPolicy": "Delete"})
	same(t, len(plain.Annotations)+len(plain.MountOptions), 0)
	same(t, *plain.AllowVolumeExpansion, true)

	same(t, *full.AllowVolumeExpansion, false)
	same(t, *full.ReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	same(t, *full.VolumeBindingMode, storagev1.VolumeBindingImmediate)
	same(t, full.MountOptions, []string{"noatime", "nodev"})
	same(t, full.Parameters, map[string]string{
		"class": "full", "reclaimPolicy": "Retain", "pool": "a", "enforcement": "required", "mode": "0770", "gid": "1000", "sharing": "node", "copy": "allowed", "maxStall": "2s", "csi.storage.k8s.io/fstype": "xfs"})
	same(t, full.Annotations, map[string]string{"storageclass.kubernetes.io/is-default-class": "true", "a": "b"})
	same(t, full.Labels["c"], "d")
	same(t, full.AllowedTopologies, []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
		{Key: "topology.rootcellar.dev/node", Values: []string{"n1"}}}}})
}

// The parameters of a class are immutable, so an upgrade must not add any to a class of an older chart.
func TestClassOfAnOlderChart(t *testing.T) {
	answers := map[string]string{
		"/apis/storage.k8s.io/v1": `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "storage.k8s.io/v1", "resources": [
			{"name": "storageclasses", "singularName": "storageclass", "kind": "StorageClass", "namespaced": false, "verbs": ["get"]}]}`,
		"/apis/storage.k8s.io/v1/storageclasses/plain": `{"kind": "StorageClass", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": "plain"}}`,
		"/apis/storage.k8s.io/v1/storageclasses/older": `{"kind": "StorageClass", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": "older"},
			"parameters": {"pool": "a"}}`,
		"/apis/storage.k8s.io/v1/storageclasses/newer": `{"kind": "StorageClass", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": "newer"},
			"parameters": {"class": "newer", "reclaimPolicy": "Delete"}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		response.Header().Set("Content-Type", "application/json")
		answer, ok := answers[request.URL.Path]
		if !ok {
			answer = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`
			response.WriteHeader(http.StatusNotFound)
		}
		_, _ = response.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	parameters := map[string]map[string]string{}
	for _, class := range all[*storagev1.StorageClass](objects(t, "--dry-run=server", "--kube-apiserver="+server.URL, values(t, `
pools: [{name: a}]
storageClasses: [{name: plain}, {name: older, pool: a}, {name: newer}, {name: fresh, reclaimPolicy: Retain}]`))) {
		parameters[class.Name] = class.Parameters
	}
	same(t, parameters, map[string]map[string]string{
		"plain": nil,
		"older": {"pool": "a"},
		"newer": {"class": "newer", "reclaimPolicy": "Delete"},
		"fresh": {"class": "fresh", "reclaimPolicy": "Retain"},
	})
}

// The value outranks the cluster, so that a renderer without a cluster makes the same class.
func TestRecordClass(t *testing.T) {
	parameters := map[string]map[string]string{}
	for _, class := range all[*storagev1.StorageClass](objects(t, values(t, `
sharedClass: true
storageClasses: [{name: older, recordClass: false, pool: default}, {name: newer, recordClass: true}, {name: empty}]`))) {
		parameters[class.Name] = class.Parameters
	}
	same(t, parameters, map[string]map[string]string{
		"older":             {"pool": "default"},
		"newer":             {"class": "newer", "reclaimPolicy": "Delete"},
		"empty":             {"class": "empty", "reclaimPolicy": "Delete"},
		"rootcellar-shared": {"pool": "default", "sharing": "node"},
	})
}

// With the values of the README for renderers without a cluster, every rendering has the same bytes.
func TestRenderingsAreEqual(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil || !strings.Contains(string(page), "fleet: {key: {secretName: my-key}}\n") {
		t.Fatalf("the README lacks the value: %v", err)
	}
	for set, equal := range map[string]bool{"my-key": true, "": false} {
		var texts [2]string
		for i := range texts {
			text, err := helm(t, withFleet, withSnapshots, "--set=fleet.releaseClaims=true,networkPolicy.enabled=true,fleet.key.secretName="+set)
			if err != nil {
				t.Fatalf("%s", text)
			}
			texts[i] = string(text)
		}
		same(t, texts[0] == texts[1], equal)
	}
}

// The switches change the first class, or add a copy of it, and nothing else.
func TestClassSwitches(t *testing.T) {
	const annotation = "storageclass.kubernetes.io/is-default-class"
	classes := func(arguments ...string) []*storagev1.StorageClass {
		return all[*storagev1.StorageClass](objects(t, arguments...))
	}
	plain := classes()
	same(t, classes("--set=defaultClass=false,sharedClass=false"), plain)

	defaults := classes("--set=defaultClass=true")
	same(t, defaults[0].Annotations, map[string]string{annotation: "true"})
	defaults[0].Annotations = nil
	same(t, defaults, plain)

	both := classes("--set=defaultClass=true,sharedClass=true")
	same(t, len(both), len(plain)+1)
	same(t, both[0].Annotations, map[string]string{annotation: "true"})
	both[0].Annotations = nil
	same(t, both[:len(plain)], plain)
	shared := both[len(plain)]
	same(t, shared.Name, "rootcellar-shared")
	same(t, shared.Parameters, map[string]string{"class": "rootcellar-shared", "reclaimPolicy": "Delete", "sharing": "node"})
	shared.Name, shared.Parameters = plain[0].Name, plain[0].Parameters
	same(t, shared, plain[0])

	// The copy has every field of the first class except `default`, its name and `sharing`.
	first := `{name: a, default: true, pool: p, reclaimPolicy: Retain, allowVolumeExpansion: false, mountOptions: [noatime],
  annotations: {b: c}, labels: {d: e}, parameters: {enforcement: required, sharing: none}}`
	copied := classes(values(t, "{sharedClass: true, defaultClass: true, pools: [{name: p}, {name: q}], storageClasses: ["+first+"]}"))
	same(t, copied[0].Parameters, map[string]string{"class": "a", "reclaimPolicy": "Retain", "pool": "p", "enforcement": "required", "sharing": "none"})
	same(t, copied[1].Parameters, map[string]string{"class": "rootcellar-shared", "reclaimPolicy": "Retain", "pool": "p", "enforcement": "required", "sharing": "node"})
	same(t, copied[1].Annotations, map[string]string{"b": "c"})
	same(t, *copied[1].AllowVolumeExpansion, false)
	copied[1].Name, copied[1].Parameters, copied[1].Annotations = "a", copied[0].Parameters, copied[0].Annotations
	same(t, copied[1], copied[0])
}

// The example of a shared volume uses the class that sharedClass adds, in a mode that only this class accepts.
func TestSharedExample(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/examples/shared/shared.yaml")
	found := decoded(t, text, err)
	claim := one[*corev1.PersistentVolumeClaim](t, found)
	deployment := one[*appsv1.Deployment](t, found)
	same(t, claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany})
	same(t, deployment.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, claim.Name)
	same(t, *deployment.Spec.Replicas, 2)
	var names []string
	for _, class := range all[*storagev1.StorageClass](objects(t, "--set=sharedClass=true")) {
		if class.Parameters["sharing"] == "node" {
			names = append(names, class.Name)
		}
	}
	same(t, names, []string{*claim.Spec.StorageClassName})
}

// The settings that an administrator may want for a DaemonSet reach it.
func TestScheduling(t *testing.T) {
	found := objects(t, values(t, `
priorityClassName: mine
nodeSelector: {disk: "yes"}
tolerations: [{key: a, operator: Equal, value: b, effect: NoSchedule}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: []}]}}}
podAnnotations: {a: b}
podLabels: {c: d}
serviceAccount: {annotations: {e: f}}
resizer:
  priorityClassName: its
  nodeSelector: {role: control}
  tolerations: [{key: g, operator: Exists}]
  affinity: {podAffinity: {}}
  workers: 7
  timeout: 5s
  resources: {limits: {memory: 2Gi}}
updateStrategy: {type: OnDelete, rollingUpdate: null}
terminationGracePeriodSeconds: 90
log: {format: json, level: debug}
httpAddress: "[::]"
resources: {limits: {memory: 1Gi}}
`))
	set := one[*appsv1.DaemonSet](t, found)
	pod, container := driver(t, found)
	same(t, pod.PriorityClassName, "mine")
	same(t, pod.NodeSelector, map[string]string{"disk": "yes", "kubernetes.io/os": "linux"})
	same(t, pod.Tolerations, []corev1.Toleration{{Key: "a", Operator: "Equal", Value: "b", Effect: "NoSchedule"}})
	same(t, len(pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms), 1)
	same(t, set.Spec.Template.Annotations, map[string]string{
		"kubectl.kubernetes.io/default-container": "driver", "cluster-autoscaler.kubernetes.io/enable-ds-eviction": "false", "a": "b"})
	same(t, set.Spec.Template.Labels, map[string]string{"app.kubernetes.io/name": "rootcellar", "c": "d"})
	for _, account := range all[*corev1.ServiceAccount](found) {
		same(t, account.Annotations, map[string]string{"e": "f"})
	}
	same(t, set.Spec.UpdateStrategy, appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType})
	same(t, *pod.TerminationGracePeriodSeconds, 90)
	same(t, container.Args[len(container.Args)-2:], []string{"--http=[::]:9808", "--log-format=json"})
	same(t, variable(container, "RUST_LOG"), "debug")
	same(t, container.Resources.Limits.Memory().String(), "1Gi")
	same(t, container.Resources.Requests.Memory().String(), "32Mi")

	single := resizer(t, found)
	same(t, single.PriorityClassName, "its")
	same(t, single.NodeSelector, map[string]string{"role": "control", "kubernetes.io/os": "linux"})
	same(t, single.Tolerations, []corev1.Toleration{{Key: "g", Operator: "Exists"}})
	same(t, single.Affinity.PodAffinity != nil, true)
	same(t, single.Containers[0].Args[2:], []string{"--workers=7", "--timeout=5s", "--kube-api-qps=50", "--kube-api-burst=100", "--http-endpoint=[::]:9812"})
	same(t, single.Containers[0].Resources.Limits.Memory().String(), "2Gi")
	same(t, single.Containers[1].Args[5:], []string{"--http=[::]:9808", "--log-format=json"})
	same(t, variable(single.Containers[1], "RUST_LOG"), "debug")
	same(t, single.Containers[1].Resources.Limits.Memory().String(), "1Gi")
}

// Where all nodes have taints, the resizer and the controller still find one. They leave a failed node, for which the first
// toleration that fits a taint counts.
func TestTaints(t *testing.T) {
	minutes := int64(300)
	want := []corev1.Toleration{
		{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &minutes},
		{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &minutes},
		{Operator: "Exists"},
	}
	deployments := all[*appsv1.Deployment](objects(t, withFleet))
	same(t, len(deployments), 2)
	for _, deployment := range deployments {
		same(t, deployment.Spec.Template.Spec.Tolerations, want)
	}
	same(t, one[*appsv1.DaemonSet](t, objects(t)).Spec.Template.Spec.Tolerations, []corev1.Toleration{{Operator: "Exists"}})
}

// Without the resizer its objects are absent, and no class allows growth.
func TestNoResizer(t *testing.T) {
	found := objects(t, values(t, "resizer: {enabled: false}"))
	same(t, len(all[*appsv1.Deployment](found)), 0)
	same(t, one[*corev1.ServiceAccount](t, found).Name, "rootcellar")
	same(t, one[*rbacv1.ClusterRole](t, found).Name, "rootcellar-provisioner")
	same(t, one[*rbacv1.ClusterRoleBinding](t, found).Name, "rootcellar-provisioner")
	for _, class := range all[*storagev1.StorageClass](found) {
		same(t, *class.AllowVolumeExpansion, false)
	}
}

// Artifact Hub shows the icon of the file.
func TestIcon(t *testing.T) {
	about, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	icon, err := os.ReadFile(filepath.Join(chart, "icon.svg"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, xml.Unmarshal(icon, new(struct{})), nil)
	want := "\nicon: data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(bytes.TrimSpace(icon)) + "\n"
	same(t, strings.Contains(string(about), want), true)
}

// Artifact Hub calls it a pre-release for as long as its status says so. The images are those of a release: release.sh.
func TestArtifactHub(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ Annotations map[string]string }
	if err := yaml.Unmarshal(text, &about); err != nil {
		t.Fatal(err)
	}
	same(t, about.Annotations["artifacthub.io/prerelease"] == "true", strings.Contains(about.Annotations["csi.rootcellar.dev/status"], " is a pre-release"))
	same(t, about.Annotations["artifacthub.io/images"], "")
}

// The names do not depend on the release's, so that a cluster cannot hold two by mistake; the namespace does.
func TestReleaseName(t *testing.T) {
	text, err := release(t, "other", "--namespace=elsewhere")
	found := decoded(t, text, err)
	set := one[*appsv1.DaemonSet](t, found)
	same(t, set.Name, "rootcellar")
	same(t, set.Namespace, "elsewhere")
	same(t, set.Labels["app.kubernetes.io/instance"], "other")
	same(t, set.Spec.Selector.MatchLabels, map[string]string{"app.kubernetes.io/name": "rootcellar"})
	same(t, len(all[*corev1.Namespace](found)), 0)
}
