package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// entry is a scenario of the list: a sentence and its test.
type entry struct {
	title string
	run   func(*scenario)
}

// first start on a cluster without the driver, and remove it again.
var first = []entry{
	{"the README's quick start, as it is written", quickStart},
	{"the preset bare-metal, from blank disks to a StatefulSet as docs/install.md has it", bareMetal},
}

// apart affect nothing but their own namespace, and run at the same time.
var apart = slices.Concat(basics, reclaiming, access, capacities, growing, snapshots, binding, sets, members, images)

// alone unmount and replace disks that others use.
var alone = slices.Concat(scored, disks, memberDisks, operations)

// disruptive restart and fill what others use.
var disruptive = slices.Concat(resizing, snapshotting, full, disruption, storms, bulk, uninstalling)

func TestKubernetes(t *testing.T) {
	t.Cleanup(count)
	for _, entry := range first {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
	(&scenario{T: t, namespace: metav1.NamespaceDefault}).install()
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
	t.Cleanup(count)
	(&scenario{T: t, namespace: metav1.NamespaceDefault}).install()
	for _, entry := range disruptive {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
}

// TestPromises compares the lists of scenarios with docs/test-index.md.
func TestPromises(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/test-index.md"))
	if err != nil {
		t.Fatal(err)
	}
	var played, promised []string
	for _, entry := range slices.Concat(first, apart, alone, disruptive, versions, databases, migrations) {
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

var results struct {
	sync.Mutex
	passed, failed, skipped int
}

// play creates the scenario's namespace, records the result, and dumps the state of the cluster after a failure.
func play(t *testing.T, entry entry) {
	start := time.Now()
	s := &scenario{T: t}
	// Registered first, so it runs last and sees the failures of the others.
	t.Cleanup(func() {
		record(t, entry.title+s.note, time.Since(start))
		if t.Failed() {
			s.dump()
		}
		_ = client.CoreV1().Namespaces().Delete(context.Background(), s.namespace, metav1.DeleteOptions{})
	})
	words := strings.FieldsFunc(strings.ToLower(entry.title), func(r rune) bool { return r < 'a' || r > 'z' })
	meta := metav1.ObjectMeta{GenerateName: strings.Join(words[:min(3, len(words))], "-") + "-"}
	space, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.namespace = space.Name
	entry.run(s)
}

func record(t *testing.T, title string, took time.Duration) {
	results.Lock()
	defer results.Unlock()
	verdict := "passed"
	switch {
	case t.Skipped():
		verdict = "skipped"
		results.skipped++
	case t.Failed():
		verdict = "FAILED"
		results.failed++
	default:
		results.passed++
	}
	fmt.Printf("%-7s %5.1f s  %s\n", verdict, took.Seconds(), title)
}

func count() {
	fmt.Printf("%d passed, %d failed, %d skipped\n", results.passed, results.failed, results.skipped)
}

// dump writes the state that helps to explain a failure into the directory of the logs.
func (s *scenario) dump() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var text strings.Builder
	show := func(name string, arguments ...string) {
		out, err := command(ctx, name, arguments...)
		fmt.Fprintf(&text, "$ %s %s\n%s\n", name, strings.Join(arguments, " "), out)
		if err != nil {
			fmt.Fprintln(&text, err)
		}
	}
	show("kubectl", "-n", s.namespace, "get", "pods,pvc", "-o", "wide")
	show("kubectl", "-n", s.namespace, "get", "events", "--sort-by=.lastTimestamp")
	show("kubectl", "get", "pv,csinodes,storageclasses", "-o", "wide")
	show("kubectl", "get", "csistoragecapacities", "-A")
	show("kubectl", "get", "volumesnapshots,volumesnapshotcontents", "-A", "-o", "yaml")
	show("kubectl", "-n", "kube-system", "logs", "-l", "app.kubernetes.io/name=snapshot-controller", "--prefix", "--tail", "60")
	show("kubectl", "-n", system, "get", "pods", "-o", "wide")
	logs := []string{"-n", system, "logs", "-l", "app.kubernetes.io/name=rootcellar", "--prefix"}
	show("kubectl", append(logs, "--container", "driver", "--previous", "--tail", "30")...)
	show("kubectl", append(logs, "--all-containers", "--tail", "20")...)
	text.WriteString(s.ownLines(ctx, append(logs, "--all-containers", "--tail", "-1")))
	for _, n := range nodes() {
		show("find", n.path(poolPath("")), "-maxdepth", "5")
	}
	file := filepath.Join(os.Getenv("RUN"), "log", "failed-"+s.namespace+".txt")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		s.Log(err)
	}
	s.Logf("what was there, also in %s:\n%s\nTo run it alone: %s", file, text.String(), s.repeat())
}

// ownLines returns the last lines of these logs that name an object of the scenario.
func (s *scenario) ownLines(ctx context.Context, logs []string) string {
	all, err := command(ctx, "kubectl", logs...)
	if err != nil {
		return err.Error()
	}
	ids, err := command(ctx, "kubectl", "-n", s.namespace, "get", "pods,pvc,volumesnapshots", "-o", "jsonpath={.items[*].metadata.uid}")
	if err != nil {
		return err.Error()
	}
	names := append(strings.Fields(ids), s.namespace)
	var own []string
	for line := range strings.Lines(all) {
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) }) {
			own = append(own, line)
		}
	}
	own = own[max(0, len(own)-200):]
	return fmt.Sprintf("# the lines about %s\n%s\n", strings.Join(names, ", "), strings.Join(own, ""))
}

// repeat returns the command that runs this scenario alone.
func (s *scenario) repeat() string {
	goals := map[string]string{"TestKubernetes": "scenarios", "TestDisruption": "scenarios", "TestUpgrade": "upgrade", "TestRelease": "release",
		"TestStartup": "startup", "TestDatabases": "databases", "TestMigration": "migration"}
	parts := strings.Split(s.Name(), "/")
	goal, found := goals[parts[0]]
	if !found {
		return "make e2e"
	}
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return fmt.Sprintf("e2e/run.sh %s -test.run '%s'", goal, strings.Join(parts, "/"))
}
