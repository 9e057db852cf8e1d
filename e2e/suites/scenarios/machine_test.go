package scenarios

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// onMachine need a node that is a machine, and run in this order.
var onMachine = []entry{
	{"a machine with systemd, cgroup v2 and Debian's containerd follows the README's quick start", quickStartOnMachine},
	{"the blocks of docs/install.md give a machine an XFS, an ext4 and a btrfs, whose sizes are enforced, and images", disksOfMachine},
	{"systemd starts a killed kubelet again: pods write on, and pods made and deleted right after are served", kubeletOfSystemd},
	{"a disk of a set is unplugged while pods write, and serves when it is plugged in, as docs/disks.md has it", diskUnplugged},
	{"a volume's limit of I/O holds over all its pods, through daemon-reload and restarts, and no pod gets around it", limitHolds},
	{"a limit of I/O is changed also on a frozen volume, delays no copy, growth or unmount, and is lifted for a rollback", limitChanges},
	{"a pod that writes all the time with a limit of I/O, next to the fsyncs of another pod on its disk", noisyNeighbour},
	{"limits of I/O hold with the kubelet's driver cgroupfs too, and are there after each power cut", limitsWithCgroupfs},
	{"a version before limits of I/O serves a volume with limits, which are back with the newer one", limitsRolledBack},
	{"a machine loses its power five times: all comes back by itself, with every acknowledged write", powerCuts},
}

// TestMachine runs on an emulated machine.
func TestMachine(t *testing.T) {
	t.Cleanup(harness.Count)
	s := &scenario{harness.In(t, metav1.NamespaceDefault)}
	t.Cleanup(powerOff)
	s.powerOn()
	s.nodeReady()
	for _, entry := range onMachine {
		ready := !t.Failed()
		t.Run(entry.title, func(t *testing.T) {
			if !ready {
				entry.run = func(s *scenario) { s.Skip("the one before failed") }
			}
			play(t, entry)
		})
	}
}

// power is the process that runs the machine.
var power *exec.Cmd

