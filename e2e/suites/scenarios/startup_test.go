package scenarios

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rootcellar.dev/e2e/suites/harness"
	"rootcellar.dev/e2e/suites/measure"
)

// crowd is the number of pods that start at once.
var crowd = measure.Number("PODS", 50)

// storage is what the volumes of pods are: an emptyDir, or claims of a class, which may be copies of a snapshot.
type storage struct {
	name, class, snapshot string
	// states are those of a pod with a claim, if the first workload shows where the time goes.
	states []state
}

// workload is a group of pods. It is measured with each storage, of which the first is the one to compare with.
type workload struct {
	name string
	// pods are the names of its pods. That of a claim is the one of its pod after this prefix.
	pods     []string
	prefix   string
	storages []storage
	// start creates the pod of this number and its claim.
	start func(of storage, number int)
	// end deletes them.
	end func()
}

// TestStartup is no scenario. It measures, and leaves the rows of benches/results/startup*.tsv.
func TestStartup(t *testing.T) {
	t.Cleanup(harness.Count)
	title := fmt.Sprintf("the time from claim to Running, beside pods with emptyDir, %d at once", crowd)
	t.Run(title, func(t *testing.T) { play(t, entry{title, startup}) })
}

// startup alternates between the storages, so that other work on the machine slows all.
func startup(s *scenario) {
	s.install(strings.Fields(os.Getenv("CHART"))...)
	s.driverReady()
	copies := storage{name: "rootcellar", class: s.Class(map[string]string{"pool": "reflink"}), snapshot: "source"}
	s.podWithFile("source", copies.class, at(node1))
	s.says("source", "cd /data && for i in $(seq 1000); do echo $i >file$i; done && sync && ls | wc -l", "1001")
	s.take(copies.snapshot, "source")
	storages := []storage{{name: "emptyDir"}, {name: "rootcellar", class: "rootcellar", states: states}}
	// Without the choice of a node, kube-controller-manager has fewer requests for a claim.
	bound := storage{name: "rootcellar, Immediate", class: s.Class(nil, immediate), states: states[1:]}
	for _, peer := range strings.Fields(os.Getenv("PEERS")) {
		s.peer(peer)
		storages = append(storages, storage{name: peer, class: peer})
	}
	var members []string
	for number := range 10 {
		members = append(members, fmt.Sprint("set-", number))
	}
	works := []workload{
		{"all at once", workers(crowd), "", append(slices.Clone(storages), bound), func(of storage, number int) {
			s.member(worker(number), of)
		}, s.endAll},
		{"from one snapshot", workers(crowd / 2), "", []storage{storages[0], copies}, func(of storage, number int) {
			s.member(worker(number), of, at(node1))
		}, s.endAll},
		{"a StatefulSet of 10", members, "data-", storages, func(of storage, number int) {
			if number == 0 {
				s.statefulSet(int32(len(members)), of)
			}
		}, func() {
			s.Kubectl("delete", "statefulset", "set", "--cascade=orphan")
			s.endAll()
		}},
	}

	h := s.watch()
	m := &measurements{seconds: map[string][]float64{}, steps: map[string][]float64{}, requests: map[string]*[2]int{}}
	rounds := measure.Number("ROUNDS", 2)
	for round := range rounds {
		for i, work := range works {
			for turn := range work.storages {
				of := work.storages[(round+turn)%len(work.storages)]
				h.measure(work, of, i == 0 && of.states != nil, m)
			}
		}
	}
	s.write(m, works, rounds)
}

// peer installs another driver, with a class of its name: local-path, or the objects of a file.
func (s *scenario) peer(name string) {
	s.Helper()
	if name == "local-path" {
		(&scenario{harness.In(s.T, "")}).installLocalPath()
		return
	}
	s.Kubectl("apply", "--filename", filepath.Join(os.Getenv("PEER_DIR"), name+".yaml"))
}

func worker(number int) string { return fmt.Sprint("worker", number) }

// endAll deletes the measured pods and their claims.
func (s *scenario) endAll() {
	s.Kubectl("delete", "pods,pvc", "--selector", "measured=yes", "--wait=false")
}

// measured is the label of the pods and claims that are measured.
var measured = map[string]string{"measured": "yes"}

