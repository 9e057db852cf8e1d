// Package fleet tests rootcellar-fleet between the stock sidecars, on a real control plane.
//
// cluster.sh starts the control plane without nodes. Here a node is its objects, and with them the real driver,
// csi-provisioner and csi-snapshotter; a pod is scheduled and never runs. Each client has a proxy of its own, which
// holds one write at a time, so that each race is met on purpose. main_test.go lists the scenarios.
package fleet

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"rootcellar.dev/e2e/suites/harness"
)

var quiet = log.New(io.Discard, "", 0)

var objects = dynamic.NewForConfigOrDie(harness.Admin)

func resourceOf(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: name}
}

var snapshotKind, contentKind = resourceOf("volumesnapshots"), resourceOf("volumesnapshotcontents")

// process is a program that the test started.
type process struct {
	*exec.Cmd
	done chan struct{}
}

// launch starts a program whose output is added to a log of this name.
func launch(name string, env []string, program string, arguments ...string) *process {
	out, err := os.OpenFile(filepath.Join(harness.Run, "log", name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer out.Close()
	p := &process{exec.Command(program, arguments...), make(chan struct{})}
	p.Env = append(os.Environ(), env...)
	p.Stdout, p.Stderr = out, out
	if err := p.Start(); err != nil {
		panic(err)
	}
	go func() {
		_ = p.Wait()
		close(p.done)
	}()
	return p
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the program without a chance to react.
func (p *process) kill() {
	_ = p.Process.Kill()
	<-p.done
}

// pause stops the program, and returns the function that continues it. On a busy machine the signal arrives late.
func (p *process) pause(s *scenario) func() {
	s.Must(p.Process.Signal(syscall.SIGSTOP))
	s.Eventually("the program is stopped", harness.Patience, func() string {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Process.Pid))
		s.Must(err)
		for _, file := range stats {
			// The state follows the name, which may have any character.
			text, err := os.ReadFile(file)
			if _, rest, _ := strings.Cut(string(text), ") "); err != nil || !strings.HasPrefix(rest, "T") {
				return fmt.Sprint(file, ": ", rest, err)
			}
		}
		return ""
	})
	resume := sync.OnceFunc(func() { _ = p.Process.Signal(syscall.SIGCONT) })
	s.Cleanup(resume)
	return resume
}

// key is the file with the key of the drivers' pages.
var key = filepath.Join(harness.Run, "inventory-key")

// machine is a node: its objects, its disks and its programs.
type machine struct {
	name, dir string
	// port is that of the driver's page.
	port int
	// value is that of the topology label.
	value string
	// taints are those with which the Node starts.
	taints []corev1.Taint
	// unlabelled says that its Node starts without the label, because the driver has never run under this name.
	unlabelled bool

	driver, provisioner, snapshotter *process
	// provisioning and snapshotting are the proxies of the two sidecars.
	provisioning, snapshotting *proxy
}

// sidecars are the arguments of the containers in the chart's DaemonSet, by their names.
var sidecars = map[string][]string{}

// render returns the objects of the chart with snapshots, rootcellar-fleet, and these values.
func render(values string) []*unstructured.Unstructured {
	text, err := exec.Command("helm", "template", "rootcellar", filepath.Join(harness.Root, "deploy/chart"), "--kube-version", "1.36.0",
		"--namespace", harness.System, "--set", "snapshots.enabled=true,fleet.enabled=true,namespace.create=true,"+values).Output()
	if err != nil {
		panic(fmt.Sprint(err, string(text)))
	}
	var found []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(string(text)), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			panic(err)
		}
		if len(object.Object) > 0 {
			found = append(found, object)
		}
	}
}

