package fleet

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// deceived are scenarios of lost nodes that are not lost: the controller sees too little, or too much.
var deceived = []entry{
	{"a node that is back while the watch of nodes stalls keeps its claims", backUnseen},
	{"a machine that joins under another name while the watch of nodes stalls keeps its claims", joinedUnseen},
	{"a machine without driver blocks the release if it may be the lost one, and no other does", renamed},
	{"a list that hides nodes leads to no release and finishes nothing", hiddenNodes},
	{"a copy of a disk blocks the release, and nobody is told to format the original", copiedDisk},
	{"the claim of a generic ephemeral volume is not released", ephemeral},
}

// seesGone waits until the controller's page shows that a node is missing.
func (s *scenario) seesGone(m *machine) {
	s.Helper()
	s.Eventually("the controller misses node "+m.name, harness.Patience, func() string {
		// The controller may have just begun.
		page, err := harness.Command(s.Context(), "curl", "--silent", "--show-error", "http://127.0.0.1:9809/nodes")
		if err != nil || !strings.Contains(page, fmt.Sprintf(`{"name":%q,"exists":false`, m.value)) {
			return fmt.Sprint(page, err)
		}
		return ""
	})
}

// held is the claim of a set, with the volume that it must keep.
type held struct {
	set, file string
	claim     *corev1.PersistentVolumeClaim
}

// holding creates a set on a node, whose claim is to be kept.
func (s *scenario) holding(set, class string, m *machine) held {
	s.Helper()
	file := s.set(set, class, m)
	return held{set, file, s.TheClaim("data-" + set + "-0")}
}

// released returns a complaint if anything of a release was done.
func (s *scenario) released(h held) string {
	s.Helper()
	s.intact(h.file)
	claim, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), h.claim.Name, metav1.GetOptions{})
	if err != nil || claim.UID != h.claim.UID || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != h.claim.Spec.VolumeName {
		return fmt.Sprint("the claim: ", claim.UID, claim.DeletionTimestamp, claim.Spec.VolumeName, err)
	}
	volume := s.volume(claim.Spec.VolumeName)
	if volume.DeletionTimestamp != nil || volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || volume.Status.Phase != corev1.VolumeBound {
		return fmt.Sprint("the volume: ", volume.DeletionTimestamp, volume.Spec.PersistentVolumeReclaimPolicy, volume.Status.Phase)
	}
	return ""
}

// keeps checks for this long that nothing is released.
func (s *scenario) keeps(because string, during time.Duration, all ...held) {
	s.Helper()
	s.Always("nothing is released, because "+because, during, func() string {
		var reasons string
		for _, h := range all {
			reasons += s.released(h)
		}
		return reasons
	})
}

// joined is the machine of a node under another name. It is missing at the end of the scenario.
func (m *machine) joined(s *scenario, name string) *machine {
	s.Helper()
	other := &machine{name: name, value: name, dir: m.dir, port: m.port, provisioning: m.provisioning, snapshotting: m.snapshotting}
	s.Cleanup(func() {
		other.stop()
		_, _ = harness.Command(backgroundContext, "kubectl", "delete", "node/"+name, "csinode/"+name, "--ignore-not-found")
		_, _ = harness.Command(backgroundContext, "kubectl", "--namespace", harness.System, "delete", "pod", other.pod(), "--ignore-not-found", "--force", "--grace-period=0")
	})
	return other
}

// looks returns how often the controller asked the API server itself whether a node is there.
func looks(m *machine) int {
	return len(rig.fleet.seen(func(c *call) bool {
		return !c.writes() && !c.watches() && (strings.HasSuffix(c.path, "/nodes") || strings.HasSuffix(c.path, "/nodes/"+m.name))
	}))
}

// backUnseen has the kubelet back before the driver, so that no page speaks against the release.
//
// Proves: F9.
func backUnseen(s *scenario) {
	m := s.extra("unseen", "1G")
	h := s.holding("db", s.releasing(), m)
	m.lose(s)
	s.seesGone(m)
	resume := rig.fleet.stall(s, "nodes")
	m.taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	m.makeNode(s)
	s.evict("db")
	before := looks(m)
	s.keeps("the node is back", 12*time.Second, h)
	s.Eventually("the controller asked for the node before its write", harness.Patience, func() string {
		if looks(m) == before {
			return "not yet"
		}
		return ""
	})
	m.startDriver()
	m.registerDriver(s)
	m.makePod(s)
	m.podIsReady(s, true)
	m.startProvisioner()
	m.startSnapshotter()
	s.keeps("the driver is back", 5*time.Second, h)
	resume()
	s.Kubectl("taint", "node", m.name, corev1.TaintNodeNotReady+":NoSchedule-")
	s.scheduled("db-0", m)
	s.keeps("all is seen again", 5*time.Second, h)
}

