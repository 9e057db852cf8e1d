package scenarios

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
)

var images = []entry{
	{"an image is full at its size on a disk without quota, and its neighbour writes on", fillsItsImage},
	{"an image with XFS grows while its pod runs", imageGrows},
	{"a snapshot of a running pod's image holds what was written before it, and a restore is mounted beside it", snapshotOfImage},
	{"where limits of I/O cannot be set, a class with them has no capacity, and its claims wait and say why", limitsRefused},
}

// attached returns the loop devices that show an image of the scenario.
func (s *scenario) attached() []string {
	s.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	s.Must(err)
	var found []string
	for _, file := range files {
		// A device that was detached meanwhile has no such file.
		path, _ := os.ReadFile(file)
		if strings.Contains(string(path), "/"+s.Namespace+"_") {
			found = append(found, file)
		}
	}
	return found
}

// detached waits until nothing is left of the scenario's images, on the disks and in the kernel.
func (s *scenario) detached() {
	s.Helper()
	s.nothingLeft()
	if left := s.attached(); len(left) > 0 {
		s.Fatalf("left attached: %q", left)
	}
}

// has checks that df shows a filesystem of this size in a pod. The log of a small XFS takes a fifth.
func (s *scenario) has(pod string, mebibytes int) {
	s.Helper()
	text, err := s.exec(pod, "df -P -k /data | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2")
	s.Must(err)
	kibibytes, err := strconv.Atoi(text)
	s.Must(err)
	if size := mebibytes << 10; kibibytes > size || kibibytes < size-size/4 {
		s.Fatalf("df of %s shows %d KiB, not %d MiB", pod, kibibytes, mebibytes)
	}
}

// Proves: I1, I2.
func fillsItsImage(s *scenario) {
	const class = "rootcellar-image"
	s.Claim("greedy", class, "64Mi")
	s.pod("greedy", with("greedy", "/data"), at(node1))
	neighbour := s.beats("neighbour", class, node1)
	s.running("greedy")
	if devices := s.attached(); len(devices) != 2 {
		s.Fatalf("two images are attached to %q", devices)
	}
	s.has("greedy", 64)

	s.refused("greedy", "cat /dev/zero > /data/file", "No space left on device")
	text, err := s.exec("greedy", "wc -c < /data/file")
	s.Must(err)
	if filled, err := strconv.Atoi(text); err != nil || filled>>20 < 50 || filled>>20 > 64 {
		s.Fatalf("it was refused after %s bytes", text)
	}
	neighbour.goesOn()
	s.says("neighbour", "dd if=/dev/zero of=/data/file bs=1M count=8 2>/dev/null && sync /data/file && echo ok", "ok")
	s.poolIs(node1, "default", "healthy")

	s.deleteWithClaims("greedy", "neighbour")
	s.detached()
}

// Proves: I4.
func imageGrows(s *scenario) {
	grows := true
	class := s.Class(map[string]string{"kind": "image", "csi.storage.k8s.io/fstype": "xfs"},
		func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = &grows })
	s.Claim("data", class, "320Mi")
	s.pod("data", with("data", "/data"))
	home := s.runningOn("data")
	s.says("data", "echo kept > /data/file && sync /data/file && cat /data/file", "kept")
	life, mount := s.container("data"), s.mountLines(home, s.volume("data").Name+"/mount")
	s.has("data", 320)

	s.ask("data", "400Mi")
	s.grown("data", "400Mi", home)
	s.has("data", 400)
	s.says("data", "cat /data/file", "kept")
	s.goesOn("data", home, life, mount)
	s.deleteWithClaims("data")
	s.detached()
}

// Proves: I3.
func snapshotOfImage(s *scenario) {
	class := s.Class(map[string]string{"kind": "image", "pool": "reflink"})
	writer := s.beats("writer", class, node1)
	before := writer.count()
	s.take("taken", "writer")
	after := writer.count()
	writer.goesOn()

	s.Claim("restored", class, "25Mi", from("VolumeSnapshot", "taken"))
	s.pod("restored", with("restored", "/data"), at(node1))
	s.running("restored")
	if count := writer.prefix("restored"); count < before || count > after {
		s.Fatalf("the snapshot holds %d beats; there were %d before it and %d after", count, before, after)
	}
	s.says("restored", "echo mine > /data/beats && sync /data/beats && cat /data/beats", "mine")
	writer.goesOn()
	s.deleteSnapshotAndClaims("taken", "restored", "writer")
	s.detached()
}
