package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// Processes of a node, by the start of their command lines.
const (
	driverProcess      = "/rootcellar serve"
	provisionerProcess = "/csi-provisioner "
	kubeletProcess     = "kubelet "
)

// findProcess returns the process whose command line starts like this and whose directory in /proc is accepted, or 0. A
// child looks the same between fork and exec, so a process with such a parent is skipped.
func findProcess(start string, pleases func(directory string) bool) int {
	directories, _ := filepath.Glob("/proc/[0-9]*")
	for _, directory := range directories {
		if strings.HasPrefix(commandLine(directory), start) && pleases(directory) &&
			!strings.HasPrefix(commandLine(parent(directory)), start) {
			pid, _ := strconv.Atoi(filepath.Base(directory))
			return pid
		}
	}
	return 0
}

// commandLine returns the command line of a directory in /proc, with a space after every word. A process that ended has
// none.
func commandLine(directory string) string {
	line, _ := os.ReadFile(directory + "/cmdline")
	return strings.ReplaceAll(string(line), "\x00", " ")
}

// parent returns the directory in /proc of a process's parent.
func parent(directory string) string {
	status, _ := os.ReadFile(directory + "/status")
	_, rest, _ := strings.Cut(string(status), "\nPPid:\t")
	pid, _, _ := strings.Cut(rest, "\n")
	return "/proc/" + pid
}

// processOf returns the node's process whose command line starts like this, or 0.
func processOf(n node, start string) int {
	return findProcess(start, func(directory string) bool {
		environment, _ := os.ReadFile(directory + "/environ")
		for variable := range bytes.SplitSeq(environment, []byte{0}) {
			// The environment of a node's processes contains the node's name.
			if string(variable) == "NODE="+n.name || string(variable) == "NODE_NAME="+n.name {
				return true
			}
		}
		return false
	})
}

// kill kills a process of the node with SIGKILL.
func (s *scenario) kill(n node, start string) {
	s.Helper()
	pid := processOf(n, start)
	if pid == 0 {
		s.Fatalf("no process %q on %s", start, n.name)
	}
	s.Must(syscall.Kill(pid, syscall.SIGKILL))
}

// page returns the status page of a node's driver.
func (s *scenario) page(n node, path string) (string, error) {
	ctx, cancel := context.WithTimeout(s.ctx(), 10*time.Second)
	defer cancel()
	address := "http://" + s.driverPod(n).Status.PodIP + ":9808" + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// poolIs waits until the driver's page and its metrics report a pool as healthy, or as unavailable for this reason.
func (s *scenario) poolIs(n node, pool, state string) {
	s.Helper()
	metric := "rootcellar_pool_healthy" + labels(pool) + " 0\n"
	if state == "healthy" {
		metric = strings.Replace(metric, "} 0", "} 1", 1)
	}
	s.Eventually(fmt.Sprintf("pool %s is %s on %s", pool, state, n.name), harness.Patience, func() string {
		ready, err := s.page(n, "/readyz")
		if err != nil {
			return err.Error()
		}
		metrics, err := s.page(n, "/metrics")
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(ready, "pool "+pool+": "+state) || !strings.Contains(metrics, metric) {
			return ready
		}
		return ""
	})
}

// freeSpace waits until the scheduler sees free space for a class on the node, and returns it.
func (s *scenario) freeSpace(n node, class string) int64 {
	s.Helper()
	var free int64
	s.Eventually("there is free space on "+n.name, harness.Patience, func() string {
		if free, _ = s.capacity(n, class); free > 0 {
			return ""
		}
		return "none"
	})
	return free
}

// freeSpaceEverywhere waits until the scheduler sees free space for a class on every node.
func (s *scenario) freeSpaceEverywhere(class string) {
	s.Helper()
	for _, n := range nodes() {
		s.freeSpace(n, class)
	}
}

// sentTo chooses the claim's node as a scheduler does, without a check of the node.
func sentTo(n node) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": n.name}
	}
}

// workers returns this many names.
func workers(count int) []string {
	var names []string
	for i := range count {
		names = append(names, fmt.Sprint("worker", i))
	}
	return names
}

