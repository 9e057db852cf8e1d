package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"rootcellar.dev/e2e/suites/harness"
)

const installManual = "docs/install.md"

// kustomized applies or deletes a preset, as run.sh rendered it.
func (s *scenario) kustomized(verb, preset string) {
	s.Helper()
	_, err := s.shell("kubectl", verb, "-k", filepath.Join(os.Getenv("PARTS"), "install", preset))
	s.Must(err)
}

// manualDisk makes and mounts a blank disk by the block of docs/install.md for btrfs, the filesystem on which this kernel
// enforces sizes. The disk is removed when it is unmounted.
func (s *scenario) manualDisk(n node, pool string) {
	s.Helper()
	image := filepath.Join(harness.Run, n.name, filepath.Base(pool)+".img")
	// Two claims of the example do not fit.
	attach := "truncate -s 1800M " + image + "\nPOOL=" + pool + " DISK=$(losetup --find --show " + image + ")\n"
	_, err := s.on(n, "sh", "-euc", attach+s.diskBlock("btrfs")+"losetup --detach $DISK")
	s.Must(err)
}

// diskBlock returns the block of docs/install.md for disks that has this mark.
func (s *scenario) diskBlock(mark string) string {
	s.Helper()
	for _, block := range shellBlock.FindAllStringSubmatch(s.section(installManual, "The disks"), -1) {
		if block[1] == mark {
			return block[2]
		}
	}
	s.Fatalf("%s has no block for %s", installManual, mark)
	return ""
}

// installedBy runs every block of these sections of docs/install.md as an administrator would.
func (s *scenario) installedBy(headings ...string) {
	s.Helper()
	for _, heading := range headings {
		for _, block := range shellBlock.FindAllStringSubmatch(s.section(installManual, heading), -1) {
			s.administrator(harness.Root, block[2])
		}
	}
}

// bareMetal follows docs/install.md from two blank disks per node to a StatefulSet with a volume on each.
//
// Proves: K1.
func bareMetal(s *scenario) {
	disks := []string{"disks/disk1", "disks/disk2"}
	for _, n := range nodes() {
		fstab := filepath.Join(harness.Run, n.name, "fstab")
		_, err := s.on(n, "sh", "-euc", ": >"+fstab+" && mount --bind "+fstab+" /etc/fstab && mkdir -p "+poolPath("disks/none"))
		s.Must(err)
		for _, disk := range disks {
			s.manualDisk(n, disk)
		}
	}
	s.publish()
	s.installedBy("The driver", "The pools", "The claims")
	for _, n := range nodes() {
		for _, disk := range disks {
			s.directory(n, disk, "default_data-shard-")
		}
		if left, err := os.ReadDir(n.path(poolPath("disks/none"))); err != nil || len(left) > 0 {
			s.Errorf("a directory without a mount on %s has %v, %v", n.name, left, err)
		}
	}

	s.administrator(harness.Root, `kubectl delete --filename deploy/examples/statefulset
volumes=$(kubectl get pvc --selector app=shard --output jsonpath='{range .items[*]}pv/{.spec.volumeName} {end}')
kubectl delete pvc --selector app=shard
kubectl wait --for=delete --timeout=3m $volumes`)
	for _, n := range nodes() {
		for _, disk := range disks {
			s.trashEmpty(n, disk)
		}
	}
	s.administrator(harness.Root, `helm uninstall rootcellar --namespace rootcellar-system
kubectl delete namespace rootcellar-system`)
	for _, n := range nodes() {
		for _, disk := range disks {
			_, err := s.on(n, "umount", poolPath(disk))
			s.Must(err)
		}
		_, err := s.on(n, "umount", "/etc/fstab")
		s.Must(err)
	}
	s.uninstalled()
}

// TestPreset runs on a cluster whose kubelets use the directory of the preset that PRESET names.
func TestPreset(t *testing.T) {
	preset := os.Getenv("PRESET")
	t.Cleanup(harness.Count)
	title := fmt.Sprintf("the preset %s, with kubelet's directory where it says", preset)
	t.Run(title, func(t *testing.T) {
		play(t, entry{title, func(s *scenario) {
			s.kustomized("apply", preset)
			s.driverReady()
			laterPodsReadIt(s)
		}})
	})
}
