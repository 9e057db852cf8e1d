package fleet

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// losing are the controller's arguments, with delays that a test can wait for.
var losing = []string{"--steer", "--label", "--compare", "--finish", "--release", "--key", key,
	"--absent-for=4s", "--retired-for=4s", "--compare-every=10s"}

// lostScenarios is the number of scenarios of the stage.
var lostScenarios int

// lost are the scenarios of the stage. The last one compares the rights that all others used.
var lost = slices.Concat(losses, deceived, rivals, paged, []entry{
	{"the account has the rights that these functions use, and every other write is refused", lostRights},
})

var losses = []entry{
	{"a StatefulSet whose node is deleted runs elsewhere, and the lost disk keeps its bytes", runsElsewhere},
	{"the controller is killed at each write of a release, which arrives or does not, and the release ends", killedInRelease},
	{"a node that is back between any two writes of a release keeps its data, and a person decides about it", backInRelease},
	{"a living node that does not answer, or shows the disk, blocks a release", blockedRelease},
	{"claims that nobody makes anew, or that somebody needs, are not released", notReleased},
	{"a volume whose own policy is Retain stays after its claim is released", retainedRelease},
	{"a retired pool is released, and an adopted one is not", retiredPool},
	{"deletions that wait for a gone node are finished", finished},
	{"the plan of a person releases claims, and is undone after each step", planned},
	{"nothing is released or finished while many nodes are absent", manyAbsent},
	{"volumes and objects without each other are reported, and the printed commands resolve that", differences},
}

// releasing is a class whose claims are released.
func (s *scenario) releasing(changes ...func(*storagev1.StorageClass)) string {
	s.Helper()
	annotate := func(class *storagev1.StorageClass) {
		class.Annotations = map[string]string{"rootcellar.dev/release-claims": "true"}
	}
	return s.class(append([]func(*storagev1.StorageClass){annotate}, changes...)...)
}

// set creates a StatefulSet of one pod whose claim is on a node, and returns the file that its volume has.
func (s *scenario) set(name, class string, m *machine) string {
	s.Helper()
	claim := "data-" + name + "-0"
	s.claim(claim, class, naming(m.name))
	volume := s.bound(claim, m)
	one, labels := int32(1), map[string]string{"app": name}
	template := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
	}}
	ofSize("64Mi")(&template)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels}, ServiceName: name,
		Template:             corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: sleeper()},
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{template},
	}}
	set.Spec.Template.Spec.TerminationGracePeriodSeconds = nil
	_, err := harness.Client.AppsV1().StatefulSets(s.Namespace).Create(s.Context(), set, metav1.CreateOptions{})
	s.Must(err)
	s.Eventually("the pod of set "+name+" is scheduled", harness.Patience, func() string {
		pod, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.Context(), name+"-0", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if pod.Spec.NodeName == "" {
			return "not yet" + s.said("Pod", name+"-0")
		}
		return ""
	})
	return s.write(m, volume)
}

// write puts a file into a volume, and returns its path.
func (s *scenario) write(m *machine, volume *corev1.PersistentVolume) string {
	s.Helper()
	found := m.directories(s, "default", volume.Name)
	if len(found) != 1 {
		s.Fatalf("the directories of %s: %v", volume.Name, found)
	}
	file := filepath.Join(found[0], "data", "precious")
	s.Must(os.WriteFile(file, []byte("precious"), 0o600))
	return file
}

func (s *scenario) intact(file string) {
	s.Helper()
	text, err := os.ReadFile(file)
	s.Must(err)
	if string(text) != "precious" {
		s.Fatalf("%s has %q", file, text)
	}
}

// evict does what podgc does after 40 seconds, and the kubelet for a pod that ends.
func (s *scenario) evict(set string) {
	s.Helper()
	s.Kubectl("delete", "pod", set+"-0", "--force", "--grace-period=0", "--ignore-not-found")
}

// elsewhere waits until the set's claim was recreated and bound on a node that exists.
func (s *scenario) elsewhere(set, before string) {
	s.Helper()
	s.Eventually("the claim of set "+set+" is made anew", 2*harness.Patience, func() string {
		claim, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), "data-"+set+"-0", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if claim.Spec.VolumeName == before || claim.Status.Phase != corev1.ClaimBound {
			return fmt.Sprint(claim.Status.Phase, " ", claim.Spec.VolumeName, s.said("PersistentVolumeClaim", claim.Name))
		}
		if s.nodeOf(set+"-0") == "" {
			return "the pod is not scheduled"
		}
		return ""
	})
	s.gone("pv", before)
}

