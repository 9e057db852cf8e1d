package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// lost has the volumes of the nodes for itself.
var lost = []entry{
	{"all objects of a namespace are lost, and a StatefulSet finds its data by the objects that the records give", lostObjects},
	{"workloads that came before their lost objects get their volumes, as docs/volumes.md has it", workloadsFirst},
	{"a deleted namespace gets its retained volumes again, as docs/volumes.md has it", deletedNamespace},
	{"a node whose driver lost its memory serves the volumes of its disks, as docs/nodes.md has it", reimagedNode},
	{"a pool is lost with the root disk of its node, and its volumes are made again, as docs/nodes.md has it", lostRootDisk},
	{"a node is renamed and renamed back, as docs/nodes.md has it", renamedNode},
}

// stateDir is on the root disk of a node.
const stateDir = "/var/lib/rootcellar/state"

// runbook opens a section of the manuals for the pool of migration/values.yaml, which has another path.
func (s *scenario) runbook(heading string, words ...string) *procedure {
	s.Helper()
	p := s.follow(heading, append([]string{"POOL=default", "NAMESPACE=" + s.Namespace}, words...)...)
	for i := range p.blocks {
		p.blocks[i][2] = strings.ReplaceAll(p.blocks[i][2], poolPath("$POOL"), newPool)
	}
	return p
}

// printObjects runs the line of the manual that creates the objects of a node's volumes again.
func (s *scenario) printObjects(n node) (string, error) {
	s.Helper()
	const heading = "Make lost objects again"
	_, line, _ := strings.Cut(s.section(s.manual(heading), heading), "\n    kubectl rootcellar")
	line, _, _ = strings.Cut("kubectl rootcellar"+line, "\n")
	return s.shell("env", "NODE="+n.name, "sh", "-euc", line)
}

// theSet returns the StatefulSet of the tenants as its owner wrote it.
func (t *tenants) theSet() *appsv1.StatefulSet {
	t.Helper()
	set, err := harness.Client.AppsV1().StatefulSets(t.Namespace).Get(t.ctx(), "db", metav1.GetOptions{})
	t.Must(err)
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: set.Spec}
}

// loseNamespace deletes the namespace with all its objects and creates it again, empty.
func (t *tenants) loseNamespace() {
	t.Helper()
	t.Kubectl("delete", "namespace", t.Namespace)
	t.Kubectl("create", "namespace", t.Namespace)
	t.Kubectl("wait", "serviceaccount/default", "--for=create", "--timeout", harness.Patience.String())
}

// loseObjects deletes the namespace and its PersistentVolumes, as if the API server had lost them.
func (t *tenants) loseObjects() {
	t.Helper()
	t.each((*move).retain)()
	t.loseNamespace()
	for _, m := range t.moves {
		t.Kubectl("delete", "pv", m.old.Name)
	}
}

// start creates the StatefulSet, and a pod for the claim `web`, which exists.
func (t *tenants) start(set *appsv1.StatefulSet) {
	t.Helper()
	_, err := harness.Client.AppsV1().StatefulSets(t.Namespace).Create(t.ctx(), set, metav1.CreateOptions{})
	t.Must(err)
	t.pod("web", with("web", "/data"))
}

// stop undoes start, and waits until no pod uses a claim.
func (t *tenants) stop() {
	t.Helper()
	t.Kubectl("delete", "statefulset/db", "pod/web")
	t.each(func(m *move) { t.unused(m.claim) })()
}

// found checks that each claim has its volume, and each pod its files.
func (t *tenants) found() {
	t.Helper()
	for i, m := range t.moves {
		if volume := t.volume(m.claim); volume.Spec.CSI.VolumeHandle != m.old.Spec.CSI.VolumeHandle {
			t.Fatalf("claim %s is bound to %+v", m.claim, volume.Spec)
		}
		t.sameData(t.userOf(m.claim).Name, t.files[i])
	}
}

// end deletes the claims, which no pod uses, and their volumes.
func (t *tenants) end() {
	t.Helper()
	for _, m := range t.moves {
		volume := t.volume(m.claim).Name
		t.Must(letGo(t.ctx(), volume))
		t.deleteClaim(m.claim)
		t.volumeGone(volume)
	}
}

