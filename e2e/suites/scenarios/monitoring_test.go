package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// alerts are provoked one after the other, and each clears before the next one.
var alerts = []struct {
	name, matcher string
	provoke       func(*scenario) (clear func())
}{
	{"RootcellarNotRegistered", `node="node1"`, loseRegistration},
	{"RootcellarPoolUnavailable", `node="node1", pool="set", member="disk4"`, pullMember},
	{"RootcellarPoolNotAnswering", `node="node1", pool="default"`, freezeDisk},
	{"RootcellarPoolIOErrors", `node="node1", pool="set", member="disk3"`, countErrors},
	{"RootcellarPoolLowSpace", `node="node1", pool="quota"`, reservePool},
	{"RootcellarKeptEndsEarly", `node="node1", pool="kept"`, needKept},
	{"RootcellarVolumeLowSpace", `persistentvolumeclaim="full"`, fillVolume},
	{"RootcellarSizesNotEnforced", `node="node1", pool="quota"`, exceedSizes},
	{"RootcellarDeletionStuck", `node="node1", pool="default"`, resistDeletion},
	{"RootcellarQuarantined", `node="node1", pool="default"`, damageRecord},
	{"RootcellarNodeAbsent", `node="node9"`, nameAbsentNode},
	{"RootcellarDifference", `reason="VolumeWithoutPersistentVolume"`, forgetVolume},
	{"RootcellarPageSilent", `node="node1"`, stopDriver},
	{"RootcellarDriverAway", `node="node1"`, stopDriver},
	{"RootcellarDriverAway", `node=""`, removeDrivers},
	{"RootcellarControllerAway", ``, removeController},
}

// TestMonitoring runs the Prometheus operator with the alerts of the chart, and again with short durations.
func TestMonitoring(t *testing.T) {
	t.Cleanup(harness.Count)
	s := &scenario{harness.In(t, metav1.NamespaceDefault)}
	s.Kubectl("apply", "--server-side", "--filename", filepath.Join(os.Getenv("PARTS"), "prometheus-operator.yaml"))
	s.Kubectl("wait", "--for=condition=Established", "customresourcedefinition", "--all", "--timeout", harness.Patience.String())
	s.Namespace = "monitoring"
	s.Kubectl("apply", "--filename", filepath.Join(harness.Root, "e2e/suites/monitoring/prometheus.yaml"))
	s.install("--values", filepath.Join(harness.Root, "e2e/suites/monitoring/values.yaml"))
	s.hasten()
	start := time.Now()
	entries := []entry{
		{"a Prometheus of the operator reads the pages of all drivers and of the controller, and has the rules", scraped},
		{"a restart, a rollout and a killed driver fire no alert", restartsFireNothing},
	}
	for _, alert := range alerts {
		title := alert.name + "{" + alert.matcher + "} fires and clears"
		entries = append(entries, entry{title, func(s *scenario) {
			clear := alert.provoke(s)
			s.Cleanup(clear)
			s.alertIs(true, alert.name, alert.matcher)
			clear()
			s.alertIs(false, alert.name, alert.matcher)
		}})
	}
	entries = append(entries,
		entry{"every query of the dashboard returned a series", func(s *scenario) { s.boardHasSeries(start) }},
		entry{"a Prometheus without the operator reads the same pages by the example, and has the rules", withoutOperator},
	)
	for _, entry := range entries {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
}

// hasten applies the rules of the chart once more, with the values of hasty.yaml.
func (s *scenario) hasten() {
	s.Helper()
	values := filepath.Join(harness.Root, "e2e/suites/monitoring/")
	text, err := s.shell("helm", "template", "rootcellar", filepath.Join(harness.Root, "deploy/chart"), "--namespace", harness.System, "--kube-version", "1.37.2",
		"--values", values+"/values.yaml", "--values", values+"/hasty.yaml", "--show-only", "templates/prometheusrule.yaml")
	s.Must(err)
	s.Namespace = harness.System
	s.Apply(strings.Replace(text, "\n  name: rootcellar\n", "\n  name: rootcellar-hasty\n", 1))
}

// sample is one series of an answer of Prometheus.
type sample struct {
	Metric map[string]string
	Value  []any
	Values [][]any
}

// prometheus asks the API of the Prometheus in a pod, and decodes its data.
func (s *scenario) prometheus(pod, path string, query url.Values, data any) error {
	found, err := harness.Client.CoreV1().Pods("monitoring").Get(s.ctx(), pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx(), 10*time.Second)
	defer cancel()
	address := "http://" + found.Status.PodIP + ":9090/api/v1/" + path + "?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, answer.Status, text)
	}
	return json.Unmarshal(text, &struct{ Data any }{data})
}

