package main

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// fits reports whether a pod's affinity allows a node with these labels; a label that a node lacks is "".
func fits(t *testing.T, pod corev1.PodSpec, labels map[string]string) bool {
	t.Helper()
	for _, term := range pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		all := len(term.MatchExpressions) > 0
		for _, expression := range term.MatchExpressions {
			value, has := labels[expression.Key]
			switch expression.Operator {
			case corev1.NodeSelectorOpIn:
				all = all && has && slices.Contains(expression.Values, value)
			case corev1.NodeSelectorOpNotIn:
				all = all && !(has && slices.Contains(expression.Values, value))
			case corev1.NodeSelectorOpExists:
				all = all && has
			default:
				t.Fatalf("operator %s", expression.Operator)
			}
		}
		if all {
			return true
		}
	}
	return false
}

// sets returns the DaemonSets by name.
func sets(found []runtime.Object) map[string]*appsv1.DaemonSet {
	named := map[string]*appsv1.DaemonSet{}
	for _, set := range all[*appsv1.DaemonSet](found) {
		named[set.Name] = set
	}
	return named
}

const twoGroups = `
nodeGroups:
  - name: fast
    nodeLabel: {key: disk, values: [nvme, optane]}
    poolSets: [{name: disks, path: nvme, init: true}]
    resources: {limits: {memory: 1Gi}}
  - name: zoned
    nodeLabel: {key: zone, values: [b]}
`

// Every node has exactly one driver, also a node with the labels of two groups, and with an affinity of the user.
func TestNodeGroupsAreApart(t *testing.T) {
	mine := `
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{}, {matchExpressions: [{key: a, operator: Exists}]}, {matchExpressions: [{key: b, operator: In, values: ["1"]}]}]
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: rack}]
`
	for affinity, labels := range map[string]map[string]string{"": {}, mine: {"a": ""}, mine + " ": {"b": "1"}} {
		named := sets(objects(t, values(t, twoGroups+affinity)))
		same(t, len(named), 3)
		for _, test := range []struct{ disk, zone, want string }{
			{"", "", "rootcellar"}, {"hdd", "a", "rootcellar"}, {"nvme", "", "rootcellar-fast"},
			{"optane", "b", "rootcellar-fast"}, {"", "b", "rootcellar-zoned"}, {"hdd", "b", "rootcellar-zoned"},
		} {
			node := map[string]string{}
			for key, value := range labels {
				node[key] = value
			}
			for key, value := range map[string]string{"disk": test.disk, "zone": test.zone} {
				if value != "" {
					node[key] = value
				}
			}
			var has []string
			for name, set := range named {
				if fits(t, set.Spec.Template.Spec, node) {
					has = append(has, name)
				}
				if affinity != "" && fits(t, set.Spec.Template.Spec, map[string]string{"disk": test.disk, "zone": test.zone}) {
					t.Errorf("%s is on a node that affinity excludes", name)
				}
			}
			same(t, has, []string{test.want})
		}
		for _, set := range named {
			others := set.Spec.Template.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			last := others[len(others)-1]
			same(t, last.TopologyKey, "kubernetes.io/hostname")
			same(t, last.LabelSelector.MatchLabels, map[string]string{"app.kubernetes.io/name": "rootcellar"})
			same(t, len(others), 1+len(strings.Split(affinity, "topologyKey"))-1)
		}
	}
}

// A group has its pools and resources, and the rest of the pod is that of every node.
func TestNodeGroups(t *testing.T) {
	found := objects(t, values(t, twoGroups), withSnapshots)
	named := sets(found)
	plain, _ := driver(t, objects(t, withSnapshots))
	base := named["rootcellar"].Spec
	// It must not change.
	same(t, base.Selector.MatchLabels, map[string]string{"app.kubernetes.io/name": "rootcellar"})
	pools := map[string][2]string{
		"rootcellar":       {"default=/var/lib/rootcellar/pools/default,init", ""},
		"rootcellar-fast":  {"", "disks=/var/lib/rootcellar/pools/nvme,init"},
		"rootcellar-zoned": {"default=/var/lib/rootcellar/pools/default,init", ""},
	}
	for name, set := range named {
		spec := set.Spec.Template.Spec
		container := spec.Containers[0]
		same(t, [2]string{variable(container, "ROOTCELLAR_POOLS"), variable(container, "ROOTCELLAR_POOL_SETS")}, pools[name])
		memory := "128Mi"
		if name == "rootcellar-fast" {
			memory = "1Gi"
		}
		same(t, container.Resources.Limits.Memory().String(), memory)
		same(t, container.Resources.Requests.Memory().String(), "32Mi")
		if group := strings.TrimPrefix(name, "rootcellar-"); group != name {
			labels := map[string]string{"app.kubernetes.io/name": "rootcellar", "rootcellar.dev/node-group": group}
			same(t, set.Spec.Selector.MatchLabels, labels)
			same(t, set.Spec.Template.Labels, labels)
		}
		// The rest is the same.
		spec.Affinity, container.Env, container.Resources = plain.Affinity, plain.Containers[0].Env, plain.Containers[0].Resources
		spec.Containers[0] = container
		same(t, spec, plain)
	}
	// Without groups no node needs any label.
	same(t, one[*appsv1.DaemonSet](t, objects(t)).Spec.Template.Spec.Affinity == nil, true)
}