// checksums describes the contents of the files below /data.
func (s *scenario) checksums(pod string) string {
	s.Helper()
	out, err := s.exec(pod, "cd /data && find . -type f -exec sha256sum {} + | sort")
	s.Must(err)
	return out
}

// lostObjects has a snapshot too, of data that changed later.
//
// Proves: T12.
func lostObjects(s *scenario) {
	t := s.tenants("rootcellar")
	db := t.moves[1]
	pod := s.userOf(db.claim).Name
	then := s.checksums(pod)
	s.snapshotBy(s.snapshotClass("{copy: allowed}"), "taken", db.claim)
	s.taken("taken")
	content := s.content("taken")
	handle := s.field("volumesnapshotcontent", content, ".status.snapshotHandle")
	_, err := s.exec(pod, "echo later >/data/later && sync")
	s.Must(err)
	t.files[1] = s.summary(pod)

	set := t.theSet()
	s.Kubectl("patch", "volumesnapshotcontent", content, "--type=merge", "--patch", `{"spec":{"deletionPolicy":"Retain"}}`)
	t.loseObjects()
	s.Kubectl("delete", "volumesnapshotcontent", content)
	for _, n := range nodes() {
		out, err := s.printObjects(n)
		s.Must(err)
		s.Note += fmt.Sprintf(" [%s: %d objects]", n.name, strings.Count(out, "created"))
	}
	t.start(set)
	t.found()

	s.taken("taken")
	if got := s.field("volumesnapshotcontent", content, ".status.snapshotHandle"); got != handle {
		s.Fatalf("the snapshot was %s and is %s", handle, got)
	}
	s.Claim("restored", s.Class(map[string]string{"copy": "allowed"}), "64Mi", from("VolumeSnapshot", "taken"), sentTo(db.home))
	s.pod("restored", with("restored", "/data"))
	s.running("restored")
	if got := s.checksums("restored"); got != then {
		s.Fatalf("the restored volume has\n%s\nand not\n%s", got, then)
	}
	s.Kubectl("delete", "volumesnapshot", "taken")
	if list, err := s.inDriver(db.home, "snapshot", "list", "--json"); err != nil || !strings.Contains(list, handle) {
		s.Fatalf("%v: the snapshots are\n%s", err, list)
	}
	s.Kubectl("patch", "volumesnapshotcontent", content, "--type=merge", "--patch", `{"spec":{"deletionPolicy":"Delete"}}`)
	s.Kubectl("delete", "volumesnapshotcontent", content, "--timeout", harness.Patience.String())
	if list, err := s.inDriver(db.home, "snapshot", "list", "--json"); err != nil || strings.Contains(list, handle) {
		s.Fatalf("%v: the snapshots are\n%s", err, list)
	}
	s.deleteWithClaims("restored")
	t.stop()
	t.end()
}

// mend gives the claim of a move its old volume instead of an empty one, which it deletes.
func (m *move) mend() {
	m.Helper()
	empty := m.volume(m.claim)
	p := m.runbook("Give a claim its former volume", "CLAIM="+m.claim, "OLD="+m.old.Name, "NODE="+m.home.name)
	noted := fmt.Sprintf("the new volume is %s on node %s\n", empty.Spec.CSI.VolumeHandle, m.scenario.home(empty).name)
	if out := p.step("volume manifest"); !strings.Contains(out, noted) {
		m.Fatalf("the id of the new volume is not in\n%s", out)
	}
	p.done()
	m.claimIs(corev1.ClaimBound)
	_, err := m.inDriver(m.scenario.home(empty), "volume", "delete", empty.Spec.CSI.VolumeHandle)
	m.Must(err)
}

// workloadsFirst creates the workloads before the lost objects.
//
// Proves: T12, K1.
func workloadsFirst(s *scenario) {
	t := s.tenants("rootcellar")
	set := t.theSet()
	t.loseObjects()
	s.Claim("web", "rootcellar", "64Mi")
	t.start(set)
	t.each(func(m *move) { s.says(s.userOf(m.claim).Name, "ls -A /data && echo new >/data/new", "") })()
	for _, n := range nodes() {
		out, err := s.printObjects(n)
		if err == nil || !strings.Contains(out, "another one is of claim "+s.Namespace) && !strings.Contains(out, "immutable") {
			s.Fatalf("%v: the objects are\n%s", err, out)
		}
	}
	t.stop()
	t.each((*move).mend)()
	t.start(set)
	t.found()
	t.stop()
	t.end()
}