// install creates the chart's objects but its pods, and the CRDs of snapshots.
func (s *scenario) install() {
	s.Helper()
	s.Kubectl("apply", "--server-side", "--kustomize", filepath.Join(os.Getenv("PARTS"), "snapshot-controller", "crd"))
	s.Kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout", harness.Patience.String())
	file := filepath.Join(harness.Run, "chart.yaml")
	var text strings.Builder
	for _, object := range render("fleet.inventory=false") {
		switch object.GetKind() {
		case "DaemonSet":
			containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
			s.Must(err)
			for _, container := range containers {
				arguments, _, err := unstructured.NestedStringSlice(container.(map[string]any), "args")
				s.Must(err)
				sidecars[container.(map[string]any)["name"].(string)] = arguments
			}
		case "Deployment":
		default:
			line, err := object.MarshalJSON()
			s.Must(err)
			text.WriteString("---\n" + string(line))
		}
	}
	s.Must(os.WriteFile(file, []byte(text.String()), 0o644))
	s.Kubectl("--namespace", harness.System, "apply", "--server-side", "--filename", file)
}

// classes creates the classes of the scenarios.
func (s *scenario) classes() {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: taken}
driver: %[1]s
deletionPolicy: Delete
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: %[1]s
parameters: {pool: default}
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: now}
provisioner: %[1]s
parameters: {pool: default}
volumeBindingMode: Immediate
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: slow}
provisioner: %[1]s
parameters: {pool: slow, copy: allowed}
volumeBindingMode: WaitForFirstConsumer
`, harness.Driver), "--server-side")
}

// grant gives the account the rights and the policies of the functions that these values turn on.
func (s *scenario) grant(values string) {
	s.Helper()
	var text strings.Builder
	for _, object := range render(values) {
		switch object.GetKind() {
		case "ConfigMap", "ClusterRole", "Role", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			line, err := object.MarshalJSON()
			s.Must(err)
			text.WriteString("---\n" + string(line) + "\n")
		}
	}
	file := filepath.Join(harness.Run, "rights.yaml")
	s.Must(os.WriteFile(file, []byte(text.String()), 0o644))
	// A scenario before may have changed the rights.
	s.Kubectl("--namespace", harness.System, "apply", "--server-side", "--force-conflicts", "--filename", file)
}

// disk mounts an image with a filesystem below the node's directory. The mount ends with the namespaces of cluster.sh.
func (m *machine) disk(s *scenario, name, size, filesystem string) {
	s.Helper()
	image, dir := filepath.Join(m.dir, name+".img"), filepath.Join(m.dir, "pools", name)
	s.Must(os.MkdirAll(dir, 0o755))
	for _, step := range [][]string{
		{"truncate", "-s", size, image}, {"mkfs." + filesystem, "-q", image}, {"mount", "-o", "loop", image, dir},
	} {
		_, err := harness.Command(s.Context(), step[0], step[1:]...)
		s.Must(err)
	}
}

// newMachine starts the driver of a machine that the cluster does not know yet.
func (s *scenario) newMachine(name, size string) *machine {
	s.Helper()
	m := s.machine(name, size)
	m.start()
	return m
}

// machine has a pool of this size whose files share blocks, and a small one whose files do not.
func (s *scenario) machine(name, size string) *machine {
	s.Helper()
	rig.number++
	// reap.sh removes directories of these names, and the path of a socket is short.
	m := &machine{name: name, value: name, dir: filepath.Join(harness.Run, fmt.Sprint("node", rig.number)), port: 9820 + rig.number}
	m.disk(s, "default", size, "xfs")
	m.disk(s, "slow", "600M", "ext4")
	return m
}

// start starts the driver, and the proxies of its sidecars.
func (m *machine) start() {
	m.startDriver()
	m.provisioning, m.snapshotting = newProxy("provisioner-"+m.name), newProxy("snapshotter-"+m.name)
}

// addNode adds a node with such a machine.
func (s *scenario) addNode(name, size string) *machine {
	s.Helper()
	m := s.newMachine(name, size)
	m.register(s)
	m.report(s)
	return m
}

// report starts the sidecars of a registered node, and waits until its capacity is known.
func (m *machine) report(s *scenario) {
	s.Helper()
	m.startProvisioner()
	m.startSnapshotter()
	m.reports(s, "late")
	if m.value != m.name {
		s.Kubectl("label", "node", m.name, harness.TopologyKey+"="+m.value, "--overwrite")
	}
}

// reports waits until the capacity of the node for this class is known.
func (m *machine) reports(s *scenario, class string) {
	s.Helper()
	s.Eventually("the capacity of "+m.name+" for "+class+" is known", harness.Patience, func() string {
		capacities, err := harness.Client.StorageV1().CSIStorageCapacities(harness.System).List(s.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, capacity := range capacities.Items {
			if capacity.StorageClassName != class || !slices.ContainsFunc(capacity.OwnerReferences, func(owner metav1.OwnerReference) bool {
				return owner.Name == m.pod()
			}) {
				continue
			}
			m.value = capacity.NodeTopology.MatchLabels[harness.TopologyKey]
			return ""
		}
		return "not yet"
	})
}

// pod is the name of the pod that the driver would run in.
func (m *machine) pod() string { return "rootcellar-" + m.name[:min(20, len(m.name))] }

func (m *machine) socket() string { return "unix://" + filepath.Join(m.dir, "plugin", "csi.sock") }

func (m *machine) startDriver() {
	for _, dir := range []string{"plugin", "state", "kubelet"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o755); err != nil {
			panic(err)
		}
	}
	arguments := []string{"serve", "--endpoint", m.socket(), "--node", m.name, "--state-dir", filepath.Join(m.dir, "state"),
		"--kubelet-dir", filepath.Join(m.dir, "kubelet"), "--http", fmt.Sprint("127.0.0.1:", m.port), "--inventory-key", key}
	for _, pool := range []string{"default", "slow"} {
		arguments = append(arguments, "--pool", pool+"="+filepath.Join(m.dir, "pools", pool)+",init,require-mount")
	}
	m.driver = launch("driver-"+m.name, nil, os.Getenv("DRIVER"), arguments...)
}

// provisionerVersion is part of the name of the program, and empty for the newest.
var provisionerVersion string

// startProvisioner starts csi-provisioner with the arguments of the chart, and then these.
func (m *machine) startProvisioner(changes ...string) { m.startProvisionerIn(nil, changes...) }

func (m *machine) startProvisionerIn(env []string, changes ...string) {
	env = append(env, "NODE_NAME="+m.name, "NAMESPACE="+harness.System, "POD_NAME="+m.pod())
	m.provisioner = m.sidecar("csi-provisioner", "csi-provisioner"+provisionerVersion, m.provisioning, env, changes...)
}

func (m *machine) startSnapshotter() {
	m.snapshotter = m.sidecar("csi-snapshotter", "csi-snapshotter", m.snapshotting, []string{"NODE_NAME=" + m.name})
}

func (m *machine) sidecar(container, program string, through *proxy, env []string, changes ...string) *process {
	var arguments []string
	for _, argument := range sidecars[container] {
		// All nodes share one network, so their pages would have one port.
		if !strings.HasPrefix(argument, "--csi-address=") && !strings.HasPrefix(argument, "--http-endpoint=") {
			arguments = append(arguments, argument)
		}
	}
	// Klog takes the last of repeated flags.
	arguments = append(arguments, "--csi-address="+m.socket(), "--kubeconfig="+through.config, "--v=4")
	// The variable outranks the flag.
	return launch(container+"-"+m.name, append(env, "KUBECONFIG="+through.config), program, append(arguments, changes...)...)
}

// register creates the objects that a kubelet and a registrar would create, and the driver's pod.
func (m *machine) register(s *scenario) {
	s.Helper()
	m.makeNode(s)
	m.registerDriver(s)
	m.makePod(s)
	m.podIsReady(s, true)
}

func (m *machine) makeNode(s *scenario) {
	s.Helper()
	labels := map[string]string{}
	if len(m.name) <= 63 && !m.unlabelled {
		labels[harness.TopologyKey] = m.name
	}
	s.node(m.name, labels, m.taints, hardware(m.dir))
}

// hardware has the ids of a machine, which stay the same under another name.
func hardware(of string) corev1.NodeSystemInfo {
	sum := sha256.Sum256([]byte(of))
	return corev1.NodeSystemInfo{MachineID: fmt.Sprintf("%x", sum[:16]), SystemUUID: fmt.Sprintf("%x-%x-%x-%x-%x", sum[16:20], sum[20:22], sum[22:24], sum[24:26], sum[26:])}
}

// node creates a node that is ready and has resources for many pods.
func (s *scenario) node(name string, labels map[string]string, taints []corev1.Taint, info corev1.NodeSystemInfo) {
	s.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name[:min(63, len(name))], corev1.LabelOSStable: "linux",
	}}, Status: corev1.NodeStatus{NodeInfo: info}}
	maps.Copy(node.Labels, labels)
	_, err := harness.Client.CoreV1().Nodes().Create(s.Context(), node, metav1.CreateOptions{})
	s.Must(err)
	patch := func(text string, subresources ...string) {
		_, err := harness.Client.CoreV1().Nodes().Patch(s.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		s.Must(err)
	}
	room := `{"cpu": "64", "memory": "256Gi", "pods": "1000"}`
	patch(fmt.Sprintf(`{"status": {"capacity": %[1]s, "allocatable": %[1]s,
		"conditions": [{"type": "Ready", "status": "True", "reason": "Rig", "lastHeartbeatTime": %[2]q, "lastTransitionTime": %[2]q}]}}`, room, time.Now().UTC().Format(time.RFC3339)), "status")
	// The API server adds a taint to each new node.
	text, err := json.Marshal(taints)
	s.Must(err)
	patch(fmt.Sprintf(`{"spec": {"taints": %s}}`, text))
}

// registerDriver does what the kubelet does when it has registered the driver.
func (m *machine) registerDriver(s *scenario) {
	s.Helper()
	node, err := harness.Client.CoreV1().Nodes().Get(s.Context(), m.name, metav1.GetOptions{})
	s.Must(err)
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: m.name, UID: node.UID}
	info := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: m.name, OwnerReferences: []metav1.OwnerReference{owner}}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: harness.Driver, NodeID: m.name, TopologyKeys: []string{harness.TopologyKey}}},
	}}
	_, err = harness.Client.StorageV1().CSINodes().Create(s.Context(), info, metav1.CreateOptions{})
	s.Must(err)
}

// makePod creates the driver's pod, which owns the capacities.
func (m *machine) makePod(s *scenario) {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: m.pod(), Labels: map[string]string{"app.kubernetes.io/name": "rootcellar"}}, Spec: sleeper()}
	pod.Spec.NodeName = m.name
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: int32(m.port)}}
	s.Eventually("the pod of the driver is created", harness.Patience, func() string {
		_, err := harness.Client.CoreV1().Pods(harness.System).Create(s.Context(), pod, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err.Error()
		}
		return ""
	})
}

func (m *machine) podIsReady(s *scenario, ready bool) {
	s.Helper()
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready]
	s.Kubectl("--namespace", harness.System, "patch", "pod", m.pod(), "--subresource=status", "--type=merge", "--patch", fmt.Sprintf(
		`{"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "conditions": [{"type": "Ready", "status": %q}]}}`, status))
}

