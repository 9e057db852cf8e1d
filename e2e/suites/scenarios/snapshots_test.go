package scenarios

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var snapshots = []entry{
	{"a snapshot of a running pod's volume holds what was written before it, and the pod writes on", snapshotOfRunning},
	{"a restore or a clone on the wrong node waits and says why, and works where its source is", copiesAreSteered},
	{"a restore whose claim names the node of the snapshot is made there, without an affinity in its pod", claimIsSteered},
	{"a source is deleted, then restored from its snapshot, and then the snapshot is deleted too", sourceDeletedFirst},
	{"a snapshot is deleted while the volume restored from it is written to", snapshotDeletedUnderRestore},
	{"a restore may be larger than its snapshot and not smaller", restoresToOtherSizes},
	{"a snapshot that its class forbids says why, can be deleted, and is taken when that is no longer so", forbiddenSnapshots},
}

// snapshotting lists the scenarios that use the names of the examples, or stop the snapshot-controller.
var snapshotting = []entry{
	{"a snapshot as docs/snapshots.md has it, then a restore and a clone as docs/controller.md has them without the controller", snapshotsByTheManual},
	{"a snapshot, a restore and a clone as docs/snapshots.md has them with the controller, which replaces the flag of the snapshot-controller", snapshotsByTheController},
	{"a snapshot that no node was named for waits, is found as docs/snapshots.md has it, and taken as docs/controller.md has it", snapshotOfNobody},
}

// managedBy is the label that names the node which takes a snapshot.
const managedBy = "snapshot.storage.kubernetes.io/managed-by"

// copying lists the pools of the two kinds of snapshots, each with a node that has it. The other node has an XFS too.
var copying = []struct {
	pool string
	node node
}{{"reflink", node1}, {"fast", node2}}

// snapshot takes a snapshot of a claim, by the chart's own class.
func (s *scenario) snapshot(name, claim string) {
	s.Helper()
	s.snapshotBy("rootcellar", name, claim)
}

func (s *scenario) snapshotBy(class, name, claim string) {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %q}
spec: {volumeSnapshotClassName: %q, source: {persistentVolumeClaimName: %q}}`, name, class, claim))
}

// snapshotClass creates a VolumeSnapshotClass that is deleted after the scenario, and returns its name.
func (s *scenario) snapshotClass(parameters string) string {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: %q}
driver: %s
deletionPolicy: Delete
parameters: %s`, s.Namespace, harness.Driver, parameters))
	s.Cleanup(func() {
		_, _ = harness.Command(context.Background(), "kubectl", "delete", "volumesnapshotclass", s.Namespace, "--ignore-not-found")
	})
	return s.Namespace
}

// forbidden waits until a snapshot reports why it is not taken.
func (s *scenario) forbidden(name string, texts ...string) {
	s.Helper()
	s.Eventually("snapshot "+name+" says why it waits", harness.Patience, func() string {
		if said := s.field("volumesnapshot", name, ".status.error.message"); !holdsAll(said, texts) {
			return said + " is what it says"
		}
		return ""
	})
}

// field returns a field of an object as kubectl prints it, or an empty string.
func (s *scenario) field(kind, name, path string) string {
	s.Helper()
	return s.Kubectl("get", kind, name, "--output", "jsonpath={"+path+"}")
}

// deleteSnapshotAndClaims deletes pods with their claims, then a snapshot.
func (s *scenario) deleteSnapshotAndClaims(snapshot string, claims ...string) {
	s.Helper()
	s.deleteWithClaims(claims...)
	s.deleteSnapshot(snapshot)
}

// take takes a snapshot of a claim and waits until it is ready.
func (s *scenario) take(name, claim string) {
	s.Helper()
	s.snapshot(name, claim)
	s.taken(name)
}

// taken waits until a snapshot is ready to be restored from.
func (s *scenario) taken(name string) {
	s.Helper()
	s.Eventually("snapshot "+name+" is ready", harness.Patience, func() string {
		if s.field("volumesnapshot", name, ".status.readyToUse") == "true" {
			return ""
		}
		return "its status is " + s.field("volumesnapshot", name, ".status")
	})
}

// content returns the name of a snapshot's VolumeSnapshotContent.
func (s *scenario) content(snapshot string) string {
	s.Helper()
	var content string
	s.Eventually("snapshot "+snapshot+" has a content", harness.Patience, func() string {
		if content = s.field("volumesnapshot", snapshot, ".status.boundVolumeSnapshotContentName"); content == "" {
			return "none"
		}
		return ""
	})
	return content
}

