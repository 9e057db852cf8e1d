package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var disks = []entry{
	{"a pool whose disk is not mounted takes nothing and says so, and serves when it is, without a restart", diskComesLate},
	{"a disk is unmounted under the running driver, and comes back with its volumes", diskComesBack},
	{"a disk unmounted under a pod: the pod goes on, kubectl shows it, and the volume is neither lost nor made anew", diskGoesUnderPod},
	{"another disk in a pool's place is refused and left as it is", diskExchanged},
}

const (
	notMounted = "unavailable: nothing is mounted at its path, which must be a mount point; mount the disk, or, if it is lost for good, run `rootcellar pool retire`"
	// within is the documented time until a new disk is in use. The driver checks every two seconds, the provisioner
	// every five.
	within = 10 * time.Second
	// promptly is the time for a pod to start on a busy machine.
	promptly = 30 * time.Second
)

// mountAt mounts an image of node1's disks at a path until the scenario ends.
func (s *scenario) mountAt(image, path string) {
	s.Helper()
	s.mount(image, path)
	s.Cleanup(func() {
		// Most scenarios unmount it themselves. Then there is nothing to do.
		_, _ = harness.Command(context.Background(), "nsenter", "-t", node1.pid, "-m", "-p", "--", "umount", path)
	})
}

// mount mounts an image of node1's disks at a path.
func (s *scenario) mount(image, path string) {
	s.Helper()
	_, err := s.on(node1, "mount", "-o", "loop", filepath.Join(harness.Run, node1.name, image), path)
	s.Must(err)
}

// mountLate mounts the disk of the pool `late` and waits until the driver serves it.
func (s *scenario) mountLate() {
	s.Helper()
	s.mountAt("late.img", poolPath("late"))
	s.poolIs(node1, "late", "healthy")
}

// onLate mounts the disk of the pool `late` and returns a class of the pool.
func (s *scenario) onLate() string {
	s.Helper()
	s.mountLate()
	return s.Class(map[string]string{"pool": "late"})
}

// unmountLate is the host's plain umount, which must work at once even while the driver is busy.
func (s *scenario) unmountLate() {
	s.Helper()
	_, err := s.on(node1, "umount", poolPath("late"))
	s.Must(err)
	s.poolIs(node1, "late", notMounted)
	s.nothingBeneath()
}

// lateFreed waits until nothing uses the disk any more, so that it could be pulled out.
func (s *scenario) lateFreed() {
	s.Helper()
	s.Eventually("the disk is free", harness.Patience, func() string {
		users, err := s.shell("losetup", "-j", filepath.Join(harness.Run, node1.name, "late.img"))
		s.Must(err)
		return users
	})
}

// nothingBeneath checks the mount point of `late` itself, on every node's root disk.
func (s *scenario) nothingBeneath() {
	s.Helper()
	for _, n := range nodes() {
		entries, err := os.ReadDir(n.path(poolPath("late")))
		if err == nil && len(entries) > 0 {
			s.Fatalf("%s: on the root disk beneath the mount point: %v", n.name, entries)
		}
	}
}

// driverLife changes when the driver's pod on node1 or one of its containers starts again.
func (s *scenario) driverLife() string {
	s.Helper()
	pod := s.driverPod(node1)
	life := string(pod.UID)
	for _, status := range pod.Status.ContainerStatuses {
		life += fmt.Sprintf(" %s started %d times", status.Name, status.RestartCount+1)
	}
	return life
}

// logged checks that the driver on node1 has logged the text.
func (s *scenario) logged(text string) {
	s.Helper()
	log := s.Kubectl("--namespace", harness.System, "logs", s.driverPod(node1).Name, "--container", "driver")
	if !strings.Contains(log, text) {
		s.Fatalf("%q is not in the driver's log:\n%s", text, log)
	}
}

// runsPromptly waits for a pod that has no reason left to wait.
func (s *scenario) runsPromptly(pod string) {
	s.Helper()
	start := time.Now()
	s.running(pod)
	if took := time.Since(start); took > promptly {
		s.Fatalf("pod %s runs after %v", pod, took)
	}
}

