package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"rootcellar.dev/e2e/suites/harness"
	"rootcellar.dev/e2e/suites/measure"
)

// limit changes the limits of the claim `image`.
func (l *limited) limit(limits string, flags ...string) {
	l.Helper()
	_, err := l.inDriver(node1, append([]string{"volume", "limit", l.id("image")}, flags...)...)
	l.Must(err)
	delete(l.limits, "image")
	if limits != "" {
		l.limits["image"] = limits
	}
	l.has(strings.Join(flags, " "))
}

// Proves: IO2, IO3, IO5, IO6.
func limitChanges(s *scenario) {
	defer s.onOneDisk()()
	l := s.limited()
	l.limit(twoWritten, "--write-bytes", "2Mi")
	l.atLeast("with 2 MiB per second", "image", written("file", 16), 8)
	l.limit("", "--read-bytes", "none", "--write-bytes", "none")
	s.Note = fmt.Sprintf("; 16 MiB without a limit: %.1f s", l.took("image", written("file", 16)))
	l.limit(twoWritten, "--read-bytes", "1Mi", "--write-bytes", "2Mi")
	l.frozen()
	l.waitsForNone()
	l.liftedAll()
	l.ambiguous()
	l.deleteWithClaims("image")
}

// frozen lowers the limit while the filesystem of the volume is frozen.
func (l *limited) frozen() {
	l.Helper()
	pod := l.running("image")
	mount := fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~csi/%s/mount", pod.UID, l.volume("image").Name)
	freeze := func(verb string) {
		l.Helper()
		_, err := l.on(node1, "fsfreeze", "--"+verb, mount)
		l.Must(err)
	}
	freeze("freeze")
	func() {
		defer freeze("unfreeze")
		l.limit(oneMebibyte, "--write-bytes", "1Mi")
	}()
	l.holds("after a change while it was frozen", "image")
}

// unwritten is how many MiB a pod writes into its page cache, and how many seconds their way to the disk takes with the limit.
const unwritten = 192

// unwrites has the pod do that.
func (l *limited) unwrites() {
	l.Helper()
	_, err := l.exec("image", fmt.Sprintf("dd if=/dev/zero of=/data/unwritten bs=1M count=%d status=none", unwritten))
	l.Must(err)
	out, err := l.on(node1, "awk", "/^(Dirty|Writeback):/ { n += $2 } END { print int(n / 1024) }", "/proc/meminfo")
	l.Must(err)
	var left int
	_, err = fmt.Sscan(out, &left)
	l.Must(err)
	if left < unwritten/2 {
		l.Fatalf("of %d MiB that the pod wrote, only %d are not on the disk yet", unwritten, left)
	}
}

// soon checks that a step does not wait for the limit.
func (l *limited) soon(what string, step func()) {
	l.Helper()
	l.unwrites()
	begin := time.Now()
	step()
	took := time.Since(begin)
	l.Logf("%s with %d MiB that are not on the disk: %.0f s", what, unwritten, took.Seconds())
	if took > unwritten*time.Second*4/5 {
		l.Errorf("%s took %v, as if it had waited for the limit", what, took)
	}
}

// waitsForNone copies, grows and unmounts the volume while much of what its pod wrote is not on the disk.
func (l *limited) waitsForNone() {
	l.Helper()
	l.soon("a copy", func() {
		l.Claim("copy", l.class, "320Mi", from("PersistentVolumeClaim", "image"))
		l.pod("copy", with("copy", "/data"), stays)
		l.volume("copy")
	})
	l.running("copy")
	l.limits["copy"] = oneMebibyte
	l.has("after the copy")
	l.says("copy", "stat -c %s /data/unwritten", fmt.Sprint(unwritten<<20))
	l.deleteWithClaims("copy")
	delete(l.limits, "copy")
	l.hasSoon("after the copy is deleted")

	// How long the kubelet takes to ask for a growth depends on its own loops.
	l.unwrites()
	l.grows("400Mi")
	l.hasSoon("after the growth")

	l.soon("an unmount", func() { l.deletePod("image") })
	delete(l.limits, "image")
	l.hasSoon("after the unmount")
	l.start("image", "image")
	l.holds("after the unmount, in a new pod", "image")
}

// grows has the claim `image` grow to a size.
func (l *limited) grows(size string) {
	l.Helper()
	l.ask("image", size)
	l.Eventually("claim image has "+size, harness.Patience, func() string {
		if has := l.TheClaim("image").Status.Capacity.Storage().String(); has != size {
			return has
		}
		return ""
	})
}