// unregister deletes the node's objects, as a cloud does for a machine that it has removed.
func (m *machine) unregister(s *scenario) {
	s.Helper()
	s.Kubectl("delete", "node/"+m.name, "csinode/"+m.name, "--ignore-not-found")
	s.Kubectl("--namespace", harness.System, "delete", "pod", m.pod(), "--ignore-not-found", "--force", "--grace-period=0")
}

// lose has the node missing with its machine.
func (m *machine) lose(s *scenario) {
	s.Helper()
	m.stop()
	m.unregister(s)
}

// back has the node in the cluster again, with its programs.
func (m *machine) back(s *scenario) {
	s.Helper()
	m.startDriver()
	m.register(s)
	m.startProvisioner()
	m.startSnapshotter()
}

// stop ends the programs of the node.
func (m *machine) stop() {
	for _, p := range []*process{m.provisioner, m.snapshotter, m.driver} {
		if p != nil {
			p.kill()
		}
	}
}

// directories returns the volume directories of a pool whose names contain the text.
func (m *machine) directories(s *scenario, pool, text string) []string {
	s.Helper()
	entries, err := os.ReadDir(filepath.Join(m.dir, "pools", pool, "volumes"))
	s.Must(err)
	var found []string
	for _, entry := range entries {
		if strings.Contains(entry.Name(), text) {
			found = append(found, filepath.Join(m.dir, "pools", pool, "volumes", entry.Name()))
		}
	}
	return found
}

