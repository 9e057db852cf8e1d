package fleet

import (
	"context"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rootcellar.dev/e2e/suites/harness"
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
	t.Cleanup(harness.Count)
	(&scenario{harness.In(t, metav1.NamespaceDefault)}).build()
	stage := func(name string, parallel bool, entries []entry, prepare func(*scenario)) {
		t.Run(name, func(t *testing.T) {
			prepared := false
			for _, entry := range entries {
				t.Run(entry.title, func(t *testing.T) {
					// A filter may leave no scenario of a stage.
					if !prepared {
						prepare(&scenario{harness.In(t, metav1.NamespaceDefault)})
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

// play runs a scenario in a namespace of its own.
func play(t *testing.T, entry entry, stage string) {
	s := &scenario{harness.In(t, "")}
	s.Note = ", " + stage
	s.Begin(entry.title, s.explain)
	entry.run(s)
}