// Proves: F9.
func joinedUnseen(s *scenario) {
	m := s.extra("before", "1G")
	h := s.holding("db", s.releasing(), m)
	m.lose(s)
	s.seesGone(m)
	resume := rig.fleet.stall(s, "nodes")
	after := m.joined(s, "after")
	after.unlabelled = true
	after.makeNode(s)
	s.evict("db")
	s.keeps("a node has joined whose driver has not started", 12*time.Second, h)
	after.startDriver()
	after.registerDriver(s)
	s.Kubectl("label", "node", after.name, harness.TopologyKey+"="+after.value)
	after.makePod(s)
	after.podIsReady(s, true)
	s.keeps("the disk is in another node", 12*time.Second, h)
	resume()
	s.Eventually("the other name blocks the release", harness.Patience, func() string { return s.waitsFor("data-db-0", "after") })
	after.driver.kill()
	after.unregister(s)
	s.elsewhere("db", h.claim.Spec.VolumeName)
	s.intact(h.file)
}

// waitsFor returns a complaint unless a release waits for something.
func (s *scenario) waitsFor(claim, what string) string {
	s.Helper()
	for _, event := range s.events("PersistentVolumeClaim", claim) {
		if event.Reason == "ReleaseWaits" && strings.Contains(event.Note, what) {
			return ""
		}
	}
	return "no event ReleaseWaits names " + what + s.said("PersistentVolumeClaim", claim)
}

// memory is the object in which the controller remembers the machines of nodes with volumes.
const memory = "rootcellar-fleet-machines"