// rig has what is there once: the three nodes, of which node1 has the sources and node3 is the emptiest, and the central
// programs with their proxies.
var rig struct {
	// number is that of the nodes that were added.
	number                       int
	node1, node2, node3          *machine
	scheduling, labelling, fleet *proxy
	snapshots                    *process
	controller                   *process
	// arguments are those of the controller.
	arguments []string
}

func nodes() []*machine { return []*machine{rig.node1, rig.node2, rig.node3} }

// build starts everything but the controller.
func (s *scenario) build() {
	s.Helper()
	s.Must(os.WriteFile(key, []byte("the key of the pages of all drivers\n"), 0o600))
	s.install()
	s.classes()
	rig.scheduling, rig.labelling, rig.fleet = newProxy("scheduler"), newProxy("snapshot-controller"), newProxy("fleet")
	// The scheduler compares whole percents, so a claim of 64Mi must be one of the smaller nodes' and none of node3's.
	rig.node1, rig.node2, rig.node3 = s.addNode("node1", "3G"), s.addNode("node2", "3G"), s.addNode("node3", "40G")
	// In 1.36 the preference for the emptiest node is off.
	config := fmt.Sprintf(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, contentType: application/json, qps: 200, burst: 400}
`, rig.scheduling.config)
	file := filepath.Join(harness.Run, "scheduler.yaml")
	s.Must(os.WriteFile(file, []byte(config), 0o644))
	launch("kube-scheduler", nil, "kube-scheduler", "--config", file, "--feature-gates=StorageCapacityScoring=true", "--secure-port=0")
}

// snapshotController starts the stock program, or starts it again with other arguments.
func (s *scenario) snapshotController(arguments ...string) {
	s.Helper()
	if rig.snapshots != nil {
		rig.snapshots.kill()
	}
	rig.snapshots = launch("snapshot-controller", []string{"KUBECONFIG=" + rig.labelling.config}, "snapshot-controller",
		append([]string{"--kubeconfig=" + rig.labelling.config, "--leader-election=false", "--http-endpoint=", "--v=4"}, arguments...)...)
}

const distributed = "--enable-distributed-snapshotting"

// control starts the controller with these arguments.
func (s *scenario) control(arguments ...string) {
	s.Helper()
	s.uncontrol()
	rig.arguments = arguments
	env := []string{"KUBECONFIG=" + rig.fleet.config, "POD_NAMESPACE=" + harness.System, "RUST_LOG=info,rootcellar_fleet=debug"}
	rig.controller = launch("fleet", env, os.Getenv("FLEET"), append([]string{"--http", "0.0.0.0:9809"}, arguments...)...)
}

// uncontrol ends the controller.
func (s *scenario) uncontrol() {
	if rig.controller != nil {
		rig.controller.kill()
		rig.controller = nil
	}
}
