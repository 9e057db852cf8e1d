package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var operations = []entry{
	{"a disk is unmounted and mounted again, as docs/disks.md has it", unmountDisk},
	{"a disk is replaced, as docs/disks.md has it", replaceDisk},
	{"a disk is moved to another node, as docs/disks.md has it", moveDisk},
	{"a damaged record is mended, as docs/storage-format.md has it", mendRecord},
	{"a deleted claim comes back with its volume by kubectl rootcellar, which changes no living one", undeleteClaim},
	{"a deleted namespace is back with its StatefulSet of three, as docs/volumes.md has it", undeleteNamespace},
	{"a growth that does not fit is refused, and taken back as docs/volumes.md has it", takeBackGrowth},
}

// manuals are the pages with procedures. A heading is on one of them only.
var manuals = []string{"docs/disks.md", "docs/nodes.md", "docs/volumes.md", "docs/storage-format.md"}

// manual returns the page with this heading.
func (s *scenario) manual(heading string) string {
	s.Helper()
	for _, page := range manuals {
		text, err := os.ReadFile(filepath.Join(harness.Root, page))
		s.Must(err)
		if strings.Contains(string(text), "\n## "+heading+"\n") {
			return page
		}
	}
	s.Fatalf("none of %v has the section %q", manuals, heading)
	return ""
}

// procedure is a section of a manual that is followed block by block.
type procedure struct {
	*scenario
	words  []string
	blocks [][]string
	dir    string
}