func (s *scenario) volumeOf(set string) string {
	s.Helper()
	return s.TheClaim("data-" + set + "-0").Spec.VolumeName
}

func (s *scenario) volume(name string) *corev1.PersistentVolume {
	s.Helper()
	found, err := harness.Client.CoreV1().PersistentVolumes().Get(s.Context(), name, metav1.GetOptions{})
	s.Must(err)
	return found
}

// releasedClaim is the annotation of a volume whose release began, with the uid of the claim.
const releasedClaim = "rootcellar.dev/released-claim"

// Proves: F9.
func runsElsewhere(s *scenario) {
	m := s.extra("lost", "3G")
	class := s.releasing()
	file := s.set("db", class, m)
	volume := s.volumeOf("db")
	m.lose(s)
	deleted := time.Now()
	// Nobody helps: podgc deletes the pod of the missing node.
	s.elsewhere("db", volume)
	s.Logf("%v from the deletion of the Node to the scheduled pod, %v of it until podgc acts", time.Since(deleted).Round(time.Second), 40*time.Second)
	s.intact(file)
	m.back(s)
	s.event("Node", m.name, "VolumeWithoutPersistentVolume")
	s.intact(file)
}

// The writes of a release, in their order. The name of the claim or volume follows.
type releaseWrite struct{ name, method string }

var releaseWrites = []releaseWrite{
	{"Retain", http.MethodPatch}, {"the claim", http.MethodDelete}, {"the volume", http.MethodDelete}, {"the finalizer", http.MethodPatch},
}

// of selects the write among the controller's.
func (w releaseWrite) of(s *scenario, set, volume string) matcher {
	switch w.name {
	case "the claim":
		return to(w.method, s.path("data-"+set+"-0"))
	case "the finalizer":
		return to(w.method, "/persistentvolumes/"+volume).and(func(c *call) bool { return strings.Contains(c.body, "finalizers") })
	default:
		return to(w.method, "/persistentvolumes/"+volume)
	}
}

// Proves: F9.
func killedInRelease(s *scenario) {
	m := s.extra("killed", "3G")
	// No provisioner is left to take off its finalizer, so the controller has to.
	class := s.releasing()
	volumes, holds := map[string]string{}, map[string]*hold{}
	var sets []string
	for number := range releaseWrites {
		for _, arrives := range []string{"arrives", "drops"} {
			set := fmt.Sprint(arrives, number)
			sets = append(sets, set)
			s.set(set, class, m)
			volumes[set] = s.volumeOf(set)
		}
	}
	s.uncontrol()
	m.lose(s)
	for _, other := range nodes() {
		resume := other.provisioner.pause(s)
		defer resume()
	}
	for _, set := range sets {
		s.evict(set)
	}
	for i, set := range sets {
		holds[set] = rig.fleet.hold(s, releaseWrites[i/2].of(s, set, volumes[set]))
	}
	s.control(losing...)
	// The sets are released in any order, and a hold delays only its own.
	for left := len(sets); left > 0; left-- {
		var set string
		var held *call
		s.Eventually("a write is held", 2*harness.Patience, func() string {
			for _, one := range sets {
				select {
				case held = <-holds[one].arrived:
					set = one
					return ""
				default:
				}
			}
			return "none"
		})
		if strings.HasPrefix(set, "arrives") {
			holds[set].release(s, held)
		} else {
			holds[set].drop()
		}
		s.control(losing...)
	}
	for _, other := range nodes() {
		s.Must(other.provisioner.Process.Signal(syscall.SIGCONT))
	}
	for _, set := range sets {
		s.elsewhere(set, volumes[set])
	}
}

// retained returns a complaint unless the volume keeps its data, and waits for a person in this phase.
func (s *scenario) retained(volume string, phase corev1.PersistentVolumePhase, file string) string {
	s.Helper()
	s.intact(file)
	found := s.volume(volume)
	if found.DeletionTimestamp != nil || found.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || found.Status.Phase != phase {
		return fmt.Sprint(found.DeletionTimestamp, found.Spec.PersistentVolumeReclaimPolicy, found.Status.Phase)
	}
	return ""
}

