package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rootcellar.dev/e2e/suites/harness"
)

const (
	// selected is the annotation that names a claim's node.
	selected = "volume.kubernetes.io/selected-node"
	// managedBy is the label that names the node which takes a snapshot.
	managedBy     = "snapshot.storage.kubernetes.io/managed-by"
	snapshotGroup = "snapshot.storage.k8s.io"
)

// scenario adds the objects of the rig.
type scenario struct{ *harness.Scenario }

type change = func(*corev1.PersistentVolumeClaim)

// claim creates a claim of 64Mi. The changes are applied before.
func (s *scenario) claim(name, class string, changes ...change) *corev1.PersistentVolumeClaim {
	s.Helper()
	return s.Claim(name, class, "64Mi", changes...)
}

func ofSize(size string) change {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
}

// from has the claim start with the contents of the snapshot or of the other claim.
func from(kind, name string) change {
	source := &corev1.TypedLocalObjectReference{Kind: kind, Name: name}
	if kind == "VolumeSnapshot" {
		group := snapshotGroup
		source.APIGroup = &group
	}
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.DataSource = source }
}

// fromReference is the newer field for the source.
func fromReference(group, kind, name string) change {
	source := &corev1.TypedObjectReference{Kind: kind, Name: name}
	if group != "" {
		source.APIGroup = &group
	}
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.DataSourceRef = source }
}

// naming has the claim name a node.
func naming(node string) change { return annotated(selected, node) }

func annotated(key, value string) change {
	return func(claim *corev1.PersistentVolumeClaim) {
		if claim.Annotations == nil {
			claim.Annotations = map[string]string{}
		}
		claim.Annotations[key] = value
	}
}

// source creates a bound claim on a node.
func (s *scenario) source(name string, m *machine, changes ...change) *corev1.PersistentVolume {
	s.Helper()
	s.claim(name, "late", append([]change{naming(m.name)}, changes...)...)
	return s.bound(name, m)
}

