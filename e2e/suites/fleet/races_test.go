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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"rootcellar.dev/e2e/suites/harness"
)

var emptiest = []entry{
	{"three nodes, the emptiest one wrong: a copy waits without the controller, and is made with it", threeNodes},
}

// races each meet one window between the controller's write and those of the scheduler and the provisioners.
var races = []entry{
	{"the name is written before a pod exists, and the pod follows the volume", beforeThePod},
	{"the name is written before the scheduler looks, and it looks at no other node", beforeFilter},
	{"the name is written while the scheduler is about to write another, and the scheduler's write is a conflict", beforeUpdate},
	{"the name of another living node stands for ten seconds", tenSeconds},
	{"the wrong node's provisioner removes the name that it finds, and the controller writes it again", afterRemoval},
	{"the wrong node is still at its call when the name changes, and makes nothing", duringTheCall},
	{"the wrong node's driver is down, and the copy is made nevertheless", wrongNodeDown},
	{"the write of the name is late and meets a deleted claim", lateForDeleted},
	{"the write of the name is late and meets another claim of the same name", lateForAnother},
	{"the write of the name is late and meets a bound claim", lateForBound},
	{"the write of the name is late and meets a changed claim, and the controller judges again", lateForChanged},
	{"a copy outlasts its call, and nobody sends it to another node", slowCopy},
}

// copies are the two kinds of sources, by the names of their claims.
var copies = map[string]change{"restored": from("VolumeSnapshot", "taken"), "cloned": from("PersistentVolumeClaim", "source")}

// sources creates a source and its snapshot on node1.
func (s *scenario) sources() {
	s.Helper()
	s.source("source", rig.node1)
	s.take("taken", "source")
}

// threeNodes begins without the controller. The claims of the class `now` come later, because a random node takes them.
//
// Proves: F2.
func threeNodes(s *scenario) {
	s.sources()
	for name, copy := range copies {
		s.claim(name+"-pod", "late", copy)
		s.pod(name+"-pod", []string{name + "-pod"})
		s.claim(name+"-alone", "late", copy)
		s.claim(name+"-placed", "late", copy)
		s.pod(name+"-placed", []string{name + "-placed"}, at(rig.node1))
	}
	s.Eventually("the scheduler names the emptiest node", harness.Patience, func() string {
		for name := range copies {
			found := rig.scheduling.seen(to("PUT", s.path(name+"-pod")))
			if len(found) == 0 {
				return "no write for " + name
			}
			if !strings.Contains(found[0].body, rig.node3.name) {
				return "it named another" + listing(found)
			}
		}
		return ""
	})
	s.Always("without the controller the copies wait", waiting, func() string {
		for name := range copies {
			for _, way := range []string{"-pod", "-alone", "-placed"} {
				if reason := s.pending(name + way); reason != "" {
					return reason
				}
			}
		}
		return ""
	})
	s.control("--steer", "--label")
	for name, copy := range copies {
		s.claim(name+"-now", "now", copy)
		s.claim(name+"-now-pod", "now", copy)
		s.pod(name+"-now-pod", []string{name + "-now-pod"})
	}
	for name := range copies {
		for _, way := range []string{"-pod", "-alone", "-placed", "-now", "-now-pod"} {
			s.bound(name+way, rig.node1)
		}
		s.scheduled(name+"-pod", rig.node1)
		s.scheduled(name+"-now-pod", rig.node1)
		s.event("PersistentVolumeClaim", name+"-pod", "SteeredToNode")
	}
	s.logged()
	// The flag leaves nothing to label.
	content := s.take("again", "source")
	if found := append(labels(content), labels(s.contentOf("taken"))...); len(found) > 0 {
		s.Errorf("the snapshot-controller has the flag, and the controller wrote%s", listing(found))
	}
}