// deletedNamespace has a claim with two volumes, and one that is created before its volume is reserved.
//
// Proves: K1.
func deletedNamespace(s *scenario) {
	const class = "rootcellar-retain"
	t := s.tenants(class)
	s.podWithFile("twice", class)
	first := s.volume("twice")
	s.deleteWithClaims("twice")
	s.phase(first.Name, corev1.VolumeReleased)
	s.podWithFile("twice", class)
	second := s.volume("twice")
	set := t.theSet()
	t.loseNamespace()
	t.each(func(m *move) { s.phase(m.old.Name, corev1.VolumeReleased) })()
	s.phase(second.Name, corev1.VolumeReleased)
	web := t.moves[0]
	s.Claim("web", class, "64Mi")
	s.pod("web", with("web", "/data"))
	s.running("web")

	refused := s.runbook("Restore a deleted namespace")
	refused.skip("undelete --all")
	refused.fails("Released", "several volumes of claim twice")
	s.Kubectl("delete", "pv", first.Name)
	p := s.runbook("Restore a deleted namespace")
	p.skip("undelete --all")
	p.step("Released")
	p.done()
	s.deletePod("web")
	web.mend()
	t.start(set)
	t.found()
	s.Claim("twice", class, "64Mi")
	s.pod("twice", with("twice", "/data"))
	s.running("twice")
	s.says("twice", "cat /data/file", "kept")
	if got := s.volume("twice"); got.Name != second.Name {
		s.Fatalf("claim twice is bound to %s, and not to %s", got.Name, second.Name)
	}

	_, err := s.inDriver(s.home(first), "volume", "delete", first.Spec.CSI.VolumeHandle)
	s.Must(err)
	s.Must(letGo(s.ctx(), second.Name))
	s.deleteWithClaims("twice")
	t.stop()
	t.end()
}

// reboot kills every container of node1 and undoes the kubelet's mounts, as a reboot does. The shell line runs before
// the kubelet starts again.
func (s *scenario) reboot(line string) {
	s.Helper()
	back := s.powerOff(line)
	back()
}

// powerOff kills node1's kubelet and every container, undoes the kubelet's mounts, and runs the shell line. The node begins
// again when the returned function is called or the scenario ends.
func (s *scenario) powerOff(line string) (back func()) {
	s.Helper()
	back = s.kubeletLeaves()
	_, err := s.on(node1, "env", "CONTAINERD_ADDRESS="+node1.containerd(), "CONTAINERD_NAMESPACE=k8s.io",
		"KUBELET_DIR="+os.Getenv("KUBELET_DIR"), "sh", "-euc", `
		for task in $(ctr tasks list --quiet); do ctr tasks kill --signal KILL "$task" || true; done
		while ctr tasks list | grep -q RUNNING; do sleep 0.2; done
		awk -v below="$KUBELET_DIR/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | tac | xargs --no-run-if-empty umount
		`+line)
	s.Must(err)
	return back
}

// loseRoot reboots node1 without the files of its root disk, and these of a disk.
func (s *scenario) loseRoot(files string) {
	s.Helper()
	life := s.driverLife()
	s.reboot(`test -n "$(ls -A ` + stateDir + `)"; rm -r ` + stateDir + ` "$KUBELET_DIR"/* ` + files)
	s.Eventually("the driver was started again", harness.Patience, func() string {
		if s.driverLife() == life {
			return life
		}
		return ""
	})
	s.driverReady()
}

// reimagedNode has a pod on the node, which runs again.
//
// Proves: K1.
func reimagedNode(s *scenario) {
	s.podWithFile("kept", "rootcellar", at(node1))
	life := s.container("kept")
	pools, err := s.inDriver(node1, "pool", "list")
	s.Must(err)
	_, err = s.inDriver(node1, "pool", "cordon", "default")
	s.Must(err)
	s.loseRoot("")
	if got, err := s.inDriver(node1, "pool", "list"); err != nil || got != pools {
		s.Fatalf("%v: the pools were\n%s\nand are\n%s", err, pools, got)
	}
	s.Eventually("the pod was started again", harness.Patience, func() string {
		if s.container("kept") == life {
			return life
		}
		return ""
	})
	s.says("kept", "cat /data/file", "kept")
	s.dismiss("kept")
}