// decides has a person run one of the two commands about a volume that a release left at Retain.
func (s *scenario) decides(volume string, m *machine, policy corev1.PersistentVolumeReclaimPolicy) {
	s.Helper()
	note := s.event("PersistentVolume", volume, "ReleaseKept")
	words := map[corev1.PersistentVolumeReclaimPolicy]string{corev1.PersistentVolumeReclaimRetain: "kubectl patch", corev1.PersistentVolumeReclaimDelete: "\"Delete\""}
	s.runs(s.printed(note, words[policy]), m)
	found := s.volume(volume)
	if found.Spec.PersistentVolumeReclaimPolicy != policy || found.Annotations[releasedClaim] != "" {
		s.Errorf("after the command: %s, %v", found.Spec.PersistentVolumeReclaimPolicy, found.Annotations)
	}
}

// backInRelease has the node back when a write is due. The first write arrives nevertheless; the others are dropped, so that
// the controller has to look again.
//
// Proves: F9.
func backInRelease(s *scenario) {
	class := s.releasing()
	others := nodes()
	for i, write := range releaseWrites {
		set := fmt.Sprint("db", i)
		m := s.extra("back-"+fmt.Sprint(i), "1G")
		file := s.set(set, class, m)
		volume := s.volumeOf(set)
		var resume []func()
		if write.name == "the finalizer" {
			// Otherwise a provisioner takes it off, because the policy is Retain.
			for _, other := range others {
				resume = append(resume, other.provisioner.pause(s))
			}
		}
		held := rig.fleet.hold(s, write.of(s, set, volume))
		m.lose(s)
		s.evict(set)
		late := held.wait(s, "the controller writes "+write.name)
		m.back(s)
		others = append(others, m)
		if write.name == "Retain" {
			held.release(s, late)
		} else {
			held.drop()
		}
		for _, again := range resume {
			again()
		}
		stays := func(phase corev1.PersistentVolumePhase) {
			s.Helper()
			s.Always("the volume keeps its data, and waits for a person", 6*time.Second, func() string { return s.retained(volume, phase, file) })
		}
		switch write.name {
		case "Retain", "the claim":
			stays(corev1.VolumeBound)
			if claim := s.TheClaim("data-" + set + "-0"); claim.Spec.VolumeName != volume || claim.DeletionTimestamp != nil {
				s.Errorf("the claim: %s, %v", claim.Spec.VolumeName, claim.DeletionTimestamp)
			}
			s.scheduled(set+"-0", m)
			policy := corev1.PersistentVolumeReclaimDelete
			if write.name == "the claim" {
				policy = corev1.PersistentVolumeReclaimRetain
			}
			s.decides(volume, m, policy)
		case "the volume":
			stays(corev1.VolumeReleased)
			s.event("PersistentVolume", volume, "ReleaseKept")
		default:
			s.gone("pv", volume)
		}
		s.Always("the data stays", 3*time.Second, func() string { s.intact(file); return "" })
	}
}

// Proves: F9.
func blockedRelease(s *scenario) {
	m := s.extra("blocked", "1G")
	class := s.releasing()
	s.set("db", class, m)
	volume := s.volumeOf("db")
	resume := rig.node2.driver.pause(s)
	m.lose(s)
	s.evict("db")
	if note := s.event("PersistentVolumeClaim", "data-db-0", "ReleaseWaits"); !strings.Contains(note, "node2") {
		s.Errorf("the reason: %s", note)
	}
	if found := s.volume(volume); found.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		s.Errorf("the policy is %s", found.Spec.PersistentVolumeReclaimPolicy)
	}
	// The same disk in a machine of another name.
	moved := &machine{name: "moved", value: "moved", dir: m.dir, port: m.port, provisioning: m.provisioning, snapshotting: m.snapshotting}
	moved.startDriver()
	moved.register(s)
	s.Cleanup(func() {
		moved.driver.kill()
		_, _ = harness.Command(backgroundContext, "kubectl", "delete", "node/moved", "csinode/moved", "--ignore-not-found")
		_, _ = harness.Command(backgroundContext, "kubectl", "--namespace", harness.System, "delete", "pod", moved.pod(), "--ignore-not-found", "--force", "--grace-period=0")
	})
	resume()
	s.Eventually("the other name blocks the release", harness.Patience, func() string {
		for _, event := range s.events("PersistentVolumeClaim", "data-db-0") {
			if event.Reason == "ReleaseWaits" && strings.Contains(event.Note, "moved") {
				return ""
			}
		}
		return s.said("PersistentVolumeClaim", "data-db-0")
	})
	moved.driver.kill()
	moved.unregister(s)
	s.elsewhere("db", volume)
}