// remembered waits until the controller remembers the machine of a node.
func (s *scenario) remembered(m *machine) {
	s.Helper()
	s.Eventually("the machine of "+m.name+" is remembered", harness.Patience, func() string {
		found, err := harness.Client.CoreV1().ConfigMaps(harness.System).Get(s.Context(), memory, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if ids, info := found.Data[m.value], hardware(m.dir); !strings.Contains(ids, info.MachineID) || !strings.Contains(ids, info.SystemUUID) {
			return fmt.Sprint(found.Data)
		}
		return ""
	})
}

// forgotten removes a machine from the memory, and waits until the controller has read it again.
func (s *scenario) forgotten(m *machine) {
	s.Helper()
	s.Kubectl("--namespace", harness.System, "patch", "configmap", memory, "--type=merge", "--patch", fmt.Sprintf(`{"data": {%q: null}}`, m.value))
	reads := func() int {
		return len(rig.fleet.seen(to(http.MethodGet, "/configmaps/"+memory).and(func(c *call) bool { return c.status == http.StatusOK })))
	}
	// The second reading begins after the first one has its effect.
	before := reads()
	s.Eventually("the controller has read the memory", harness.Patience, func() string {
		if now := reads(); now < before+2 {
			return fmt.Sprint(now-before, " readings")
		}
		return ""
	})
}

// renamed has nodes on which no driver runs: the lost machine under another name, another machine before and after the
// controller has forgotten the lost one, and one that the driver's DaemonSet selects.
//
// Proves: F9.
func renamed(s *scenario) {
	class := s.releasing()
	first, second := s.extra("former-1", "1G"), s.extra("former-2", "1G")
	one, other := s.holding("db1", class, first), s.holding("db2", class, second)
	s.remembered(first)
	s.remembered(second)
	remove := func(node string) { s.Kubectl("delete", "node", node) }
	blocks := func(node, because string, h held) {
		s.Helper()
		s.Eventually(node+" blocks the release", harness.Patience, func() string { return s.waitsFor(h.claim.Name, node) })
		s.keeps(because, 6*time.Second, h)
	}
	first.lose(s)
	s.seesGone(first)
	// The next process knows the ids of a machine that it has never seen.
	s.control(losing...)
	again := first.joined(s, "renamed")
	again.unlabelled = true
	again.makeNode(s)
	s.evict("db1")
	blocks("renamed", "the machine has another name", one)
	remove("renamed")
	for _, name := range []string{"stranger-1", "stranger-2", "stranger-3"} {
		s.Cleanup(func() {
			_, _ = harness.Command(backgroundContext, "kubectl", "delete", "node", name, "--ignore-not-found")
		})
	}
	s.node("stranger-1", nil, nil, hardware("stranger-1"))
	s.elsewhere("db1", one.claim.Spec.VolumeName)
	s.intact(one.file)
	remove("stranger-1")

	s.node("stranger-2", map[string]string{"e2e": "selected"}, nil, hardware("stranger-2"))
	second.lose(s)
	s.evict("db2")
	blocks("stranger-2", "the driver is to run there", other)
	s.forgotten(second)
	s.node("stranger-3", nil, nil, hardware("stranger-3"))
	remove("stranger-2")
	blocks("stranger-3", "nobody knows the lost machine", other)
	remove("stranger-3")
	s.elsewhere("db2", other.claim.Spec.VolumeName)
	s.intact(other.file)
}

// driverSet creates a DaemonSet of the driver for some nodes. Its pods are refused for want of an account.
func (s *scenario) driverSet() {
	s.Helper()
	file := filepath.Join(harness.Run, "daemonset.yaml")
	s.Must(os.WriteFile(file, []byte(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: e2e-driver}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: rootcellar, e2e: driver}}
  template:
    metadata: {labels: {app.kubernetes.io/name: rootcellar, e2e: driver}}
    spec:
      serviceAccountName: nobody
      nodeSelector: {e2e: selected}
      containers: [{name: driver, image: none}]
`), 0o600))
	s.Kubectl("--namespace", harness.System, "apply", "--filename", file)
}

// hiding is a living node that lists and watches do not show. Its driver is away, so no page speaks against a release.
type hiding struct {
	*machine
	kept held
	// deleted is a volume whose claim was deleted, with its file, and waits a claim that the node is to provision.
	deleted     *corev1.PersistentVolume
	file, waits string
}

func (s *scenario) hiding(number int, class string) *hiding {
	s.Helper()
	m := s.extra(fmt.Sprint("hidden-", number), "1G")
	h := &hiding{machine: m, kept: s.holding(fmt.Sprint("db", number), class, m), waits: fmt.Sprint("waits", number)}
	deleted := fmt.Sprint("deleted", number)
	s.claim(deleted, "late", naming(m.name))
	h.deleted = s.bound(deleted, m)
	h.file = s.write(m, h.deleted)
	s.claim(h.waits, "late")
	return h
}

// leave ends the programs of the node. The pod of its set waits.
func (h *hiding) leave(s *scenario) {
	s.Helper()
	h.stop()
	s.Kubectl("cordon", h.name)
	s.Kubectl("--namespace", harness.System, "delete", "pod", h.pod(), "--force", "--grace-period=0")
	s.Kubectl("delete", "pvc", h.deleted.Spec.ClaimRef.Name, "--wait=false")
	s.Kubectl("annotate", "pvc", h.waits, selected+"="+h.name)
	s.evict(h.kept.set)
}

// complaint names an object that was released or finished.
func (h *hiding) complaint(s *scenario) string {
	s.Helper()
	s.intact(h.file)
	if found := s.volume(h.deleted.Name); found.DeletionTimestamp != nil {
		return found.Name + " is in deletion"
	}
	if node := s.TheClaim(h.waits).Annotations[selected]; node != h.name {
		return fmt.Sprintf("claim %s names %q instead of %s", h.waits, node, h.name)
	}
	return s.released(h.kept)
}

// hiddenNodes hides one node from lists and watches alone, and then two, also from requests by their names.
//
// Proves: F9, F11.
func hiddenNodes(s *scenario) {
	class := s.releasing()
	one, other := s.hiding(1, class), s.hiding(2, class)
	s.uncontrol()
	one.leave(s)
	end := rig.fleet.show(s, "nodes", lie{hides: func(name string) bool { return name == one.name }})
	before := looks(one.machine)
	s.control(losing...)
	s.seesGone(one.machine)
	s.Always("the API server knows the node by its name", 12*time.Second, func() string { return one.complaint(s) })
	if looks(one.machine) == before {
		s.Error("the controller did not ask for the node")
	}
	s.uncontrol()
	end()
	other.leave(s)
	hides := func(name string) bool { return name == one.name || name == other.name }
	end = rig.fleet.show(s, "nodes", lie{hides: hides, denies: true})
	s.control(losing...)
	both := []*hiding{one, other}
	for _, h := range both {
		s.seesGone(h.machine)
		s.event("PersistentVolumeClaim", h.kept.claim.Name, "TooManyNodesAbsent")
		s.event("PersistentVolume", h.deleted.Name, "TooManyNodesAbsent")
	}
	s.Always("too many nodes are absent", 10*time.Second, func() string { return one.complaint(s) + other.complaint(s) })
	end()
	s.control(losing...)
	for _, h := range both {
		s.Kubectl("uncordon", h.name)
		h.startDriver()
		h.makePod(s)
		h.podIsReady(s, true)
		h.startProvisioner()
		h.startSnapshotter()
		// The node itself makes the deletion.
		s.gone("pv", h.deleted.Name)
		s.scheduled(h.kept.set+"-0", h.machine)
	}
	s.keeps("all is seen again", 3*time.Second, one.kept, other.kept)
}

// copyOf has a machine whose first disk is a copy of another's.
func (s *scenario) copyOf(m *machine, name string) *machine {
	s.Helper()
	c := s.machine(name, "1G")
	s.removed(c)
	pool := filepath.Join(c.dir, "pools", "default")
	m.driver.kill()
	for _, step := range [][]string{
		{"umount", pool}, {"umount", filepath.Join(m.dir, "pools", "default")},
		{"cp", "--sparse=always", filepath.Join(m.dir, "default.img"), filepath.Join(c.dir, "default.img")},
		{"mount", "-o", "loop", filepath.Join(m.dir, "default.img"), filepath.Join(m.dir, "pools", "default")},
		{"mount", "-o", "loop,nouuid", filepath.Join(c.dir, "default.img"), pool},
	} {
		_, err := harness.Command(s.Context(), step[0], step[1:]...)
		s.Must(err)
	}
	m.startDriver()
	return c
}

// Proves: F9, F12.
func copiedDisk(s *scenario) {
	m := s.extra("original", "1G")
	h := s.holding("db", s.releasing(), m)
	c := s.copyOf(m, "copied")
	c.startDriver()
	c.register(s)
	s.event("Node", c.name, "PoolOnTwoPages")
	if said := s.said("Node", m.name); strings.Contains(said, "PoolOnTwoPages") || strings.Contains(said, "format") {
		s.Errorf("said of the node that the PersistentVolumes name:%s", said)
	}
	m.lose(s)
	s.evict("db")
	s.Eventually("the copy blocks the release", harness.Patience, func() string { return s.waitsFor("data-db-0", c.name) })
	s.keeps("the copy shows the pool", 8*time.Second, h)
	c.driver.kill()
	c.unregister(s)
	s.elsewhere("db", h.claim.Spec.VolumeName)
	s.intact(h.file)
	m.back(s)
	s.event("Node", m.name, "VolumeWithoutPersistentVolume")
	s.intact(h.file)
}

// ephemeral has a waiting pod of a StatefulSet, whose claim goes with the pod and has no template in the set.
//
// Proves: F9.
func ephemeral(s *scenario) {
	m := s.extra("ephemeral", "1G")
	class := s.releasing()
	s.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 1
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      nodeSelector: {nowhere: "true"}
      containers: [{name: main, image: none}]
      volumes:
        - name: scratch
          ephemeral:
            volumeClaimTemplate:
              metadata: {annotations: {%s: %s}}
              spec: {storageClassName: %s, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`, selected, m.name, class), "--server-side")
	s.Eventually("the claim is made", harness.Patience, func() string {
		if _, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), "db-0-scratch", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	volume := s.bound("db-0-scratch", m)
	h := held{"db", s.write(m, volume), s.TheClaim("db-0-scratch")}
	m.lose(s)
	s.Eventually("the release waits", harness.Patience, func() string { return s.waitsFor("db-0-scratch", "StatefulSet") })
	s.keeps("nobody makes the claim again", 8*time.Second, h)
	// The pod's end deletes the claim, and the controller finishes that.
	s.Kubectl("delete", "statefulset", "db")
	s.evict("db")
	s.gone("pvc", "db-0-scratch")
	s.gone("pv", volume.Name)
	s.intact(h.file)
}