// member creates a pod that is measured, and its claim.
func (s *scenario) member(name string, of storage, changes ...func(*corev1.Pod)) {
	s.Helper()
	if of.class != "" {
		s.Claim(name, of.class, "64Mi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Labels = measured
			if of.snapshot != "" {
				claim.Spec.DataSource = &corev1.TypedLocalObjectReference{
					APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: of.snapshot}
			}
		})
	}
	s.pod(name, append(changes, with(name, "/data"), of.volumes, func(pod *corev1.Pod) { pod.Labels = measured })...)
}

// volumes replaces the claims of a pod if it is to have an emptyDir.
func (of storage) volumes(pod *corev1.Pod) {
	if of.class == "" {
		pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	}
}

// statefulSet creates a StatefulSet, which starts each pod when the one before is ready.
func (s *scenario) statefulSet(number int32, of storage) {
	s.Helper()
	pod := corev1.Pod{Spec: sleeper()}
	with("data", "/data")(&pod)
	of.volumes(&pod)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: appsv1.StatefulSetSpec{
		Replicas: &number, Selector: &metav1.LabelSelector{MatchLabels: measured},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: measured}, Spec: pod.Spec},
	}}
	if of.class != "" {
		claim := harness.NewClaim("data", of.class, "64Mi")
		claim.Labels = measured
		set.Spec.Template.Spec.Volumes, set.Spec.VolumeClaimTemplates = nil, []corev1.PersistentVolumeClaim{*claim}
	}
	_, err := harness.Client.AppsV1().StatefulSets(s.Namespace).Create(s.ctx(), set, metav1.CreateOptions{})
	s.Must(err)
}

// history follows the objects of the scenario, among which are some that are not measured.
type history struct {
	*scenario
	measure.History
}

// state is one of a pod with a claim, and what leads to it.
type state struct{ name, by string }

// The states in their order. A claim of an Immediate class does not have the first.
var states = []state{
	{"node chosen", "kube-scheduler"},
	{"volume made", "csi-provisioner and the driver"},
	{"claim bound", "kube-controller-manager"},
	{"pod scheduled", "kube-scheduler"},
	{"running", "kubelet, with the driver"},
}

// watch follows all pods and claims of the scenario, and all PersistentVolumes.
func (s *scenario) watch() *history {
	s.Helper()
	h := &history{scenario: s}
	factory := informers.NewSharedInformerFactoryWithOptions(harness.Client, 0, informers.WithNamespace(s.Namespace))
	core := factory.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{
		core.Pods().Informer(), core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    h.see,
			UpdateFunc: func(_, object any) { h.see(object) },
			DeleteFunc: h.miss,
		})
		s.Must(err)
	}
	factory.Start(s.ctx().Done())
	factory.WaitForCacheSync(s.ctx().Done())
	return h
}

func (h *history) see(object any) {
	switch object := object.(type) {
	case *corev1.Pod:
		if object.Spec.NodeName != "" {
			h.Reach("pod scheduled", object.Name)
		}
		if object.Status.Phase == corev1.PodRunning {
			h.Reach("running", object.Name)
		}
	case *corev1.PersistentVolumeClaim:
		if object.Annotations["volume.kubernetes.io/selected-node"] != "" {
			h.Reach("node chosen", object.Name)
		}
		if object.Status.Phase == corev1.ClaimBound {
			h.Reach("claim bound", object.Name)
		}
	case *corev1.PersistentVolume:
		if claim := object.Spec.ClaimRef; claim != nil && claim.Namespace == h.Namespace {
			h.Reach("volume made", claim.Name)
		}
	}
}

func (h *history) miss(object any) {
	// The informer missed the deletion itself.
	if unknown, is := object.(cache.DeletedFinalStateUnknown); is {
		object = unknown.Obj
	}
	switch object := object.(type) {
	case *corev1.Pod:
		h.Reach("pod removed", object.Name)
	case *corev1.PersistentVolume:
		if claim := object.Spec.ClaimRef; claim != nil && claim.Namespace == h.Namespace {
			h.Reach("volume removed", claim.Name)
		}
	}
}

// reached waits until all of these objects reached a state, and returns when. One of another name does not count, such
// as the source of the snapshot, which runs all the time, and which the informer may show again at any time.
func (h *history) reached(state string, names []string) map[string]time.Time {
	h.Helper()
	var found map[string]time.Time
	h.Eventually(fmt.Sprint(len(names), " are ", state), harness.Patience, func() string {
		var missing []string
		if found, missing = h.Reached(state, names); len(missing) > 0 {
			return fmt.Sprintf("%d are not: %s", len(missing), strings.Join(missing, " "))
		}
		return ""
	})
	return found
}

