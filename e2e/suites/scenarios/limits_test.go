package scenarios

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"rootcellar.dev/e2e/suites/harness"
)

// limitsRefused runs on nodes that share one kernel, so that none of them can limit I/O.
//
// Proves: IO3.
func limitsRefused(s *scenario) {
	reason := "has no cgroup v2"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		// The one tree has a cgroup of pods for each node.
		reason = "may both be the cgroup of pods"
	}
	limits := parameters{"writeBytesPerSecond": "10Mi"}
	ofImages, ofOthers := s.Class(parameters{"kind": "image", "writeBytesPerSecond": "10Mi"}), s.Class(limits)
	for _, n := range nodes() {
		s.left(n, ofImages, 0)
	}
	s.Claim("image", ofImages, "16Mi")
	s.pod("image", with("image", "/data"))
	s.unscheduled("image", "2 node(s) did not have enough free storage")

	s.Claim("sent", ofImages, "16Mi", sentTo(node1))
	s.Claim("device", ofOthers, "16Mi", sentTo(node1), block)
	for _, claim := range []string{"sent", "device"} {
		s.event("PersistentVolumeClaim", claim, "code = ResourceExhausted", "the class limits I/O, which this node cannot", reason)
	}
	s.Claim("directory", ofOthers, "16Mi", sentTo(node1))
	s.event("PersistentVolumeClaim", "directory", "code = InvalidArgument", `parameter "writeBytesPerSecond"`, "needs kind: image")

	s.worker("unlimited", "rootcellar-image", at(node1))
	s.running("unlimited")
	refused := []string{"image", "sent", "device", "directory"}
	s.Always("no volume is made without its limits", 5*time.Second, func() string {
		for _, claim := range refused {
			if phase := s.TheClaim(claim).Status.Phase; phase != corev1.ClaimPending {
				return fmt.Sprintf("claim %s is %s", claim, phase)
			}
		}
		if made := s.volumes(); len(made) != 1 {
			return fmt.Sprintf("%d volumes", len(made))
		}
		return ""
	})
	s.deleteWithClaims("unlimited", "image")
	for _, claim := range refused[1:] {
		s.deleteClaim(claim)
	}
	s.detached()
}

// The top cgroups of pods on the machine, with each cgroup driver of the kubelet.
const (
	podsOfSystemd  = "kubepods.slice"
	podsOfCgroupfs = "kubepods"
)

// The lines of `io.max` without the number of the device.
const (
	oneMebibyte   = "rbps=1048576 wbps=1048576 riops=max wiops=max"
	twoWritten    = "rbps=1048576 wbps=2097152 riops=max wiops=max"
	tenOperations = "rbps=max wbps=max riops=10 wiops=10"
)

// limited has the claim `image`, of which pods read and write 1 MiB per second, and others with limits.
type limited struct {
	*scenario
	class string
	// pods is the top cgroup of pods.
	pods string
	// limits are those of the published volumes, by their claims.
	limits map[string]string
}

// limited creates the claim and its pod.
func (s *scenario) limited() *limited {
	s.Helper()
	grows := true
	class := s.Class(parameters{"pool": "disks", "kind": "image", "readBytesPerSecond": "1Mi", "writeBytesPerSecond": "1Mi"},
		func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = &grows })
	l := &limited{s, class, podsOfSystemd, map[string]string{}}
	l.Claim("image", class, "320Mi")
	l.start("image", "image")
	l.has("before the pod writes")
	return l
}

// start starts a pod on a claim of the class.
func (l *limited) start(name, claim string, changes ...func(*corev1.Pod)) {
	l.Helper()
	l.pod(name, append(changes, with(claim, "/data"), stays)...)
	l.running(name)
	l.limits[claim] = oneMebibyte
}

// raw gives the pod a claim as the device /dev/disk.
func raw(claim string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		with(claim, "")(pod)
		main := &pod.Spec.Containers[0]
		main.VolumeMounts = nil
		main.VolumeDevices = []corev1.VolumeDevice{{Name: claim, DevicePath: "/dev/disk"}}
	}
}

// device creates a block volume with limits of operations, and its pod.
func (l *limited) device() {
	l.Helper()
	l.Claim("device", l.Class(parameters{"pool": "disks", "readsPerSecond": "10", "writesPerSecond": "10"}), "64Mi", block)
	l.pod("device", raw("device"), stays)
	l.running("device")
	l.limits["device"] = tenOperations
	l.has("before the pod of the block volume writes")
}