// logged checks that the controller has logged each of its writes to a claim of the scenario.
func (s *scenario) logged() {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Run, "log", "fleet"))
	s.Must(err)
	lines := 0
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " wrote ") && strings.Contains(line, "change="+selected+"=") && strings.Contains(line, s.Namespace) {
			lines++
		}
	}
	done := rig.fleet.seen(to("PATCH", "").and(func(c *call) bool {
		return strings.Contains(c.path, s.Namespace+"/persistentvolumeclaims/") && c.status == http.StatusOK
	}))
	if lines != len(done) {
		s.Errorf("%d lines for these writes:%s", lines, listing(done))
	}
}

// Proves: F2.
func beforeThePod(s *scenario) {
	s.sources()
	for name, copy := range copies {
		s.claim(name, "late", copy)
		s.bound(name, rig.node1)
		s.pod(name, []string{name})
		s.scheduled(name, rig.node1)
		if found := rig.scheduling.seen(to("PUT", s.path(name))); len(found) > 0 {
			s.Errorf("the scheduler wrote%s", listing(found))
		}
	}
}

// Proves: F2.
func beforeFilter(s *scenario) {
	s.sources()
	for name, copy := range copies {
		resume := rig.node1.provisioner.pause(s)
		s.claim(name, "late", copy)
		s.names(name, rig.node1.name, 8*time.Second)
		s.pod(name, []string{name})
		s.Eventually("the scheduler waits for the volume", harness.Patience, func() string {
			if found := rig.scheduling.seen(to("", s.path(name))); len(found) == 0 && !strings.Contains(s.said("PersistentVolumeClaim", name), "rovision") {
				return s.said("Pod", name)
			}
			return ""
		})
		resume()
		s.scheduled(name, rig.node1)
		s.bound(name, rig.node1)
		for _, c := range rig.scheduling.seen(to("PUT", s.path(name))) {
			if !strings.Contains(c.body, fmt.Sprintf("%q:%q", selected, rig.node1.name)) {
				s.Errorf("the scheduler named another node: %s", &c)
			}
		}
	}
}

// Proves: F3.
func beforeUpdate(s *scenario) {
	s.sources()
	for name, copy := range copies {
		ours := rig.fleet.hold(s, to("PATCH", s.path(name)))
		theirs := rig.scheduling.hold(s, to("PUT", s.path(name)))
		s.claim(name, "late", copy)
		write := ours.wait(s, "the controller names the node")
		s.pod(name, []string{name})
		other := theirs.wait(s, "the scheduler names a node")
		if !strings.Contains(other.body, fmt.Sprintf("%q:%q", selected, rig.node3.name)) {
			s.Fatalf("the scheduler named another node: %s", other)
		}
		if status := ours.release(s, write); status != http.StatusOK {
			s.Errorf("our write: %d", status)
		}
		if status := theirs.release(s, other); status != http.StatusConflict {
			s.Errorf("the scheduler's write: %d", status)
		}
		s.bound(name, rig.node1)
		s.scheduled(name, rig.node1)
	}
}

// Proves: F4.
func tenSeconds(s *scenario) {
	s.sources()
	for name, copy := range copies {
		resume := rig.node3.provisioner.pause(s)
		s.claim(name, "late", copy, naming(rig.node3.name))
		started := time.Now()
		s.Eventually("the name is replaced", 40*time.Second, func() string {
			if len(s.patches(name)) == 0 {
				return "not yet"
			}
			return ""
		})
		if after := s.patches(name)[0].at.Sub(started); after < 9*time.Second || after > 20*time.Second {
			s.Errorf("the name of a living node was overwritten after %v", after)
		}
		s.bound(name, rig.node1)
		resume()
	}
}

// removals selects the writes of a provisioner that take the node from a claim.
func (s *scenario) removals(claim string) matcher {
	return to("PUT", s.path(claim)).and(func(c *call) bool {
		// The provisioner writes protobuf, and its metadata has the key in other places too.
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(c.body), nil, nil)
		if err != nil {
			return false
		}
		_, named := object.(*corev1.PersistentVolumeClaim).Annotations[selected]
		return !named
	})
}