// liftedAll lifts all limits of the node, after which the volume is published only by the next driver.
func (l *limited) liftedAll() {
	l.Helper()
	l.liftAll()
	l.pod("late", with("image", "/data"), stays)
	l.event("Pod", "late", "code = FailedPrecondition", "restart the driver, which sets them again")
	l.has("after a pod was refused")
	l.driverRestarted(func() {})
	l.limits["image"] = oneMebibyte
	l.hasSoon("after a restart of the driver")
	l.running("late")
	l.holds("in the pod that had to wait", "late")
	l.deletePod("late")
}

// liftAll removes all limits of the node from the kernel.
func (l *limited) liftAll() {
	l.Helper()
	_, err := l.inDriver(node1, "volume", "limit", "--lift-all")
	l.Must(err)
	clear(l.limits)
	l.has("after --lift-all")
}

// ambiguous adds a second cgroup that may be that of pods, as a change of the kubelet's cgroup driver leaves one.
func (l *limited) ambiguous() {
	l.Helper()
	const other = "/sys/fs/cgroup/" + podsOfCgroupfs
	_, err := l.on(node1, "mkdir", other)
	l.Must(err)
	l.Claim("later", l.class, "64Mi", sentTo(node1))
	l.event("PersistentVolumeClaim", "later", "code = ResourceExhausted", "may both be the cgroup of pods")
	l.has("next to another cgroup of pods")
	_, err = l.on(node1, "rmdir", other)
	l.Must(err)
	l.start("later", "later")
	l.holds("next to another volume", "image")
	l.deleteWithClaims("later")
}

// fsyncs writes 4 KiB to the disk many times, and prints the time at the begin and the end of each.
const fsyncs = `i=0; while [ $i -lt 40 ]; do
	read a x </proc/uptime
	dd if=/dev/zero of=/data/file bs=4k count=1 conv=fsync,notrunc status=none || exit 1
	read b x </proc/uptime
	echo "$a $b"
	i=$((i + 1))
done`

// noise writes to the disk without end.
const noise = "while dd if=/dev/zero of=/data/noise bs=1M count=64 conv=fsync,notrunc status=none; do :; done; exit 1"

// latencies returns the median and the 95th percentile of the fsyncs of a pod, for people.
func (s *scenario) latencies(pod string) string {
	s.Helper()
	out, err := s.exec(pod, fsyncs)
	s.Must(err)
	var all []float64
	for line := range strings.Lines(out) {
		var begin, end float64
		_, err := fmt.Sscan(line, &begin, &end)
		s.Must(err)
		all = append(all, (end-begin)*1000)
	}
	return fmt.Sprintf("%.0f and %.0f ms", measure.Percentile(all, 50), measure.Percentile(all, 95))
}

// wrote returns how many MiB a device of the machine wrote, and the seconds since the start of the machine.
func (s *scenario) wrote(device string) (mebibytes, seconds float64) {
	s.Helper()
	out, err := s.on(node1, "awk", `FNR == 1 && FILENAME ~ /stat$/ { print $7 / 2048 } FILENAME ~ /uptime$/ { print $1 }`,
		"/sys/dev/block/"+device+"/stat", "/proc/uptime")
	s.Must(err)
	_, err = fmt.Sscan(out, &mebibytes, &seconds)
	s.Must(err)
	return mebibytes, seconds
}

// noisyNeighbour measures a pod on another volume of the disk, whose fsyncs depend too much on the emulation to be checked.
//
// Proves: IO1.
func noisyNeighbour(s *scenario) {
	defer s.onOneDisk()()
	s.Claim("quiet", imageClass, "64Mi")
	s.pod("quiet", with("quiet", "/data"), stays)
	s.running("quiet")
	s.took("quiet", written("file", 1))
	alone := s.latencies("quiet")

	l := s.limited()
	l.deletePod("image")
	l.start("image", "image", runs(noise))
	device := l.devices("image")[0]
	before, begin := l.wrote(device)
	slowed := l.latencies("quiet")
	after, end := l.wrote(device)
	rate := (after - before) / (end - begin)
	// The journal has no limit.
	if after-before > 1.5*(end-begin)+4 {
		l.Errorf("the noisy pod wrote %.1f MiB per second, and has 1 MiB", rate)
	}
	l.has("while a pod writes")

	l.limit("", "--read-bytes", "none", "--write-bytes", "none")
	before, begin = l.wrote(device)
	unlimited := l.latencies("quiet")
	after, end = l.wrote(device)
	s.Note = fmt.Sprintf("; p50 and p95 of an fsync of 4 KiB: %s alone, %s next to a pod that writes %.1f MiB per second with the limit, "+
		"%s next to %.1f MiB per second without", alone, slowed, rate, unlimited, (after-before)/(end-begin))
	s.deleteWithClaims("image", "quiet")
}

