package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const (
	withMonitoring = "--set=monitoring.podMonitor.enabled=true,monitoring.rules.enabled=true"
	// alertTests is a file of promtool.
	alertTests = "alerts.yaml"
	runbooks   = "../../../docs/monitor.md"
)

// alertRules returns the rules with every alert.
func alertRules(t *testing.T, arguments ...string) []monitoringv1.Rule {
	t.Helper()
	found := one[*monitoringv1.PrometheusRule](t, objects(t, append(arguments, withMonitoring, withFleet)...))
	var rules []monitoringv1.Rule
	for _, group := range found.Spec.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules
}

// failures runs the tests of the alerts on rules, with the binary that PROMTOOL names, and returns its complaint.
func failures(t *testing.T, rules []monitoringv1.Rule) string {
	t.Helper()
	binary := os.Getenv("PROMTOOL")
	if binary == "" {
		t.Fatal("PROMTOOL is not set: run hack/lint/check-manifests.sh")
	}
	dir := t.TempDir()
	spec, err := yaml.Marshal(monitoringv1.PrometheusRuleSpec{Groups: []monitoringv1.RuleGroup{{Name: "all", Rules: rules}}})
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(alertTests)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"rules.yaml": spec, alertTests: tests} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := exec.Command(binary, "test", "rules", filepath.Join(dir, alertTests)).CombinedOutput()
	if err == nil {
		return ""
	}
	return string(text)
}

// The rules of the chart fire, clear, and survive a restart of the driver, as the tests of promtool have it. Each alert has
// such tests: they notice if it never fires, never clears, or does not wait.
func TestAlerts(t *testing.T) {
	rules := alertRules(t, "--set=monitoring.rules.alerts.RootcellarSizesNotEnforced.exceptPools={loose}")
	if complaint := failures(t, rules); complaint != "" {
		t.Fatal(complaint)
	}
	for _, test := range []struct {
		name   string
		change func(*monitoringv1.Rule)
	}{
		{"none fires", func(rule *monitoringv1.Rule) { rule.Expr.StrVal = "(" + rule.Expr.StrVal + ") and vector(0) > 1" }},
		{"none clears", func(rule *monitoringv1.Rule) { rule.KeepFiringFor = new(monitoringv1.NonEmptyDuration("1h")) }},
		{"none waits", func(rule *monitoringv1.Rule) {
			if *rule.For == "0s" {
				rule.Expr.StrVal += " or on() vector(1)"
			}
			rule.For = nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			changed := slices.Clone(rules)
			for i := range changed {
				test.change(&changed[i])
			}
			complaint := failures(t, changed)
			for _, rule := range rules {
				if !strings.Contains(complaint, "alertname: "+rule.Alert+",") {
					t.Errorf("%s has no test in %s that notices it", rule.Alert, alertTests)
				}
			}
		})
	}
}

// Each alert has its section in the runbooks, in this order, and no section is without an alert.
func TestRunbooks(t *testing.T) {
	text, err := os.ReadFile(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	var sections, alerts, links []string
	for _, heading := range regexp.MustCompile(`(?m)^### (Rootcellar.*)$`).FindAllStringSubmatch(string(text), -1) {
		sections = append(sections, heading[1])
		links = append(links, "https://wiki.example/monitor#"+strings.ToLower(heading[1]))
	}
	var written []string
	for _, rule := range alertRules(t, "--set=monitoring.runbookUrl=https://wiki.example/monitor") {
		alerts = append(alerts, rule.Alert)
		written = append(written, rule.Annotations["runbook_url"])
	}
	same(t, alerts, sections)
	same(t, written, links)
}

// The values choose, label and delay alerts, and without the controller its alerts are absent.
func TestAlertValues(t *testing.T) {
	found := one[*monitoringv1.PrometheusRule](t, objects(t, withMonitoring, values(t, `
monitoring:
  rules:
    labels: {release: a}
    alertLabels: {team: storage}
    alerts:
      RootcellarDriverAway: {enabled: false}
      RootcellarNotRegistered: {severity: page, for: 10m}
      RootcellarVolumeLowSpace: {below: 5.5, classes: [old]}
`)))
	same(t, found.Labels["release"], "a")
	same(t, len(found.Spec.Groups), 1)
	rules := found.Spec.Groups[0].Rules
	same(t, rules[0].Alert, "RootcellarNotRegistered")
	same(t, string(*rules[0].For), "10m")
	same(t, rules[0].Labels, map[string]string{"severity": "page", "team": "storage"})
	at := slices.IndexFunc(rules, func(rule monitoringv1.Rule) bool { return rule.Alert == "RootcellarVolumeLowSpace" })
	for _, part := range []string{"< 5.5 ", `{storageclass!~"rootcellar|rootcellar-retain|rootcellar-image|old"}`} {
		if !strings.Contains(rules[at].Expr.StrVal, part) {
			t.Errorf("%s has no %s", rules[at].Expr.StrVal, part)
		}
	}
}

// A cluster without the operator gets none of its objects, and the PodMonitors name ports of the pods.
func TestPodMonitors(t *testing.T) {
	everywhere(t, func(t *testing.T, _ string, found []runtime.Object) {
		same(t, len(all[*monitoringv1.PodMonitor](found))+len(all[*monitoringv1.PrometheusRule](found)), 0)
	}, withFleet)
	everywhere(t, func(t *testing.T, _ string, found []runtime.Object) {
		ports := map[string][]corev1.Container{}
		for _, object := range all[*appsv1.DaemonSet](found) {
			ports[object.Name] = object.Spec.Template.Spec.Containers
		}
		for _, object := range all[*appsv1.Deployment](found) {
			ports[object.Name] = object.Spec.Template.Spec.Containers
		}
		jobs := map[string]string{}
		for _, monitor := range all[*monitoringv1.PodMonitor](found) {
			same(t, monitor.Spec.Selector.MatchLabels, map[string]string{"app.kubernetes.io/name": monitor.Name})
			same(t, monitor.Labels["release"], "a")
			for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
				same(t, string(endpoint.Interval), "10s")
				jobs[*endpoint.RelabelConfigs[0].Replacement] = *endpoint.Port
				same(t, slices.ContainsFunc(ports[monitor.Name], func(container corev1.Container) bool {
					return slices.ContainsFunc(container.Ports, func(port corev1.ContainerPort) bool { return port.Name == *endpoint.Port })
				}), true)
			}
		}
		same(t, jobs, map[string]string{"rootcellar": "http", "rootcellar-fleet": "http", "rootcellar-provisioner": "provisioner",
			"rootcellar-resizer": "resizer", "rootcellar-snapshotter": "snapshotter"})
	}, withFleet, withMonitoring, "--set=snapshots.enabled=true,monitoring.podMonitor.labels.release=a,monitoring.podMonitor.interval=10s")
}

// The example for a Prometheus without the operator has the jobs of the PodMonitors.
func TestScrapeConfig(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/examples/monitoring/prometheus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		ScrapeConfigs []struct {
			JobName string `json:"job_name"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	var jobs, monitored []string
	for _, job := range config.ScrapeConfigs {
		jobs = append(jobs, job.JobName)
	}
	for _, monitor := range all[*monitoringv1.PodMonitor](objects(t, withMonitoring, withFleet)) {
		for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
			if *endpoint.Port == "http" {
				monitored = append(monitored, *endpoint.RelabelConfigs[0].Replacement)
			}
		}
	}
	same(t, jobs, monitored)
}