// ofOperator is the pod of the operator's Prometheus.
const ofOperator = "prometheus-e2e-0"

// query returns the series of an expression now.
func (s *scenario) query(pod, expression string) ([]sample, error) {
	var data struct{ Result []sample }
	err := s.prometheus(pod, "query", url.Values{"query": {expression}}, &data)
	return data.Result, err
}

// returns waits until an expression returns this many series.
func (s *scenario) returns(pod, expression string, series int) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%s has %d series", expression, series), 2*harness.Patience, func() string {
		found, err := s.query(pod, expression)
		if err != nil {
			return err.Error()
		}
		if len(found) != series {
			return fmt.Sprint(found)
		}
		return ""
	})
}

// alertIs waits until the hasty twin of an alert fires, or no longer fires.
func (s *scenario) alertIs(firing bool, name, matcher string) {
	s.Helper()
	series := map[bool]int{true: 1}[firing]
	s.returns(ofOperator, fmt.Sprintf(`count(ALERTS{alertname=%q, alertstate="firing", pace="hasty", %s})`, name, matcher), series)
}

// read waits until a Prometheus has read the pages of both drivers and the controller, and has a rule for each alert.
func (s *scenario) read(pod string) {
	s.Helper()
	s.returns(pod, `up{job="rootcellar"} == 1`, 2)
	s.returns(pod, `up{job="rootcellar-fleet"} == 1`, 1)
	s.returns(pod, `count by (node) (rootcellar_pool_healthy{node=~"node[12]"})`, 2)
	var data struct {
		Groups []struct {
			Name  string
			Rules []struct{ Name, Health, LastError string }
		}
	}
	s.Eventually("every rule is evaluated", harness.Patience, func() string {
		if err := s.prometheus(pod, "rules", nil, &data); err != nil {
			return err.Error()
		}
		seen := map[string]bool{}
		for _, group := range data.Groups {
			for _, rule := range group.Rules {
				if rule.Health != "ok" {
					return fmt.Sprintf("%+v", rule)
				}
				seen[rule.Name] = true
			}
		}
		for _, alert := range alerts {
			if !seen[alert.name] {
				return "no rule " + alert.name
			}
		}
		return ""
	})
}

func scraped(s *scenario) { s.read(ofOperator) }

// restartsFireNothing reads the alerts of the chart with their own durations.
func restartsFireNothing(s *scenario) {
	for _, workload := range []string{"daemonset/rootcellar", "deployment/rootcellar-fleet"} {
		s.Kubectl("--namespace", harness.System, "rollout", "restart", workload)
		s.Kubectl("--namespace", harness.System, "rollout", "status", workload, "--timeout", harness.Patience.String())
	}
	s.kill(node1, driverProcess)
	s.driverReady()
	s.returns(ofOperator, `up{job="rootcellar"} == 1`, 2)
	s.returns(ofOperator, `up{job="rootcellar-fleet"} == 1`, 1)
	// It has seen the pods of before and those of now.
	s.returns(ofOperator, `count by (pod) (last_over_time(rootcellar_build_info[10m]))`, 4)
	s.Always("no alert fires", 20*time.Second, func() string {
		found, err := s.query(ofOperator, `last_over_time(ALERTS{alertname=~"Rootcellar.*", alertstate="firing", pace=""}[10m])`)
		s.Must(err)
		if len(found) > 0 {
			return fmt.Sprint(found)
		}
		return ""
	})
}