// last returns the seconds until the last of these times.
func last(begin time.Time, times map[string]time.Time) float64 {
	return slices.MaxFunc(slices.Collect(maps.Values(times)), time.Time.Compare).Sub(begin).Seconds()
}

// measurements are the values of all rounds.
type measurements struct {
	// seconds has the values by figure, workload and storage.
	seconds map[string][]float64
	// steps has the seconds of each pod by storage and state.
	steps map[string][]float64
	// requests counts those of a component about an object by storage, while pods start and while they are removed.
	requests map[string]*[2]int
}

// long is what a pod waits for more than these seconds if the kubelet found its claim not Bound yet, and tries again later.
const long = 10

// The figures of a workload.
const (
	oneRuns    = "one of them runs"
	allRun     = "all run"
	allRemoved = "all are removed"
)

func key(figure, workload, storage string) string { return figure + "\t" + workload + "\t" + storage }

// measure starts and ends a workload.
func (h *history) measure(work workload, of storage, inSteps bool, m *measurements) {
	h.Helper()
	note := func(figure string, seconds float64) {
		key := key(figure, work.name, of.name)
		m.seconds[key] = append(m.seconds[key], seconds)
	}
	h.Forget()
	audited := h.auditEnd()
	asked := make([]time.Time, len(work.pods))
	begin := time.Now()
	var creating sync.WaitGroup
	for i := range work.pods {
		creating.Go(func() {
			asked[i] = time.Now()
			work.start(of, i)
		})
	}
	running := h.reached("running", work.pods)
	creating.Wait()
	note(allRun, last(begin, running))
	before := map[string]time.Time{}
	for i, at := range asked {
		if at, runs := running[worker(i)]; runs {
			note(oneRuns, at.Sub(asked[i]).Seconds())
		}
		before[worker(i)] = at
	}
	if inSteps {
		h.inSteps(work.pods, of, before, m)
		audited = h.count(audited, of, m, 0)
	}

	pods, err := harness.Client.CoreV1().Pods(h.Namespace).List(h.ctx(), metav1.ListOptions{LabelSelector: "measured=yes"})
	h.Must(err)
	var claims []string
	for _, name := range work.pods {
		claims = append(claims, work.prefix+name)
	}
	nodeOf := map[string]string{}
	for _, pod := range pods.Items {
		nodeOf[pod.Name] = pod.Spec.NodeName
	}
	if complaint := measure.Unexpected(nodeOf, work.pods); complaint != "" {
		h.Fatalf("%s with %s, after all of them ran: %s", work.name, of.name, complaint)
	}
	begin = time.Now()
	work.end()
	removed := last(begin, h.reached("pod removed", work.pods))
	if of.class != "" {
		removed = max(removed, last(begin, h.reached("volume removed", claims)))
	}
	note(allRemoved, removed)
	if inSteps {
		h.count(audited, of, m, 1)
	}
	for _, pod := range pods.Items {
		h.kubeletForgets(nodeNamed(pod.Spec.NodeName), &pod)
	}
}

// inSteps notes for each pod, whose claim has its name, the seconds from each state to the next.
func (h *history) inSteps(names []string, of storage, before map[string]time.Time, m *measurements) {
	h.Helper()
	for _, state := range of.states {
		now, key := h.reached(state.name, names), of.name+"\t"+state.name
		for name, at := range now {
			m.steps[key] = append(m.steps[key], at.Sub(before[name]).Seconds())
		}
		before = now
	}
}

// auditLog is that of the API server.
func auditLog() string { return filepath.Join(harness.Run, "log/audit") }

func (s *scenario) auditEnd() int64 {
	s.Helper()
	file, err := os.Stat(auditLog())
	s.Must(err)
	return file.Size()
}

