package scenarios

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var binding = []entry{
	{"an Immediate class puts the volume on its node without a pod", immediateOnItsNode},
	{"an Immediate class of a node that is not there, or has no free space, stays Pending", immediateNowhere},
	{"a class of one node pulls its pods there", classOfOneNode},
}

// only restricts a class to nodes of these names.
func only(names ...string) func(*storagev1.StorageClass) {
	return func(class *storagev1.StorageClass) {
		class.AllowedTopologies = []corev1.TopologySelectorTerm{{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: harness.TopologyKey, Values: names}},
		}}
	}
}

func immediate(class *storagev1.StorageClass) {
	now := storagev1.VolumeBindingImmediate
	class.VolumeBindingMode = &now
}

// Proves: K10.
func immediateOnItsNode(s *scenario) {
	for _, n := range nodes() {
		s.Claim(n.name, s.Class(nil, immediate, only(n.name)), "16Mi")
	}
	for _, n := range nodes() {
		volume := s.volume(n.name)
		if home := s.home(volume); home != n {
			s.Fatalf("%s is on %s, not on %s", volume.Name, home.name, n.name)
		}
		s.directory(n, "default", volume.Name)
		s.pod(n.name, with(n.name, "/data"))
		if home := s.runningOn(n.name); home != n {
			s.Fatalf("the pod is on %s, not on %s", home.name, n.name)
		}
	}
	s.pod("stray", with(node1.name, "/data"), at(node2))
	s.unscheduled("stray", "didn't match PersistentVolume's node affinity")
}

// pending checks for this long that the claim has no volume and that no node has created one.
func (s *scenario) pending(claim string, during time.Duration) {
	s.Helper()
	s.Always("claim "+claim+" is Pending", during, func() string {
		found, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), claim, metav1.GetOptions{})
		s.Must(err)
		if found.Status.Phase != corev1.ClaimPending || found.Spec.VolumeName != "" {
			return fmt.Sprint(found.Status.Phase, found.Spec.VolumeName)
		}
		for _, n := range nodes() {
			for _, pool := range present(n) {
				if made := s.directories(n, pool, s.Namespace+"_"+claim+"_"); len(made) > 0 {
					return n.name + " made " + made[0]
				}
			}
		}
		return ""
	})
}

// Proves: K10.
func immediateNowhere(s *scenario) {
	s.Claim("unknown", s.Class(nil, immediate, only("node9")), "16Mi")
	s.Claim("full", s.Class(nil, immediate, only(node1.name)), "5Gi")
	for _, claim := range []string{"unknown", "full"} {
		s.pod(claim, with(claim, "/data"))
		s.unscheduled(claim, "pod has unbound immediate PersistentVolumeClaims")
		// No provisioner takes the claim, so this event is all that a user sees.
		s.event("PersistentVolumeClaim", claim, "Waiting for a volume to be created", harness.Driver)
	}
	// A provisioner takes up to 20 s before it takes the claim.
	s.pending("unknown", 25*time.Second)
	s.pending("full", time.Second)
}

// Proves: K10.
func classOfOneNode(s *scenario) {
	class := s.Class(nil, only(node2.name))
	for _, name := range []string{"one", "two", "three"} {
		s.Claim(name, class, "16Mi")
		s.pod(name, with(name, "/data"))
		if home := s.runningOn(name); home != node2 {
			s.Fatalf("pod %s is on %s", name, home.name)
		}
	}
	s.Claim("pinned", class, "16Mi")
	s.pod("pinned", with("pinned", "/data"), at(node1))
	s.unscheduled("pinned", "node(s) didn't find available persistent volumes to bind")
}
