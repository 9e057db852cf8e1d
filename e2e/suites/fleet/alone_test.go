package fleet

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rootcellar.dev/e2e/suites/harness"
)

// alone change nodes, or the controller itself.
var alone = []entry{
	{"a source's node without room is reported, asked less and less often, and used when it has room", fullNode},
	{"a source's node that is cordoned gets the volume, and its pod when it is uncordoned", cordonedNode},
	{"a source's node without driver gets the volume when its driver is back", driverDown},
	{"a source's node that is gone is reported, and no other is named", goneNode},
	{"a node with the topology label of another is never named", falseLabel},
	{"a pool whose volumes name two nodes is reported, and no unlabelled snapshot names one", twoNodes},
	{"a node whose name is too long for a label gets copies, and its snapshots are reported", longName},
	{"a thousand contents that wait are labelled, and claims are steered meanwhile", thousand},
	{"a content that has waited for more than an hour is reported, and labelled with the switch", oldContent},
	{"the controller is killed at each of its writes, which arrives or does not, and the next one ends right", killed},
	{"the API server is away for a minute, and all that came meanwhile is done after it", apiServerAway},
	{"the CRDs of snapshots come later, and are found", crdsLater},
	{"the account has the rights that the controller uses, and no other", rightsUsed},
	{"every other write of the account is refused", writesRefused},
}

// extra adds a node for this scenario.
func (s *scenario) extra(name, size string) *machine {
	s.Helper()
	m := s.addNode(name, size)
	s.removed(m)
	return m
}

// removed has the node missing at the end of the scenario.
func (s *scenario) removed(m *machine) {
	s.Cleanup(func() {
		m.stop()
		s.forget(m)
		_, _ = harness.Command(backgroundContext, "kubectl", "delete", "node/"+m.name, "csinode/"+m.name, "--ignore-not-found")
		_, _ = harness.Command(backgroundContext, "kubectl", "--namespace", harness.System, "delete", "pod", m.pod(), "--ignore-not-found", "--force", "--grace-period=0")
	})
}

// forget removes the volumes of a node and their users, because a node that is missing with volumes changes the decisions of
// the next scenario.
func (s *scenario) forget(m *machine) {
	run := func(arguments ...string) {
		_, _ = harness.Command(backgroundContext, "kubectl", append([]string{"--namespace", s.Namespace}, arguments...)...)
	}
	run("delete", "statefulsets", "--all")
	run("delete", "pods", "--all", "--force", "--grace-period=0")
	volumes, _ := harness.Client.CoreV1().PersistentVolumes().List(backgroundContext, metav1.ListOptions{})
	for _, volume := range volumes.Items {
		if volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != m.value {
			continue
		}
		if claim := volume.Spec.ClaimRef; claim != nil {
			run("--namespace", claim.Namespace, "delete", "pvc", claim.Name, "--wait=false", "--ignore-not-found")
		}
		run("delete", "pv", volume.Name, "--wait=false")
		run("patch", "pv", volume.Name, "--type=merge", "--patch", `{"metadata": {"finalizers": null}}`)
	}
}

// Proves: F4, F5.
func fullNode(s *scenario) {
	m := s.extra("full", "400M")
	s.source("source", m)
	s.take("taken", "source")
	// Claims of half of the rest, until none fits.
	filled := 0
	for ; filled < 20; filled++ {
		name := fmt.Sprint("filler-", filled)
		s.claim(name, "late", ofSize("48Mi"), naming(m.name))
		refused := false
		s.Eventually("the filler is bound or refused", harness.Patience, func() string {
			claim := s.TheClaim(name)
			refused = strings.Contains(s.said("PersistentVolumeClaim", name), "ResourceExhausted")
			if claim.Status.Phase != corev1.ClaimBound && !refused {
				return string(claim.Status.Phase)
			}
			return ""
		})
		if refused {
			s.Kubectl("delete", "pvc", name)
			break
		}
	}
	if filled == 0 || filled == 20 {
		s.Fatalf("%d fillers", filled)
	}
	started := time.Now()
	for name, copy := range copies {
		s.claim(name, "late", copy)
	}
	for name := range copies {
		s.event("PersistentVolumeClaim", name, "NoRoomOnNode")
	}
	s.Always("no claim has a volume", 40*time.Second, func() string { return s.pending("restored") + s.pending("cloned") })
	for name := range copies {
		found := s.patches(name)
		if len(found) > 6 {
			s.Errorf("too many writes in %v%s", time.Since(started), listing(found))
		}
		for i := 1; i < len(found); i++ {
			if gap := found[i].at.Sub(found[i-1].at); gap < 4500*time.Millisecond {
				s.Errorf("two writes within %v%s", gap, listing(found))
			}
		}
	}
	for i := range filled {
		s.Kubectl("delete", "pvc", fmt.Sprint("filler-", i))
	}
	for name := range copies {
		s.bound(name, m)
	}
}