// boardQuery replaces the variables of the dashboard, as Grafana does for "All".
var boardQuery = strings.NewReplacer("$node", ".*", "$pool", ".*", "$class", ".*", "$__rate_interval", "1m").Replace

// boardHasSeries asks each query of the dashboard for the time of all scenarios, because some series exist only during an
// alert.
func (s *scenario) boardHasSeries(start time.Time) {
	text := s.Kubectl("--namespace", harness.System, "get", "configmap", "rootcellar-dashboard", "--output", `jsonpath={.data.rootcellar\.json}`)
	var board struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	s.Must(json.Unmarshal([]byte(text), &board))
	ask := func(title, expression string) {
		var data struct{ Result []sample }
		s.Must(s.prometheus(ofOperator, "query_range", url.Values{"query": {boardQuery(expression)},
			"start": {start.Format(time.RFC3339)}, "end": {time.Now().Format(time.RFC3339)}, "step": {"2s"}}, &data))
		if len(data.Result) == 0 {
			s.Errorf("%s: no series for %s", title, boardQuery(expression))
		}
	}
	queries := 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			ask(panel.Title, target.Expr)
			queries++
		}
	}
	values := regexp.MustCompile(`^label_values\((.*), ([a-z]+)\)$`)
	for _, variable := range board.Templating.List {
		if found := values.FindStringSubmatch(variable.Definition); found != nil {
			ask("variable "+variable.Name, "count by ("+found[2]+") ("+found[1]+")")
			queries++
		}
	}
	s.Note = fmt.Sprintf(": %d queries", queries)
}

