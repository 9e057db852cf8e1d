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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"rootcellar.dev/e2e/suites/measure"
)

const (
	driver = "csi.rootcellar.dev"
	system = "rootcellar-system"
	// topologyKey is the label that names a volume's node.
	topologyKey = "topology.rootcellar.dev/node"
)

// patience is the time for work that takes seconds on an idle machine, times SLOWER.
var patience = time.Duration(measure.Number("SLOWER", 1)) * 2 * time.Minute

// root is the repository, target its build directory.
var root, target = filepath.Dir(os.Getenv("E2E")), os.Getenv("CARGO_TARGET_DIR")

// client calls the API server as the cluster's administrator.
var client = func() kubernetes.Interface {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		panic(err)
	}
	config.QPS, config.Burst = 200, 400
	return kubernetes.NewForConfigOrDie(config)
}()

// scenario is one test with a namespace of its own.
type scenario struct {
	*testing.T
	namespace string
	// note is printed at the end of the scenario's line in the table.
	note string
}

// ctx ends with the test.
func (s *scenario) ctx() context.Context { return s.Context() }

// must ends the scenario when a step fails that is not under test.
func (s *scenario) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// eventually waits until the question returns no complaint. On a timeout the last complaint is the failure.
func (s *scenario) eventually(what string, within time.Duration, complaint func() string) {
	s.Helper()
	var last string
	for end := time.Now().Add(within); ; time.Sleep(200 * time.Millisecond) {
		if last = complaint(); last == "" {
			return
		}
		if time.Now().After(end) || s.ctx().Err() != nil {
			s.Fatalf("not within %v: %s: %s", within, what, last)
		}
	}
}

// always checks for this long that the question returns no complaint.
func (s *scenario) always(what string, during time.Duration, complaint func() string) {
	s.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if reason := complaint(); reason != "" {
			s.Fatalf("not for %v: %s: %s", during, what, reason)
		}
	}
}

// shell runs a command and returns its output, errors included.
func (s *scenario) shell(name string, arguments ...string) (string, error) {
	return command(s.ctx(), name, arguments...)
}

func command(ctx context.Context, name string, arguments ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, arguments...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, text)
	}
	return text, nil
}

// kubectl runs in the scenario's namespace and must succeed.
func (s *scenario) kubectl(arguments ...string) string {
	s.Helper()
	out, err := s.shell("kubectl", append([]string{"--namespace", s.namespace}, arguments...)...)
	s.must(err)
	return out
}

// apply passes YAML to kubectl, in the scenario's namespace.
func (s *scenario) apply(yaml string) {
	s.Helper()
	command := exec.CommandContext(s.ctx(), "kubectl", "--namespace", s.namespace, "apply", "-f", "-")
	command.Stdin = strings.NewReader(yaml)
	if out, err := command.CombinedOutput(); err != nil {
		s.Fatalf("kubectl apply: %v: %s\n%s", err, out, yaml)
	}
}

// gone waits until an object is not found.
func (s *scenario) gone(what string, get func() error) {
	s.Helper()
	s.eventually(what+" is gone", patience, func() string {
		err := get()
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprint("still there ", err)
	})
}

// exec runs a shell line in a pod's first container.
func (s *scenario) exec(pod, line string) (string, error) {
	return s.shell("kubectl", "--namespace", s.namespace, "exec", pod, "--", "/bin/sh", "-c", line)
}

// says checks that a shell line succeeds and prints exactly this.
func (s *scenario) says(pod, line, want string) {
	s.Helper()
	got, err := s.exec(pod, line)
	s.must(err)
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
	namespace := s.namespace
	if kind == "PersistentVolume" {
		// Events of objects without a namespace are in this one.
		namespace = metav1.NamespaceDefault
	}
	s.eventually(fmt.Sprintf("an event on %s %s that says %q", kind, name, texts), patience, func() string {
		events, err := client.CoreV1().Events(namespace).List(s.ctx(), metav1.ListOptions{})
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
	pid, err := os.ReadFile(filepath.Join(os.Getenv("RUN"), name+".pid"))
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
	return filepath.Join(os.Getenv("RUN"), n.name, "containerd.sock")
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
	return []string{"ssh", "-F", filepath.Join(os.Getenv("RUN"), "machine/ssh"), n.name, line}
}

// on runs a command on the node.
func (s *scenario) on(n node, name string, arguments ...string) (string, error) {
	words := n.enter(append([]string{name}, arguments...)...)
	return s.shell(words[0], words[1:]...)
}

// list returns the names in a directory of a node.
func (s *scenario) list(n node, path string) ([]string, error) {
	out, err := s.on(n, "ls", "-A", path)
	return strings.Fields(out), err
}

// driverPod returns the driver's pod on a node.
func (s *scenario) driverPod(n node) corev1.Pod {
	s.Helper()
	pods, err := client.CoreV1().Pods(system).List(s.ctx(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=rootcellar",
		FieldSelector: "spec.nodeName=" + n.name,
	})
	s.must(err)
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
	exec := []string{"--namespace", system, "exec", s.driverPod(n).Name, "--container", "driver", "--", "/rootcellar"}
	return s.shell("kubectl", append(exec, arguments...)...)
}

// driverReady waits until every node's driver is ready, with all its containers.
func (s *scenario) driverReady() {
	s.Helper()
	_, err := s.shell("kubectl", "--namespace", system, "rollout", "status", "daemonset/rootcellar", "--timeout", patience.String())
	s.must(err)
	for _, n := range nodes() {
		s.registered(n)
	}
}

// registered waits until the node's kubelet knows the driver.
func (s *scenario) registered(n node) {
	s.Helper()
	s.eventually("the driver is registered on "+n.name, patience, func() string {
		info, err := client.StorageV1().CSINodes().Get(s.ctx(), n.name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, found := range info.Spec.Drivers {
			if found.Name == driver {
				return ""
			}
		}
		return "not in its CSINode"
	})
}