// afterRemoval has node1's driver stopped, so that the claim is not bound before the wrong node's provisioner writes.
//
// Proves: F4.
func afterRemoval(s *scenario) {
	s.sources()
	for name, copy := range copies {
		removal := rig.node3.provisioning.hold(s, s.removals(name))
		// The scheduler names node3 only if it comes first.
		first := rig.fleet.hold(s, to("PATCH", s.path(name)))
		s.claim(name, "late", copy)
		late := first.wait(s, "the controller names the node")
		s.pod(name, []string{name})
		held := removal.wait(s, "node3's provisioner takes its name from the claim")
		resume := rig.node1.driver.pause(s)
		if status := first.release(s, late); status != http.StatusConflict {
			s.Errorf("the write of before the scheduler's: %d", status)
		}
		// Its next write comes ten seconds after the scheduler's.
		s.names(name, rig.node1.name, 40*time.Second)
		if status := removal.release(s, held); status != http.StatusConflict {
			s.Errorf("the first removal: %d", status)
		}
		if provisionerVersion == "" {
			s.Eventually("6.4.0 removes the name of node1", harness.Patience, func() string {
				for _, c := range rig.node3.provisioning.seen(s.removals(name)) {
					if c.status == http.StatusOK {
						return ""
					}
				}
				return "not yet" + listing(rig.node3.provisioning.seen(s.removals(name)))
			})
			s.names(name, rig.node1.name, 30*time.Second)
		} else {
			s.Always("6.3.0 cannot remove the name", 3*time.Second, func() string {
				if got := s.TheClaim(name).Annotations[selected]; got != rig.node1.name {
					return fmt.Sprintf("it is %q", got)
				}
				return ""
			})
		}
		resume()
		s.bound(name, rig.node1)
		s.scheduled(name, rig.node1)
	}
}

// Proves: F4.
func duringTheCall(s *scenario) {
	s.sources()
	for name, copy := range copies {
		resume := rig.node3.driver.pause(s)
		first := rig.fleet.hold(s, to("PATCH", s.path(name)))
		s.claim(name, "late", copy)
		write := first.wait(s, "the controller names the node")
		s.pod(name, []string{name})
		s.names(name, rig.node3.name, harness.Patience)
		if status := first.release(s, write); status != http.StatusConflict {
			s.Errorf("the write of before the scheduler's: %d", status)
		}
		s.bound(name, rig.node1)
		s.scheduled(name, rig.node1)
		resume()
		// The provisioner's call ends, and with it all that it would make or write.
		s.Always("node3 makes nothing, and the claim stays bound", 5*time.Second, func() string {
			if made := rig.node3.directories(s, "default", s.Namespace); len(made) > 0 {
				return fmt.Sprint(made)
			}
			if phase := s.TheClaim(name).Status.Phase; phase != "Bound" {
				return string(phase)
			}
			return ""
		})
	}
}

// Proves: F4.
func wrongNodeDown(s *scenario) {
	s.sources()
	// The snapshotter ends when its driver does.
	rig.node3.stop()
	defer func() {
		rig.node3.startDriver()
		rig.node3.startProvisioner()
		rig.node3.startSnapshotter()
	}()
	for name, copy := range copies {
		first := rig.fleet.hold(s, to("PATCH", s.path(name)))
		s.claim(name, "late", copy)
		write := first.wait(s, "the controller names the node")
		s.pod(name, []string{name})
		s.names(name, rig.node3.name, harness.Patience)
		first.release(s, write)
		s.bound(name, rig.node1)
		s.scheduled(name, rig.node1)
	}
}

// lateForDeleted and the next have the controller's write on its way while the claim changes.
//
// Proves: F3.
func lateForDeleted(s *scenario) {
	s.sources()
	for name, copy := range copies {
		ours := rig.fleet.hold(s, to("PATCH", s.path(name)))
		s.claim(name, "late", copy)
		write := ours.wait(s, "the controller names the node")
		s.Kubectl("delete", "pvc", name, "--timeout", harness.Patience.String())
		if status := ours.release(s, write); status != http.StatusNotFound && status != http.StatusConflict {
			s.Errorf("the write to a deleted claim: %d", status)
		}
		if _, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), name, metav1.GetOptions{}); !missing(err) {
			s.Errorf("the claim is there: %v", err)
		}
	}
}

