package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const withDashboard = "--set=monitoring.dashboard.enabled=true"

// metric matches the names of metrics in an expression, and not labels, functions and keywords of the same form.
var metric = regexp.MustCompile(`\b(up|ALERTS|(?:rootcellar|kubelet|kube|csi_sidecar)_[a-z_]+)\b`)

// others are the metrics of other programs that the alerts and the dashboard use.
var others = []string{
	"up", "ALERTS", "kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes", "kube_persistentvolumeclaim_info",
	"kube_persistentvolume_info", "kube_persistentvolume_claim_ref",
	"csi_sidecar_operations_seconds",
}

// dashboard is the part of Grafana's model that the tests read.
type dashboard struct {
	UID           string `json:"uid"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct {
			Expr       string
			RefID      string `json:"refId"`
			Datasource struct{ UID string }
		}
	}
}

// The alerts and the dashboard use no metric that docs/metrics.md does not have.
func TestMetricsAreReferenced(t *testing.T) {
	reference, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(others, metric.FindAllString(string(reference), -1))
	check := func(user, expression string) {
		used := metric.FindAllString(expression, -1)
		if len(used) == 0 {
			t.Errorf("%s has no metric: %s", user, expression)
		}
		for _, name := range used {
			// The series of a histogram.
			base := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
			if !slices.Contains(known, name) && !slices.Contains(known, base) {
				t.Errorf("%s uses %s, and docs/metrics.md does not have it", user, name)
			}
		}
	}
	for _, rule := range alertRules(t) {
		check(rule.Alert, rule.Expr.StrVal)
	}
	for _, panel := range board(t).Panels {
		for _, target := range panel.Targets {
			check(panel.Title, target.Expr)
		}
	}
}

// board returns the dashboard of the chart.
func board(t *testing.T) dashboard {
	t.Helper()
	var found dashboard
	for _, entry := range all[*corev1.ConfigMap](objects(t, withDashboard)) {
		if entry.Labels["grafana_dashboard"] == "1" {
			if err := json.Unmarshal([]byte(entry.Data["rootcellar.json"]), &found); err != nil {
				t.Fatal(err)
			}
		}
	}
	return found
}

// The dashboard has the variables for data source, node and pool, each query uses the chosen source, and no panel covers
// another.
func TestDashboard(t *testing.T) {
	found := board(t)
	same(t, []any{found.UID, found.SchemaVersion >= 38}, []any{"rootcellar", true})
	var variables []string
	for _, variable := range found.Templating.List {
		variables = append(variables, variable.Name)
	}
	same(t, variables, []string{"datasource", "node", "pool", "class"})
	ids, places := map[int]string{}, map[[2]int]string{}
	for _, panel := range found.Panels {
		if other := ids[panel.ID]; other != "" {
			t.Errorf("%s and %s have the id %d", other, panel.Title, panel.ID)
		}
		ids[panel.ID] = panel.Title
		for x := range panel.GridPos.W {
			for y := range panel.GridPos.H {
				place := [2]int{panel.GridPos.X + x, panel.GridPos.Y + y}
				if places[place] != "" || place[0] >= 24 {
					t.Fatalf("%s is at %v, as %s is, or beyond the 24 columns", panel.Title, place, places[place])
				}
				places[place] = panel.Title
			}
		}
		if (panel.Type == "row") != (len(panel.Targets) == 0) {
			t.Errorf("%s has %d queries", panel.Title, len(panel.Targets))
		}
		for _, target := range panel.Targets {
			same(t, target.Datasource.UID, "${datasource}")
		}
	}
}

// The ConfigMap has the labels and annotations of the values.
func TestDashboardValues(t *testing.T) {
	found := one[*corev1.ConfigMap](t, objects(t, withDashboard, values(t, `
monitoring: {dashboard: {labels: {grafana_dashboard: null, board: yes please}, annotations: {grafana_folder: Storage}}}`)))
	same(t, found.Labels["board"], "yes please")
	same(t, found.Labels["grafana_dashboard"], "")
	same(t, found.Annotations, map[string]string{"grafana_folder": "Storage"})
}