// follow opens a section of the manuals at its first block. The words replace the manual's placeholders.
func (s *scenario) follow(heading string, words ...string) *procedure {
	s.Helper()
	dir, err := os.MkdirTemp(harness.Run, "operations-")
	s.Must(err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	words = append([]string{"NODE=" + node1.name, "POOL=late", "DISK=" + lateDisk()}, words...)
	// Of the blocks for single filesystems, only the one for btrfs runs: this kernel has no project quota.
	blocks := slices.DeleteFunc(shellBlock.FindAllStringSubmatch(s.section(s.manual(heading), heading), -1),
		func(block []string) bool { return block[1] == "xfs" || block[1] == "ext4" })
	return &procedure{s, words, blocks, dir}
}

// next takes the next block, which must contain this text, and returns its place and its commands.
func (p *procedure) next(text string) (where, commands string) {
	p.Helper()
	if len(p.blocks) == 0 || !strings.Contains(p.blocks[0][2], text) {
		p.Fatalf("the next block is not the one with %q: %q", text, p.blocks)
	}
	where, commands = p.blocks[0][1], "mkdir -p "+p.dir+"\ncd "+p.dir+"\n"+p.blocks[0][2]
	p.blocks = p.blocks[1:]
	return where, commands
}

// skip leaves out the next block, which must contain this text.
func (p *procedure) skip(text string) {
	p.Helper()
	p.next(text)
}

// step runs the next block, which must contain this text, and returns its output.
func (p *procedure) step(text string) string {
	p.Helper()
	out, err := p.run(p.next(text))
	p.Must(err)
	return out
}

// fails runs the next block, which must contain this text and fail with this message.
func (p *procedure) fails(text, message string) {
	p.Helper()
	if out, err := p.run(p.next(text)); err == nil || !strings.Contains(out, message) {
		p.Fatalf("%v %q, without %q", err, out, message)
	}
}

func (p *procedure) run(where, commands string) (string, error) {
	p.Helper()
	arguments := append(append([]string{"env"}, p.words...), "sh", "-euc")
	switch where {
	case "":
		return p.shell(arguments[0], append(arguments[1:], commands)...)
	case "node", "btrfs":
		return p.on(node1, arguments[0], append(arguments[1:], commands)...)
	case "new-node":
		return p.on(node2, arguments[0], append(arguments[1:], commands)...)
	default:
		p.Fatalf("a block for %q", where)
		return "", nil
	}
}

// done checks that every block has run.
func (p *procedure) done() {
	p.Helper()
	if len(p.blocks) > 0 {
		p.Fatalf("not followed: %q", p.blocks)
	}
}

func lateDisk() string { return filepath.Join(harness.Run, node1.name, "late.img") }

// unmountAfter unmounts the pool's path on the node after the scenario, even after a failure.
func (s *scenario) unmountAfter(n node) {
	s.Cleanup(func() {
		// Most scenarios unmount it themselves. Then there is nothing to do.
		_, _ = harness.Command(context.Background(), "nsenter", "-t", n.pid, "-m", "-p", "--", "umount", poolPath("late"))
	})
}

// keeper creates a claim on node1's pool with a file in it, and no pod.
func (s *scenario) keeper() *corev1.PersistentVolume {
	s.Helper()
	s.mountLate()
	s.worker("keeper", s.Class(map[string]string{"pool": "late"}))
	s.running("keeper")
	s.says("keeper", "echo kept > /data/file && cat /data/file", "kept")
	volume := s.volume("keeper")
	s.deletePod("keeper")
	s.Eventually("the volume is unmounted", harness.Patience, func() string { return s.mountLines(node1, s.Namespace+"_") })
	return volume
}

// keptOn starts the claim's pod on that node, and checks that it finds its file.
func (s *scenario) keptOn(n node) {
	s.Helper()
	s.pod("keeper", with("keeper", "/data"))
	if got := s.runningOn("keeper"); got != n {
		s.Fatalf("the pod is on %s", got.name)
	}
	s.says("keeper", "cat /data/file", "kept")
}

// Proves: K1.
func unmountDisk(s *scenario) {
	s.keeper()
	p := s.follow("Unmount a disk")
	if out := p.step("claims"); strings.Count(out, "\n") != 1 || !strings.Contains(out, s.Namespace+"/keeper  Bound") {
		s.Fatalf("the disk is used by %q", out)
	}
	p.step("umount")
	s.poolIs(node1, "late", notMounted)
	if out := p.step("rootcellar pools"); !strings.Contains(out, "pool late: nothing is mounted at its path") {
		s.Fatalf("the list is\n%s", out)
	}
	s.nothingBeneath()
	s.lateFreed()
	s.unmountAfter(node1)
	p.step("mount")
	p.done()
	s.keptOn(node1)
	s.dismiss("keeper")
	s.nothingLeft()
	s.unmountLate()
}

// Proves: K1.
func replaceDisk(s *scenario) {
	lost := s.keeper()
	s.unmountLate()
	p := s.follow("Replace a disk", "NEW_DISK="+s.makeBlank("new.img"))
	// A volume that was deleted before the disk was declared lost stays.
	s.Kubectl("delete", "pvc", "keeper")
	s.event("PersistentVolume", lost.Name, "is unavailable")
	s.unmountAfter(node1)
	p.step("mkfs")
	s.poolIs(node1, "late", "unavailable: its path held pool")
	p.step("pool retire")
	s.poolIs(node1, "late", "healthy")
	p.step("delete pvc")
	p.done()
	s.volumeGone(lost.Name)

	class := s.Class(map[string]string{"pool": "late", "enforcement": "required"})
	s.worker("anew", class)
	s.running("anew")
	s.dismiss("anew")
	s.nothingLeft()
	s.unmountLate()

	s.mountAt("late.img", poolPath("late"))
	s.poolIs(node1, "late", "unavailable: its path holds pool")
	s.directory(node1, "late", lost.Name)
	_, err := s.on(node1, "sh", "-euc", "rm -r "+poolPath("late")+"/volumes/*"+lost.Name+"*")
	s.Must(err)
	s.adopt(node1)
	s.unmountLate()
}

// adopt adopts the pool at the path of `late`.
func (s *scenario) adopt(n node) {
	s.Helper()
	_, err := s.inDriver(n, "pool", "adopt", poolPath("late"))
	s.Must(err)
	s.poolIs(n, "late", "healthy")
}

// Proves: K1.
func moveDisk(s *scenario) {
	volume := s.keeper()
	p := s.follow("Move a disk to another node", "NEW_NODE="+node2.name)
	p.step("Retain")
	p.step("umount")
	s.poolIs(node1, "late", notMounted)
	s.lateFreed()
	s.unmountAfter(node2)
	p.step("mount")
	s.poolIs(node2, "late", "unavailable: its path holds pool")
	p.step("pool adopt")
	s.poolIs(node2, "late", "healthy")
	p.step("managed-by")
	s.keptOn(node2)
	if got := s.volume("keeper"); got.Spec.PersistentVolumeReclaimPolicy != volume.Spec.PersistentVolumeReclaimPolicy {
		s.Fatalf("the policy was %s and is %s", volume.Spec.PersistentVolumeReclaimPolicy, got.Spec.PersistentVolumeReclaimPolicy)
	}
	p.step("pool retire")
	p.done()
	s.dismiss("keeper")
	s.nothingLeft()
	_, err := s.on(node2, "umount", poolPath("late"))
	s.Must(err)
	s.poolIs(node2, "late", notMounted)

	s.mountAt("late.img", poolPath("late"))
	s.poolIs(node1, "late", "unavailable: its path holds pool")
	s.adopt(node1)
	s.unmountLate()
}

// Proves: K1.
func mendRecord(s *scenario) {
	volume := s.keeper()
	record := s.directory(node1, "late", volume.Name) + "/volume.json"
	s.Must(os.WriteFile(node1.path(record), []byte("{"), 0o600))
	s.Kubectl("--namespace", harness.System, "delete", "pod", s.driverPod(node1).Name)
	s.driverReady()
	s.pod("waits", with("keeper", "/data"))
	s.event("Pod", "waits", "quarantined, not touched", "volume.json is damaged")

	p := s.follow("Repair a damaged record", "PV="+volume.Name)
	if out := p.step("rootcellar pools"); !strings.Contains(out, "1 quarantined") || !strings.Contains(out, volume.Name) {
		s.Fatalf("the list is\n%s", out)
	}
	p.step("kubectl get pv")
	p.step("install")
	if out := p.step("rollout status"); strings.Contains(out, "quarantined") {
		s.Fatalf("it is in quarantine still:\n%s", out)
	}
	p.done()
	s.running("waits")
	s.says("waits", "cat /data/file", "kept")
	s.deletePod("waits")
	s.deleteClaim("keeper")
	s.nothingLeft()
	s.unmountLate()
}

// takeBackGrowth has a claim request more than its pool has, once with a running pod and once without.
//
// Proves: K1.
func takeBackGrowth(s *scenario) {
	s.Claim("data", s.quotaClass("required"), "64Mi")
	s.pod("writer", with("data", "/data"))
	home, life := s.runningOn("writer"), s.container("writer")
	s.says("writer", "echo kept > /data/kept && cat /data/kept", "kept")

	s.ask("data", "1Ti")
	s.event("Pod", "writer", "OutOfRange", "pool quota has free space for")
	s.sizes("data", "1Ti", "64Mi")
	if reserved := s.metric(home, "rootcellar_pool_reserved_bytes", "quota"); reserved != 64<<20 {
		s.Fatalf("%d bytes are reserved", reserved)
	}
	if filled := s.fill("writer", overQuota); filled > 64 || s.container("writer") != life {
		s.Fatalf("%d MiB were written by %s, which was %s", filled, s.container("writer"), life)
	}
	s.says("writer", "rm /data/file && cat /data/kept", "kept")

	s.deletePod("writer")
	s.pod("writer", with("data", "/data"))
	s.event("Pod", "writer", "MountVolume.Setup failed while expanding volume", "pool quota has free space for")
	s.sizes("data", "1Ti", "64Mi")

	p := s.follow("Take back a growth that does not fit", "NAMESPACE="+s.Namespace, "CLAIM=data", "SIZE=65Mi")
	if out := p.step("get events"); !holdsAll(out, []string{"1Ti", "64Mi", "pool quota has free space for"}) {
		s.Fatalf("it prints\n%s", out)
	}
	out, err := s.shell("kubectl", "--namespace", s.Namespace, "patch", "pvc", "data", "--patch", growth("64Mi"))
	if err == nil || !strings.Contains(out, "field can not be less than status.capacity") {
		s.Fatalf("to ask for what there is, is answered with %q", out)
	}
	p.step("patch pvc")
	p.done()
	s.running("writer")
	s.grown("data", "65Mi", home)
	s.says("writer", "cat /data/kept", "kept")
	s.deletePod("writer")
	s.deleteClaim("data")
	s.nothingLeft()
}

// undeleteNamespace deletes its namespace by mistake.
//
// Proves: K1, UD2.
func undeleteNamespace(s *scenario) {
	class := s.keptClass()
	set := `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  serviceName: db
  podManagementPolicy: Parallel
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {storageClassName: ` + class + `, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {name: main, image: "` + image + `", command: [/bin/sleep, "2147483647"], volumeMounts: [{name: data, mountPath: /data}]}
`
	pods := []string{"db-0", "db-1", "db-2"}
	s.Apply(set)
	var volumes []string
	for _, pod := range pods {
		s.running(pod)
		s.says(pod, "echo "+pod+" > /data/file && sync && cat /data/file", pod)
		volumes = append(volumes, s.volume("data-"+pod).Name)
	}
	s.Kubectl("delete", "namespace", s.Namespace)
	for _, volume := range volumes {
		s.volumeGone(volume)
	}

	start := time.Now()
	p := s.follow("Restore a deleted namespace", "NAMESPACE="+s.Namespace)
	p.step("undelete --all")
	p.skip("Released")
	p.done()
	s.Kubectl("wait", "serviceaccount/default", "--for=create", "--timeout", harness.Patience.String())
	s.Apply(set)
	for i, pod := range pods {
		s.running(pod)
		s.says(pod, "cat /data/file", pod)
		if got := s.volume("data-" + pod).Name; got != volumes[i] {
			s.Fatalf("claim data-%s is bound to %s, and not to %s", pod, got, volumes[i])
		}
	}
	s.Note = fmt.Sprintf(": %.0f s from the first command to its pods", time.Since(start).Seconds())

	s.Kubectl("delete", "statefulset", "db")
	for _, pod := range pods {
		s.Must(letGo(s.ctx(), s.volume("data-"+pod).Name))
		s.deleteClaim("data-" + pod)
	}
	for _, volume := range volumes {
		s.volumeGone(volume)
	}
	s.purgeKept()
}

// keptClass makes a class of the pool that keeps deleted volumes. The record names the class, as with the classes of the chart.
func (s *scenario) keptClass() string {
	s.Helper()
	class := s.Namespace + "-kept"
	s.Class(map[string]string{"pool": "kept", "class": class, "reclaimPolicy": "Delete"},
		func(made *storagev1.StorageClass) { made.ObjectMeta = metav1.ObjectMeta{Name: class} })
	return class
}

// purgeKept ends the deleted volumes of all nodes.
func (s *scenario) purgeKept() {
	s.Helper()
	for _, n := range nodes() {
		// It purges, and then reports the disk that is not mounted yet.
		_, _ = s.inDriver(n, "volume", "purge", "--all")
	}
	s.Eventually("no volume is kept", harness.Patience, func() string {
		for _, n := range nodes() {
			if kept := s.metric(n, "rootcellar_pool_kept", "kept"); kept != 0 {
				return fmt.Sprintf("%s keeps %d", n.name, kept)
			}
		}
		return ""
	})
}