// count adds the requests since then about pods, claims, volumes, events and capacities to one of the two columns. It
// returns where the log ends.
func (s *scenario) count(begin int64, of storage, m *measurements, column int) int64 {
	s.Helper()
	file, err := os.Open(auditLog())
	s.Must(err)
	defer file.Close()
	_, err = file.Seek(begin, io.SeekStart)
	s.Must(err)
	end := s.auditEnd()
	lines := bufio.NewScanner(file)
	for begin < end && lines.Scan() {
		begin += int64(len(lines.Bytes())) + 1
		var event struct {
			Verb, UserAgent string
			ObjectRef       struct{ Resource, Subresource string }
		}
		s.Must(json.Unmarshal(lines.Bytes(), &event))
		// Such as kube-controller-manager/v1.37.2 (linux/amd64) kubernetes/0/system:serviceaccount:kube-system:a-controller.
		program, rest, _ := strings.Cut(event.UserAgent, "/")
		if program == "scenarios" || program == "kubectl" || event.Verb == "watch" {
			continue
		}
		if program == "kube-controller-manager" {
			program = "controller " + rest[strings.LastIndexAny(rest, "/:")+1:]
		}
		what := event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			what += "/" + event.ObjectRef.Subresource
		}
		key := fmt.Sprintf("%s\t%s\t%s %s", of.name, program, event.Verb, what)
		if m.requests[key] == nil {
			m.requests[key] = &[2]int{}
		}
		m.requests[key][column]++
	}
	s.Must(lines.Err())
	return begin
}

// write prints the rows of the tables, and leaves them for run.sh.
func (s *scenario) write(m *measurements, works []workload, rounds int) {
	s.Helper()
	begin := fmt.Sprintf("%s\t%d\t", os.Getenv("SETTINGS"), crowd)
	rows := map[string]string{}
	for _, work := range works {
		for _, figure := range []string{oneRuns, allRun, allRemoved} {
			for _, of := range work.storages {
				values, base := m.seconds[key(figure, work.name, of.name)], m.seconds[key(figure, work.name, work.storages[0].name)]
				if len(values) > 0 {
					rows["startup"] += begin + key(figure, work.name, of.name) + columns(values, base, rounds)
				}
			}
		}
	}
	for _, of := range works[0].storages {
		for _, state := range of.states {
			times := m.steps[of.name+"\t"+state.name]
			rows["startup-steps"] += fmt.Sprintf("%s%s\t%s\t%s\t%.2f\t%.2f\t%d of %d\n", begin, of.name, state.name, state.by,
				measure.Percentile(times, 50), measure.Percentile(times, 99), measure.Above(times, long), len(times))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.requests)) {
		per := func(column int) float64 { return float64(m.requests[key][column]) / float64(crowd*rounds) }
		// Fewer are periodic.
		if per(0) >= 0.1 || per(1) >= 0.1 {
			rows["startup-requests"] += fmt.Sprintf("%s%s\t%.1f\t%.1f\n", begin, key, per(0), per(1))
		}
	}
	rows["startup-calls"] = fmt.Sprintf("%s%.1f\t%.1f\n", begin, s.mean("CreateVolume"), s.mean("NodePublishVolume"))
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		fmt.Print(rows[name])
		s.Must(os.WriteFile(filepath.Join(harness.Run, name+".rows"), []byte(rows[name]), 0o644))
	}
}

// columns has the median and the 99th percentile of values that were measured in rounds, and the ratio of the medians to
// those of the base: the median one, the least and the largest.
func columns(values, base []float64, rounds int) string {
	var ratios []float64
	size := len(values) / rounds
	for round := range rounds {
		median := func(values []float64) float64 { return measure.Percentile(values[round*size:(round+1)*size], 50) }
		ratios = append(ratios, median(values)/median(base))
	}
	return fmt.Sprintf("\t%.2f\t%.2f\t%.2f\t%.2f to %.2f\n", measure.Percentile(values, 50), measure.Percentile(values, 99),
		measure.Percentile(ratios, 50), slices.Min(ratios), slices.Max(ratios))
}

// mean returns the average duration of a call in the drivers of all nodes, in milliseconds.
func (s *scenario) mean(call string) float64 {
	s.Helper()
	line := regexp.MustCompile(`rootcellar_rpc_seconds_(sum|count)\{rpc="` + call + `",code="OK"\} (\S+)`)
	sums := map[string]float64{}
	for _, n := range nodes() {
		text, err := s.page(n, "/metrics")
		s.Must(err)
		for _, match := range line.FindAllStringSubmatch(text, -1) {
			value, err := strconv.ParseFloat(match[2], 64)
			s.Must(err)
			sums[match[1]] += value
		}
	}
	return sums["sum"] / sums["count"] * 1000
}
