package scenarios

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"rootcellar.dev/e2e/suites/harness"
)

// plan is the script that rootcellar-migrate prints for one claim.
type plan struct {
	// text is all of it.
	text                    string
	directory, node, handle string
	// steps are their names.
	steps []string
}

// The steps of a plan for a directory.
const (
	stepRetain = iota
	stepStop
	stepDrop
	stepImport
	stepBind
	stepStart
	stepFinish
)

// The actions of a step.
const (
	actionDo    = "do"
	actionCheck = "check"
	actionUndo  = "undo"
)

var (
	planPlace = regexp.MustCompile(`bytes: (\S+) on node (\S+) becomes volume (\S+) of pool `)
	planSteps = regexp.MustCompile(`(?m)^Steps: (.*)$`)
)

// makePlan plans a claim by the commands of docs/migration.md. The flags are added to them. It fails if they fail.
func (s *scenario) makePlan(claim string, flags ...string) (*plan, error) {
	s.Helper()
	dir, err := os.MkdirTemp(harness.Run, "plan-")
	s.Must(err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	block := shellBlock.FindStringSubmatch(s.section("docs/migration.md", "Plan"))[2]
	words := strings.NewReplacer("NAMESPACE/CLAIM", s.Namespace+"/"+claim+" "+strings.Join(flags, " "))
	path := "PATH=" + filepath.Join(target, "x86_64-unknown-linux-musl/release") + ":" + os.Getenv("PATH")
	_, failed := s.shell("env", path, "sh", "-euc", "cd "+dir+"\n"+words.Replace(block))
	text, err := os.ReadFile(filepath.Join(dir, "plan-NAMESPACE-CLAIM.sh"))
	s.Must(err)
	p := &plan{text: string(text)}
	if place := planPlace.FindStringSubmatch(p.text); place != nil {
		p.directory, p.node, p.handle = place[1], place[2], place[3]
	}
	if steps := planSteps.FindStringSubmatch(p.text); steps != nil {
		p.steps = strings.Fields(steps[1])
	}
	return p, failed
}

// planned gives the move the plan of its claim, which must be about the right directory.
func (m *move) planned(flags ...string) {
	m.Helper()
	p, err := m.makePlan(m.claim, flags...)
	if err != nil {
		m.Fatalf("%v\n%s", err, p.text)
	}
	if p.directory != m.path || p.node != m.home.name || len(p.steps) <= stepFinish {
		m.Fatalf("the plan for %s on %s is\n%s", m.path, m.home.name, p.text)
	}
	m.plan, m.id = p, p.handle
}

// run runs an action of a step.
func (m *move) run(number int, action string) error {
	step := m.plan.steps[number]
	script := []string{"-c", m.plan.text, "plan.sh", action, step, m.Namespace + "/" + m.claim}
	_, err := m.shell("sh", script...)
	return err
}

// do runs a step of the plan, which includes its check.
func (m *move) do(number int) {
	m.Helper()
	m.Must(m.run(number, actionDo))
}

// doTwice runs a step twice. The second run may fail, but the check may not.
func (m *move) doTwice(number int) {
	m.Helper()
	m.do(number)
	_ = m.run(number, actionDo)
	m.Must(m.run(number, actionCheck))
}

// undo runs the rollback of a step.
func (m *move) undo(number int) {
	m.Helper()
	m.Must(m.run(number, actionUndo))
}

// undoTwice runs it twice. The second run may fail.
func (m *move) undoTwice(number int) {
	m.Helper()
	m.undo(number)
	_ = m.run(number, actionUndo)
}

// refuses checks that a step fails, and that its claim and its PersistentVolume are as before.
func (m *move) refuses(number int) {
	m.Helper()
	before, step := m.volume(m.claim), m.plan.steps[number]
	if err := m.run(number, actionDo); err == nil {
		m.Fatalf("step %q runs", step)
	}
	m.sameClaim()
	if got := m.volume(m.claim); got.UID != before.UID || got.DeletionTimestamp != nil {
		m.Fatalf("step %q left %+v", step, got)
	}
}

// steps are the steps of the plans up to this one, each for all claims.
func (t *tenants) steps(count int, twice bool) []step {
	do, undo := (*move).do, (*move).undo
	if twice {
		do, undo = (*move).doTwice, (*move).undoTwice
	}
	var steps []step
	for number := range count {
		steps = append(steps, step{
			t.each(func(m *move) { do(m, number) }),
			t.each(func(m *move) { undo(m, number) }),
		})
	}
	return steps
}