// withoutOperator has a Prometheus with the example's configuration, and the rules as docs/monitor.md makes them a file.
func withoutOperator(s *scenario) {
	_, block, found := strings.Cut(s.section("docs/monitor.md", "Turn it on"), "\n       helm get values ")
	if !found {
		s.Fatal("docs/monitor.md does not make a file of the rules")
	}
	block, _, _ = strings.Cut("helm get values "+block, "\n\n")
	published, check := "oci://registry.example/charts/rootcellar --version "+chartVersion, "promtool check rules rootcellar.rules.yaml"
	if !holdsAll(block, []string{published, check}) {
		s.Fatalf("no %q or no %q in %s", published, check, block)
	}
	block = strings.Replace(block, published, filepath.Join(harness.Root, "deploy/chart")+" --kube-version 1.37.2", 1)
	// The Prometheus below checks the rules.
	block = strings.Replace(block, check, "", 1)
	dir := s.TempDir()
	_, err := s.shell("sh", "-euc", "cd "+dir+"\n"+block)
	s.Must(err)
	example, err := os.ReadFile(filepath.Join(harness.Root, "deploy/examples/monitoring/prometheus.yaml"))
	s.Must(err)
	config := string(example) + "\nglobal: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rootcellar.rules.yaml]\n"
	s.Must(os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	there := &scenario{harness.In(s.T, "monitoring")}
	there.Kubectl("create", "configmap", "plain", "--from-file", filepath.Join(dir, "prometheus.yml"),
		"--from-file", filepath.Join(dir, "rootcellar.rules.yaml"))
	there.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  serviceAccountName: prometheus
  containers:
    - name: prometheus
      image: quay.io/prometheus/prometheus:v3.16.0
      args: [--config.file=/etc/prometheus/prometheus.yml, --storage.tsdb.path=/data]
      volumeMounts: [{name: config, mountPath: /etc/prometheus}, {name: data, mountPath: /data}]
  volumes: [{name: config, configMap: {name: plain}}, {name: data, emptyDir: {}}]
`)
	s.read("plain")
}

// onNode1 runs a line on node1, and fails with it.
func (s *scenario) onNode1(line string) string {
	s.Helper()
	out, err := s.on(node1, "sh", "-euc", line)
	s.Must(err)
	return out
}

// loseRegistration removes the socket. The probe of the registrar notices it, and starts it again.
func loseRegistration(s *scenario) func() {
	s.Eventually("the driver is not registered", harness.Patience, func() string {
		// A registrar that starts at this moment makes it again.
		s.onNode1("rm -f " + os.Getenv("KUBELET_DIR") + "/plugins_registry/" + harness.Driver + "-reg.sock")
		text, err := s.page(node1, "/metrics")
		s.Must(err)
		if !strings.Contains(text, "\nrootcellar_registered 0\n") {
			return "its metric is not 0"
		}
		return ""
	})
	return func() {}
}

func pullMember(s *scenario) func() {
	s.onNode1("umount " + poolPath("set/disk4"))
	return sync.OnceFunc(func() { s.mount("set/disk4.img", poolPath("set/disk4")) })
}

// cleared runs a line on node1, also after the end of the test's context.
func (s *scenario) cleared(line string) func() {
	return sync.OnceFunc(func() {
		if _, err := harness.Command(context.Background(), "nsenter", "-t", node1.pid, "-m", "-p", "--", "sh", "-euc", line); err != nil {
			s.Error(err)
		}
	})
}

// freezeDisk makes every write to the disk wait, as a disk does that hangs. A claim brings one.
func freezeDisk(s *scenario) func() {
	s.onNode1("fsfreeze --freeze " + poolPath("default"))
	clear := s.cleared("fsfreeze --unfreeze " + poolPath("default"))
	s.Cleanup(clear)
	s.Claim("hangs", "rootcellar", "16Mi", sentTo(node1))
	return clear
}

// countErrors has the kernel count an error, as it does for damaged metadata. A check of the filesystem ends it.
func countErrors(s *scenario) func() {
	path := poolPath("set/disk3")
	s.onNode1("echo test >/sys/fs/ext4/$(basename $(findmnt --noheadings --output SOURCE " + path + "))/trigger_fs_error")
	image := filepath.Join(harness.Run, node1.name, "set/disk3.img")
	// The driver closes its files a moment after the unmount. Until then the filesystem may write to the image.
	closed := "for _ in $(seq 600); do [ -n \"$(losetup --associated " + image + ")\" ] || break; sleep 0.2; done"
	return s.cleared("umount " + path + "\n" + closed + "\ne2fsck -fy " + image + " >&2 || [ $? -eq 1 ]\nmount -o loop " + image + " " + path)
}

// reservePool has a claim that takes nearly the whole pool.
func reservePool(s *scenario) func() {
	size := s.metric(node1, "rootcellar_pool_available_bytes", "quota") / 100 * 95
	s.Claim("large", s.Class(map[string]string{"pool": "quota"}), fmt.Sprint(size), sentTo(node1))
	return sync.OnceFunc(func() { s.deleteClaim("large") })
}

// needKept reserves most of a pool with a deleted volume that can come back.
func needKept(s *scenario) func() {
	class := s.Class(map[string]string{"pool": "kept"})
	s.Claim("deleted", class, "16Mi", sentTo(node1))
	volume := s.volume("deleted").Name
	s.deleteClaim("deleted")
	s.volumeGone(volume)
	size := s.metric(node1, "rootcellar_pool_available_bytes", "kept") / 100 * 95
	s.Claim("large", class, fmt.Sprint(size), sentTo(node1))
	return sync.OnceFunc(func() {
		s.deleteClaim("large")
		if _, err := s.inDriver(node1, "volume", "purge", "--all"); err != nil {
			s.Error(err)
		}
	})
}

func fillVolume(s *scenario) func() {
	s.Claim("full", "rootcellar-image", "64Mi")
	s.pod("full", with("full", "/data"))
	s.running("full")
	_, err := s.exec("full", "head -c $(($(stat -f -c '%a * %S' /data) * 95 / 100)) /dev/zero >/data/file && sync")
	s.Must(err)
	return sync.OnceFunc(func() {
		if _, err := s.exec("full", "rm /data/file && sync"); err != nil {
			s.Error(err)
		}
	})
}

func exceedSizes(s *scenario) func() {
	s.Claim("loose", s.Class(map[string]string{"pool": "quota"}), "16Mi", sentTo(node1))
	s.volume("loose")
	return sync.OnceFunc(func() { s.deleteClaim("loose") })
}

// resistDeletion mounts something in a volume, which the driver does not enter.
func resistDeletion(s *scenario) func() {
	s.Claim("busy", "rootcellar", "16Mi", sentTo(node1))
	inside := s.directory(node1, "default", s.volume("busy").Name) + "/data/inside"
	s.onNode1("mkdir " + inside + " && mount -t tmpfs resists " + inside)
	clear := s.cleared("umount $(findmnt --noheadings --output TARGET --source resists)")
	s.Cleanup(clear)
	s.Kubectl("delete", "pvc", "busy", "--wait=false")
	return clear
}

// restartDriver recreates the pod of node1, which reads all records.
func (s *scenario) restartDriver() {
	s.Helper()
	s.Kubectl("--namespace", harness.System, "delete", "pod", s.driverPod(node1).Name)
	s.driverReady()
}

func damageRecord(s *scenario) func() {
	s.Claim("damaged", "rootcellar", "16Mi", sentTo(node1))
	record := node1.path(s.directory(node1, "default", s.volume("damaged").Name) + "/volume.json")
	text, err := os.ReadFile(record)
	s.Must(err)
	s.Must(os.WriteFile(record, []byte("{"), 0o600))
	s.restartDriver()
	return sync.OnceFunc(func() {
		s.Must(os.WriteFile(record, text, 0o600))
		s.restartDriver()
		s.deleteClaim("damaged")
	})
}

// nameAbsentNode has a PersistentVolume of a node that does not exist.
func nameAbsentNode(s *scenario) func() {
	s.Apply(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: lost}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 16Mi}
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: ` + harness.Driver + `, volumeHandle: v1-` + strings.Repeat("0", 32) + `-` + strings.Repeat("1", 32) + `}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: ` + harness.TopologyKey + `, operator: In, values: [node9]}]}]}}
`)
	return sync.OnceFunc(func() { s.Kubectl("delete", "pv", "lost") })
}

