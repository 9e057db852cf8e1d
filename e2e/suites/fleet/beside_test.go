package fleet

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rootcellar.dev/e2e/suites/harness"
)

// beside change nothing that another scenario uses, and run at the same time.
var beside = []entry{
	{"CDI's claims for a snapshot and a clone go to their source's node, whatever node they were copied with", claimsOfCDI},
	{"Velero's claims go to their snapshot's node, and one that names a node of another cluster goes at once", claimsOfVelero},
	{"claims that are not to be steered are never written to", notSteered},
	{"two claims of one pod with sources on two nodes are bound there, and nobody writes in a loop", twoSources},
	{"a class that excludes the source's node is reported, and its claim names no node", excluded},
	{"a snapshot is taken, restored and deleted where the snapshot-controller has no flag", withoutFlag},
	{"a content made by hand for a handle is labelled, used and deleted", byHand},
	{"a label of another node is left, and reported", labelOfAnother},
	{"a snapshot that points at another's content is no source", anothersContent},
	{"a snapshot that was made anew under the name of another is no source for its content", snapshotMadeAnew},
	{"a claim that was made anew under the name of another is no source", claimMadeAnew},
	{"a malformed handle or one of an unknown pool is reported, and nothing is named", malformed},
}

// cdi are the annotations of a claim that CDI makes for its target, with those of the target.
func cdi(claim *corev1.PersistentVolumeClaim) {
	for key, value := range map[string]string{
		"cdi.kubevirt.io/storage.populator.kind": "VolumeCloneSource", "cdi.kubevirt.io/storage.condition.running": "false",
		"volume.beta.kubernetes.io/storage-provisioner": harness.Driver, "volume.kubernetes.io/storage-provisioner": harness.Driver,
	} {
		annotated(key, value)(claim)
	}
	claim.Labels = map[string]string{"app": "containerized-data-importer"}
}

// Proves: F2, F4.
func claimsOfCDI(s *scenario) {
	s.sources()
	var names []string
	for name, source := range map[string]change{
		"tmp-pvc-snapshot": fromReference(snapshotGroup, "VolumeSnapshot", "taken"), "tmp-pvc-clone": fromReference("", "PersistentVolumeClaim", "source"),
	} {
		for _, class := range []string{"late", "now"} {
			s.claim(name+"-"+class, class, source, cdi)
			s.claim(name+"-"+class+"-wrong", class, source, cdi, naming(rig.node3.name))
			s.claim(name+"-"+class+"-gone", class, source, cdi, naming("node-of-before"))
			names = append(names, name+"-"+class, name+"-"+class+"-wrong", name+"-"+class+"-gone")
		}
	}
	// The target, which CDI itself fills.
	s.claim("target", "late", fromReference("cdi.kubevirt.io", "VolumeCloneSource", "source"))
	for _, name := range names {
		s.bound(name, rig.node1)
	}
	if reason := s.untouched("target"); reason != "" {
		s.Error(reason)
	}
}

// claimsOfVelero has the pre-provisioned content of Velero's data mover.
//
// Proves: F2, F4.
func claimsOfVelero(s *scenario) {
	s.sources()
	content := s.handed("backup", s.handleOf(s.contentOf("taken")), "Retain", func(content *unstructured.Unstructured) {
		content.SetLabels(map[string]string{managedBy: rig.node1.name, "velero.io/backup-name": "nightly"})
	})
	s.taken("backup")
	if found := labels(content); len(found) > 0 {
		s.Errorf("the content has the label, and the controller wrote%s", listing(found))
	}
	both := func(claim *corev1.PersistentVolumeClaim) {
		from("VolumeSnapshot", "backup")(claim)
		fromReference(snapshotGroup, "VolumeSnapshot", "backup")(claim)
	}
	s.claim("exposed", "late", both)
	s.claim("restored", "late", both, naming("ip-10-0-0-1.other.cluster"))
	s.names("restored", rig.node1.name, 8*time.Second)
	// The data mover's own claim has no source, and names its node itself.
	s.claim("target", "late", naming(rig.node3.name))
	s.pod("mover", []string{"exposed"})
	s.bound("exposed", rig.node1)
	s.bound("restored", rig.node1)
	s.scheduled("mover", rig.node1)
	s.bound("target", rig.node3)
	if reason := s.untouched("target"); reason != "" {
		s.Error(reason)
	}
}