// powerOn switches the machine on.
func (s *scenario) powerOn() {
	s.Helper()
	log, err := os.OpenFile(filepath.Join(harness.Run, "log/machine"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	s.Must(err)
	defer log.Close()
	power = exec.Command(filepath.Join(harness.Root, "e2e/suites/machine/power.sh"))
	power.Stdout, power.Stderr = log, log
	s.Must(power.Start())
}

// powerOff cuts its power.
func powerOff() {
	text, _ := os.ReadFile(ofMachine("pid"))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = os.Remove(ofMachine("pid"))
	_ = power.Wait()
}

func ofMachine(file string) string { return filepath.Join(harness.Run, "machine", file) }

// bootID changes with every start of the machine.
func (s *scenario) bootID() (string, error) {
	return s.on(node1, "cat", "/proc/sys/kernel/random/boot_id")
}

// nodeReady waits until the kubelet of a new start reports the machine.
func (s *scenario) nodeReady() {
	s.Helper()
	var boot string
	s.Eventually("the machine answers", harness.Patience, func() string {
		var err error
		if boot, err = s.bootID(); err != nil {
			return err.Error()
		}
		return ""
	})
	s.Eventually("the machine is a node that is Ready", harness.Patience, func() string {
		found, err := harness.Client.CoreV1().Nodes().Get(s.ctx(), node1.name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if found.Status.NodeInfo.BootID != boot {
			return "the node is of an earlier start"
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return condition.Message
			}
		}
		return ""
	})
}

// qemu sends a command to the monitor of the machine.
func (s *scenario) qemu(command string, arguments map[string]any) {
	s.Helper()
	monitor, err := net.Dial("unix", ofMachine("monitor"))
	s.Must(err)
	defer monitor.Close()
	s.Must(monitor.SetDeadline(time.Now().Add(harness.Patience)))
	replies := json.NewDecoder(monitor)
	for _, request := range []map[string]any{{"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}} {
		s.Must(json.NewEncoder(monitor).Encode(request))
		for {
			var reply struct{ Return, Error json.RawMessage }
			s.Must(replies.Decode(&reply))
			if reply.Error != nil {
				s.Fatalf("%s: %s", command, reply.Error)
			}
			// The others are the greeting and events.
			if reply.Return != nil {
				break
			}
		}
	}
}

// stays keeps a pod on its node while that is away.
func stays(pod *corev1.Pod) {
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
}

// entries writes numbers, each synced before it is printed. A start prints how many there are, without the last one if it
// is incomplete.
const entries = `file=/data/entries; touch $file
n=$(awk 'NR != $1 { exit } { n = NR } END { print n + 0 }' $file)
head -n $n $file >$file.new && sync $file.new && mv $file.new $file && sync /data && echo "recovered $n" || exit 1
while n=$((n+1)); do echo $n >>$file && sync $file || exit 1; echo "acknowledged $n"; usleep 200000; done`

// ledger is a pod with such entries.
type ledger struct {
	*scenario
	pod string
	// disk is the member of the set that has its volume.
	disk string
	logs *exec.Cmd
	// ended is closed when all of the output is read.
	ended chan struct{}

	lock sync.Mutex
	// last has the last number of each word that the present container printed.
	last map[string]int
}

// entries creates a claim and starts such a pod on it.
func (s *scenario) entries(name, class string) {
	s.Helper()
	s.Claim(name, class, sizeOnMachine)
	s.writer(name)
}

// writer starts the pod on a claim.
func (s *scenario) writer(name string) {
	s.Helper()
	s.pod(name, with(name, "/data"), runs(entries), stays)
}

// ledger waits for such a pod, and follows its output, which only this machine keeps.
func (s *scenario) ledger(name string) *ledger {
	s.Helper()
	s.running(name)
	l := &ledger{scenario: s, pod: name, disk: s.volume(name).Spec.CSI.VolumeAttributes["member"]}
	l.follow()
	l.goesOn(0)
	return l
}

// follow reads the output of the present container until it ends.
func (l *ledger) follow() {
	l.Helper()
	l.lock.Lock()
	l.last = map[string]int{}
	l.lock.Unlock()
	l.logs = exec.CommandContext(l.ctx(), "kubectl", "--namespace", l.Namespace, "logs", "--follow", l.pod)
	output, err := l.logs.StdoutPipe()
	l.Must(err)
	l.Must(l.logs.Start())
	l.ended = make(chan struct{})
	go func() {
		defer close(l.ended)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			word, number, _ := strings.Cut(lines.Text(), " ")
			if n, err := strconv.Atoi(number); err == nil {
				l.lock.Lock()
				l.last[word] = n
				l.lock.Unlock()
			}
		}
	}()
}

// unfollow ends that, and returns the last number that was acknowledged.
func (l *ledger) unfollow() int {
	_ = l.logs.Process.Kill()
	<-l.ended
	_ = l.logs.Wait()
	return l.acknowledged()
}

func (l *ledger) acknowledged() int { return l.printed("acknowledged") }

// recovered is the number that the present container found at its start.
func (l *ledger) recovered() int { return l.printed("recovered") }

func (l *ledger) printed(word string) int {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.last[word]
}

// goesOn waits until ten numbers after this one are acknowledged.
func (l *ledger) goesOn(before int) {
	l.Helper()
	l.Eventually(l.pod+" writes on", harness.Patience, func() string {
		if now := l.acknowledged(); now < before+10 {
			return fmt.Sprintf("%d numbers, %d before", now, before)
		}
		return ""
	})
}

// status is that of the pod's container.
func (l *ledger) status() corev1.ContainerStatus {
	l.Helper()
	pod, err := harness.Client.CoreV1().Pods(l.Namespace).Get(l.ctx(), l.pod, metav1.GetOptions{})
	l.Must(err)
	return pod.Status.ContainerStatuses[0]
}

// container identifies the container of the pod.
func (l *ledger) container() string { return l.status().ContainerID }

func (l *ledger) ready() bool { return l.status().Ready }

// Proves: K1.
func quickStartOnMachine(s *scenario) {
	out, err := s.on(node1, "sh", "-euc", `systemctl is-system-running --wait || systemctl --failed
stat -fc %T /sys/fs/cgroup; uname -r; containerd --version; systemd-analyze time`)
	s.Must(err)
	s.Log(out)
	for _, want := range []string{"running\n", "cgroup2fs\n", "containerd github.com/containerd/containerd 1.7"} {
		if !strings.Contains(out, want) {
			s.Errorf("the machine does not have %q", want)
		}
	}
	quickStart(s)
}

// disksOf are the disks of the machine, each with its block of docs/install.md.
var disksOf = map[string]string{"disk1": "xfs", "disk2": "ext4", "disk3": "btrfs"}

// imageClass is the class of images on these disks.
const imageClass = "machine-image"

// sizeOnMachine is larger than the differences between the disks, so that each gets a volume.
const sizeOnMachine = "256Mi"

// onEachKind are claims that end on each disk as a directory, and on one as an image.
var onEachKind = []string{"one", "two", "three", "image"}

// onEach creates these claims and their pods.
func (s *scenario) onEach(create func(name, class string)) {
	s.Helper()
	directories := onEachKind[:3]
	for _, name := range directories {
		create(name, "rootcellar")
	}
	// The image takes a disk only after them.
	for _, name := range directories {
		s.volume(name)
	}
	create("image", imageClass)
}

// disksOfMachine leaves the driver installed.
//
// Proves: S2, S5.
func disksOfMachine(s *scenario) {
	for disk, filesystem := range disksOf {
		_, err := s.on(node1, "sh", "-euc", "DISK=/dev/disk/by-id/virtio-"+disk+" POOL=disks/"+disk+"\n"+s.diskBlock(filesystem))
		s.Must(err)
	}
	_, err := s.on(node1, "sh", "-euc", s.diskBlock("systemd"))
	s.Must(err)
	s.publish()
	s.installedBy("The driver", "The pools")
	s.driverReady()
	s.stockRegistrar()
	s.Apply(`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: ` + imageClass + `}, provisioner: ` + harness.Driver + `,
volumeBindingMode: WaitForFirstConsumer, parameters: {pool: disks, kind: image}}`)

	filled := map[string]int{}
	s.onEach(func(name, class string) {
		s.Claim(name, class, sizeOnMachine)
		s.pod(name, with(name, "/data"))
	})
	for _, name := range onEachKind {
		s.running(name)
		disk, message := s.volume(name).Spec.CSI.VolumeAttributes["member"], overQuota
		// A full image is a full filesystem, and XFS reports its quota like one.
		if name == "image" || disksOf[disk] == "xfs" {
			message = "No space left on device"
		}
		filled[name+" on "+disk] = s.fill(name, message)
	}
	s.Log(filled)
	for name, size := range filled {
		least := 250
		if strings.HasPrefix(name, "image") {
			// A filesystem has its own trees and its journal in the image.
			least = 200
		}
		if size < least || size > 256 {
			s.Errorf("%s was refused after %d MiB", name, size)
		}
	}
	for disk := range disksOf {
		if !regexp.MustCompile("(one|two|three) on " + disk).MatchString(fmt.Sprint(filled)) {
			s.Errorf("no directory is on %s: %v", disk, filled)
		}
	}
	s.deleteWithClaims(onEachKind...)
}

// stockRegistrar compares the program of the registrar with REGISTRAR.
func (s *scenario) stockRegistrar() {
	s.Helper()
	stock := os.Getenv("REGISTRAR")
	if stock == "" {
		return
	}
	want, err := s.shell("sha256sum", stock)
	s.Must(err)
	got, err := s.on(node1, "sh", "-c", "sha256sum /proc/$(pgrep -x registrar)/exe")
	s.Must(err)
	if strings.Fields(got)[0] != strings.Fields(want)[0] {
		s.Fatalf("the registrar is %s, and not %s", got, want)
	}
}

// onEachDisk starts a ledger on a directory of each disk, and one on an image.
func (s *scenario) onEachDisk() map[string]*ledger {
	s.Helper()
	s.onEach(s.entries)
	ledgers := map[string]*ledger{}
	for _, name := range onEachKind {
		l := s.ledger(name)
		if name == "image" {
			ledgers[name] = l
		} else {
			ledgers[l.disk] = l
		}
	}
	if len(ledgers) != len(onEachKind) {
		s.Fatalf("two of the ledgers are on one disk: %v", ledgers)
	}
	return ledgers
}

// Proves: K19.
func kubeletOfSystemd(s *scenario) {
	s.entries("ledger", "rootcellar")
	l := s.ledger("ledger")
	before := l.container()
	s.worker("old", "rootcellar")
	s.running("old")
	volume := s.volume("old").Name
	main := func() string {
		out, err := s.on(node1, "systemctl", "show", "--property=MainPID", "--value", "kubelet")
		s.Must(err)
		return out
	}
	pid := main()
	_, err := s.on(node1, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", "kubelet")
	s.Must(err)
	s.dismiss("old")
	s.worker("new", "rootcellar")
	s.running("new")
	if now := main(); now == pid || now == "0" {
		s.Errorf("kubelet's process is %s, and was %s", now, pid)
	}
	s.volumeGone(volume)
	// The output came through the killed kubelet.
	last := l.unfollow()
	l.follow()
	l.goesOn(last)
	if now := l.container(); now != before {
		s.Errorf("the container is %s, and was %s", now, before)
	}
	l.unfollow()
	s.deleteWithClaims("new", "ledger")
}

// Proves: PS4, DK1.
func diskUnplugged(s *scenario) {
	const disk = "disk1"
	ledgers := s.onEachDisk()
	s.qemu("device_del", map[string]any{"id": disk})
	s.Eventually("the pool is unavailable", harness.Patience, func() string {
		if out, err := s.inDriver(node1, "pool", "list"); err == nil || !strings.Contains(err.Error(), "disks/"+disk+": nothing is mounted at its path") {
			return fmt.Sprint(out, err)
		}
		return ""
	})
	last := map[*ledger]int{}
	for _, l := range ledgers {
		if l.disk == disk {
			last[l] = l.unfollow()
		} else {
			l.goesOn(l.acknowledged())
		}
	}

	s.qemu("device_add", map[string]any{"driver": "virtio-blk-pci", "drive": "file1", "serial": disk, "id": disk, "bus": "pull1"})
	s.Eventually("the kernel has the disk", harness.Patience, func() string {
		if out, err := s.on(node1, "test", "-b", "/dev/disk/by-id/virtio-"+disk); err != nil {
			return out
		}
		return ""
	})
	p := s.follow("Plug a disk in again", "POOL=disks/"+disk)
	_, mount := p.next("mount")
	if out, err := p.run("node", mount); err == nil {
		s.Errorf("the disk was mounted beside its lost filesystem: %s", out)
	}
	for l := range last {
		s.deletePod(l.pod)
	}
	_, err := p.run("node", mount)
	s.Must(err)
	p.done()
	for l, acknowledged := range last {
		s.writer(l.pod)
		again := s.ledger(l.pod)
		if recovered := again.recovered(); recovered < acknowledged {
			s.Errorf("%s recovered %d of %d acknowledged numbers", l.pod, recovered, acknowledged)
		}
	}
	s.deleteWithClaims(onEachKind...)
}

// Proves: D1, C2.
func powerCuts(s *scenario) {
	ledgers := s.onEachDisk()
	limit := s.minutesAfterPowerCut()
	var longest time.Duration
	for cut := range 5 {
		name := fmt.Sprint("new-", cut)
		s.worker(name, "rootcellar", stays)
		s.writeUnflushed()
		// At any step of its volume and its pod.
		time.Sleep(rand.N(10 * time.Second))
		containers, acknowledged := map[string]string{}, map[string]int{}
		for disk, l := range ledgers {
			containers[disk] = l.container()
		}
		powerOff()
		s.lostUnflushed()
		begin := time.Now()
		for disk, l := range ledgers {
			acknowledged[disk] = l.unfollow()
		}
		s.powerOn()
		s.nodeReady()
		for disk, l := range ledgers {
			s.Eventually("pod "+l.pod+" has a new container", limit-time.Since(begin), func() string {
				if now := l.container(); now == containers[disk] || !l.ready() {
					return now
				}
				return ""
			})
			l.follow()
			l.goesOn(acknowledged[disk])
			if recovered := l.recovered(); recovered < acknowledged[disk] {
				s.Errorf("cut %d: the pod on %s recovered %d of %d acknowledged numbers", cut+1, disk, recovered, acknowledged[disk])
			}
		}
		s.driverReady()
		s.running(name)
		took := time.Since(begin).Round(time.Second)
		longest = max(longest, took)
		s.Logf("cut %d: %v were acknowledged, and all was back after %v", cut+1, acknowledged, took)
	}
	s.Note = fmt.Sprintf("; within %v", longest)
	if longest > limit {
		s.Errorf("all was back after %v, and the page says %v", longest, limit)
	}
	out, err := s.inDriver(node1, "check")
	if err != nil {
		s.Errorf("check: %v", err)
	}
	s.Log(out)
}

// minutesAfterPowerCut is the time that docs/nodes.md names.
func (s *scenario) minutesAfterPowerCut() time.Duration {
	s.Helper()
	const heading = "Drain or restart a node"
	found := regexp.MustCompile(`takes up to (\d+) minutes`).FindStringSubmatch(s.section(s.manual(heading), heading))
	if found == nil {
		s.Fatalf("%s names no time", s.manual(heading))
	}
	minutes, err := strconv.Atoi(found[1])
	s.Must(err)
	return time.Duration(minutes) * time.Minute
}

// writeUnflushed writes to a disk that nothing flushes, to see that a power cut loses such writes.
func (s *scenario) writeUnflushed() {
	s.Helper()
	_, err := s.on(node1, "dd", "if=/dev/urandom", "of=/dev/disk/by-id/virtio-disk4", "bs=4096", "count=1", "oflag=direct", "status=none")
	s.Must(err)
}

func (s *scenario) lostUnflushed() {
	s.Helper()
	out, err := s.shell("qemu-img", "map", "--output=json", ofMachine("disk4.now"))
	s.Must(err)
	if strings.Contains(out, `"data": true`) {
		s.Errorf("the power cut lost nothing: %s", out)
	}
}