// deleteSnapshot deletes a snapshot, and waits until it and its content are deleted.
func (s *scenario) deleteSnapshot(name string) {
	s.Helper()
	content := s.content(name)
	s.Kubectl("delete", "volumesnapshot", name, "--timeout", harness.Patience.String())
	s.Kubectl("wait", "volumesnapshotcontent/"+content, "--for=delete", "--timeout", harness.Patience.String())
}

// snapshotsOnDisk returns the snapshots of a pool on a node that belong to the scenario's namespace, by their records.
func (s *scenario) snapshotsOnDisk(n node, pool string) []string {
	s.Helper()
	records, err := filepath.Glob(n.path(poolPath(pool) + "/snapshots/*/snapshot.json"))
	s.Must(err)
	var found []string
	for _, record := range records {
		text, err := os.ReadFile(record)
		if errors.Is(err, fs.ErrNotExist) {
			// It was deleted meanwhile.
			continue
		}
		s.Must(err)
		if strings.Contains(string(text), `"`+s.Namespace+`"`) {
			found = append(found, filepath.Dir(record))
		}
	}
	return found
}

// from has the claim start with the contents of the snapshot or of the other claim.
func from(kind, name string) func(*corev1.PersistentVolumeClaim) {
	source := &corev1.TypedLocalObjectReference{Kind: kind, Name: name}
	if kind == "VolumeSnapshot" {
		group := "snapshot.storage.k8s.io"
		source.APIGroup = &group
	}
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.DataSource = source }
}

// prefix checks that a copy of the beats contains them from the first one on, and returns their number.
func (b *beating) prefix(pod string) int {
	b.Helper()
	text, err := b.exec(pod, "cat /data/beats")
	b.Must(err)
	return b.check(text + "\n")
}

// Proves: SN1.
func snapshotOfRunning(s *scenario) {
	s.onFast()
	for _, place := range copying {
		class := s.Class(map[string]string{"pool": place.pool})
		writer := s.beats("writer-"+place.pool, class, place.node)
		before := writer.count()
		s.take("of-"+place.pool, writer.pod)
		after := writer.count()
		if found := s.snapshotsOnDisk(place.node, place.pool); len(found) != 1 {
			s.Fatalf("snapshots on the disk: %q", found)
		}
		writer.goesOn()

		restored := "restored-" + place.pool
		s.Claim(restored, class, "25Mi", from("VolumeSnapshot", "of-"+place.pool))
		s.pod(restored, with(restored, "/data"), at(place.node))
		s.running(restored)
		if count := writer.prefix(restored); count < before || count > after {
			s.Fatalf("the snapshot holds %d beats; there were %d before it and %d after", count, before, after)
		}
		// Neither sees the other's writes.
		s.says(restored, "echo mine > /data/beats && echo more > /data/more && ls /data", "beats\nmore")
		writer.goesOn()
		if out, err := s.exec(writer.pod, "cat /data/more"); err == nil {
			s.Fatalf("the source has the copy's file: %s", out)
		}
		s.deleteSnapshotAndClaims("of-"+place.pool, restored, writer.pod)
	}
	s.nothingLeft()
}

// copiesAreSteered has two nodes with free space for a copy. Only the source's node can create it.
//
// Proves: K10.
func copiesAreSteered(s *scenario) {
	class := s.Class(map[string]string{"pool": "reflink"})
	s.freeSpaceEverywhere(class)
	home := s.podWithFile("source", class)
	s.take("taken", "source")
	s.says("source", "echo second > /data/file && sync && cat /data/file", "second")

	s.Claim("restored", class, "64Mi", from("VolumeSnapshot", "taken"))
	s.Claim("cloned", class, "64Mi", from("PersistentVolumeClaim", "source"))
	for name, content := range map[string]string{"restored": "kept", "cloned": "second"} {
		s.pod(name, with(name, "/data"), at(home.other()))
		s.event("PersistentVolumeClaim", name, "ResourceExhausted", "is not on this node")
		s.Always("the pod waits", 5*time.Second, func() string {
			pod, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), name, metav1.GetOptions{})
			s.Must(err)
			if pod.Spec.NodeName != "" {
				return "it is on " + pod.Spec.NodeName
			}
			return ""
		})
		// The claim stays, and its volume is created on the node of the next pod.
		s.deletePod(name)
		s.pod(name, with(name, "/data"), at(home))
		if got := s.runningOn(name); got != home {
			s.Fatalf("the copy is on %s, its source on %s", got.name, home.name)
		}
		s.says(name, "cat /data/file", content)
		if got := s.home(s.volume(name)); got != home {
			s.Fatalf("the copy says it is on %s", got.name)
		}
	}
	if found := s.directories(home.other(), "reflink", s.Namespace+"_"); len(found) > 0 {
		s.Fatalf("left on the wrong node: %q", found)
	}
	s.deleteSnapshotAndClaims("taken", "source", "restored", "cloned")
	s.nothingLeft()
}

