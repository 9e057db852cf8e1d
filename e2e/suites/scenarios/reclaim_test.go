package scenarios

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rootcellar.dev/e2e/suites/harness"
)

var reclaiming = []entry{
	{"a deleted claim's data is removed and its space is free again, once no pod uses it", deletedComesBack},
	{"a retained volume outlives its claim untouched, until an admin binds it again", retainedOutlivesClaim},
	{"a retained volume outlives its PersistentVolume, which can be written again", retainedOutlivesObject},
}

// Proves: K4.
func deletedComesBack(s *scenario) {
	class, left := s.counted()
	s.Claim("data", class, "1Gi")
	s.pod("writer", with("data", "/data"))
	s.running("writer")
	s.says("writer", "dd if=/dev/zero of=/data/file bs=1M count=32 2>/dev/null; sync; wc -c < /data/file", "33554432")
	s.left(node2, class, left-1<<30)
	volume := s.volume("data")
	dir := s.directory(node2, "fast", volume.Name)

	s.Kubectl("delete", "pvc", "data", "--wait=false")
	s.Always("a claim that a pod uses keeps its data", 5*time.Second, func() string {
		_, err := os.Stat(node2.path(dir + "/data/file"))
		if err != nil {
			return err.Error()
		}
		return ""
	})
	s.says("writer", "wc -c < /data/file", "33554432")

	s.deletePod("writer")
	s.volumeGone(volume.Name)
	s.reclaimed(node2, "fast", volume.Name)
	s.left(node2, class, left)
}

// reclaimed waits until a volume without a PersistentVolume has left the disk through the trash.
func (s *scenario) reclaimed(n node, pool, volume string) {
	s.Helper()
	if found := s.directories(n, pool, volume); len(found) > 0 {
		s.Fatalf("%s is still there", found[0])
	}
	s.Eventually(volume+" is no longer in the trash", harness.Patience, func() string {
		entries, err := os.ReadDir(n.path(poolPath(pool) + "/.rootcellar/trash"))
		s.Must(err)
		for _, entry := range entries {
			if strings.Contains(entry.Name(), volume) {
				return entry.Name()
			}
		}
		return ""
	})
}

// retainedOutlivesClaim takes most of node1's space, so that another claim of this size shows whether the space is
// still in use.
//
// Proves: K4.
func retainedOutlivesClaim(s *scenario) {
	s.letGoAfter()
	s.Claim("data", "rootcellar-retain", "3Gi")
	s.pod("writer", with("data", "/data"), at(node1))
	s.running("writer")
	s.says("writer", "echo kept > /data/file && cat /data/file", "kept")
	volume := s.volume("data").Name
	dir := s.directory(node1, "default", volume)
	s.deletePod("writer")
	s.released(node1, "data", volume)

	// Neither a claim of a fitting size nor a claim that names the volume gets it, and its space stays in use.
	s.Claim("fits", "rootcellar-retain", "3Gi")
	s.pod("fits", with("fits", "/data"), at(node1))
	s.unscheduled("fits", "did not have enough free storage")
	s.Claim("names", "rootcellar-retain", "3Gi", naming(volume))
	s.event("PersistentVolumeClaim", "names", volume, "already bound to a different claim")
	if phase := s.notIn(volume, corev1.VolumeReleased); phase != "" {
		s.Fatalf("%s is %s", volume, phase)
	}
	s.holds(node1, dir+"/data/file", "kept\n")

	// The volume is reserved for one claim. Without a claimRef the first claim of the class would get it.
	s.Kubectl("patch", "pv", volume, "-p", fmt.Sprintf(
		`{"spec": {"claimRef": {"namespace": %q, "name": "names", "uid": null, "resourceVersion": null}}}`, s.Namespace))
	if got := s.volume("names").Name; got != volume {
		s.Fatalf("the claim has %s, not %s", got, volume)
	}
	s.pod("reader", with("names", "/data"))
	s.running("reader")
	s.says("reader", "cat /data/file", "kept")

	s.Must(letGo(s.ctx(), volume))
	s.deletePod("reader")
	s.deleteClaim("names")
	s.volumeGone(volume)
	s.reclaimed(node1, "default", volume)
	// The pod that waited for the space starts by itself.
	s.running("fits")
	s.says("fits", "ls -A /data", "")
}