// Nodes of no group have no driver if there are no pools for them.
func TestOnlyNodeGroups(t *testing.T) {
	found := objects(t, values(t, `
pools: []
nodeGroups: [{name: a, nodeLabel: {key: a, values: [""]}, pools: [{name: p}]}]
storageClasses: [{name: c}]`))
	same(t, one[*appsv1.DaemonSet](t, found).Name, "rootcellar-a")
	same(t, one[*storagev1.StorageClass](t, found).Name, "c")
}

// A class may name a pool that only one group has.
func TestClassesOfNodeGroups(t *testing.T) {
	objects(t, values(t, twoGroups+`storageClasses: [{name: a, pool: disks, parameters: {exclusive: "true"}}, {name: b, pool: default}, {name: c}]`))
}

// The unit labels the pools of all groups, each once.
func TestMachineConfigOfNodeGroups(t *testing.T) {
	_, unit := labelling(t, values(t, twoGroups))
	hasLines(t, unit,
		"ExecStart=-/usr/bin/chcon -t container_file_t /var/lib/rootcellar/pools/default /var/lib/rootcellar/pools/default/.rootcellar/staging",
		"ExecStart=-/usr/bin/sh -c 'chcon -t container_file_t /var/lib/rootcellar/pools/nvme /var/lib/rootcellar/pools/nvme/* /var/lib/rootcellar/pools/nvme/*/.rootcellar/staging'")
	same(t, strings.Count(unit, "pools/default/.rootcellar"), 1)
}

// Clashes between groups, and in the pools of one, are refused.
func TestNodeGroupMistakes(t *testing.T) {
	group := func(name, rest string) string {
		return "{name: " + name + ", nodeLabel: {key: k, values: [" + name + "]}" + rest + "}"
	}
	groups := func(entries ...string) string { return "nodeGroups: [" + strings.Join(entries, ", ") + "]" }
	refused(t, []mistake{
		{"no label", groups("{name: a}"), "at '/nodeGroups/0': missing property 'nodeLabel'"},
		{"no value", groups("{name: a, nodeLabel: {key: k, values: []}}"), "at '/nodeGroups/0/nodeLabel/values'"},
		{"bad key", groups("{name: a, nodeLabel: {key: \"k=v\", values: [a]}}"), "at '/nodeGroups/0/nodeLabel/key'"},
		{"bad value", groups("{name: a, nodeLabel: {key: k, values: [\"a b\"]}}"), "at '/nodeGroups/0/nodeLabel/values/0'"},
		{"unknown option", groups(group("a", ", poolsDir: /a")), "additional properties 'poolsDir' not allowed"},
		{"bad name", groups(group("A", "")), "node group \"A\": a name has at most 40 characters"},
		{"long name", groups(group(strings.Repeat("a", 41), "")), "a name has at most 40 characters"},
		{"name of the resizer", groups(group("resizer", "")),
			"node group resizer: rootcellar-resizer is the Deployment of csi-resizer; choose another name"},
		{"name of the controller", groups(group("fleet", "")), "rootcellar-fleet is the Deployment of the controller; choose another name"},
		{"two of one name", groups(group("a", ""), "{name: a, nodeLabel: {key: k, values: [b]}}"),
			"node group a: another group has this name; choose another name"},
		{"two of one label", groups(group("a", ""), "{name: b, nodeLabel: {key: k, values: [c, a]}}"),
			"node groups a and b both have the nodes with the label k=a; leave it out of one"},
		{"no pools", groups(group("a", ", pools: []")), "pools and poolSets of node group a are both empty"},
		{"pool outside", groups(group("a", ", pools: [{name: p, path: /srv}]")), "pool p of node group a: /srv is not below poolsDir"},
		{"bad pool name", groups(group("a", ", pools: [{name: P}]")), "pool \"P\" of node group a: a name has at most 63 characters"},
		{"two pools of one name", groups(group("a", ", pools: [{name: p}, {name: p, path: q}]")),
			"a pool and a pool of node group a are both called p"},
		{"pools inside each other", groups(group("a", ", pools: [{name: p}, {name: q, path: p/q}]")), "and pool q of node group a at"},
		{"class of no pool", groups(group("a", ", pools: [{name: p}]")) + "\nstorageClasses: [{name: c, pool: q}]",
			"StorageClass c: no pool or pool set is called q; there are: default, p"},
		{"class that cannot choose in a group", groups(group("a", ", pools: [{name: p}, {name: q}]")) + "\nstorageClasses: [{name: c}]",
			"StorageClass c: it names no pool, there are 2 of node group a, and none is called default; set its pool"},
		{"exclusive volumes of a group's pool",
			groups(group("a", ", pools: [{name: s}]")) + "\npools: []\npoolSets: [{name: s}]\nstorageClasses: [{name: c, pool: s, parameters: {exclusive: \"true\"}}]",
			"StorageClass c: exclusive is true and s of node group a is a pool"},
		{"label of a group", "podLabels: {rootcellar.dev/node-group: a}", "podLabels: the chart itself writes rootcellar.dev/node-group; leave it out"},
	})
}
