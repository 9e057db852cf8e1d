package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// containers returns the containers of the driver's and the resizer's pods by name. Both pods have a container `driver`.
func containers(t *testing.T, found []runtime.Object) map[string]corev1.Container {
	t.Helper()
	pod, _ := driver(t, found)
	named := map[string]corev1.Container{}
	for _, container := range slices.Concat(resizer(t, found).Containers, pod.Containers) {
		named[container.Name] = container
	}
	return named
}

// The log level and the arguments of a sidecar follow those of the chart.
func TestSidecarArguments(t *testing.T) {
	plain := containers(t, objects(t, withSnapshots))
	changed := containers(t, objects(t, withSnapshots, values(t, `
provisioner: {logLevel: 5, extraArgs: [--retry-interval-start=2s, --feature-gates=CrossNamespaceVolumeDataSource=true]}
registrar: {logLevel: 1, extraArgs: ["--timeout=10s"]}
resizer: {logLevel: 2, extraArgs: ["--retry-interval-max=1m"]}
snapshots: {logLevel: 3, extraArgs: ["--vmodule=a=1,b=2", "--retry-interval-start=2s"]}
`)))
	for name, more := range map[string][]string{
		"driver":                nil,
		"csi-provisioner":       {"--v=5", "--retry-interval-start=2s", "--feature-gates=CrossNamespaceVolumeDataSource=true"},
		"node-driver-registrar": {"--v=1", "--timeout=10s"},
		"csi-resizer":           {"--v=2", "--retry-interval-max=1m"},
		"csi-snapshotter":       {"--v=3", "--vmodule=a=1,b=2", "--retry-interval-start=2s"},
	} {
		same(t, changed[name].Args, slices.Concat(plain[name].Args, more))
	}
}

// The memory limits of the sidecars that watch all volumes grow with their number, and nothing else changes.
func TestClusterVolumes(t *testing.T) {
	plain := containers(t, objects(t, withSnapshots))
	same(t, containers(t, objects(t, withSnapshots, "--set=clusterVolumes=10000")), plain)
	large := containers(t, objects(t, withSnapshots, "--set=clusterVolumes=100000"))
	for _, name := range []string{"csi-provisioner", "csi-resizer"} {
		limits := large[name].Resources.Limits
		memory := limits[corev1.ResourceMemory]
		same(t, memory.String(), "1928Mi")
		limits[corev1.ResourceMemory] = plain[name].Resources.Limits[corev1.ResourceMemory]
	}
	same(t, large, plain)

	// A limit of the user stays, and so does its absence.
	for resources, limit := range map[string]string{
		"{limits: {memory: 4Gi}, requests: {memory: 4Gi}}": "4Gi",
		"{limits: {memory: 1073741824}}":                   "1073741824",
		"{limits: {memory: null}}":                         "0",
		"{limits: null}":                                   "0",
		"null":                                             "0",
	} {
		own := fmt.Sprintf("clusterVolumes: 30000\nprovisioner: {resources: %[1]s}\nresizer: {resources: %[1]s}\n", resources)
		found := containers(t, objects(t, values(t, own)))
		for _, name := range []string{"csi-provisioner", "csi-resizer"} {
			memory := found[name].Resources.Limits[corev1.ResourceMemory]
			same(t, memory.String(), limit)
		}
	}
}

// Each page has a port of its own in its pod, which a PodMonitor and a NetworkPolicy select by its name.
func TestPorts(t *testing.T) {
	found := objects(t, withSnapshots, withFleet, "--set=httpAddress=[::]")
	readme, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	pods := map[string]corev1.PodSpec{"node": one[*appsv1.DaemonSet](t, found).Spec.Template.Spec}
	for _, deployment := range all[*appsv1.Deployment](found) {
		pods[deployment.Name] = deployment.Spec.Template.Spec
	}
	for pod, spec := range pods {
		seen := map[int32]bool{}
		for _, container := range spec.Containers {
			same(t, len(container.Ports), 1)
			port := container.Ports[0]
			same(t, seen[port.ContainerPort], false)
			seen[port.ContainerPort] = true
			address := fmt.Sprintf("[::]:%d", port.ContainerPort)
			same(t, slices.Contains(container.Args, "--http="+address) || slices.Contains(container.Args, "--http-endpoint="+address), true)
			same(t, strings.Contains(string(readme), fmt.Sprintf("\n| %d, `%s` | ", port.ContainerPort, port.Name)), true)
			pages[pod+" "+container.Name] = fmt.Sprintf("%s %d", port.Name, port.ContainerPort)
		}
	}
	same(t, pages, map[string]string{
		"node driver":                    "http 9808",
		"node node-driver-registrar":     "registration 9809",
		"node csi-provisioner":           "provisioner 9810",
		"node csi-snapshotter":           "snapshotter 9811",
		"rootcellar-resizer driver":      "http 9808",
		"rootcellar-resizer csi-resizer": "resizer 9812",
		"rootcellar-fleet fleet":         "http 9809",
	})
}