// healthShows waits until the status of a pod on node1 shows this condition of its volume, and the CSINode one of the pool
// `late`. Without a text, both must show none.
func (s *scenario) healthShows(pod, text string) {
	s.Helper()
	version, err := harness.Client.Discovery().ServerVersion()
	s.Must(err)
	if minor, _ := strconv.Atoi(version.Minor); minor < 37 {
		return
	}
	s.Eventually(fmt.Sprintf("the health of %s and of its storage is %q", pod, text), harness.Patience, func() string {
		found, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), pod, metav1.GetOptions{})
		s.Must(err)
		var conditions []string
		for _, volume := range found.Status.VolumeHealth {
			for _, condition := range volume.HealthConditions {
				conditions = append(conditions, fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message))
			}
		}
		info, err := harness.Client.StorageV1().CSINodes().Get(s.ctx(), node1.name, metav1.GetOptions{})
		s.Must(err)
		late := false
		for _, health := range info.Status.StorageHealth {
			for _, condition := range health.HealthConditions {
				late = late || health.Name == harness.Driver && condition.Reason == "PoolUnavailableLate"
			}
		}
		shown := strings.Join(conditions, "; ")
		if (shown == "") != (text == "") || !strings.HasPrefix(shown, text) || late != (text != "") {
			return fmt.Sprintf("%q, and the storage %v", shown, info.Status.StorageHealth)
		}
		return ""
	})
}

// Proves: DK1.
func diskComesLate(s *scenario) {
	life := s.driverLife()
	beneath, err := os.Stat(node1.path(poolPath("late")))
	s.Must(err)
	s.poolIs(node1, "late", notMounted)
	s.nothingBeneath()

	class := s.Class(map[string]string{"pool": "late"})
	s.worker("waits", class)
	s.unscheduled("waits", "did not have enough free storage")
	s.left(node1, class, 0)
	s.Claim("sent", class, "25Mi", sentTo(node1))
	s.event("PersistentVolumeClaim", "sent", "pool late is "+notMounted)
	s.Eventually("the claim is given back to the scheduler", harness.Patience, func() string {
		claim, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), "sent", metav1.GetOptions{})
		s.Must(err)
		return claim.Annotations["volume.kubernetes.io/selected-node"]
	})
	s.nothingBeneath()

	s.logged("pool is unavailable pool=late reason=nothing is mounted at its path")

	s.mountAt("late.img", poolPath("late"))
	s.Eventually("the pool works and the scheduler knows it", within, func() string {
		if free, _ := s.capacity(node1, class); free == 0 {
			return "no free space yet"
		}
		return ""
	})
	s.runsPromptly("waits")
	s.poolIs(node1, "late", "healthy")
	s.logged("pool is open pool=late")
	s.says("waits", "echo kept > /data/file && cat /data/file", "kept")
	s.directory(node1, "late", s.volume("waits").Name)

	s.dismiss("waits")
	s.nothingLeft()
	s.unmountLate()
	if after, err := os.Stat(node1.path(poolPath("late"))); err != nil || after.ModTime() != beneath.ModTime() {
		s.Fatalf("the mount point was written to: %v, %v", after, err)
	}
	if now := s.driverLife(); now != life {
		s.Fatalf("the driver is %s, and was %s", now, life)
	}
}

// Proves: DK1.
func diskComesBack(s *scenario) {
	life := s.driverLife()
	class := s.onLate()
	s.worker("keeper", class)
	s.running("keeper")
	s.says("keeper", "echo kept > /data/file && cat /data/file", "kept")
	s.worker("gone", class)
	s.running("gone")
	before := s.freeSpace(node1, class)
	s.deletePod("keeper")
	s.dismiss("gone")
	s.volumeGone(s.volume("gone").Name)
	s.trashEmpty(node1, "late")

	s.unmountLate()
	s.lateFreed()
	s.left(node1, class, 0)
	s.worker("waits", class)
	s.unscheduled("waits", "did not have enough free storage")

	s.mountAt("late.img", poolPath("late"))
	s.runsPromptly("waits")
	s.pod("keeper", with("keeper", "/data"))
	s.running("keeper")
	s.says("keeper", "cat /data/file", "kept")
	if now := s.driverLife(); now != life {
		s.Fatalf("the driver is %s, and was %s", now, life)
	}
	s.Eventually("the free space is as before", harness.Patience, func() string {
		// Before and now there is one volume besides the keeper's.
		if free, _ := s.capacity(node1, class); free != before {
			return fmt.Sprint(free, " bytes, and was ", before)
		}
		return ""
	})

	s.dismiss("keeper")
	s.dismiss("waits")
	s.nothingLeft()
	s.unmountLate()
	s.lateFreed()
}