// lostRootDisk has the pool on the root disk of node1.
//
// Proves: K1.
func lostRootDisk(s *scenario) {
	s.podWithFile("spare", "rootcellar", at(node1))
	spare := s.volume("spare")
	t := s.tenants("rootcellar")
	s.deletePod("spare")
	onNode1 := func(m *move) bool { return m.home == node1 }
	first := slices.IndexFunc(t.moves, onNode1)
	if first < 0 {
		s.Fatal("no claim is on node1")
	}
	s.loseRoot(newPool + "/* " + newPool + "/.rootcellar")

	s.event("Pod", s.users(t.moves[first].claim)[0].Name, "is not on this node now")
	s.Kubectl("delete", "pvc", "spare")
	s.event("PersistentVolume", spare.Name, "is not on this node now")
	p := s.runbook("Lose a root disk", "PV="+spare.Name)
	p.step("pool retire")
	p.done()
	last := s.runbook("Replace a disk")
	last.blocks, last.dir = last.blocks[len(last.blocks)-1:], p.dir
	last.step("delete pvc")
	s.volumeGone(spare.Name)

	for i, m := range t.moves {
		if !onNode1(m) {
			s.sameData(s.userOf(m.claim).Name, t.files[i])
			continue
		}
		for _, pod := range s.users(m.claim) {
			s.Kubectl("delete", "pod", pod.Name)
		}
		s.volumeGone(m.old.Name)
		if m.claim == "web" {
			s.Claim("web", "rootcellar", "64Mi")
		}
		s.says(s.userOf(m.claim).Name, "ls -A /data", "")
	}
	// The pool in its place takes volumes.
	s.podWithFile("spare", "rootcellar", at(node1))
	s.deleteWithClaims("spare")
	s.Kubectl("delete", "statefulset/db", "deployment/web")
	t.each(func(m *move) { s.unused(m.claim) })()
	t.end()
}

// renamedNode renames node1 twice.
//
// Proves: K1.
func renamedNode(s *scenario) {
	t := s.tenants("rootcellar")
	s.Must(os.WriteFile(filepath.Join(harness.Run, "node3.pid"), []byte(node1.pid), 0o600))
	other := nodeNamed("node3")
	home := slices.IndexFunc(t.moves, func(m *move) bool { return m.home == node1 })
	if home < 0 {
		s.Fatal("no claim is on node1")
	}
	class := s.snapshotClass("{copy: allowed}")
	for _, names := range [][2]node{{node1, other}, {other, node1}} {
		was, is := names[0], names[1]
		s.snapshotBy(class, "taken", t.moves[home].claim)
		s.taken("taken")
		s.rename(was, is)
		t.same()
		if got := s.home(s.volume(t.moves[home].claim)); got.name != is.name {
			s.Fatalf("the volume is on %s", got.name)
		}
		s.deleteSnapshot("taken")
	}
	s.driverReady()
	s.Kubectl("delete", "statefulset/db", "deployment/web")
	t.each(func(m *move) { s.unused(m.claim) })()
	t.end()
}

// rename follows the manual for the machine of node1.
func (s *scenario) rename(was, is node) {
	s.Helper()
	p := s.runbook("Rename a node", "NODE="+was.name)
	p.step("drain")
	s.reboot("echo " + is.name + " >" + filepath.Join(harness.Run, node1.name, "name"))
	p.step("delete node")
	p.done()
	s.Eventually("the driver is ready on "+is.name, harness.Patience, func() string {
		pods := s.Kubectl("--namespace", harness.System, "get", "pods", "--field-selector", "spec.nodeName="+is.name,
			"--selector", "app.kubernetes.io/name=rootcellar", "--output", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if pods != "True" {
			return pods
		}
		return ""
	})
	s.registered(is)
	s.poolIs(is, "default", "unavailable: its path holds pool")
	p = s.runbook("Move a disk to another node", "NODE="+is.name, "NEW_NODE="+is.name)
	p.step("Retain")
	p.skip("umount")
	p.skip("mount")
	p.step("pool adopt")
	s.poolIs(is, "default", "healthy")
	p.step("managed-by")
	p.skip("pool retire")
	p.done()
}