// Proves: F2.
func cordonedNode(s *scenario) {
	m := s.extra("cordoned", "400M")
	s.source("source", m)
	s.take("taken", "source")
	s.Kubectl("cordon", m.name)
	for name, copy := range copies {
		s.claim(name, "late", copy)
		s.pod(name, []string{name})
	}
	for name := range copies {
		s.bound(name, m)
		s.Always("the pod has no node", 3*time.Second, func() string { return s.nodeOf(name) })
	}
	s.Kubectl("uncordon", m.name)
	for name := range copies {
		s.scheduled(name, m)
	}
}

// Proves: F2.
func driverDown(s *scenario) {
	m := s.extra("down", "400M")
	s.source("source", m)
	s.take("taken", "source")
	m.stop()
	for name, copy := range copies {
		s.claim(name, "late", copy)
		s.pod(name, []string{name})
		s.names(name, m.name, harness.Patience)
	}
	s.Always("the claims wait", 5*time.Second, func() string { return s.pending("restored") + s.pending("cloned") })
	m.startDriver()
	m.startProvisioner()
	m.startSnapshotter()
	for name := range copies {
		s.bound(name, m)
		s.scheduled(name, m)
	}
}

// Proves: F5.
func goneNode(s *scenario) {
	m := s.extra("gone", "400M")
	s.source("source", m)
	content := s.take("taken", "source")
	handle := s.handleOf(content)
	m.stop()
	m.unregister(s)
	for name, copy := range copies {
		s.claim(name, "late", copy)
		s.pod(name, []string{name})
	}
	later := s.handed("later", handle, "Retain")
	for name := range copies {
		s.event("PersistentVolumeClaim", name, "SourceNodeGone")
	}
	s.event("VolumeSnapshotContent", later, "SourceNodeGone")
	s.Always("nothing is written", 12*time.Second, func() string {
		if found := labels(later); len(found) > 0 {
			return listing(found)
		}
		return s.untouched("restored") + s.untouched("cloned")
	})
	// The machine comes back with its disks.
	m.register(s)
	m.startDriver()
	m.startProvisioner()
	m.startSnapshotter()
	s.labelled(later, m)
	for name := range copies {
		s.bound(name, m)
		s.scheduled(name, m)
	}
}

// Proves: F2.
func falseLabel(s *scenario) {
	s.sources()
	for _, name := range []string{"a-label", "z-label"} {
		s.Apply(fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {%s: %s}}}", name, harness.TopologyKey, rig.node1.name), "--server-side")
	}
	remove := func() {
		_, _ = harness.Command(backgroundContext, "kubectl", "delete", "node", "a-label", "z-label", "--ignore-not-found")
	}
	s.Cleanup(remove)
	content := s.handed("later", s.handleOf(s.contentOf("taken")), "Retain")
	for name, copy := range copies {
		s.claim(name, "late", copy)
	}
	s.Always("no claim and no content names a false node", 15*time.Second, func() string {
		for name := range copies {
			if got := s.TheClaim(name).Annotations[selected]; got != "" && got != rig.node1.name {
				return name + " names " + got
			}
		}
		if got := s.content(content).GetLabels()[managedBy]; got != "" && got != rig.node1.name {
			return "the content names " + got
		}
		return ""
	})
	s.Logf("said of the claim: %s", s.said("PersistentVolumeClaim", "restored"))
	remove()
	for name := range copies {
		s.bound(name, rig.node1)
	}
}

// twoNodes has a volume by hand, as after a disk was copied to another node.
//
// Proves: F5.
func twoNodes(s *scenario) {
	m := s.extra("twin", "400M")
	volume := s.source("source", m)
	handle := s.handleOf(s.take("taken", "source"))
	parts := strings.Split(volume.Spec.CSI.VolumeHandle, "-")
	other := s.Namespace + "-other"
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %q}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 64Mi}
  persistentVolumeReclaimPolicy: Retain
  storageClassName: none
  csi: {driver: %q, volumeHandle: "v1-%s-%s"}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: %s, operator: In, values: [%s]}]}]}}
