package scenarios

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// upgrade changes the pod template of the DaemonSet, as a new version does, until the scenario ends.
func (s *scenario) upgrade() {
	s.Helper()
	script := filepath.Join(root, "e2e/install.sh")
	_, err := s.shell(script, "--set", "log.level=debug", "--wait=false")
	s.must(err)
	s.Cleanup(func() {
		if _, err := command(context.Background(), script); err != nil {
			s.Error(err)
		}
	})
}

// rolledOut reports whether every driver has the newest template and is ready.
func (s *scenario) rolledOut() bool {
	s.Helper()
	set, err := client.AppsV1().DaemonSets(system).Get(s.ctx(), "rootcellar", metav1.GetOptions{})
	s.must(err)
	status := set.Status
	return status.ObservedGeneration >= set.Generation && status.UpdatedNumberScheduled == status.DesiredNumberScheduled &&
		status.NumberAvailable == status.DesiredNumberScheduled
}

// Proves: K19.
func upgraded(s *scenario) {
	writers := []*beating{s.beats("writer1", "rootcellar", node1), s.beats("writer2", "rootcellar", node2)}
	var made []string
	before := map[string]bool{}
	for _, n := range nodes() {
		before[string(s.driverPod(n).UID)] = true
		made = append(made, "old-"+n.name)
		s.worker("old-"+n.name, "rootcellar", at(n))
		s.running("old-" + n.name)
	}
	kept := made
	s.upgrade()
	end := time.Now().Add(2 * patience)
	for ; !s.rolledOut(); time.Sleep(500 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatal("the rollout does not finish")
		}
		name := fmt.Sprint("worker", len(made))
		s.worker(name, "rootcellar", at(nodes()[len(made)%2]))
		made, kept = append(made, name), append(kept, name)
		// Deleting a claim during the creation of its volume may leave a volume that no object names. That is up to the
		// provisioner.
		if oldest, err := client.CoreV1().Pods(s.namespace).Get(s.ctx(), kept[0], metav1.GetOptions{}); err == nil &&
			oldest.Status.Phase == corev1.PodRunning {
			s.dismiss(kept[0])
			kept = kept[1:]
		}
	}
	if deleted := len(made) - len(kept); len(made) < 4 || deleted < 1 {
		s.Fatalf("the upgrade was over after %d claims made and %d deleted", len(made), deleted)
	}
	for _, n := range nodes() {
		if pod := s.driverPod(n); before[string(pod.UID)] {
			s.Fatalf("the driver's pod on %s is the old one", n.name)
		}
	}
	for _, name := range kept {
		s.running(name)
	}
	for _, writer := range writers {
		writer.goesOn()
	}
	s.oneVolumeEach(append(kept, "writer1", "writer2"))
	s.note = fmt.Sprintf(": %d claims, %d of them deleted again", len(made), len(made)-len(kept))

	for _, name := range append(kept, "writer1", "writer2") {
		s.dismiss(name)
	}
	s.nothingLeft()
}