// forgetVolume deletes the PersistentVolume of a volume that stays on the disk.
func forgetVolume(s *scenario) func() {
	s.Claim("kept", "rootcellar-retain", "16Mi", sentTo(node1))
	volume := s.volume("kept")
	s.deleteClaim("kept")
	s.Eventually("the volume is released", harness.Patience, func() string { return s.notIn(volume.Name, corev1.VolumeReleased) })
	s.Kubectl("delete", "pv", volume.Name)
	return sync.OnceFunc(func() {
		_, err := s.inDriver(node1, "volume", "delete", volume.Spec.CSI.VolumeHandle)
		s.Must(err)
	})
}

// stopDriver stops the driver of node1, until its probe kills it.
func stopDriver(s *scenario) func() {
	pid := processOf(node1, driverProcess)
	s.Must(syscall.Kill(pid, syscall.SIGSTOP))
	return sync.OnceFunc(func() {
		// The probe may have killed it.
		_ = syscall.Kill(pid, syscall.SIGCONT)
		s.driverReady()
	})
}

// removeDrivers leaves no node for the driver.
func removeDrivers(s *scenario) func() {
	patch := func(value string) {
		s.Kubectl("--namespace", harness.System, "patch", "daemonset", "rootcellar", "--patch",
			`{"spec": {"template": {"spec": {"nodeSelector": {"nowhere": `+value+`}}}}}`)
	}
	patch(`"true"`)
	return sync.OnceFunc(func() {
		patch("null")
		s.driverReady()
	})
}

func removeController(s *scenario) func() {
	scale := func(replicas string) {
		s.Kubectl("--namespace", harness.System, "scale", "deployment", "rootcellar-fleet", "--replicas", replicas)
	}
	scale("0")
	return sync.OnceFunc(func() { scale("1") })
}