// Proves: F3.
func lateForAnother(s *scenario) {
	s.sources()
	for name, copy := range copies {
		ours := rig.fleet.hold(s, to("PATCH", s.path(name)))
		s.claim(name, "late", copy)
		write := ours.wait(s, "the controller names the node")
		s.Kubectl("delete", "pvc", name, "--timeout", harness.Patience.String())
		s.claim(name, "late")
		if status := ours.release(s, write); status != http.StatusConflict {
			s.Errorf("the write to another claim: %d", status)
		}
		s.Always("the new claim names no node", 3*time.Second, func() string { return s.TheClaim(name).Annotations[selected] })
	}
}

// Proves: F3.
func lateForBound(s *scenario) {
	s.sources()
	for name, copy := range copies {
		ours := rig.fleet.hold(s, to("PATCH", s.path(name)))
		s.claim(name, "late", copy)
		write := ours.wait(s, "the controller names the node")
		s.Kubectl("annotate", "pvc", name, selected+"="+rig.node1.name)
		s.bound(name, rig.node1)
		s.Kubectl("annotate", "pvc", name, selected+"=mark", "--overwrite")
		if status := ours.release(s, write); status != http.StatusConflict {
			s.Errorf("the write to a bound claim: %d", status)
		}
		s.Always("a bound claim is left alone", 12*time.Second, func() string {
			if got := s.TheClaim(name).Annotations[selected]; got != "mark" {
				return "it names " + got
			}
			return ""
		})
	}
}

// Proves: F3.
func lateForChanged(s *scenario) {
	s.sources()
	for name, copy := range copies {
		ours := rig.fleet.hold(s, to("PATCH", s.path(name)))
		s.claim(name, "late", copy)
		write := ours.wait(s, "the controller names the node")
		s.Kubectl("label", "pvc", name, "colour=blue")
		if status := ours.release(s, write); status != http.StatusConflict {
			s.Errorf("the write to a changed claim: %d", status)
		}
		s.bound(name, rig.node1)
	}
}

// slowCopy copies many files byte by byte, for longer than the timeout of the call.
//
// Proves: F2.
func slowCopy(s *scenario) {
	s.claim("source", "slow", naming(rig.node1.name))
	volume := s.bound("source", rig.node1)
	made := rig.node1.directories(s, "slow", volume.Name)
	if len(made) == 0 {
		made = rig.node1.directories(s, "slow", "")
	}
	if len(made) != 1 {
		s.Fatalf("directories: %q", made)
	}
	for i := range 30 {
		dir := filepath.Join(made[0], "data", fmt.Sprint(i))
		if _, err := os.Stat(filepath.Dir(dir)); err != nil {
			dir = filepath.Join(made[0], fmt.Sprint(i))
		}
		s.Must(os.MkdirAll(dir, 0o755))
		for j := range 500 {
			s.Must(os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), []byte("kept"), 0o644))
		}
	}
	for _, m := range nodes() {
		m.provisioner.kill()
		m.startProvisioner("--timeout=300ms")
	}
	defer func() {
		for _, m := range nodes() {
			m.provisioner.kill()
			m.startProvisioner()
		}
	}()
	s.claim("cloned", "slow", from("PersistentVolumeClaim", "source"))
	s.Eventually("the first call ends before the copy", harness.Patience, func() string {
		said := s.said("PersistentVolumeClaim", "cloned")
		// The client or the server says that the time is over.
		if !strings.Contains(said, "DeadlineExceeded") && !strings.Contains(said, "Timeout expired") && !strings.Contains(said, "Aborted") {
			return "it is said" + said
		}
		return ""
	})
	// Somebody takes the name away meanwhile, and a pod comes.
	if s.pending("cloned") == "" {
		_, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Patch(s.Context(), "cloned", types.MergePatchType,
			[]byte(fmt.Sprintf(`{"metadata": {"annotations": {%q: null}}}`, selected)), metav1.PatchOptions{})
		s.Must(err)
	}
	s.pod("cloned", []string{"cloned"})
	s.bound("cloned", rig.node1)
	s.scheduled("cloned", rig.node1)
}