// Proves: IO1, IO4.
func limitsWithCgroupfs(s *scenario) {
	defer s.onOneDisk()()
	l := s.limited()
	l.device()
	l.cgroupDriver("cgroupfs", podsOfCgroupfs)
	l.atLeast("with cgroupfs", "device", "dd if=/dev/zero of=/dev/disk bs=4k count=100 oflag=direct status=none", 10)
	l.holds("with cgroupfs", "image")
	l.outlives()
	l.cgroupDriver("systemd", podsOfSystemd)
	l.holds("with systemd again", "image")
	l.deleteWithClaims("image", "device")
}

// cgroupDriver has the machine start, after a power cut, with this driver in the kubelet and in containerd, and waits for
// the pods.
func (l *limited) cgroupDriver(name, pods string) {
	l.Helper()
	_, err := l.on(node1, "sh", "-euc", fmt.Sprintf(`sed -i 's/^cgroupDriver: .*/cgroupDriver: %s/' /var/lib/kubelet/config.yaml
sed -i 's/SystemdCgroup = .*/SystemdCgroup = %t/' /etc/containerd/config.toml
sync`, name, name == "systemd"))
	l.Must(err)
	before := map[*ledger]string{}
	for claim := range l.limits {
		pod := &ledger{scenario: l.scenario, pod: claim}
		before[pod] = pod.container()
	}
	powerOff()
	l.powerOn()
	l.nodeReady()
	for pod, old := range before {
		l.Eventually("pod "+pod.pod+" has a new container", l.minutesAfterPowerCut(), func() string {
			if now := pod.container(); now == old || !pod.ready() {
				return now
			}
			return ""
		})
	}
	l.driverReady()
	out, err := l.on(node1, "sh", "-c", "cd /sys/fs/cgroup && ls -d *kubepods*")
	l.Must(err)
	if out != pods {
		l.Fatalf("the cgroups of pods are %q, and not %s", out, pods)
	}
	l.pods = pods
	l.has("after a start with " + name)
}

// limitsRolledBack needs a version that serves images and does not know limits of I/O.
//
// Proves: K20, IO6.
func limitsRolledBack(s *scenario) {
	if os.Getenv("PREVIOUS_COMMIT") == "" {
		s.Skip("PREVIOUS_COMMIT names no version without limits of I/O")
	}
	const archive = "/root/previous.tar"
	s.copied(node1, filepath.Join(os.Getenv("PARTS"), "images/previous.tar"), archive)
	_, err := s.on(node1, "ctr", "--namespace", "k8s.io", "images", "import", archive)
	s.Must(err)
	defer s.onOneDisk()()
	l := s.limited()
	l.says("image", "echo kept >/data/kept && sync /data/kept && cat /data/kept", "kept")
	life := (&ledger{scenario: s, pod: "image"}).container()

	l.liftAll()
	previous, _, _ := strings.Cut(previousImage, ":")
	sources := os.Getenv("PREVIOUS")
	_, err = s.shell("helm", "upgrade", "rootcellar", filepath.Join(sources, "deploy/chart"), "--namespace", harness.System,
		"--values", filepath.Join(sources, "deploy/presets/bare-metal.yaml"),
		"--set", "image.repository="+previous, "--set", "image.tag=previous", "--set", "image.digest=")
	s.Must(err)
	s.driverReady()
	s.runsPrevious(true)
	if now := (&ledger{scenario: s, pod: "image"}).container(); now != life {
		s.Errorf("the container is %s, and was %s", now, life)
	}
	l.deletePod("image")
	l.start("image", "image")
	clear(l.limits)
	l.has("with the version before limits")
	l.says("image", "cat /data/kept", "kept")
	l.grows("400Mi")
	l.recorded()

	_, err = s.shell("helm", "rollback", "rootcellar", "--namespace", harness.System)
	s.Must(err)
	s.driverReady()
	s.runsPrevious(false)
	l.limits["image"] = oneMebibyte
	l.hasSoon("with the version that knows limits again")
	l.holds("with the version that knows limits again", "image")
	l.says("image", "cat /data/kept", "kept")
	l.deleteWithClaims("image")
}

// recorded checks that the record of the claim `image` has its limits.
func (l *limited) recorded() {
	l.Helper()
	record := l.directory(node1, "disks/disk1", l.hash(l.volume("image"))) + "/volume.json"
	text, err := l.on(node1, "cat", record)
	l.Must(err)
	if !strings.Contains(text, `"io_limits"`) {
		l.Fatalf("the record has no limits:\n%s", text)
	}
}
