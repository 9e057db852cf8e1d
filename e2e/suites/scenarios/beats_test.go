package scenarios

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// beat writes a sequence number and the seconds since boot ten times a second, syncs each, and ends at the first error.
const beat = `i=0; while i=$((i+1)); read now idle </proc/uptime && echo "$i $now" >>/data/beats && sync /data/beats
do usleep 100000; done; exit 1`

// silence is the longest pause of a pod that writes. A busy machine pauses for seconds; a lost mount is never written
// again.
const silence = 20 * time.Second

// beating is a pod that writes to its volume all the time.
type beating struct {
	*scenario
	pod  string
	home node
	// file is the file as the pod sees it, without kubelet, and with or without the disk at its path.
	file string
	life string
}

// beats starts a pod that writes, on a node.
func (s *scenario) beats(name, class string, n node) *beating {
	s.Helper()
	s.worker(name, class, at(n), runs(beat), func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever })
	uid := string(s.running(name).UID)
	// The cgroup of a pod's process has the pod's uid in its name.
	var pid int
	// A container is running before its process has the command line.
	s.Eventually("pod "+name+" has its process", harness.Patience, func() string {
		pid = findProcess("/bin/sh -c i=0", func(directory string) bool {
			groups, _ := os.ReadFile(directory + "/cgroup")
			return strings.Contains(string(groups), uid)
		})
		if pid == 0 {
			return "no process"
		}
		return ""
	})
	b := &beating{scenario: s, pod: name, home: n, file: fmt.Sprintf("/proc/%d/root/data/beats", pid)}
	b.life = b.identity()
	// The process may exist before its first beat.
	s.Eventually("pod "+name+" begins to write", harness.Patience, func() string {
		if _, err := os.Stat(b.file); err != nil {
			return err.Error()
		}
		return ""
	})
	b.goesOn()
	return b
}

// identity changes when the pod, its container or one of its mounts is created again.
func (b *beating) identity() string {
	b.Helper()
	pod, err := harness.Client.CoreV1().Pods(b.Namespace).Get(b.ctx(), b.pod, metav1.GetOptions{})
	b.Must(err)
	status := pod.Status.ContainerStatuses[0]
	return fmt.Sprintf("%s %s, started %d times, %+v\n%s", pod.Status.Phase, status.ContainerID, status.RestartCount+1,
		status.State, b.mountLines(b.home, string(pod.UID)))
}

// count returns the number of beats. It fails if one is missing or a pause exceeds the limit.
func (b *beating) count() int {
	b.Helper()
	text, err := os.ReadFile(b.file)
	b.Must(err)
	return b.check(string(text))
}

func (b *beating) check(text string) int {
	b.Helper()
	// The last line may be incomplete.
	lines := strings.Split(text, "\n")
	lines = lines[:len(lines)-1]
	var last float64
	for i, line := range lines {
		number, seconds, _ := strings.Cut(line, " ")
		now, err := strconv.ParseFloat(seconds, 64)
		if err != nil || number != strconv.Itoa(i+1) {
			b.Fatalf("%s: line %d of the beats is %q", b.pod, i+1, line)
		}
		if quiet := time.Duration((now - last) * float64(time.Second)); i > 0 && quiet > silence {
			b.Fatalf("%s wrote nothing for %v", b.pod, quiet)
		}
		last = now
	}
	return len(lines)
}

// goesOn checks that the same container still writes through the same mount.
func (b *beating) goesOn() {
	b.Helper()
	before := b.count()
	b.Eventually(b.pod+" writes on", silence, func() string {
		if count := b.count(); count < before+10 {
			return fmt.Sprintf("%d beats, %d before", count, before)
		}
		return ""
	})
	b.unchanged()
}

// unchanged checks that pod, container and mounts are the same as at the start.
func (b *beating) unchanged() {
	b.Helper()
	if life := b.identity(); life != b.life {
		b.Fatalf("%s is now\n%s\nand was\n%s", b.pod, life, b.life)
	}
}
