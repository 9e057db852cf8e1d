// Package harness has what the scenarios of both suites need: the cluster, a namespace for each scenario, the steps that
// wait, and the report.
package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rootcellar.dev/e2e/suites/measure"
)

const (
	// Driver is the name of the driver.
	Driver = "csi.rootcellar.dev"
	// System is the namespace of the driver.
	System = "rootcellar-system"
	// TopologyKey is the label that names a volume's node.
	TopologyKey = "topology.rootcellar.dev/node"
)

// Patience is the time for work that takes seconds on an idle machine, times SLOWER.
var Patience = time.Duration(measure.Number("SLOWER", 1)) * 2 * time.Minute

// Root is the repository, and Run the directory of logs and of the nodes' files.
var Root, Run = filepath.Dir(os.Getenv("E2E")), os.Getenv("RUN")

// Admin has all rights on the cluster, and calls its API server without a proxy.
var Admin = func() *rest.Config {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		panic(err)
	}
	config.QPS, config.Burst = 500, 1000
	return config
}()

// Client calls the API server with the rights of [Admin].
var Client kubernetes.Interface = kubernetes.NewForConfigOrDie(Admin)

// Scenario is one test with a namespace of its own.
type Scenario struct {
	*testing.T
	Namespace string
	// Note is printed at the end of the scenario's line in the table.
	Note string
}

// In makes a scenario of a test with an existing namespace. [Scenario.Begin] replaces it by a new one.
func In(t *testing.T, namespace string) *Scenario { return &Scenario{T: t, Namespace: namespace} }

// Must ends the scenario when a step fails that is not under test.
func (s *Scenario) Must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Eventually waits until the question returns no complaint. On a timeout the last complaint is the failure.
func (s *Scenario) Eventually(what string, within time.Duration, complaint func() string) {
	s.Helper()
	var last string
	for end := time.Now().Add(within); ; time.Sleep(200 * time.Millisecond) {
		if last = complaint(); last == "" {
			return
		}
		if time.Now().After(end) || s.Context().Err() != nil {
			s.Fatalf("not within %v: %s: %s", within, what, last)
		}
	}
}

// Always checks for this long that the question returns no complaint.
func (s *Scenario) Always(what string, during time.Duration, complaint func() string) {
	s.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if reason := complaint(); reason != "" {
			s.Fatalf("not for %v: %s: %s", during, what, reason)
		}
	}
}

// Command runs a program and returns its output, errors included.
func Command(ctx context.Context, name string, arguments ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, arguments...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, text)
	}
	return text, nil
}

// Kubectl runs in the scenario's namespace and must succeed.
func (s *Scenario) Kubectl(arguments ...string) string {
	s.Helper()
	out, err := Command(s.Context(), "kubectl", append([]string{"--namespace", s.Namespace}, arguments...)...)
	s.Must(err)
	return out
}

// Apply passes YAML to kubectl, in the scenario's namespace.
func (s *Scenario) Apply(yaml string, flags ...string) {
	s.Helper()
	apply := exec.CommandContext(s.Context(), "kubectl", append([]string{"--namespace", s.Namespace, "apply", "-f", "-"}, flags...)...)
	apply.Stdin = strings.NewReader(yaml)
	if out, err := apply.CombinedOutput(); err != nil {
		s.Fatalf("kubectl apply: %v: %s\n%s", err, out, yaml)
	}
}
