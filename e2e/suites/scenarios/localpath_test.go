package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var fromLocalPath = []entry{
	{"a StatefulSet and a Deployment of local-path move by hostPath volumes, and back after each step", moveHostPath},
	{"a StatefulSet and a Deployment of local-path move by local volumes, and back at the end", moveLocal},
	{"a pod that starts on an imported hostPath directory meets a file and waits", fileAtHostPath},
	{"a pod that starts on an imported local directory meets a file and waits", fileAtLocal},
	{"an import whose pod is killed is repeated", importKilled},
	{"a claim without its volume keeps out the pods that a loop starts again and again", scaleLoop},
}

const (
	hostPathClass = "local-path"
	localClass    = "local-path-local"
)

// tenants are a StatefulSet and a Deployment whose claims move.
type tenants struct {
	*scenario
	moves []*move
	files []string
	// made are the parts of both that the move must not touch.
	made string
}

// planned are tenants of local-path with the plan of each claim.
func (s *scenario) planned(class string) *tenants {
	s.Helper()
	t := s.tenants(class)
	for _, m := range t.moves {
		if !strings.HasPrefix(m.path, localPath+"/"+m.old.Name+"_") {
			s.Fatalf("local-path made %s", m.path)
		}
		m.planned()
	}
	return t
}

// tenants creates a StatefulSet of two and a Deployment with claims of this class, and fills their volumes.
func (s *scenario) tenants(class string) *tenants {
	s.Helper()
	template := func(app, claim string) string {
		return `
  selector: {matchLabels: {app: ` + app + `}}
  template:
    metadata: {labels: {app: ` + app + `}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
        - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: ` + app + `}}}
      containers:
        - {name: main, image: "` + image + `", command: [/bin/sleep, "2147483647"], volumeMounts: [{name: data, mountPath: /data}]}` + claim
	}
	spec := `{storageClassName: ` + class + `, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}`
	s.Apply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: web}
