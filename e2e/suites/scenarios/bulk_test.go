package scenarios

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var bulk = []entry{
	{"50 claims and pods at once, made and deleted", manyAtOnce},
}

// Proves: K19.
func manyAtOnce(s *scenario) {
	const count = 50
	start := time.Now()
	names := workers(count)
	for i, name := range names {
		s.worker(name, "rootcellar", at(nodes()[i%2]))
	}
	var pods []*corev1.Pod
	for _, name := range names {
		pods = append(pods, s.running(name))
	}
	s.Note = fmt.Sprintf(": %d pods Running after %.0f s", count, time.Since(start).Seconds())
	s.oneVolumeEach(names)
	for i, name := range names {
		s.says(name, fmt.Sprintf("echo %d > /data/file && cat /data/file", i), fmt.Sprint(i))
	}

	start = time.Now()
	for _, name := range names {
		s.dismiss(name)
	}
	s.nothingLeft()
	for i, pod := range pods {
		s.kubeletForgets(nodes()[i%2], pod)
	}
	s.Note += fmt.Sprintf(", gone after %.0f s", time.Since(start).Seconds())
}

// kubeletForgets waits until kubelet has removed its directory of the pod. Kubelet removes only an empty one.
func (s *scenario) kubeletForgets(n node, pod *corev1.Pod) {
	s.Helper()
	directory := n.path(filepath.Join(os.Getenv("KUBELET_DIR"), "pods", string(pod.UID)))
	s.Eventually("kubelet forgets "+pod.Name, harness.Patience, func() string {
		if _, err := os.Stat(directory); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Sprint(directory, " ", err)
		}
		return ""
	})
}
