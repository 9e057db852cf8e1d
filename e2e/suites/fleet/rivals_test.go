package fleet

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rootcellar.dev/e2e/suites/harness"
)

// rivals are scenarios in which somebody else does the same as the controller.
var rivals = []entry{
	{"a claim that an operator deletes between two writes of its release is not deleted again", deletedMeanwhile},
	{"two controllers that release the same claim delete it once", twoControllers},
}

// deletions returns the deletions of an object that the API server accepted from these clients.
func deletions(path string, of ...*proxy) []call {
	var found []call
	for _, p := range of {
		found = append(found, p.seen(to(http.MethodDelete, path).and(func(c *call) bool { return c.status == http.StatusOK }))...)
	}
	return found
}

// again waits until the set has made its claim again, and returns the uid.
func (s *scenario) again(h held) types.UID {
	s.Helper()
	var uid types.UID
	s.Eventually("the set makes its claim again", harness.Patience, func() string {
		claim, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), h.claim.Name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if uid = claim.UID; uid == h.claim.UID {
			return "it is the former one"
		}
		return ""
	})
	return uid
}

// same returns a complaint if the claim is another one, or is in deletion.
func (s *scenario) same(h held, uid types.UID) string {
	s.Helper()
	s.intact(h.file)
	claim, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), h.claim.Name, metav1.GetOptions{})
	if err != nil || claim.UID != uid || claim.DeletionTimestamp != nil {
		return fmt.Sprint(claim.UID, claim.DeletionTimestamp, err)
	}
	return ""
}

// deletedMeanwhile has the controller's deletion of the claim on its way while the operator deletes it. The node then stays
// away, or is back.
//
// Proves: F9.
func deletedMeanwhile(s *scenario) {
	class := s.releasing()
	for _, returns := range []bool{false, true} {
		set := fmt.Sprint("db-", returns)
		m := s.extra(fmt.Sprint("operated-", returns), "1G")
		h := s.holding(set, class, m)
		volume := h.claim.Spec.VolumeName
		write := rig.fleet.hold(s, to(http.MethodDelete, s.path(h.claim.Name)))
		m.lose(s)
		s.evict(set)
		held := write.wait(s, "the controller deletes the claim")
		if found := s.volume(volume); found.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			s.Fatalf("the policy is %s", found.Spec.PersistentVolumeReclaimPolicy)
		}
		// The release goes on meanwhile, and the volume of a node that is back stays.
		ends := rig.fleet.hold(s, to(http.MethodDelete, "/persistentvolumes/"+volume))
		s.Kubectl("delete", "pvc", h.claim.Name)
		uid := s.again(h)
		end := ends.wait(s, "the controller deletes the volume")
		if returns {
			m.back(s)
			ends.drop()
		} else {
			ends.release(s, end)
		}
		if status := write.release(s, held); status != http.StatusConflict {
			s.Errorf("the late deletion: %d", status)
		}
		if returns {
			s.Always("the volume keeps its data, and waits for a person", 8*time.Second, func() string {
				return s.retained(volume, corev1.VolumeReleased, h.file) + s.same(h, uid)
			})
			s.decides(volume, m, corev1.PersistentVolumeReclaimRetain)
		} else {
			s.elsewhere(set, volume)
			s.Always("the claim is deleted once", 5*time.Second, func() string { return s.same(h, uid) })
			m.back(s)
			s.event("Node", m.name, "VolumeWithoutPersistentVolume")
		}
		if found := deletions(s.path(h.claim.Name), rig.fleet); len(found) > 0 {
			s.Errorf("the controller deleted%s", listing(found))
		}
		s.intact(h.file)
	}
}

// twoControllers has one controller stopped at each write of a release, until another has done all of it. It goes on with its
// view of before.
//
// Proves: F9.
func twoControllers(s *scenario) {
	class := s.releasing()
	second := newProxy("second")
	second.as(s.token())
	others := slices.Clone(nodes())
	for i, write := range releaseWrites {
		set := fmt.Sprint("db", i)
		m := s.extra(fmt.Sprint("rival-", i), "1G")
		h := s.holding(set, class, m)
		volume := h.claim.Spec.VolumeName
		var resume []func()
		if write.name == "the finalizer" {
			for _, other := range others {
				resume = append(resume, other.provisioner.pause(s))
			}
		}
		late := rig.fleet.hold(s, write.of(s, set, volume))
		m.lose(s)
		s.evict(set)
		held := late.wait(s, "the first controller writes "+write.name)
		begin := rig.controller.pause(s)
		env := []string{"KUBECONFIG=" + second.config, "POD_NAMESPACE=" + harness.System, "RUST_LOG=info,rootcellar_fleet=debug"}
		rival := launch("fleet-second", env, os.Getenv("FLEET"), append([]string{"--http", "127.0.0.1:9808"}, losing...)...)
		s.Cleanup(rival.kill)
		s.gone("pv", volume)
		uid := s.again(h)
		for _, again := range resume {
			again()
		}
		s.elsewhere(set, volume)
		status := late.release(s, held)
		if status != http.StatusConflict && status != http.StatusNotFound {
			s.Errorf("the late write of %s: %d", write.name, status)
		}
		begin()
		s.Always("the new claim stays while both run", 8*time.Second, func() string { return s.same(h, uid) })
		rival.kill()
		for path, most := range map[string]int{s.path(h.claim.Name): 1, "/persistentvolumes/" + volume: 1} {
			if found := deletions(path, rig.fleet, second); len(found) > most {
				s.Errorf("deleted more than once:%s", listing(found))
			}
		}
		if found := second.seen(func(c *call) bool { return c.status == http.StatusForbidden }); len(found) > 0 {
			s.Errorf("forbidden:%s", listing(found))
		}
		if i == len(releaseWrites)-1 {
			m.back(s)
			s.event("Node", m.name, "VolumeWithoutPersistentVolume")
		}
		s.intact(h.file)
	}
}