// onOneDisk has new volumes go to disk1, where copies share blocks, until the returned function is called.
func (s *scenario) onOneDisk() (back func()) {
	s.Helper()
	each := func(verb string) {
		s.Helper()
		for _, disk := range []string{"disk2", "disk3"} {
			_, err := s.inDriver(node1, "pool", verb, "disks/"+disk)
			s.Must(err)
		}
	}
	each("cordon")
	return func() { each("uncordon") }
}

// devices returns the numbers of the loop devices that show a claim's volume on the machine.
func (s *scenario) devices(claim string) []string {
	s.Helper()
	out, err := s.on(node1, "sh", "-uc", `for file in /sys/block/loop*/loop/backing_file; do
	case $(cat "$file" 2>/dev/null) in *-"$0"/*) cat "${file%/loop/backing_file}/dev" ;; esac
done`, s.hash(s.volume(claim)))
	s.Must(err)
	return strings.Fields(out)
}

// differs compares the limits in the kernel with those of the volumes.
func (l *limited) differs() string {
	l.Helper()
	out, err := l.on(node1, "cat", "/sys/fs/cgroup/"+l.pods+"/io.max")
	if err != nil {
		return err.Error()
	}
	has := map[string]string{}
	for line := range strings.Lines(out) {
		// A device without a number is about to be removed.
		if device, limits, _ := strings.Cut(strings.TrimSpace(line), " "); device != "(unknown)" {
			has[device] = limits
		}
	}
	for claim, limits := range l.limits {
		if devices := l.devices(claim); len(devices) != 1 || has[devices[0]] != limits {
			return fmt.Sprintf("%s has %s at %v, and the kernel has\n%s", claim, limits, devices, out)
		}
	}
	if len(has) != len(l.limits) {
		return fmt.Sprintf("the volumes have %v, and the kernel has\n%s", l.limits, out)
	}
	return ""
}

// has checks that the kernel has exactly the limits of the volumes, now.
func (l *limited) has(when string) {
	l.Helper()
	if complaint := l.differs(); complaint != "" {
		l.Fatalf("%s: %s", when, complaint)
	}
}

// hasSoon waits for that.
func (l *limited) hasSoon(when string) {
	l.Helper()
	l.Eventually(when+", the kernel has the limits of the volumes", harness.Patience, l.differs)
}

// timed runs a line in a pod. It returns the seconds at its begin and its end by the clock of the node, because a call of
// kubectl takes long on the machine.
func (s *scenario) timed(pod, line string) (begin, end float64, err error) {
	out, err := s.exec(pod, "read a x </proc/uptime && "+line+" && read b x </proc/uptime && echo $a $b")
	if err == nil {
		_, err = fmt.Sscan(out, &begin, &end)
	}
	return begin, end, err
}

// took returns how many seconds a line takes in a pod.
func (s *scenario) took(pod, line string) float64 {
	s.Helper()
	begin, end, err := s.timed(pod, line)
	s.Must(err)
	return end - begin
}

// tolerance is for the first tenth of a second, in which the kernel lets more pass.
const tolerance = 0.8

// atLeast checks that a line in a pod takes this many seconds. It may take longer, because the machine is emulated.
func (l *limited) atLeast(when, pod, line string, seconds float64) {
	l.Helper()
	took := l.took(pod, line)
	l.Logf("%s: %s: %s: %.1f s, by the limit %.1f s", when, pod, line, took, seconds)
	if took < seconds*tolerance {
		l.Errorf("%s: %s: it took %.1f s, and with the limit it takes %.1f s", when, line, took, seconds)
	}
}

// written writes this many MiB to the disk.
func written(file string, mebibytes int) string {
	return fmt.Sprintf("dd if=/dev/zero of=/data/%s bs=1M count=%d conv=fsync status=none", file, mebibytes)
}

// holds checks the limit of 1 MiB per second, as the kernel has it and as a pod sees it.
func (l *limited) holds(when, pod string) {
	l.Helper()
	l.has(when)
	l.atLeast(when, pod, written("file", 8), 8)
}