// claimIsSteered has two nodes with free space for the copy. Only the claim's annotation selects the one that creates
// it.
//
// Proves: K10.
func claimIsSteered(s *scenario) {
	class := s.Class(map[string]string{"pool": "reflink"})
	s.freeSpaceEverywhere(class)
	for _, home := range nodes() {
		source, early, late := "source-"+home.name, "early-"+home.name, "late-"+home.name
		s.podWithFile(source, class, at(home))
		s.take(source, source)
		// One claim is bound before its pod exists. The other claim is created together with its pod.
		s.Claim(early, class, "64Mi", from("VolumeSnapshot", source), sentTo(home))
		if got := s.home(s.volume(early)); got != home {
			s.Fatalf("the copy is on %s, its snapshot on %s", got.name, home.name)
		}
		s.Claim(late, class, "64Mi", from("VolumeSnapshot", source), sentTo(home))
		for _, name := range []string{early, late} {
			s.pod(name, with(name, "/data"))
			if got := s.runningOn(name); got != home {
				s.Fatalf("the pod is on %s, its snapshot on %s", got.name, home.name)
			}
			s.says(name, "cat /data/file", "kept")
		}
		s.deleteSnapshotAndClaims(source, source, early, late)
	}
	s.nothingLeft()
}

// Proves: SN1.
func sourceDeletedFirst(s *scenario) {
	s.onFast()
	for _, place := range copying {
		class := s.Class(map[string]string{"pool": place.pool})
		s.podWithFile("source", class, at(place.node))
		s.take("taken", "source")
		source := s.volume("source").Name
		s.deleteWithClaims("source")
		s.volumeGone(source)
		s.reclaimed(place.node, place.pool, source)

		s.Claim("restored", class, "64Mi", from("VolumeSnapshot", "taken"))
		s.pod("restored", with("restored", "/data"), at(place.node))
		s.running("restored")
		s.deleteSnapshot("taken")
		if found := s.snapshotsOnDisk(place.node, place.pool); len(found) > 0 {
			s.Fatalf("still on the disk: %q", found)
		}
		s.says("restored", "cat /data/file", "kept")
		s.deleteWithClaims("restored")
		s.nothingLeft()
	}
}

// snapshotDeletedUnderRestore restores twice, so that one copy is deleted before the snapshot and one after it.
//
// Proves: SN1.
func snapshotDeletedUnderRestore(s *scenario) {
	s.onFast()
	for _, place := range copying {
		class := s.Class(map[string]string{"pool": place.pool})
		s.Claim("source", class, "64Mi")
		s.pod("source", with("source", "/data"), at(place.node))
		s.running("source")
		s.says("source", "dd if=/dev/zero of=/data/file bs=1M count=16 2>/dev/null; sync; wc -c < /data/file", "16777216")
		s.take("taken", "source")
		for _, name := range []string{"early", "late"} {
			s.Claim(name, class, "64Mi", from("VolumeSnapshot", "taken"))
			s.pod(name, with(name, "/data"), at(place.node))
			s.running(name)
		}
		s.deleteSnapshotAndClaims("taken", "early")
		s.says("late", "dd if=/dev/urandom of=/data/file bs=1M count=16 conv=notrunc 2>/dev/null; sync; wc -c < /data/file", "16777216")
		s.says("source", "tr -d '\\0' < /data/file | wc -c", "0")
		s.deleteWithClaims("source", "late")
		s.nothingLeft()
	}
}