`, other, harness.Driver, parts[1], strings.Repeat("0123456789abcdef", 2), harness.TopologyKey, rig.node2.value), "--server-side")
	remove := func() {
		_, _ = harness.Command(backgroundContext, "kubectl", "delete", "pv", other, "--ignore-not-found")
	}
	s.Cleanup(remove)
	// The controller learns of the volume by a watch of its own.
	probe := s.handed("probe", handle, "Retain")
	s.event("VolumeSnapshotContent", probe, "PoolOnTwoNodes")
	// A volume requires its node itself, and of two nodes the label of a snapshot decides.
	for name, copy := range copies {
		s.claim(name, "late", copy)
		s.bound(name, m)
	}
	content := s.contentOf("taken")
	s.Kubectl("label", "volumesnapshotcontent", content, managedBy+"-")
	s.event("VolumeSnapshotContent", content, "PoolOnTwoNodes")
	s.claim("waiting", "late", from("VolumeSnapshot", "taken"))
	s.event("PersistentVolumeClaim", "waiting", "PoolOnTwoNodes")
	before := len(labels(content))
	s.Always("nothing is written", 3*time.Second, func() string {
		if found := append(labels(probe), labels(content)[before:]...); len(found) > 0 {
			return listing(found)
		}
		return s.untouched("waiting")
	})
	remove()
	s.bound("waiting", m)
	s.labelled(probe, m)
}

// Proves: F6.
func longName(s *scenario) {
	m := s.extra("a-node-with-a-name-of-more-than-63-characters."+strings.Repeat("x", 20)+".example.com", "400M")
	s.source("source", m)
	s.claim("cloned", "late", from("PersistentVolumeClaim", "source"))
	s.pod("cloned", []string{"cloned"})
	s.bound("cloned", m)
	s.scheduled("cloned", m)
	s.snapshot("taken", "source")
	content := s.contentOf("taken")
	s.event("VolumeSnapshotContent", content, "NodeNameTooLong")
	if found := labels(content); len(found) > 0 {
		s.Errorf("the controller wrote%s", listing(found))
	}
}

// Proves: F6.
func thousand(s *scenario) {
	s.sources()
	handle := s.handleOf(s.contentOf("taken"))
	const number = 1000
	for i := range number {
		s.create(contentKind, "VolumeSnapshotContent", fmt.Sprint(s.Namespace, "-", i), map[string]any{
			"driver": harness.Driver, "deletionPolicy": "Retain", "source": map[string]any{"snapshotHandle": handle},
			"volumeSnapshotRef": map[string]any{"name": fmt.Sprint("wait-", i), "namespace": s.Namespace},
		}, func(content *unstructured.Unstructured) { content.SetLabels(map[string]string{"of": s.Namespace}) })
	}
	s.claim("restored", "late", from("VolumeSnapshot", "taken"))
	s.bound("restored", rig.node1)
	s.Eventually("all are labelled", 5*time.Minute, func() string {
		list, err := objects.Resource(contentKind).List(s.Context(), metav1.ListOptions{LabelSelector: "of=" + s.Namespace + "," + managedBy + "=" + rig.node1.name})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) != number {
			return fmt.Sprint(len(list.Items))
		}
		return ""
	})
	_, _ = harness.Command(s.Context(), "kubectl", "delete", "volumesnapshotcontent", "--selector", "of="+s.Namespace, "--wait=false")
}

// backdate changes the time of a content's creation in etcd, because the API server does not.
func (s *scenario) backdate(content string, by time.Duration) {
	s.Helper()
	call := func(path string, body any, answer any) {
		text, err := json.Marshal(body)
		s.Must(err)
		response, err := http.Post("http://127.0.0.1:2379/v3/kv/"+path, "application/json", bytes.NewReader(text))
		s.Must(err)
		defer response.Body.Close()
		found, err := io.ReadAll(response.Body)
		s.Must(err)
		if response.StatusCode != http.StatusOK {
			s.Fatalf("etcd: %s", found)
		}
		s.Must(json.Unmarshal(found, answer))
	}
	key := base64.StdEncoding.EncodeToString([]byte("/registry/" + snapshotGroup + "/volumesnapshotcontents/" + content))
	var answer struct{ Kvs []struct{ Value string } }
	call("range", map[string]string{"key": key}, &answer)
	if len(answer.Kvs) != 1 {
		s.Fatalf("etcd has %d of %s", len(answer.Kvs), content)
	}
	value, err := base64.StdEncoding.DecodeString(answer.Kvs[0].Value)
	s.Must(err)
	object := &unstructured.Unstructured{}
	s.Must(json.Unmarshal(value, &object.Object))
	object.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-by)))
	value, err = json.Marshal(object.Object)
	s.Must(err)
	var ignored map[string]any
	call("put", map[string]string{"key": key, "value": base64.StdEncoding.EncodeToString(value)}, &ignored)
}

// Proves: F7.
func oldContent(s *scenario) {
	s.source("source", rig.node1)
	s.uncontrol()
	s.snapshot("young", "source")
	s.snapshot("old", "source")
	young, old := s.contentOf("young"), s.contentOf("old")
	s.backdate(young, 50*time.Minute)
	s.backdate(old, 61*time.Minute)
	s.control("--steer", "--label")
	s.taken("young")
	s.labelled(young, rig.node1)
	s.event("VolumeSnapshotContent", old, "SnapshotTooOld")
	s.Always("the old one has no label", 3*time.Second, func() string { return s.content(old).GetLabels()[managedBy] })
	s.control("--steer", "--label", "--label-old")
	s.taken("old")
	s.labelled(old, rig.node1)
	// One that is being deleted is labelled, because nothing is taken.
	s.uncontrol()
	s.snapshot("deleted", "source")
	deleted := s.contentOf("deleted")
	s.backdate(deleted, 61*time.Minute)
	s.Kubectl("delete", "volumesnapshot", "deleted", "--wait=false")
	s.control("--steer", "--label")
	s.gone("volumesnapshot", "deleted")
	s.gone("volumesnapshotcontent", deleted)
}

// Proves: F8.
func killed(s *scenario) {
	s.source("source", rig.node1)
	for _, arrives := range []bool{true, false} {
		way := fmt.Sprint("arrives-", arrives)
		end := func(h *hold, c *call) {
			rig.controller.kill()
			rig.controller = nil
			if arrives {
				h.release(s, c)
			} else {
				h.drop()
			}
			s.control("--steer", "--label")
		}
		label := rig.fleet.hold(s, func(c *call) bool { return c.method == "PATCH" && strings.Contains(c.path, "volumesnapshotcontents") })
		s.snapshot("taken-"+way, "source")
		end(label, label.wait(s, "the controller labels the content"))
		content := s.taken("taken-" + way)
		if got := s.content(content).GetLabels()[managedBy]; got != rig.node1.name {
			s.Errorf("the label is %q", got)
		}
		for name, source := range map[string]change{"restored-" + way: from("VolumeSnapshot", "taken-"+way), "cloned-" + way: from("PersistentVolumeClaim", "source")} {
			write := rig.fleet.hold(s, to("PATCH", s.path(name)))
			s.claim(name, "late", source)
			held := write.wait(s, "the controller names the node")
			s.pod(name, []string{name})
			end(write, held)
			s.bound(name, rig.node1)
			s.scheduled(name, rig.node1)
			event := rig.fleet.hold(s, func(c *call) bool {
				return strings.HasSuffix(c.path, "/events") && strings.Contains(c.body, "again-"+name)
			})
			s.claim("again-"+name, "late", source)
			end(event, event.wait(s, "the controller writes an event"))
			s.bound("again-"+name, rig.node1)
		}
	}
}

// Proves: F8.
func apiServerAway(s *scenario) {
	s.sources()
	late := rig.fleet.hold(s, to("PATCH", s.path("before")))
	s.claim("before", "late", from("VolumeSnapshot", "taken"))
	late.wait(s, "the controller names the node")
	rig.fleet.refuse(true)
	late.drop()
	for name, copy := range copies {
		s.claim(name, "late", copy)
		s.pod(name, []string{name})
	}
	s.snapshot("later", "source")
	s.Always("the controller lives", time.Minute, func() string {
		if !rig.controller.alive() {
			return "it has ended"
		}
		return ""
	})
	rig.fleet.refuse(false)
	s.bound("before", rig.node1)
	for name := range copies {
		s.bound(name, rig.node1)
		s.scheduled(name, rig.node1)
	}
	s.taken("later")
	s.labelled(s.contentOf("later"), rig.node1)
}

// crdsLater hides the kinds from the controller, because other programs need them.
//
// Proves: F8.
func crdsLater(s *scenario) {
	s.sources()
	s.uncontrol()
	rig.fleet.hide("/apis/" + snapshotGroup)
	defer rig.fleet.hide("")
	s.control("--steer", "--label")
	s.claim("cloned", "late", from("PersistentVolumeClaim", "source"))
	s.bound("cloned", rig.node1)
	s.claim("restored", "late", from("VolumeSnapshot", "taken"))
	s.Always("the restore waits, and the controller lives", 5*time.Second, func() string {
		if !rig.controller.alive() {
			return "it has ended"
		}
		return s.pending("restored")
	})
	rig.fleet.hide("")
	s.bound("restored", rig.node1)
	s.take("later", "source")
}