// Proves: F3.
func notSteered(s *scenario) {
	s.sources()
	foreign := s.class(func(class *storagev1.StorageClass) {
		class.Provisioner = "csi.other.example"
		class.Parameters = nil
	})
	s.claim("foreign", foreign, from("VolumeSnapshot", "taken"))
	s.claim("empty", "late")
	s.claim("unready", "late", from("VolumeSnapshot", "nothing"))
	s.claim("selecting", "late", from("PersistentVolumeClaim", "source"), func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"colour": "blue"}}
	})
	s.claim("volume", "late", from("PersistentVolumeClaim", "source"), func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "by-hand" })
	s.claim("classless", "", from("PersistentVolumeClaim", "source"))
	// Its source is usable only after the deletion began.
	s.claim("deleted", "late", from("VolumeSnapshot", "later"), func(claim *corev1.PersistentVolumeClaim) {
		claim.Finalizers = []string{"example.com/kept"}
	})
	s.Kubectl("delete", "pvc", "deleted", "--wait=false")
	s.Cleanup(func() {
		_, _ = harness.Command(backgroundContext, "kubectl", "--namespace", s.Namespace, "patch", "pvc", "deleted", "--type=merge", "--patch", `{"metadata":{"finalizers":null}}`)
	})
	s.take("later", "source")
	s.Always("none is written to", 15*time.Second, func() string {
		for _, name := range []string{"foreign", "empty", "unready", "selecting", "volume", "classless", "deleted"} {
			if reason := s.untouched(name); reason != "" {
				return reason
			}
		}
		return ""
	})
}

// Proves: F2.
func twoSources(s *scenario) {
	s.sources()
	s.source("far", rig.node2)
	s.claim("one", "late", from("VolumeSnapshot", "taken"))
	s.claim("two", "late", from("PersistentVolumeClaim", "far"))
	s.pod("both", []string{"one", "two"})
	s.bound("one", rig.node1)
	s.bound("two", rig.node2)
	s.Always("the pod has no node", 10*time.Second, func() string { return s.nodeOf("both") })
	for _, name := range []string{"one", "two"} {
		if found := s.patches(name); len(found) > 3 {
			s.Errorf("too many writes%s", listing(found))
		}
	}
}

// Proves: F5.
func excluded(s *scenario) {
	s.sources()
	class := s.class(func(class *storagev1.StorageClass) {
		class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{
			Key: harness.TopologyKey, Values: []string{rig.node2.value, rig.node3.value},
		}}}}
	})
	for name, copy := range copies {
		s.claim(name, class, copy)
		s.event("PersistentVolumeClaim", name, "ClassExcludesNode")
		s.Always("it names no node", 3*time.Second, func() string { return s.untouched(name) })
	}
}

// labelled waits until a content has the label of the node, which the controller wrote.
func (s *scenario) labelled(content string, m *machine) {
	s.Helper()
	s.Eventually("content "+content+" is labelled", harness.Patience, func() string {
		if got := s.content(content).GetLabels()[managedBy]; got != m.name {
			return fmt.Sprintf("%q, %s", got, s.said("VolumeSnapshotContent", content))
		}
		return ""
	})
	if found := labels(content); len(found) != 1 {
		s.Errorf("the controller wrote%s", listing(found))
	}
	s.event("VolumeSnapshotContent", content, "LabelledWithNode")
}

// Proves: F6.
func withoutFlag(s *scenario) {
	for _, m := range nodes() {
		source := s.source("source-"+m.name, m)
		content := s.take("of-"+m.name, "source-"+m.name)
		s.labelled(content, m)
		s.claim("restored-"+m.name, "late", from("VolumeSnapshot", "of-"+m.name))
		s.bound("restored-"+m.name, m)
		s.Kubectl("delete", "volumesnapshot", "of-"+m.name, "--timeout", harness.Patience.String())
		s.gone("volumesnapshotcontent", content)
		s.Kubectl("delete", "pvc", "source-"+m.name, "restored-"+m.name, "--timeout", harness.Patience.String())
		s.gone("pv", source.Name)
	}
}

// Proves: F6.
func byHand(s *scenario) {
	s.sources()
	content := s.handed("imported", s.handleOf(s.contentOf("taken")), "Retain")
	s.taken("imported")
	s.labelled(content, rig.node1)
	s.claim("restored", "late", from("VolumeSnapshot", "imported"))
	s.bound("restored", rig.node1)
	s.Kubectl("delete", "volumesnapshot", "imported", "--timeout", harness.Patience.String())
	s.Kubectl("delete", "volumesnapshotcontent", content, "--timeout", harness.Patience.String())
	// One that is deleted with its snapshot on the disk.
	last := s.handed("last", s.handleOf(s.contentOf("taken")), "Delete")
	s.taken("last")
	s.Kubectl("delete", "volumesnapshot", "last", "--timeout", harness.Patience.String())
	s.gone("volumesnapshotcontent", last)
}