// Proves: SN4.
func restoresToOtherSizes(s *scenario) {
	class := s.Class(map[string]string{"pool": "reflink"})
	home := s.podWithFile("source", class)
	s.take("taken", "source")
	if size := s.field("volumesnapshot", "taken", ".status.restoreSize"); size != "64Mi" {
		s.Fatalf("the snapshot says it needs %s", size)
	}
	s.Claim("smaller", class, "32Mi", from("VolumeSnapshot", "taken"))
	s.pod("smaller", with("smaller", "/data"), at(home))
	s.event("PersistentVolumeClaim", "smaller", "less than the size")
	s.Claim("larger", class, "128Mi", from("VolumeSnapshot", "taken"))
	s.pod("larger", with("larger", "/data"), at(home))
	s.running("larger")
	s.says("larger", "cat /data/file", "kept")
	if size := s.volume("larger").Spec.Capacity.Storage().String(); size != "128Mi" {
		s.Fatalf("the restored volume has %s", size)
	}
	s.deleteSnapshotAndClaims("taken", "source", "smaller", "larger")
	s.nothingLeft()
}

// forbiddenSnapshots are of a volume on node1's ext4, where files share no blocks.
//
// Proves: SN8.
func forbiddenSnapshots(s *scenario) {
	class := s.Class(map[string]string{"copy": "allowed"})
	s.podWithFile("source", class, at(node1))
	s.snapshot("shared", "source")
	s.forbidden("shared", "InvalidArgument", "pool default is on ext4", "copy: allowed")
	s.deleteSnapshot("shared")

	s.snapshotBy(s.snapshotClass("{copy: allowed, inUse: refuse}"), "unused", "source")
	s.forbidden("unused", "FailedPrecondition", "is published at")
	s.deletePod("source")
	s.taken("unused")
	s.Claim("restored", class, "64Mi", from("VolumeSnapshot", "unused"))
	s.pod("restored", with("restored", "/data"), at(node1))
	s.running("restored")
	s.says("restored", "cat /data/file", "kept")
	s.deleteWithClaims("restored")
	s.deleteClaim("source")
	s.deleteSnapshot("unused")
	s.nothingLeft()
}

const (
	snapshotManual   = "docs/snapshots.md"
	controllerManual = "docs/controller.md"
)

// bySection lists the section of each page that manually follows.
var bySection = map[string]string{snapshotManual: "Commands", controllerManual: "Without the controller"}

// manually runs the blocks of commands below a heading of a page in the scenario's namespace and returns their output.
// The words replace the manual's placeholders.
func (s *scenario) manually(manual, heading string, words ...string) string {
	s.Helper()
	config := filepath.Join(s.TempDir(), "kubeconfig")
	commands := fmt.Sprintf("kubectl config view --raw > %[1]s\nexport KUBECONFIG=%[1]s\nkubectl config set-context --current --namespace %[2]s\n",
		config, s.Namespace)
	_, section, found := strings.Cut("\n"+s.section(manual, bySection[manual]), "\n### "+heading+"\n")
	if !found {
		s.Fatalf("%s has nothing about %q", manual, heading)
	}
	section, _, _ = strings.Cut(section, "\n### ")
	for _, block := range shellBlock.FindAllStringSubmatch(section, -1) {
		commands += block[2]
	}
	return s.administrator(harness.Root, strings.NewReplacer(words...).Replace(commands))
}

// snapshotsByTheManual has its source on the node whose disk shares blocks, and no controller.
//
// Proves: K1.
func snapshotsByTheManual(s *scenario) {
	s.Claim("cellar", "rootcellar", "1Gi")
	s.pod("cellar", with("cellar", "/data"), at(node2))
	s.running("cellar")
	s.says("cellar", "echo visited > /data/visits && sync && cat /data/visits", "visited")
	s.manually(snapshotManual, "Take one")
	s.says("cellar", "echo again >> /data/visits && sync && wc -l < /data/visits", "2")
	s.manually(controllerManual, "Name the node of a copy")
	s.running("restored")
	s.says("restored", "cat /data/visits", "visited")
	s.running("cloned")
	s.says("cloned", "cat /data/visits", "visited\nagain")
	s.deleteSnapshotAndClaims("cellar", "cellar", "restored", "cloned")
	s.nothingLeft()
}