// Proves: DK1, E2, VH1, VH2.
func diskGoesUnderPod(s *scenario) {
	class := s.onLate()
	writer := s.beats("writer", class, node1)
	volume := s.volume("writer").Name

	// The pod's own mount keeps the disk in use, but not at the pool's path.
	s.healthShows("writer", "")
	s.unmountLate()
	s.healthShows("writer", "Inaccessible PoolUnavailable: pool late: nothing is mounted at its path")
	writer.goesOn()
	s.pod("second", with("writer", "/data"))
	s.event("Pod", "second", "pool late, which holds the volume, is "+notMounted)
	s.Claim("sent", class, "25Mi", sentTo(node1))
	s.event("PersistentVolumeClaim", "sent", "node node1: pool late is "+notMounted)

	s.mountLate()
	s.running("second")
	s.healthShows("writer", "")
	writer.goesOn()
	seen, err := s.exec("second", "cat /data/beats")
	s.Must(err)
	if writer.check(seen+"\n") == 0 {
		s.Fatal("the second pod sees nothing of the first")
	}
	s.directory(node1, "late", volume)

	// Published volumes are unpublished without the disk. Data on the disk is deleted when it is back.
	s.unmountLate()
	s.deletePod("second")
	s.dismiss("writer")
	s.lateFreed()
	s.event("PersistentVolume", volume, "pool late, which holds the volume, is "+notMounted)
	s.mountLate()
	s.volumeGone(volume)
	s.nothingLeft()
	s.unmountLate()
	s.lateFreed()
}

// Proves: DK3.
func diskExchanged(s *scenario) {
	s.keeper()
	s.unmountLate()

	for _, other := range []struct {
		disk, pool string
		// Only init turns the disk into a pool.
		init   []string
		reason string
	}{
		{"empty", "late", nil, "unavailable: its path held pool"},
		{"another", "late", []string{"pool", "init"}, "unavailable: its path holds pool"},
		// There was no pool at this path before.
		{"elsewheres", "fast", []string{"pool", "init", "--node", "elsewhere"}, "unavailable: its path holds pool"},
	} {
		path, image := poolPath(other.pool), other.disk+".img"
		s.poolIs(node1, other.pool, notMounted)
		s.makeDisk(image, other.init)
		s.mountAt(image, path)
		before := s.listing(path)
		s.poolIs(node1, other.pool, other.reason)
		class := s.Class(map[string]string{"pool": other.pool})
		s.Claim(other.disk, class, "25Mi", sentTo(node1))
		s.event("PersistentVolumeClaim", other.disk, "pool "+other.pool+" is "+other.reason, "mount the right disk")
		s.left(node1, class, 0)
		// The driver checks the path every two seconds.
		s.Always("it is left alone", 5*time.Second, func() string {
			if now := s.listing(path); now != before {
				return now + "\nand was\n" + before
			}
			return ""
		})
		_, err := s.on(node1, "umount", path)
		s.Must(err)
	}
	s.event("PersistentVolumeClaim", "elsewheres", "of node elsewhere")

	s.mountLate()
	s.keptOn(node1)
	s.dismiss("keeper")
	s.nothingLeft()
	s.unmountLate()
}

// makeBlank creates an empty image for node1.
func (s *scenario) makeBlank(image string) string {
	s.Helper()
	file := filepath.Join(harness.Run, node1.name, image)
	_, err := s.shell("truncate", "--size=256M", file)
	s.Must(err)
	return file
}

// makeDisk creates an image for node1 and, with arguments for the driver's binary, a pool on it.
func (s *scenario) makeDisk(image string, arguments []string) {
	s.Helper()
	_, err := s.shell("mkfs.ext4", "-q", s.makeBlank(image))
	s.Must(err)
	if arguments == nil {
		return
	}
	elsewhere := poolPath("other")
	_, err = s.on(node1, "mkdir", "-p", elsewhere)
	s.Must(err)
	s.mountAt(image, elsewhere)
	_, err = s.inDriver(node1, append(arguments, elsewhere)...)
	s.Must(err)
	_, err = s.on(node1, "umount", elsewhere)
	s.Must(err)
	_, err = s.on(node1, "rmdir", elsewhere)
	s.Must(err)
}

// listing lists everything below a directory of node1, with the attributes that a write changes.
func (s *scenario) listing(path string) string {
	s.Helper()
	out, err := s.on(node1, "find", path, "-printf", `%P %y %m %s %T@ %C@\n`)
	s.Must(err)
	return out
}