// A flag of the chart, in any spelling, is no extra argument.
func TestSidecarMistakes(t *testing.T) {
	refused(t, []mistake{
		{"flag of the chart", "provisioner: {extraArgs: [--node-deployment=false]}",
			"provisioner.extraArgs: leave --node-deployment out; the chart itself writes it"},
		{"other spelling of the flag", "provisioner: {extraArgs: [--worker_threads=9]}",
			"provisioner.extraArgs: leave --worker-threads out; the chart itself writes it"},
		{"flag of the resizer", "resizer: {extraArgs: [--workers=9]}", "resizer.extraArgs: leave --workers out; the chart itself writes it"},
		{"flag of the snapshotter", "snapshots: {enabled: true, extraArgs: [--timeout=9s]}", "snapshots.extraArgs: leave --timeout out"},
		{"flag of the registrar", "registrar: {extraArgs: [\"--http-endpoint=:1\"]}", "registrar.extraArgs: leave --http-endpoint out"},
		{"log level as an argument", "registrar: {extraArgs: [--v=5]}", "registrar.extraArgs: leave --v out; set registrar.logLevel"},
		{"requests as an argument", "resizer: {extraArgs: [--kube-api-qps=10]}", "resizer.extraArgs: leave --kube-api-qps out; set kubeApi.qps"},
		{"leader election", "snapshots: {enabled: true, extraArgs: [--leader-election]}",
			"snapshots.extraArgs: leave --leader-election out; one sidecar does the work, and its account has no right to leases"},
		{"older flag of the page", "provisioner: {extraArgs: [\"--metrics-address=:1\"]}",
			"provisioner.extraArgs: leave --metrics-address out; the chart itself writes --http-endpoint"},
		{"older flag of the registrar's page", "registrar: {extraArgs: [--health-port=1]}", "the chart itself writes --http-endpoint"},
		{"short names of volumes", "provisioner: {extraArgs: [--volume-name-uuid-length=4]}", "leave --volume-name-uuid-length out; the driver finds volumes"},
		{"other names of snapshots", "snapshots: {enabled: true, extraArgs: [--snapshot-name-prefix=a]}", "leave --snapshot-name-prefix out"},
		{"another API server", "provisioner: {extraArgs: [--master=a]}", "leave --master out; the sidecar calls the API server of its cluster"},
		{"registration elsewhere", "registrar: {extraArgs: [--plugin-registration-path=/a]}", "leave --plugin-registration-path out"},
		{"profiles for every pod", "resizer: {extraArgs: [--enable-pprof]}", "leave --enable-pprof out; it would show the sidecar's memory"},
		{"volumes without a node", "provisioner: {extraArgs: [\"--feature_gates=A=true,Topology=false\"]}", "leave the feature gate Topology out"},
		{"no volumes", "clusterVolumes: 0", "at '/clusterVolumes'"},
		{"short flag", "provisioner: {extraArgs: [-v=5]}", "at '/provisioner/extraArgs/0'"},
		{"no flag", "provisioner: {extraArgs: [serve]}", "at '/provisioner/extraArgs/0'"},
		{"flag and value in one", "provisioner: {extraArgs: [--retry-interval-start 5s]}", "at '/provisioner/extraArgs/0'"},
		{"log level too high", "provisioner: {logLevel: 11}", "at '/provisioner/logLevel'"},
		{"log level as a word", "registrar: {logLevel: debug}", "at '/registrar/logLevel'"},
	})
}
