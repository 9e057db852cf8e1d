package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// autoscaled are the scenarios of nodes to come. The cluster autoscaler runs the plugins of the scheduler on copies of Nodes; here the
// scheduler itself runs them on such a copy.
var autoscaled = []entry{
	{"a pod waits for a node with enough space, and a new node gets it once its driver has reported", newNode},
	{"the documented capacity of nodes to come counts for a copy of a node alone, and no provisioner touches it", nodesToCome},
}

// templateLabel is the label that the autoscaler gives to the copies in its simulation.
const templateLabel = "cluster-autoscaler.kubernetes.io/template-node"

// lacking waits until the scheduler says that this many nodes, which are all, lack the space for a pod.
func (s *scenario) lacking(pod string, nodes int) {
	s.Helper()
	want := fmt.Sprintf("0/%[1]d nodes are available: %[1]d node(s) did not have enough free storage.", nodes)
	s.Eventually("pod "+pod+" waits for space", harness.Patience, func() string {
		found, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.Context(), pod, metav1.GetOptions{})
		s.Must(err)
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.PodScheduled && strings.HasPrefix(condition.Message, want) {
				return ""
			}
		}
		return fmt.Sprintf("%+v", found.Status.Conditions)
	})
	s.Always("pod "+pod+" waits", 5*time.Second, func() string { return s.nodeOf(pod) + s.TheClaim(pod).Annotations[selected] })
}

// large creates a claim for which no node of the rig has the space, and a pod with it.
func (s *scenario) large(name, class string) {
	s.Helper()
	s.claim(name, class, ofSize("60Gi"))
	s.pod(name, []string{name})
}

// Proves: K10, K21.
func newNode(s *scenario) {
	s.large("large", "late")
	s.lacking("large", 3)
	m := s.machine("grown", "100G")
	s.removed(m)
	m.register(s)
	s.lacking("large", 4)
	m.start()
	m.report(s)
	s.scheduled("large", m)
	s.bound("large", m)
}

// nodesToCome passes the object of the document.
//
// Proves: K21.
func nodesToCome(s *scenario) {
	class := s.class()
	for _, m := range nodes() {
		m.reports(s, class)
	}
	// A copy has the space of its original.
	s.node("copy", map[string]string{harness.TopologyKey: rig.node1.value, templateLabel: "true"}, nil, hardware("copy"))
	s.Cleanup(func() {
		_, _ = harness.Command(backgroundContext, "kubectl", "delete", "node", "copy", "--ignore-not-found")
	})
	s.large("first", class)
	s.lacking("first", 4)

	capacity := s.documented(class)
	s.names("first", "copy", harness.Patience)
	s.Kubectl("delete", "pod/first", "pvc/first", "node/copy", "--force", "--grace-period=0")
	s.large("second", class)
	s.lacking("second", 3)

	// Another class shows that the provisioner compares its objects with the cluster's.
	rig.node3.provisioner.kill()
	rig.node3.startProvisioner()
	rig.node3.reports(s, s.class())
	after, err := harness.Client.StorageV1().CSIStorageCapacities(harness.System).Get(s.Context(), capacity.Name, metav1.GetOptions{})
	s.Must(err)
	if after.ResourceVersion != capacity.ResourceVersion {
		s.Errorf("somebody changed %s: %+v", capacity.Name, after)
	}
}

// documented creates the capacity of nodes to come as docs/autoscaling.md has it, for this class.
func (s *scenario) documented(class string) *storagev1.CSIStorageCapacity {
	s.Helper()
	page, err := os.ReadFile(filepath.Join(harness.Root, "docs/autoscaling.md"))
	s.Must(err)
	found := regexp.MustCompile("(?s)```yaml capacity\n(.*?)```").FindSubmatch(page)
	if found == nil {
		s.Fatal("docs/autoscaling.md has no block `yaml capacity`")
	}
	name := class + "-new-nodes"
	yaml := strings.NewReplacer("rootcellar-new-nodes", name, "storageClassName: rootcellar", "storageClassName: "+class).Replace(string(found[1]))
	file := filepath.Join(harness.Run, "capacity.yaml")
	s.Must(os.WriteFile(file, []byte(yaml), 0o644))
	s.Kubectl("--namespace", harness.System, "apply", "--server-side", "--filename", file)
	s.Cleanup(func() {
		_, _ = harness.Command(backgroundContext, "kubectl", "--namespace", harness.System, "delete", "csistoragecapacity", name, "--ignore-not-found")
	})
	capacity, err := harness.Client.StorageV1().CSIStorageCapacities(harness.System).Get(s.Context(), name, metav1.GetOptions{})
	s.Must(err)
	return capacity
}