// Proves: F9.
func notReleased(s *scenario) {
	m := s.extra("kept", "2G")
	class := s.releasing()
	for name, changes := range map[string][]change{
		"plain": nil, "scheduled": nil, "data-other-0": nil,
		"needed": {func(claim *corev1.PersistentVolumeClaim) { claim.Finalizers = []string{"example.com/needed"} }},
	} {
		s.claim(name, class, append([]change{naming(m.name)}, changes...)...)
		s.bound(name, m)
	}
	s.claim("other-class", "late", naming(m.name))
	s.bound("other-class", m)
	s.pod("of-scheduled", []string{"scheduled"}, at(rig.node1))
	s.pod("waits", []string{"plain"})
	s.pod("other-0", []string{"data-other-0"})
	s.set("db", class, m)
	volume := s.volumeOf("db")
	m.lose(s)
	for _, pod := range []string{"waits", "other-0"} {
		s.Kubectl("delete", "pod", pod, "--force", "--grace-period=0")
	}
	s.pod("waits", []string{"plain"})
	s.pod("other-0", []string{"data-other-0"})
	s.evict("db")
	s.elsewhere("db", volume)
	for _, name := range []string{"plain", "scheduled", "needed", "other-class", "data-other-0"} {
		claim := s.TheClaim(name)
		found := s.volume(claim.Spec.VolumeName)
		if claim.DeletionTimestamp != nil || found.DeletionTimestamp != nil || found.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
			s.Errorf("claim %s: %v, its volume: %v %s", name, claim.DeletionTimestamp, found.DeletionTimestamp, found.Spec.PersistentVolumeReclaimPolicy)
		}
	}
	s.Kubectl("patch", "pvc", "needed", "--type=merge", "--patch", `{"metadata": {"finalizers": null}}`)
	for _, name := range []string{"plain", "scheduled"} {
		s.event("PersistentVolumeClaim", name, "ReleaseWaits")
	}
}

// Proves: F9.
func retainedRelease(s *scenario) {
	m := s.extra("retained", "1G")
	retain := corev1.PersistentVolumeReclaimRetain
	class := s.releasing(func(class *storagev1.StorageClass) { class.ReclaimPolicy = &retain })
	file := s.set("db", class, m)
	volume := s.volumeOf("db")
	m.lose(s)
	s.evict("db")
	s.Eventually("the claim is made anew", harness.Patience, func() string {
		claim, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), "data-db-0", metav1.GetOptions{})
		if err != nil || claim.Spec.VolumeName == volume {
			return fmt.Sprint(err, s.said("PersistentVolumeClaim", "data-db-0"))
		}
		return ""
	})
	found := s.volume(volume)
	if found.DeletionTimestamp != nil || found.Status.Phase != corev1.VolumeReleased {
		s.Errorf("the volume: %v, %s", found.DeletionTimestamp, found.Status.Phase)
	}
	s.intact(file)
	s.Kubectl("delete", "pv", volume)
}

// Proves: F10.
func retiredPool(s *scenario) {
	m := s.extra("retired", "1G")
	class := s.releasing()
	s.set("db", class, m)
	volume := s.volumeOf("db")
	// The disk is missing, and the node stays.
	pool := filepath.Join(m.dir, "pools", "default")
	m.driver.kill()
	_, err := harness.Command(s.Context(), "umount", pool)
	s.Must(err)
	retire := func() {
		s.Helper()
		_, err := harness.Command(s.Context(), os.Getenv("DRIVER"), "pool", "retire", s.volume(volume).Spec.CSI.VolumeHandle,
			"--state-dir", filepath.Join(m.dir, "state"))
		s.Must(err)
	}
	retire()
	m.startDriver()
	s.event("PersistentVolumeClaim", "data-db-0", "ReleaseSoon")
	if note := s.event("PersistentVolumeClaim", "data-db-0", "ReleaseWaits"); !strings.Contains(note, "cordon the node and delete the pod") {
		s.Errorf("the reason: %s", note)
	}
	s.Kubectl("cordon", m.name)
	s.evict("db")
	s.elsewhere("db", volume)
}