spec: ` + spec + `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  strategy: {type: Recreate}` + template("web", `
      volumes: [{name: data, persistentVolumeClaim: {claimName: web}}]`) + `
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  podManagementPolicy: Parallel
  volumeClaimTemplates: [{metadata: {name: data}, spec: ` + spec + `}]` + template("db", "") + "\n")
	t := &tenants{scenario: s, made: s.templates()}
	for _, claim := range []string{"web", "data-db-0", "data-db-1"} {
		pod := s.userOf(claim)
		t.files = append(t.files, s.seed(pod.Name))
		t.moves = append(t.moves, s.moving(claim, nodeNamed(pod.Spec.NodeName)))
	}
	return t
}

func (s *scenario) templates() string {
	s.Helper()
	return s.Kubectl("get", "statefulset/db", "deployment/web", "--output",
		"jsonpath={range .items[*]}{.metadata.uid} {.spec.template} {.spec.volumeClaimTemplates}{end}")
}

// users returns the pods that name a claim, terminating ones included.
func (s *scenario) users(claim string) []corev1.Pod {
	s.Helper()
	pods, err := harness.Client.CoreV1().Pods(s.Namespace).List(s.ctx(), metav1.ListOptions{})
	s.Must(err)
	var found []corev1.Pod
	for _, pod := range pods.Items {
		for _, volume := range pod.Spec.Volumes {
			if volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == claim {
				found = append(found, pod)
			}
		}
	}
	return found
}

// userOf waits until exactly one pod uses the claim and runs, and returns it.
func (s *scenario) userOf(claim string) *corev1.Pod {
	s.Helper()
	s.Eventually("a pod names claim "+claim, harness.Patience, func() string {
		if users := s.users(claim); len(users) != 1 || users[0].DeletionTimestamp != nil {
			return fmt.Sprint(len(users), " pods")
		}
		return ""
	})
	return s.running(s.users(claim)[0].Name)
}

func (s *scenario) unused(claim string) {
	s.Helper()
	s.Eventually("no pod names claim "+claim, harness.Patience, func() string {
		if users := s.users(claim); len(users) > 0 {
			return users[0].Name
		}
		return ""
	})
}

// same checks that every pod finds its files, and that claims and templates are as they were.
func (t *tenants) same() {
	t.Helper()
	for i, m := range t.moves {
		t.sameData(t.userOf(m.claim).Name, t.files[i])
		m.sameClaim()
	}
	if got := t.templates(); got != t.made {
		t.Fatalf("the templates are\n%s\nand not\n%s", got, t.made)
	}
}

// step is a step of the move with its rollback.
type step struct{ do, undo func() }

func (t *tenants) each(act func(*move)) func() {
	return func() {
		for _, m := range t.moves {
			act(m)
		}
	}
}

// thereAndBack takes this many steps, and then their rollbacks.
func (t *tenants) thereAndBack(count int, twice bool) {
	t.Helper()
	steps := t.steps(count, twice)
	for _, step := range steps {
		step.do()
	}
	if count > stepStart {
		t.same()
	}
	for i := range steps {
		steps[len(steps)-1-i].undo()
	}
	t.same()
	for _, m := range t.moves {
		volume := t.volume(m.claim)
		was, is := m.old.Spec.DeepCopy(), volume.Spec.DeepCopy()
		was.ClaimRef.ResourceVersion, is.ClaimRef.ResourceVersion = "", ""
		if was.String() != is.String() {
			t.Fatalf("after step %d and back, the PersistentVolume was\n%s\nand is\n%s", count, was, is)
		}
	}
}

// arrive takes all steps and checks what users may do then: a third replica, and the deletion of a claim.
func (t *tenants) arrive(class string) {
	t.Helper()
	for _, m := range t.moves {
		m.do(stepRetain)
		m.refuses(stepDrop)
		m.refuses(stepImport)
		t.onceRefused(m.home, m.path+" is in use: process ", m.importArguments()...)
	}
	for _, step := range t.steps(stepFinish+1, false) {
		step.do()
	}
	t.same()

	t.Kubectl("scale", "statefulset/db", "--replicas=3")
	third := t.moving("data-db-2", nodeNamed(t.userOf("data-db-2").Spec.NodeName))
	if *third.before.Spec.StorageClassName != class || !strings.HasPrefix(third.path, localPath+"/") {
		t.Fatalf("the third claim is %+v at %s", third.before.Spec, third.path)
	}
	t.same()

	t.Kubectl("scale", "statefulset/db", "--replicas=1")
	t.unused("data-db-1")
	t.unused("data-db-2")
	second := t.moves[2]
	directory := t.volumeDirectory(second)
	t.deleteClaim("data-db-1")
	t.volumeGone(second.old.Name)
	if _, err := t.on(second.home, "test", "!", "-e", directory); err != nil {
		t.Fatalf("the driver leaves %s", directory)
	}
	t.deleteClaim("data-db-2")
	t.volumeGone(third.old.Name)
	if _, err := t.on(third.home, "test", "!", "-e", third.path); err != nil {
		t.Fatalf("local-path leaves %s", third.path)
	}
	// The other provisioner would have removed this file.
	if notice := second.fileAt(second.path); !strings.Contains(notice, second.id) {
		t.Fatalf("at %s is %q", second.path, notice)
	}
}

// volumeDirectory returns the directory of the imported volume.
func (s *scenario) volumeDirectory(m *move) string {
	s.Helper()
	out, err := s.inDriver(m.home, "volume", "show", m.id, "--json")
	s.Must(err)
	var shown struct{ Directory string }
	s.Must(json.Unmarshal([]byte(out), &shown))
	return shown.Directory
}

// Proves: IM1, IM2, IM3.
func moveHostPath(s *scenario) {
	t := s.planned(hostPathClass)
	for last := range stepFinish {
		t.thereAndBack(last+1, false)
	}
	t.arrive(hostPathClass)
}

// Proves: IM1, IM2, IM3.
func moveLocal(s *scenario) {
	t := s.planned(localClass)
	t.thereAndBack(stepFinish+1, true)
	t.arrive(localClass)
}

// Proves: IM1.
func fileAtHostPath(s *scenario) { s.meetsFile(hostPathClass, "is not a directory") }

// Proves: IM1.
func fileAtLocal(s *scenario) {
	s.meetsFile(localClass, "only directory and block device are supported")
}

// single creates a claim of the class and a pod that fills its volume, and returns the move and the files.
func (s *scenario) single(class string) (*move, string) {
	s.Helper()
	s.Claim("data", class, "64Mi")
	s.pod("worker", with("data", "/data"))
	home := s.runningOn("worker")
	files := s.seed("worker")
	return s.moving("data", home), files
}

// meetsFile forgets to delete the old PersistentVolume before the import. The text is the kubelet's.
func (s *scenario) meetsFile(class, text string) {
	m, files := s.single(class)
	m.retain()
	s.deletePod("worker")
	m.take()
	s.pod("worker", with("data", "/data"))
	s.event("Pod", "worker", text)
	s.deletePod("worker")
	m.drop()
	m.bind()
	s.pod("worker", with("data", "/data"))
	s.sameData("worker", files)
}

// importKilled ends the process of an import as soon as it is there, several times.
//
// Proves: IM3.
func importKilled(s *scenario) {
	m, files := s.single(hostPathClass)
	m.planned()
	s.deletePod("worker")
	// No pod runs, but the policy is Delete.
	m.refuses(stepDrop)
	m.do(stepRetain)
	m.do(stepDrop)
	ended := 0
	for ; ended < 5; ended++ {
		name := s.startOnce(m.home, m.importArguments()...)
		if !m.killOnce(name) {
			break
		}
		s.deletePod(name)
	}
	s.Note = fmt.Sprintf(" (%d times)", ended)
	m.take()
	m.bind()
	s.pod("worker", with("data", "/data"))
	s.sameData("worker", files)
}

// killOnce kills the process of the import pod, and reports whether that came before its end.
func (m *move) killOnce(name string) bool {
	m.Helper()
	for {
		if pid := findProcess("/rootcellar volume import "+m.path, func(string) bool { return true }); pid != 0 {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				return true
			}
		}
		pod, err := harness.Client.CoreV1().Pods(m.Namespace).Get(m.ctx(), name, metav1.GetOptions{})
		m.Must(err)
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return false
		}
	}
}

// scaleLoop moves a Deployment that something scales up each second, as a GitOps controller does.
//
// Proves: IM2.
func scaleLoop(s *scenario) {
	t := s.tenants(hostPathClass)
	t.each((*move).retain)()
	ctx, cancel := context.WithCancel(s.ctx())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			for _, kind := range []string{"statefulset/db", "deployment/web"} {
				_, _ = harness.Command(ctx, "kubectl", "--namespace", s.Namespace, "scale", kind, "--replicas="+map[string]string{
					"statefulset/db": "2", "deployment/web": "1"}[kind])
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	s.Cleanup(func() { cancel(); <-ended })
	t.each((*move).drop)()
	for _, m := range t.moves {
		// The pods run on, because Kubernetes does not end them.
		t.onceRefused(m.home, m.path+" is in use: process ", m.importArguments()...)
	}
	for _, m := range t.moves {
		s.Kubectl("delete", "pod", t.userOf(m.claim).Name)
		s.Eventually("the next pod waits for claim "+m.claim, harness.Patience, func() string {
			users := s.users(m.claim)
			if len(users) != 1 || users[0].Spec.NodeName != "" {
				return fmt.Sprintf("%d pods", len(users))
			}
			return ""
		})
		m.take()
	}
	t.each((*move).bind)()
	t.same()
}