// naming has the claim request this PersistentVolume.
func naming(volume string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = volume }
}

// letGo has a retained volume deleted, as an admin does it.
func letGo(ctx context.Context, volume string) error {
	patch := []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`)
	_, err := harness.Client.CoreV1().PersistentVolumes().Patch(ctx, volume, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// letGoAfter has the retained volumes of the scenario deleted after it, even after a failure.
func (s *scenario) letGoAfter() {
	s.Cleanup(func() {
		ctx := context.Background()
		volumes, err := harness.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			s.Error(err)
			return
		}
		for _, volume := range volumes.Items {
			if volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.Namespace == s.Namespace {
				_ = letGo(ctx, volume.Name)
			}
		}
	})
}

// notIn returns the phase of a PersistentVolume if it differs from this one.
func (s *scenario) notIn(volume string, phase corev1.PersistentVolumePhase) string {
	s.Helper()
	found, err := harness.Client.CoreV1().PersistentVolumes().Get(s.ctx(), volume, metav1.GetOptions{})
	s.Must(err)
	if found.Status.Phase != phase {
		return string(found.Status.Phase)
	}
	return ""
}

// phase waits until a PersistentVolume is in this phase.
func (s *scenario) phase(volume string, phase corev1.PersistentVolumePhase) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%s is %s", volume, phase), harness.Patience, func() string { return s.notIn(volume, phase) })
}

// released deletes a claim, and checks that its retained volume stays longer than a volume to be deleted would.
func (s *scenario) released(home node, claim, volume string) {
	s.Helper()
	// No volume is deleted while it is mounted, and after a refusal the provisioner waits.
	s.Eventually(volume+" is unmounted", harness.Patience, func() string { return s.mountLines(home, "/"+volume+"/mount") })
	s.deleteClaim(claim)
	s.phase(volume, corev1.VolumeReleased)
	s.Always(volume+" stays", 10*time.Second, func() string { return s.notIn(volume, corev1.VolumeReleased) })
}

// holds checks a file on a node's disk.
func (s *scenario) holds(n node, path, want string) {
	s.Helper()
	text, err := os.ReadFile(n.path(path))
	s.Must(err)
	if string(text) != want {
		s.Fatalf("%s on %s holds %q, not %q", path, n.name, text, want)
	}
}

// Proves: K4.
func retainedOutlivesObject(s *scenario) {
	s.letGoAfter()
	s.Claim("data", "rootcellar-retain", "16Mi")
	s.pod("writer", with("data", "/data"))
	home := s.runningOn("writer")
	s.says("writer", "echo kept > /data/file && cat /data/file", "kept")
	volume := s.volume("data")
	dir := s.directory(home, "default", volume.Name)
	s.deletePod("writer")
	s.released(home, "data", volume.Name)
	s.Kubectl("delete", "pv", volume.Name, "--timeout", harness.Patience.String())
	s.Always("the data stays", 10*time.Second, func() string {
		s.holds(home, dir+"/data/file", "kept\n")
		return ""
	})

	// An admin writes this by hand. It names the volume, its node and its claim.
	again := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-again"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      volume.Spec.Capacity,
			AccessModes:                   volume.Spec.AccessModes,
			StorageClassName:              volume.Spec.StorageClassName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			NodeAffinity:                  volume.Spec.NodeAffinity,
			ClaimRef:                      &corev1.ObjectReference{Namespace: s.Namespace, Name: "found"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: harness.Driver, VolumeHandle: volume.Spec.CSI.VolumeHandle,
			}},
		},
	}
	_, err := harness.Client.CoreV1().PersistentVolumes().Create(s.ctx(), again, metav1.CreateOptions{})
	s.Must(err)
	s.Claim("found", "rootcellar-retain", "16Mi", naming(again.Name))
	s.pod("reader", with("found", "/data"))
	if got := s.runningOn("reader"); got != home {
		s.Fatalf("the reader is on %s, the data on %s", got.name, home.name)
	}
	s.says("reader", "cat /data/file", "kept")

	s.deletePod("reader")
	s.deleteClaim("found")
	s.volumeGone(again.Name)
	s.reclaimed(home, "default", volume.Name)
}
