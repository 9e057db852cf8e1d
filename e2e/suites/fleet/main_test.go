package fleet

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// backgroundContext outlives a test.
var backgroundContext = context.Background()

type resourceKind = schema.GroupVersionResource

// entry is a scenario of the list: a sentence and its test.
type entry struct {
	title string
	run   func(*scenario)
}

// waiting is the time for which a claim must wait without the controller.
var waiting = func() time.Duration {
	text := os.Getenv("WAITING")
	if text == "" {
		text = "60s"
	}
	found, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return found
}()

// TestFleet has stages: each starts the central programs with other arguments, and its scenarios run one after the other,
// because they hold writes and pause programs, or side by side.
func TestFleet(t *testing.T) {
	t.Cleanup(count)
	(&scenario{T: t, namespace: metav1.NamespaceDefault}).build()
	stage := func(name string, parallel bool, entries []entry, prepare func(*scenario)) {
		t.Run(name, func(t *testing.T) {
			prepared := false
			for _, entry := range entries {
				t.Run(entry.title, func(t *testing.T) {
					// A filter may leave no scenario of a stage.
					if !prepared {
						prepare(&scenario{T: t, namespace: metav1.NamespaceDefault})
						prepared = true
					}
					if parallel {
						t.Parallel()
					}
					play(t, entry, name)
				})
			}
		})
	}
	for _, version := range []string{"6.4.0", "6.3.0"} {
		suffix := ""
		if version == "6.3.0" {
			suffix = "-6.3.0"
		}
		provisioners := func() {
			provisionerVersion = suffix
			for _, m := range nodes() {
				m.provisioner.kill()
				m.startProvisioner()
			}
		}
		stage("provisioner "+version+" and the flag", false, emptiest, func(s *scenario) {
			s.uncontrol()
			provisioners()
			s.snapshotController(distributed)
		})
		stage("provisioner "+version, false, races, func(s *scenario) {
			provisioners()
			s.snapshotController()
			s.control("--steer", "--label")
		})
	}
	whole := func(s *scenario) {
		provisionerVersion = ""
		s.snapshotController()
		s.control("--steer", "--label")
	}
	stage("side by side", true, beside, whole)
	stage("one by one", false, alone, whole)
	stage("autoscaled nodes", false, autoscaled, whole)
	losingNodes := func(s *scenario) {
		whole(s)
		s.uncontrol()
		s.grant("fleet.finishDeletions=true,fleet.releaseClaims=true")
		s.driverSet()
		rig.fleet.as(s.token())
		rig.fleet.forget()
		lostScenarios = len(lost)
		s.control(losing...)
	}
	stage("lost nodes", false, lost, losingNodes)
	stage("startup taints", false, tainted, func(s *scenario) {
		whole(s)
		s.uncontrol()
		s.grant("fleet.labels=false,fleet.inventory=false,fleet.startupTaint=true")
		rig.fleet.as(s.token())
		s.control(untainting...)
	})
	stage("restored", false, restored, losingNodes)
}

var results struct {
	sync.Mutex
	passed, failed, skipped int
}

// play creates the scenario's namespace, records the result, and dumps the state of the cluster after a failure.
func play(t *testing.T, entry entry, stage string) {
	start := time.Now()
	s := &scenario{T: t}
	// Registered first, so it runs last and sees the failures of the others.
	t.Cleanup(func() {
		record(t, entry.title+", "+stage, time.Since(start))
		if t.Failed() {
			s.dump()
		}
		_ = client.CoreV1().Namespaces().Delete(backgroundContext, s.namespace, metav1.DeleteOptions{})
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