// bound waits until the claim is bound, and checks the node of its volume.
func (s *scenario) bound(name string, m *machine) *corev1.PersistentVolume {
	s.Helper()
	var found *corev1.PersistentVolume
	s.Eventually("claim "+name+" is bound", harness.Patience, func() string {
		claim := s.TheClaim(name)
		if claim.Status.Phase != corev1.ClaimBound {
			return fmt.Sprint(claim.Status.Phase, " ", claim.Annotations, " ", s.said("PersistentVolumeClaim", name))
		}
		var err error
		found, err = harness.Client.CoreV1().PersistentVolumes().Get(s.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	if got := found.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]; got != m.value {
		s.Fatalf("the volume of claim %s is on %s, not on %s", name, got, m.name)
	}
	return found
}

// pending returns a complaint if the claim has a volume.
func (s *scenario) pending(name string) string {
	s.Helper()
	if claim := s.TheClaim(name); claim.Status.Phase != corev1.ClaimPending || claim.Spec.VolumeName != "" {
		return fmt.Sprint("claim ", name, " is ", claim.Status.Phase)
	}
	return ""
}

// names waits until the claim names this node.
func (s *scenario) names(claim, node string, within time.Duration) {
	s.Helper()
	s.Eventually("claim "+claim+" names "+node, within, func() string {
		if got := s.TheClaim(claim).Annotations[selected]; got != node {
			return fmt.Sprintf("it names %q, events %s", got, s.said("PersistentVolumeClaim", claim))
		}
		return ""
	})
}

// sleeper is a pod that nobody starts.
func sleeper() corev1.PodSpec {
	grace, no := int64(0), false
	return corev1.PodSpec{TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no,
		Containers: []corev1.Container{{Name: "main", Image: "none"}}}
}

// pod creates a pod with these claims.
func (s *scenario) pod(name string, claims []string, changes ...func(*corev1.Pod)) {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: sleeper()}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	for _, change := range changes {
		change(pod)
	}
	s.Eventually("pod "+name+" is created", harness.Patience, func() string {
		// The namespace gets its account a moment later.
		if _, err := harness.Client.CoreV1().Pods(s.Namespace).Create(s.Context(), pod, metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// at has the pod past the scheduler on a node.
func at(m *machine) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = m.name }
}

func (s *scenario) nodeOf(pod string) string {
	s.Helper()
	found, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.Context(), pod, metav1.GetOptions{})
	s.Must(err)
	return found.Spec.NodeName
}

// scheduled waits until the pod has a node, and checks it.
func (s *scenario) scheduled(pod string, m *machine) {
	s.Helper()
	s.Eventually("pod "+pod+" is scheduled", harness.Patience, func() string {
		if s.nodeOf(pod) == "" {
			return "it has none" + s.said("Pod", pod)
		}
		return ""
	})
	if got := s.nodeOf(pod); got != m.name {
		s.Fatalf("pod %s is on %s, not on %s", pod, got, m.name)
	}
}

// snapshot asks for a snapshot of a claim.
func (s *scenario) snapshot(name, claim string) {
	s.Helper()
	s.create(snapshotKind, "VolumeSnapshot", name, map[string]any{
		"volumeSnapshotClassName": "taken", "source": map[string]any{"persistentVolumeClaimName": claim},
	})
}

// create creates an object of the snapshots' API.
func (s *scenario) create(kind resourceKind, word, name string, spec map[string]any, changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	s.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": snapshotGroup + "/v1", "kind": word, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	for _, change := range changes {
		change(object)
	}
	space := s.Namespace
	if kind == contentKind {
		space = ""
	}
	made, err := objects.Resource(kind).Namespace(space).Create(s.Context(), object, metav1.CreateOptions{})
	s.Must(err)
	return made
}

// take takes a snapshot and waits until it is ready. It returns the name of the content.
func (s *scenario) take(name, claim string) string {
	s.Helper()
	s.snapshot(name, claim)
	return s.taken(name)
}

// taken waits until a snapshot is ready, and returns the name of its content.
func (s *scenario) taken(name string) string {
	s.Helper()
	var content string
	s.Eventually("snapshot "+name+" is ready", harness.Patience, func() string {
		object, err := objects.Resource(snapshotKind).Namespace(s.Namespace).Get(s.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		content, _, _ = unstructured.NestedString(object.Object, "status", "boundVolumeSnapshotContentName")
		if ready, _, _ := unstructured.NestedBool(object.Object, "status", "readyToUse"); !ready {
			return fmt.Sprint(object.Object["status"], " ", s.said("VolumeSnapshot", name), s.said("VolumeSnapshotContent", content))
		}
		return ""
	})
	return content
}

// contentOf waits for the content of a snapshot.
func (s *scenario) contentOf(name string) string {
	s.Helper()
	var content string
	s.Eventually("snapshot "+name+" has a content", harness.Patience, func() string {
		object, err := objects.Resource(snapshotKind).Namespace(s.Namespace).Get(s.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if content, _, _ = unstructured.NestedString(object.Object, "status", "boundVolumeSnapshotContentName"); content == "" {
			return "none"
		}
		return ""
	})
	return content
}

func (s *scenario) content(name string) *unstructured.Unstructured {
	s.Helper()
	object, err := objects.Resource(contentKind).Get(s.Context(), name, metav1.GetOptions{})
	s.Must(err)
	return object
}

// handleOf returns the handle of a content.
func (s *scenario) handleOf(content string) string {
	s.Helper()
	handle, _, err := unstructured.NestedString(s.content(content).Object, "status", "snapshotHandle")
	s.Must(err)
	return handle
}

// handed creates a content for a handle, and the snapshot that it is for, and returns the name of the content.
func (s *scenario) handed(name, handle, policy string, changes ...func(*unstructured.Unstructured)) string {
	s.Helper()
	content := s.Namespace + "-" + name
	s.create(contentKind, "VolumeSnapshotContent", content, map[string]any{
		"driver": harness.Driver, "deletionPolicy": policy, "volumeSnapshotClassName": "taken",
		"source":            map[string]any{"snapshotHandle": handle},
		"volumeSnapshotRef": map[string]any{"name": name, "namespace": s.Namespace},
	}, changes...)
	s.create(snapshotKind, "VolumeSnapshot", name, map[string]any{
		"volumeSnapshotClassName": "taken", "source": map[string]any{"volumeSnapshotContentName": content},
	})
	return content
}

// gone waits until the object is deleted.
func (s *scenario) gone(kind, name string) {
	s.Helper()
	s.Kubectl("wait", kind+"/"+name, "--for=delete", "--timeout", harness.Patience.String())
}

// events returns the events of the controller on an object, by their reason.
func (s *scenario) events(kind, name string) []eventsv1.Event {
	s.Helper()
	space := s.Namespace
	if kind == "VolumeSnapshotContent" || kind == "PersistentVolume" || kind == "Node" {
		space = metav1.NamespaceDefault
	}
	list, err := harness.Client.EventsV1().Events(space).List(s.Context(), metav1.ListOptions{})
	s.Must(err)
	return slices.DeleteFunc(list.Items, func(event eventsv1.Event) bool {
		return event.Regarding.Kind != kind || event.Regarding.Name != name
	})
}

// said returns all events on an object as one text.
func (s *scenario) said(kind, name string) string {
	s.Helper()
	var text strings.Builder
	for _, event := range s.events(kind, name) {
		fmt.Fprintf(&text, "\n  %s: %s: %s", event.ReportingController, event.Reason, event.Note)
	}
	return text.String()
}

// event waits for an event with this reason, and returns its note.
func (s *scenario) event(kind, name, reason string) string {
	s.Helper()
	var note string
	s.Eventually(fmt.Sprintf("an event %s on %s %s", reason, kind, name), harness.Patience, func() string {
		for _, event := range s.events(kind, name) {
			if event.Reason == reason {
				note = event.Note
				return ""
			}
		}
		return "there is" + s.said(kind, name)
	})
	return note
}

// path is the end of the claim's path in the API.
func (s *scenario) path(claim string) string {
	return "/namespaces/" + s.Namespace + "/persistentvolumeclaims/" + claim
}

// patches returns the writes of the controller to a claim.
func (s *scenario) patches(claim string) []call {
	return rig.fleet.seen(to("PATCH", s.path(claim)))
}

// untouched returns a complaint if the controller has written to the claim.
func (s *scenario) untouched(claim string) string {
	if found := s.patches(claim); len(found) > 0 {
		return "the controller wrote" + listing(found)
	}
	return ""
}

// labels returns the writes of the controller to a content.
func labels(content string) []call {
	return rig.fleet.seen(to("PATCH", "/volumesnapshotcontents/"+content))
}

// class creates a StorageClass for the default pool that is deleted after the scenario, and returns its name.
func (s *scenario) class(changes ...func(*storagev1.StorageClass)) string {
	s.Helper()
	return s.Class(map[string]string{"pool": "default"}, changes...)
}

// explain shows the state of the cluster after a failure, and the writes of each client.
func (s *scenario) explain(ctx context.Context, report *harness.Report) {
	show := func(arguments ...string) {
		report.Show(ctx, "kubectl", append([]string{"--namespace", s.Namespace}, arguments...)...)
	}
	show("get", "pvc,pods,volumesnapshots", "-o", "yaml")
	show("get", "events", "--sort-by=.metadata.creationTimestamp")
	show("get", "pv,nodes,volumesnapshotcontents,csistoragecapacities", "-A", "-o", "wide")
	proxies := []*proxy{rig.fleet, rig.scheduling, rig.labelling}
	for _, m := range nodes() {
		if m != nil {
			proxies = append(proxies, m.provisioning, m.snapshotting)
		}
	}
	for _, p := range proxies {
		if p != nil {
			fmt.Fprintf(report, "# writes of %s%s\n", p.name, listing(p.seen(func(c *call) bool {
				return c.writes() && (strings.Contains(c.path, s.Namespace) || strings.Contains(c.path, "volumesnapshotcontents") || strings.Contains(c.body, s.Namespace))
			})))
		}
	}
	s.Logf("the state is in %s", s.Keep(report))
}

func missing(err error) bool { return apierrors.IsNotFound(err) }