// Proves: F6.
func labelOfAnother(s *scenario) {
	s.sources()
	content := s.handed("moved", s.handleOf(s.contentOf("taken")), "Retain", func(content *unstructured.Unstructured) {
		content.SetLabels(map[string]string{managedBy: rig.node2.name})
	})
	s.event("VolumeSnapshotContent", content, "LabelOfOtherNode")
	if found := labels(content); len(found) > 0 {
		s.Errorf("the controller wrote%s", listing(found))
	}
	// The label may also be wrong later.
	dynamic := s.contentOf("taken")
	s.Kubectl("label", "volumesnapshotcontent", dynamic, managedBy+"="+rig.node3.name, "--overwrite")
	s.event("VolumeSnapshotContent", dynamic, "LabelOfOtherNode")
	if found := labels(dynamic); len(found) > 1 {
		s.Errorf("the controller wrote%s", listing(found))
	}
}

// pretend has a snapshot claim that it is ready and bound to a content.
func (s *scenario) pretend(name, content string) {
	s.Helper()
	s.Kubectl("patch", "volumesnapshot", name, "--subresource=status", "--type=merge", "--patch",
		fmt.Sprintf(`{"status": {"boundVolumeSnapshotContentName": %q, "readyToUse": true, "restoreSize": "64Mi"}}`, content))
}

// Proves: F2.
func anothersContent(s *scenario) {
	s.sources()
	s.create(snapshotKind, "VolumeSnapshot", "thief", map[string]any{
		"volumeSnapshotClassName": "taken", "source": map[string]any{"volumeSnapshotContentName": s.contentOf("taken")},
	})
	s.pretend("thief", s.contentOf("taken"))
	s.claim("restored", "late", from("VolumeSnapshot", "thief"))
	s.Always("the claim is not steered", 10*time.Second, func() string {
		s.pretend("thief", s.contentOf("taken"))
		return s.untouched("restored")
	})
}

// Proves: F2.
func snapshotMadeAnew(s *scenario) {
	s.sources()
	content := s.contentOf("taken")
	s.Kubectl("patch", "volumesnapshotcontent", content, "--type=merge", "--patch", `{"spec": {"deletionPolicy": "Retain"}}`)
	s.Kubectl("delete", "volumesnapshot", "taken", "--timeout", harness.Patience.String())
	s.create(snapshotKind, "VolumeSnapshot", "taken", map[string]any{
		"volumeSnapshotClassName": "taken", "source": map[string]any{"volumeSnapshotContentName": content},
	})
	s.pretend("taken", content)
	s.claim("restored", "late", from("VolumeSnapshot", "taken"))
	s.Always("the claim is not steered", 10*time.Second, func() string {
		s.pretend("taken", content)
		return s.untouched("restored")
	})
}

// claimMadeAnew has a source that names a volume which still belongs to the former claim.
//
// Proves: F2.
func claimMadeAnew(s *scenario) {
	volume := s.source("source", rig.node1)
	s.Kubectl("patch", "pv", volume.Name, "--type=merge", "--patch", `{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`)
	s.Kubectl("delete", "pvc", "source", "--timeout", harness.Patience.String())
	s.claim("source", "late", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = volume.Name })
	// A claim may even say that it is bound.
	pretend := func() {
		s.Kubectl("patch", "pvc", "source", "--subresource=status", "--type=merge", "--patch", `{"status": {"phase": "Bound"}}`)
	}
	pretend()
	s.claim("cloned", "late", from("PersistentVolumeClaim", "source"))
	s.Always("the clone is not steered", 8*time.Second, func() string {
		pretend()
		return s.untouched("cloned")
	})
	// The data is removed with it, because many volumes without objects change the printed commands.
	s.Kubectl("patch", "pv", volume.Name, "--type=merge", "--patch", `{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`)
}

// Proves: F5.
func malformed(s *scenario) {
	s.sources()
	handle := s.handleOf(s.contentOf("taken"))
	parts := strings.Split(handle, "-")
	if len(parts) != 3 {
		s.Fatalf("the handle is %s", handle)
	}
	for name, handle := range map[string]string{
		"word": "garbage", "upper": strings.ToUpper(handle), "short": handle[:len(handle)-1], "volume": "v1" + handle[2:], "path": "../" + handle,
		"unknown": strings.Join([]string{parts[0], strings.Repeat("0123456789abcdef", 2), parts[2]}, "-"), "space": handle + " ",
		"long": handle + strings.Repeat("0", 500), "quote": handle + `"}]`, "line": handle + "\nother",
	} {
		content := s.handed(name, handle, "Retain")
		s.Eventually("the content is reported", harness.Patience, func() string {
			said := s.said("VolumeSnapshotContent", content)
			if !strings.Contains(said, "SourceUnknown") && !strings.Contains(said, "MalformedHandle") {
				return "it is said" + said
			}
			return ""
		})
		s.pretend(name, content)
		s.claim(name, "late", from("VolumeSnapshot", name))
		s.Always("nothing is written", 2*time.Second, func() string {
			if found := labels(content); len(found) > 0 {
				return listing(found)
			}
			return s.untouched(name)
		})
	}
}
