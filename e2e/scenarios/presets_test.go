package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// kustomized applies or deletes a directory of deploy/install.
func (s *scenario) kustomized(verb, preset string) {
	s.Helper()
	_, err := s.shell("kubectl", verb, "-k", filepath.Join(root, "deploy/install", preset))
	s.must(err)
}

// bareMetal follows docs/install.md for disks that hold nothing else: it mounts them, installs, and initializes a pool
// on each. Its classes require enforced sizes, which this kernel offers on btrfs alone.
//
// Proves: K1.
func bareMetal(s *scenario) {
	disk := filepath.Join(os.Getenv("RUN"), node1.name, "bulk.img")
	for _, line := range []string{
		"truncate -s 1G " + disk, "mkfs.btrfs -q " + disk,
		"mkdir -p " + poolPath("bulk"), "mount -o loop " + disk + " " + poolPath("bulk"),
	} {
		_, err := s.on(node1, "sh", "-c", line)
		s.must(err)
	}
	s.kustomized("apply", "bare-metal")
	s.driverReady()
	s.claim("data", "rootcellar-bulk", "64Mi")
	s.pod("writer", with("data", "/data"))
	s.unscheduled("writer", "did not have enough free storage")

	exec := []string{"--namespace", system, "exec", s.driverPod(node1).Name, "-c", "driver", "--", "/rootcellar", "pool"}
	made, err := s.shell("kubectl", append(exec, "init", poolPath("bulk"))...)
	s.must(err)
	if !strings.Contains(made, "\nsizes are enforced") {
		s.Errorf("pool init: %s", made)
	}
	if home := s.runningOn("writer"); home != node1 {
		s.Fatalf("the pod is on %s, the disk on %s", home.name, node1.name)
	}
	s.directory(node1, "bulk", s.volume("data").Name)
	// The pool `fast` has no disk here, and the list reports it with its exit code too.
	listed, err := s.shell("kubectl", append(exec, "list")...)
	if err == nil || !holdsAll(listed, []string{"bulk  ok", "squota", "pool fast: nothing is mounted at its path"}) {
		s.Errorf("pool list: %v: %s", err, listed)
	}
	if out, err := s.shell("kubectl", append(exec, "init", poolPath("fast"))...); err == nil {
		s.Errorf("a pool is made below an unmounted disk: %s", out)
	}
	// An initialized pool is not initialized again.
	if out, err := s.shell("kubectl", append(exec, "init", poolPath("bulk"))...); err == nil {
		s.Errorf("a second init is not refused: %s", out)
	}

	volume := s.volume("data").Name
	s.deletePod("writer")
	s.deleteClaim("data")
	s.volumeGone(volume)
	s.trashEmpty(node1, "bulk")
	s.kustomized("delete", "bare-metal")
	_, err = s.on(node1, "umount", poolPath("bulk"))
	s.must(err)
}

// TestPreset runs on a cluster whose kubelets use the directory of the preset that PRESET names.
func TestPreset(t *testing.T) {
	preset := os.Getenv("PRESET")
	t.Cleanup(count)
	title := fmt.Sprintf("the preset %s, with kubelet's directory where it says", preset)
	t.Run(title, func(t *testing.T) {
		play(t, entry{title, func(s *scenario) {
			s.kustomized("apply", preset)
			s.driverReady()
			laterPodsReadIt(s)
		}})
	})
}
