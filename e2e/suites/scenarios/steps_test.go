// Package scenarios tests the statements of the README and docs/semantics.md on a real Kubernetes.
//
// cluster.sh starts the cluster. main_test.go lists the scenarios, and the other files contain them.
package scenarios

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// target is the build directory.
var target = os.Getenv("CARGO_TARGET_DIR")

// scenario adds the nodes, their driver and pods that run.
type scenario struct{ *harness.Scenario }

// ctx ends with the test.
func (s *scenario) ctx() context.Context { return s.Context() }

// shell runs a command and returns its output, errors included.
func (s *scenario) shell(name string, arguments ...string) (string, error) {
	return harness.Command(s.ctx(), name, arguments...)
}

// gone waits until an object is not found.
func (s *scenario) gone(what string, get func() error) {
	s.Helper()
	s.Eventually(what+" is gone", harness.Patience, func() string {
		err := get()
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprint("still there ", err)
	})
}

// exec runs a shell line in a pod's first container.
func (s *scenario) exec(pod, line string) (string, error) {
	return s.shell("kubectl", "--namespace", s.Namespace, "exec", pod, "--", "/bin/sh", "-c", line)
}

// says checks that a shell line succeeds and prints exactly this.
func (s *scenario) says(pod, line, want string) {
	s.Helper()
	got, err := s.exec(pod, line)
	s.Must(err)
	if got != want {
		s.Fatalf("%s: %s: %q, not %q", pod, line, got, want)
	}
}

// refused checks that a shell line fails with this message.
func (s *scenario) refused(pod, line, text string) {
	s.Helper()
	out, err := s.exec(pod, line)
	if err == nil || !strings.Contains(out, text) {
		s.Fatalf("%s: %s: %v %q, and not %q", pod, line, err, out, text)
	}
}

// event waits for an event on an object whose message contains every one of the texts.
func (s *scenario) event(kind, name string, texts ...string) {
	s.Helper()
	namespace := s.Namespace
	if kind == "PersistentVolume" {
		// Events of objects without a namespace are in this one.
		namespace = metav1.NamespaceDefault
	}
	s.Eventually(fmt.Sprintf("an event on %s %s that says %q", kind, name, texts), harness.Patience, func() string {
		events, err := harness.Client.CoreV1().Events(namespace).List(s.ctx(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var seen bytes.Buffer
		for _, event := range events.Items {
			if event.InvolvedObject.Kind != kind || event.InvolvedObject.Name != name {
				continue
			}
			if holdsAll(event.Message, texts) {
				return ""
			}
			fmt.Fprintf(&seen, "\n  %s: %s", event.Reason, event.Message)
		}
		return "seen:" + seen.String()
	})
}

func holdsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// node is one of the cluster's nodes: the namespaces of a process, or, without one, a machine that ssh reaches.
type node struct{ name, pid string }

// machines says whether the only node, node1, is a machine.
var machines = os.Getenv("MACHINES") != ""

func nodeNamed(name string) node {
	if machines {
		return node{name: name}
	}
	pid, err := os.ReadFile(filepath.Join(harness.Run, name+".pid"))
	if err != nil {
		panic(err)
	}
	return node{name, strings.TrimSpace(string(pid))}
}

var node1, node2 = nodeNamed("node1"), nodeNamed("node2")

func nodes() []node {
	if machines {
		return []node{node1}
	}
	return []node{node1, node2}
}

// other returns the other node.
func (n node) other() node {
	if n == node1 {
		return node2
	}
	return node1
}

// path returns the path of a node's file in this process's view, which has none of a machine's.
func (n node) path(path string) string { return "/proc/" + n.pid + "/root" + path }

// containerd returns the address of the node's container runtime.
func (n node) containerd() string {
	if machines {
		return "/run/containerd/containerd.sock"
	}
	return filepath.Join(harness.Run, n.name, "containerd.sock")
}

// enter returns a command that runs these words on the node.
func (n node) enter(words ...string) []string {
	if !machines {
		return append([]string{"nsenter", "-t", n.pid, "-m", "-n", "-u", "-p", "--"}, words...)
	}
	line := ""
	for _, word := range words {
		// The shell there splits the line again.
		line += " '" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return []string{"ssh", "-F", filepath.Join(harness.Run, "machine/ssh"), n.name, line}
}

// on runs a command on the node.
func (s *scenario) on(n node, name string, arguments ...string) (string, error) {
	words := n.enter(append([]string{name}, arguments...)...)
	return s.shell(words[0], words[1:]...)
}

// copied copies a file to a path of the node, which may be a machine without the files of this one.
func (s *scenario) copied(n node, file, path string) {
	s.Helper()
	source, err := os.Open(file)
	s.Must(err)
	defer source.Close()
	words := n.enter("sh", "-euc", "mkdir -p "+filepath.Dir(path)+"; cat >"+path)
	command := exec.CommandContext(s.ctx(), words[0], words[1:]...)
	command.Stdin = source
	if out, err := command.CombinedOutput(); err != nil {
		s.Fatalf("%s on %s: %v: %s", path, n.name, err, out)
	}
}

// list returns the names in a directory of a node.
func (s *scenario) list(n node, path string) ([]string, error) {
	out, err := s.on(n, "ls", "-A", path)
	return strings.Fields(out), err
}

// driverPod returns the driver's pod on a node.
func (s *scenario) driverPod(n node) corev1.Pod {
	s.Helper()
	pods, err := harness.Client.CoreV1().Pods(harness.System).List(s.ctx(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=rootcellar",
		FieldSelector: "spec.nodeName=" + n.name,
	})
	s.Must(err)
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			return pod
		}
	}
	s.Fatalf("no pod of the driver on %s", n.name)
	return corev1.Pod{}
}

// inDriver runs the driver's binary in its pod, and returns its output. `pool list` fails if a pool is unavailable.
func (s *scenario) inDriver(n node, arguments ...string) (string, error) {
	s.Helper()
	exec := []string{"--namespace", harness.System, "exec", s.driverPod(n).Name, "--container", "driver", "--", "/rootcellar"}
	return s.shell("kubectl", append(exec, arguments...)...)
}

// driverReady waits until every node's driver is ready, with all its containers.
func (s *scenario) driverReady() {
	s.Helper()
	_, err := s.shell("kubectl", "--namespace", harness.System, "rollout", "status", "daemonset/rootcellar", "--timeout", harness.Patience.String())
	s.Must(err)
	for _, n := range nodes() {
		s.registered(n)
	}
}

// registered waits until the node's kubelet knows the driver.
func (s *scenario) registered(n node) {
	s.Helper()
	s.Eventually("the driver is registered on "+n.name, harness.Patience, func() string {
		info, err := harness.Client.StorageV1().CSINodes().Get(s.ctx(), n.name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, found := range info.Spec.Drivers {
			if found.Name == harness.Driver {
				return ""
			}
		}
		return "not in its CSINode"
	})
}
