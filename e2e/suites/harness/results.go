package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var results struct {
	sync.Mutex
	passed, failed, skipped int
}

// Begin creates the scenario's namespace. At the end of the scenario it records the result, has a failure explained, and
// deletes the namespace.
func (s *Scenario) Begin(title string, explain func(context.Context, *Report)) {
	s.Helper()
	start := time.Now()
	// Registered first, so it runs last and sees the failures of the others.
	s.Cleanup(func() {
		s.record(title, time.Since(start))
		if s.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			explain(ctx, &Report{})
		}
		_ = Client.CoreV1().Namespaces().Delete(context.Background(), s.Namespace, metav1.DeleteOptions{})
	})
	words := strings.FieldsFunc(strings.ToLower(title), func(r rune) bool { return r < 'a' || r > 'z' })
	meta := metav1.ObjectMeta{GenerateName: strings.Join(words[:min(3, len(words))], "-") + "-"}
	space, err := Client.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{})
	s.Must(err)
	s.Namespace = space.Name
}

func (s *Scenario) record(title string, took time.Duration) {
	results.Lock()
	defer results.Unlock()
	verdict := "passed"
	switch {
	case s.Skipped():
		verdict = "skipped"
		results.skipped++
	case s.Failed():
		verdict = "FAILED"
		results.failed++
	default:
		results.passed++
	}
	fmt.Printf("%-7s %5.1f s  %s%s\n", verdict, took.Seconds(), title, s.Note)
}

// Ended returns how many scenarios have passed or failed.
func Ended() int {
	results.Lock()
	defer results.Unlock()
	return results.passed + results.failed
}

// Count prints the last line of a suite.
func Count() {
	fmt.Printf("%d passed, %d failed, %d skipped\n", results.passed, results.failed, results.skipped)
}

// Report is the state of the cluster that explains a failure.
type Report struct{ strings.Builder }

// Show adds a command with its output.
func (r *Report) Show(ctx context.Context, name string, arguments ...string) {
	out, err := Command(ctx, name, arguments...)
	fmt.Fprintf(r, "$ %s %s\n%s\n", name, strings.Join(arguments, " "), out)
	if err != nil {
		fmt.Fprintln(r, err)
	}
}

// Keep writes the report into the directory of the logs, and returns its path.
func (s *Scenario) Keep(report *Report) string {
	file := filepath.Join(Run, "log", "failed-"+s.Namespace+".txt")
	if err := os.WriteFile(file, []byte(report.String()), 0o644); err != nil {
		s.Log(err)
	}
	return file
}