// controller changes the snapshot-controller while none of it runs, so that no old replica keeps the leadership.
func (s *scenario) controller(patch string) {
	s.Helper()
	kube := func(arguments ...string) { s.Kubectl(append([]string{"--namespace", "kube-system"}, arguments...)...) }
	kube("scale", "deployment/snapshot-controller", "--replicas", "0")
	kube("wait", "pod", "--selector", "app.kubernetes.io/name=snapshot-controller", "--for=delete", "--timeout", harness.Patience.String())
	kube("patch", "deployment", "snapshot-controller", "--type", "json", "--patch", patch)
	kube("scale", "deployment/snapshot-controller", "--replicas", "1")
}

const flag, arguments = "--enable-distributed-snapshotting", "/spec/template/spec/containers/0/args"

// withoutFlag removes the flag of the snapshot-controller until the scenario ends.
func (s *scenario) withoutFlag() {
	s.Helper()
	s.controller(fmt.Sprintf(`[{"op": "test", "path": "%[1]s/2", "value": %[2]q}, {"op": "remove", "path": "%[1]s/2"}]`, arguments, flag))
	s.Cleanup(func() {
		if _, err := harness.Command(context.Background(), filepath.Join(harness.Root, "e2e/cluster/install.sh")); err != nil {
			s.Error(err)
		}
	})
}

// snapshotsByTheController has its source on the node whose disk shares blocks, and names no node.
//
// Proves: K1, F2, F6.
func snapshotsByTheController(s *scenario) {
	s.withoutFlag()
	s.install("--set", "fleet.enabled=true")
	s.Claim("cellar", "rootcellar", "1Gi")
	s.pod("cellar", with("cellar", "/data"), at(node2))
	s.running("cellar")
	s.says("cellar", "echo visited > /data/visits && sync && cat /data/visits", "visited")
	s.manually(snapshotManual, "Take one")
	s.manually(snapshotManual, "Restore it")
	s.manually(snapshotManual, "Clone a volume")
	for _, pod := range []string{"restored", "cloned"} {
		s.says(pod, "cat /data/visits", "visited")
		if got := s.runningOn(pod); got != node2 {
			s.Fatalf("%s is on %s", pod, got.name)
		}
	}
	// The scheduler may have named the right node for these. Without a pod only the controller does.
	s.Claim("alone", "rootcellar", "1Gi", from("VolumeSnapshot", "cellar"))
	if got := s.home(s.volume("alone")); got != node2 {
		s.Fatalf("the copy is on %s", got.name)
	}
	s.event("PersistentVolumeClaim", "alone", "the source is on node node2")
	s.deleteClaim("alone")
	s.deleteSnapshotAndClaims("cellar", "cellar", "restored", "cloned")
	s.nothingLeft()
}

// snapshotOfNobody first has a cluster whose snapshot-controller lacks the flag, and then a content written by hand.
//
// Proves: K1.
func snapshotOfNobody(s *scenario) {
	s.withoutFlag()
	class := s.Class(map[string]string{"pool": "reflink"})
	home := s.podWithFile("source", class)
	s.snapshot("taken", "source")
	content := s.content("taken")
	s.Always("nobody takes it", 5*time.Second, func() string {
		if ready := s.field("volumesnapshot", "taken", ".status.readyToUse"); ready != "" && ready != "false" {
			return ready
		}
		return ""
	})
	seen := regexp.MustCompile(`(?m)^` + content + ` +taken +(\S+)`).FindStringSubmatch(s.manually(snapshotManual, "See whether the snapshot-controller has the flag"))
	if len(seen) != 2 || seen[1] != "<none>" {
		s.Fatalf("the manual shows a node: %q", seen)
	}
	s.manually(controllerManual, "Name the node of a snapshot", "CONTENT", content, "NODE", home.name)
	s.taken("taken")
	handle := s.field("volumesnapshotcontent", content, ".status.snapshotHandle")
	s.deleteSnapshot("taken")

	s.controller(fmt.Sprintf(`[{"op": "add", "path": "%s/-", "value": %q}]`, arguments, flag))
	s.take("again", "source")
	if n := s.field("volumesnapshotcontent", s.content("again"), `.metadata.labels.`+strings.ReplaceAll(managedBy, ".", `\.`)); n != home.name {
		s.Fatalf("it is for %q", n)
	}
	if again := s.field("volumesnapshotcontent", s.content("again"), ".status.snapshotHandle"); again == handle {
		s.Fatalf("both snapshots are %s", handle)
	}
	s.deleteSnapshotAndClaims("again", "source")
	s.nothingLeft()
}