// worker creates a claim and a pod with the same name.
func (s *scenario) worker(name, class string, changes ...func(*corev1.Pod)) {
	s.Helper()
	s.Claim(name, class, "25Mi")
	s.pod(name, append([]func(*corev1.Pod){with(name, "/data")}, changes...)...)
}

// dismiss deletes a pod and the claim of its name, and does not wait.
func (s *scenario) dismiss(name string) {
	s.Helper()
	s.Must(harness.Client.CoreV1().Pods(s.Namespace).Delete(s.ctx(), name, metav1.DeleteOptions{}))
	s.Must(harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(s.ctx(), name, metav1.DeleteOptions{}))
}

// volumes returns the PersistentVolumes of the scenario's claims.
func (s *scenario) volumes() []corev1.PersistentVolume {
	s.Helper()
	list, err := harness.Client.CoreV1().PersistentVolumes().List(s.ctx(), metav1.ListOptions{})
	s.Must(err)
	var found []corev1.PersistentVolume
	for _, volume := range list.Items {
		if volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.Namespace == s.Namespace {
			found = append(found, volume)
		}
	}
	return found
}

// mountLines returns the lines of the node's mount table that contain the text.
func (s *scenario) mountLines(n node, text string) string {
	s.Helper()
	table, err := os.ReadFile("/proc/" + n.pid + "/mountinfo")
	s.Must(err)
	var found []string
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

// present returns the pools whose disks are on the node, by disks.sh. The pool `late` has its disk only while it is
// mounted.
func present(n node) []string {
	pools := []string{"default"}
	for _, pool := range []string{"fast", "quota", "kept", "reflink", "late"} {
		if _, err := os.Stat(n.path(poolPath(pool) + "/volumes")); err == nil {
			pools = append(pools, pool)
		}
	}
	return append(pools, membersOn(n)...)
}

// membersOn returns the members of the pool set `set` whose disks are mounted on the node.
func membersOn(n node) []string {
	paths, _ := filepath.Glob(n.path(poolPath("set/*/volumes")))
	var members []string
	for _, path := range paths {
		members = append(members, "set/"+filepath.Base(filepath.Dir(path)))
	}
	return members
}

// nothingLeft waits until no object, directory or mount of the scenario's volumes is left.
func (s *scenario) nothingLeft() {
	s.Helper()
	s.Eventually("nothing is left of the volumes", harness.Patience, func() string {
		if volumes := s.volumes(); len(volumes) > 0 {
			return fmt.Sprintf("%d PersistentVolumes, the first %s: %+v", len(volumes), volumes[0].Name, volumes[0].Status)
		}
		for _, n := range nodes() {
			// A volume's mount shows the volume's directory, whose name starts with the namespace.
			if mounts := s.mountLines(n, s.Namespace+"_"); mounts != "" {
				return n.name + ": " + mounts
			}
			for _, pool := range present(n) {
				if left := s.directories(n, pool, s.Namespace+"_"); len(left) > 0 {
					return fmt.Sprint(n.name, ": ", left)
				}
				if left := s.snapshotsOnDisk(n, pool); len(left) > 0 {
					return fmt.Sprint(n.name, ": ", left)
				}
			}
		}
		return ""
	})
	for _, n := range nodes() {
		for _, pool := range present(n) {
			s.trashEmpty(n, pool)
			s.stagingEnds(n, pool)
		}
	}
}

// stagingEnds waits until everything that is in the staging of a pool has left it. Its names are random, so objects of
// scenarios that run at the same time may be among them; those that begin meanwhile do not count.
func (s *scenario) stagingEnds(n node, pool string) {
	s.Helper()
	begun, err := os.ReadDir(n.path(poolPath(pool) + "/.rootcellar/staging"))
	s.Must(err)
	s.Eventually("the objects in staging of pool "+pool+" on "+n.name+" are finished", harness.Patience, func() string {
		var left []string
		for _, entry := range begun {
			_, err := os.Lstat(n.path(poolPath(pool) + "/.rootcellar/staging/" + entry.Name()))
			if !errors.Is(err, fs.ErrNotExist) {
				left = append(left, entry.Name())
			}
		}
		return strings.Join(left, ", ")
	})
}
