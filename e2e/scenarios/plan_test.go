package scenarios

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// plan is what rootcellar-migrate prints for one claim.
type plan struct {
	// text is all of it.
	text                    string
	directory, node, handle string
	steps                   []plannedStep
}

// plannedStep has the blocks of a step, as they are printed.
type plannedStep struct {
	title, run, verify, rollback string
	// onNode says that the blocks are for a shell of the node.
	onNode bool
}

// The steps of a plan that keeps the claim, and of one that replaces it too.
const (
	stepRetain = iota
	stepStop
	stepDrop
	stepImport
	stepBind
	stepStart
	stepFinish
	stepRemove

	swapImport = iota - 6
	swapBind
	swapDeleteClaim
	swapCreateClaim
	swapStart
	swapFinish
)

var (
	planPlace = regexp.MustCompile(`bytes: (\S+) on node (\S+) becomes volume (\S+) of pool `)
	planStep  = regexp.MustCompile(`(?m)^### \d+\. (.*)$`)
	planBlock = regexp.MustCompile("(?ms)^```sh( node|) ?(verify|rollback|)\n(.*?)\n```$")
)

// makePlan plans a claim by the commands of docs/migration.md. The flags are added to them. It fails if they fail.
func (s *scenario) makePlan(claim string, flags ...string) (*plan, error) {
	s.Helper()
	dir, err := os.MkdirTemp(os.Getenv("RUN"), "plan-")
	s.must(err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	block := shellBlock.FindStringSubmatch(s.section("docs/migration.md", "Plan"))[2]
	words := strings.NewReplacer("--image IMAGE", "--image "+s.driverPod(node1).Spec.Containers[0].Image,
		"NAMESPACE/CLAIM", s.namespace+"/"+claim+" "+strings.Join(flags, " "))
	path := "PATH=" + filepath.Join(target, "x86_64-unknown-linux-musl/release") + ":" + os.Getenv("PATH")
	_, failed := s.shell("env", path, "sh", "-euc", "cd "+dir+"\n"+words.Replace(block))
	text, err := os.ReadFile(filepath.Join(dir, "plan-NAMESPACE-CLAIM.md"))
	s.must(err)
	p := &plan{text: string(text)}
	if place := planPlace.FindStringSubmatch(p.text); place != nil {
		p.directory, p.node, p.handle = place[1], place[2], place[3]
	}
	titles := planStep.FindAllStringSubmatchIndex(p.text, -1)
	for i, at := range titles {
		end := len(p.text)
		if i+1 < len(titles) {
			end = titles[i+1][0]
		}
		step := plannedStep{title: p.text[at[2]:at[3]]}
		for _, block := range planBlock.FindAllStringSubmatch(p.text[at[0]:end], -1) {
			step.onNode = block[1] != ""
			switch block[2] {
			case "verify":
				step.verify = block[3]
			case "rollback":
				step.rollback = block[3]
			default:
				step.run = block[3]
			}
		}
		p.steps = append(p.steps, step)
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

// run runs a block of a step.
func (m *move) run(step plannedStep, block string) error {
	if step.onNode {
		_, err := m.on(m.home, "sh", "-c", block)
		return err
	}
	_, err := m.shell("sh", "-c", block)
	return err
}

// do runs a step of the plan and its check.
func (m *move) do(number int) {
	m.Helper()
	step := m.plan.steps[number]
	m.must(m.run(step, step.run))
	m.must(m.run(step, step.verify))
}

// doTwice runs a step, its check, and both again. The second run may fail, but the check may not.
func (m *move) doTwice(number int) {
	m.Helper()
	m.do(number)
	step := m.plan.steps[number]
	_ = m.run(step, step.run)
	m.must(m.run(step, step.verify))
}

// undo runs the rollback of a step.
func (m *move) undo(number int) {
	m.Helper()
	step := m.plan.steps[number]
	m.must(m.run(step, step.rollback))
}

// undoTwice runs it twice. The second run may fail.
func (m *move) undoTwice(number int) {
	m.Helper()
	m.undo(number)
	step := m.plan.steps[number]
	_ = m.run(step, step.rollback)
}

// refuses checks that a step fails, and that its claim and its PersistentVolume are as before.
func (m *move) refuses(number int) {
	m.Helper()
	before, step := m.volume(m.claim), m.plan.steps[number]
	if err := m.run(step, step.run); err == nil {
		m.Fatalf("step %q runs", step.title)
	}
	m.sameClaim()
	if got := m.volume(m.claim); got.UID != before.UID || got.DeletionTimestamp != nil {
		m.Fatalf("step %q left %+v", step.title, got)
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
