package scenarios

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// entry is a scenario of the list: a sentence and its test.
type entry struct {
	title string
	run   func(*scenario)
}

// first start on a cluster without the driver, and remove it again.
var first = []entry{
	{"the likeliest mistakes before the CRDs of snapshots are installed", mistakesBeforeCRDs},
	{"the README's quick start, as it is written", quickStart},
	{"the preset bare-metal, from blank disks to a StatefulSet as docs/install.md has it", bareMetal},
}

// apart affect nothing but their own namespace, and run at the same time.
var apart = slices.Concat(basics, reclaiming, access, capacities, mistaken, growing, snapshots, binding, sets, members, images)

// alone unmount and replace disks that others use.
var alone = slices.Concat(scored, disks, memberDisks, operations)

// disruptive restart and fill what others use.
var disruptive = slices.Concat(resizing, snapshotting, full, disruption, storms, bulk, uninstalling)

func TestKubernetes(t *testing.T) {
	t.Cleanup(harness.Count)
	for _, entry := range first {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
	(&scenario{harness.In(t, metav1.NamespaceDefault)}).install()
	t.Run("apart", func(t *testing.T) {
		for _, entry := range apart {
			t.Run(entry.title, func(t *testing.T) {
				t.Parallel()
				play(t, entry)
			})
		}
	})
	for _, entry := range alone {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
}

// TestDisruption has a cluster of its own, so that it can run at the same time.
func TestDisruption(t *testing.T) {
	t.Cleanup(harness.Count)
	(&scenario{harness.In(t, metav1.NamespaceDefault)}).install()
	for _, entry := range disruptive {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
}

// TestPromises compares the lists of scenarios with those that prove promises.
func TestPromises(t *testing.T) {
	text, err := exec.Command(filepath.Join(harness.Root, "hack/test/test-index.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var played, promised []string
	for _, entry := range slices.Concat(first, apart, alone, disruptive, versions, databases, migrations, onMachine) {
		played = append(played, entry.title)
	}
	for line := range strings.Lines(string(text)) {
		if _, title, found := strings.Cut(line, " | e2e: "); found {
			promised = append(promised, strings.TrimSuffix(title, " |\n"))
		}
	}
	slices.Sort(played)
	slices.Sort(promised)
	// A scenario may prove several promises.
	promised = slices.Compact(promised)
	if !slices.Equal(played, promised) {
		t.Errorf("played:\n%s\npromised:\n%s", strings.Join(played, "\n"), strings.Join(promised, "\n"))
	}
}

// play runs a scenario in a namespace of its own.
func play(t *testing.T, entry entry) {
	s := &scenario{harness.In(t, "")}
	s.Begin(entry.title, s.explain)
	entry.run(s)
}

// explain shows the state of the cluster after a failure, and how to run the scenario alone.
func (s *scenario) explain(ctx context.Context, report *harness.Report) {
	show := func(name string, arguments ...string) { report.Show(ctx, name, arguments...) }
	names := s.ownNames(ctx)
	show("kubectl", "-n", s.Namespace, "get", "pods,pvc", "-o", "wide")
	show("kubectl", "-n", s.Namespace, "get", "events", "--sort-by=.lastTimestamp")
	// Events of objects without a namespace are in this one.
	events, err := harness.Command(ctx, "kubectl", "-n", metav1.NamespaceDefault, "get", "events", "--sort-by=.lastTimestamp")
	fmt.Fprintf(report, "# the events of its volumes and contents\n%s\n", strings.Join(linesWith(events, names), ""))
	if err != nil {
		fmt.Fprintf(report, "%.200s\n", err)
	}
	show("kubectl", "get", "pv,csinodes,storageclasses", "-o", "wide")
	show("kubectl", "get", "csistoragecapacities", "-A")
	show("kubectl", "get", "volumesnapshots,volumesnapshotcontents", "-A", "-o", "yaml")
	controller := []string{"-n", "kube-system", "logs", "-l", "app.kubernetes.io/name=snapshot-controller", "--prefix", "--ignore-errors"}
	show("kubectl", append(controller, "--tail", "60")...)
	show("kubectl", "-n", harness.System, "get", "pods", "-o", "wide")
	logs := []string{"-n", harness.System, "logs", "-l", "app.kubernetes.io/name=rootcellar", "--all-containers", "--prefix", "--ignore-errors"}
	show("kubectl", append(logs, "--previous", "--tail", "30")...)
	show("kubectl", append(logs, "--tail", "20")...)
	for _, logs := range [][]string{append(logs, "--previous"), logs, controller} {
		report.WriteString(ownLines(ctx, append(logs, "--tail", "-1"), names))
	}
	for _, n := range nodes() {
		words := n.enter("find", poolPath(""), "-maxdepth", "5")
		show(words[0], words[1:]...)
	}
	s.Logf("what was there, also in %s:\n%s\nTo run it alone: %s", s.Keep(report), report, s.repeat())
}

// ownNames returns the namespace of the scenario, and the uids and names of its objects. The events have the uids of
// deleted objects.
func (s *scenario) ownNames(ctx context.Context) []string {
	names := []string{s.Namespace}
	for kind, path := range map[string]string{
		"pods":                   "{.items[*].metadata.uid}",
		"pvc":                    "{.items[*].metadata.uid}",
		"volumesnapshots":        "{.items[*].metadata.uid}",
		"events":                 "{.items[*].involvedObject.uid}",
		"pv":                     fmt.Sprintf("{.items[?(@.spec.claimRef.namespace==%q)].metadata.name}", s.Namespace),
		"volumesnapshotcontents": fmt.Sprintf("{.items[?(@.spec.volumeSnapshotRef.namespace==%q)].metadata.name}", s.Namespace),
	} {
		// A cluster without snapshots has not all of these kinds.
		if found, err := harness.Command(ctx, "kubectl", "-n", s.Namespace, "get", kind, "-o", "jsonpath="+path); err == nil {
			names = append(names, strings.Fields(found)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ownLines returns the last lines of each container in these logs that contain one of the names.
func ownLines(ctx context.Context, logs, names []string) string {
	// After an error, all is shown that came before it.
	all, err := harness.Command(ctx, "kubectl", logs...)
	containers := map[string][]string{}
	for _, line := range linesWith(all, names) {
		prefix, _, _ := strings.Cut(line, " ")
		containers[prefix] = append(containers[prefix], line)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# the lines about the scenario of: kubectl %s\n", strings.Join(logs, " "))
	for _, prefix := range slices.Sorted(maps.Keys(containers)) {
		lines := containers[prefix]
		text.WriteString(strings.Join(lines[max(0, len(lines)-60):], ""))
	}
	if err != nil {
		fmt.Fprintf(&text, "%.200s\n", err)
	}
	return text.String()
}

// linesWith returns the lines of a text that contain one of the names.
func linesWith(text string, names []string) []string {
	var found []string
	for line := range strings.Lines(text + "\n") {
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) }) {
			found = append(found, line)
		}
	}
	return found
}

// repeat returns the command that runs this scenario alone.
func (s *scenario) repeat() string {
	goals := map[string]string{"TestKubernetes": "scenarios", "TestDisruption": "scenarios", "TestPreset": "scenarios", "TestUpgrade": "upgrade",
		"TestRelease": "release", "TestStartup": "startup", "TestDatabases": "databases", "TestMigration": "migration",
		"TestMonitoring": "monitoring", "TestMachine": "machine"}
	parts := strings.Split(s.Name(), "/")
	goal, found := goals[parts[0]]
	if !found {
		return "make e2e"
	}
	variables := []string{"K8S", "PREVIOUS_COMMIT"}
	if parts[0] == "TestPreset" {
		// cluster.sh always sets the directory.
		variables = append(variables, "PRESET", "KUBELET_DIR")
	}
	var line strings.Builder
	for _, variable := range variables {
		if value := os.Getenv(variable); value != "" {
			line.WriteString(variable + "=" + value + " ")
		}
	}
	for i, part := range parts {
		parts[i] = "^" + strings.ReplaceAll(regexp.QuoteMeta(part), "'", ".") + "$"
	}
	fmt.Fprintf(&line, "e2e/run.sh %s -test.run '%s'", goal, strings.Join(parts, "/"))
	return line.String()
}