// Proves: IO1, IO2.
func limitHolds(s *scenario) {
	defer s.onOneDisk()()
	l := s.limited()
	l.device()
	l.holds("at first", "image")
	l.atLeast("at first", "image", "dd if=/data/file of=/dev/null bs=1M count=8 iflag=direct status=none", 8)
	l.atLeast("at first", "device", "dd if=/dev/zero of=/dev/disk bs=4k count=100 oflag=direct status=none", 10)
	l.atLeast("at first", "device", "dd if=/dev/disk of=/dev/null bs=4k count=100 iflag=direct status=none", 10)
	l.outlives()
	l.shared()
	l.contained()
	l.deleteWithClaims("image", "device")
	clear(l.limits)
	l.hasSoon("after the volumes are deleted")
}

// outlives checks the limits after each restart.
func (l *limited) outlives() {
	l.Helper()
	onMachine := func(words ...string) func() {
		return func() {
			_, err := l.on(node1, words[0], words[1:]...)
			l.Must(err)
		}
	}
	for _, step := range []struct {
		what string
		take func()
	}{
		{"after systemctl daemon-reload", onMachine("systemctl", "daemon-reload")},
		{"after systemctl daemon-reexec", onMachine("systemctl", "daemon-reexec")},
		{"after a restart of the kubelet", func() {
			onMachine("systemctl", "restart", "kubelet")()
			l.has("while the kubelet starts")
			l.reached("image")
			l.nodeReady()
		}},
		{"after a restart of the driver", func() { l.driverRestarted(func() { l.has("without the driver's pod") }) }},
		{"after a restart of the pod", func() {
			l.deletePod("image")
			delete(l.limits, "image")
			l.hasSoon("without the pod")
			l.start("image", "image")
		}},
	} {
		step.take()
		l.holds(step.what, "image")
	}
}

// reached waits until the kubelet runs a command in a pod.
func (s *scenario) reached(pod string) {
	s.Helper()
	s.Eventually("the kubelet reaches pod "+pod, harness.Patience, func() string {
		if out, err := s.exec(pod, "true"); err != nil {
			return out
		}
		return ""
	})
}

// driverRestarted deletes the driver's pod on node1, and waits until another one serves. It calls the function when the old
// one is gone.
func (s *scenario) driverRestarted(meanwhile func()) {
	s.Helper()
	old := s.driverPod(node1)
	s.Kubectl("--namespace", harness.System, "delete", "pod", old.Name, "--timeout", harness.Patience.String())
	meanwhile()
	s.driverReplaced(old)
	s.driverReady()
}

// shared has two pods of different classes of service write to one volume at once.
func (l *limited) shared() {
	l.Helper()
	l.start("second", "image", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
	})
	type result struct {
		begin, end float64
		err        error
	}
	var results [2]result
	var writers sync.WaitGroup
	for i, pod := range []string{"image", "second"} {
		writers.Go(func() {
			results[i].begin, results[i].end, results[i].err = l.timed(pod, written(pod, 8))
		})
	}
	writers.Wait()
	for _, result := range results {
		l.Must(result.err)
	}
	took := max(results[0].end, results[1].end) - min(results[0].begin, results[1].begin)
	l.Logf("8 MiB by each of two pods at 1 MiB per second of their volume: %.1f s", took)
	if took < 16*tolerance {
		l.Errorf("two pods wrote 8 MiB each within %.1f s, and their volume has 1 MiB per second", took)
	}
}

// contained has a pod without privileges try to leave its cgroup, to change the limit, and to use other devices.
func (l *limited) contained() {
	l.Helper()
	device := l.devices("image")[0]
	major, minor, _ := strings.Cut(device, ":")
	const readOnly, denied = "Read-only file system", "Operation not permitted"
	for _, attack := range []struct{ line, message string }{
		{"echo $$ >/sys/fs/cgroup/cgroup.procs", readOnly},
		{"mkdir /sys/fs/cgroup/mine", readOnly},
		{"echo '" + device + " rbps=max wbps=max' >/sys/fs/cgroup/io.max", readOnly},
		{"mkdir -p /tmp/tree && mount -t cgroup2 none /tmp/tree", "ermission denied"},
		{"mount -o remount,rw /sys/fs/cgroup", "ermission denied"},
		{"mknod /tmp/control c 10 237 && cat /tmp/control", denied},
		{"mknod /tmp/image b " + major + " " + minor + " && dd if=/tmp/image of=/dev/null count=1", denied},
	} {
		l.refused("second", attack.line, attack.message)
	}
	l.atLeast("after the attacks", "second", written("second", 8), 8)
	l.deletePod("second")
}
