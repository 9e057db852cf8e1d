package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rootcellar.dev/e2e/suites/harness"
)

// account is the controller's, and the name of its roles.
const account = "rootcellar-fleet"

// token returns one of the controller's account.
func (s *scenario) token() string {
	s.Helper()
	return s.tokenOf(harness.System, account)
}

// tokenOf returns one of an account.
func (s *scenario) tokenOf(namespace, name string) string {
	s.Helper()
	seconds := int64(3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	made, err := harness.Client.CoreV1().ServiceAccounts(namespace).CreateToken(s.Context(), name, request, metav1.CreateOptions{})
	s.Must(err)
	return made.Status.Token
}

// asAccount has the controller call with the rights of its account until the end of the scenario.
func (s *scenario) asAccount() {
	s.Helper()
	s.uncontrol()
	rig.fleet.as(s.token())
	s.Cleanup(func() {
		rig.fleet.as(harness.Admin.BearerToken)
		s.control("--steer", "--label")
	})
}

// right is a verb on a resource of a group.
type right struct{ group, resource, verb string }

func (r right) String() string { return strings.Trim(r.verb+" "+r.resource+"."+r.group, ".") }

// rightOf returns the right that a call needs.
func rightOf(c *call) (right, bool) {
	parts := strings.Split(strings.Trim(c.path, "/"), "/")
	var found right
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		found.group, parts = parts[1], parts[3:]
	default:
		return found, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	found.resource = parts[0]
	switch {
	case c.method == "GET" && len(parts) > 1:
		found.verb = "get"
	case c.method == "GET" && strings.Contains(c.query, "watch=true"):
		found.verb = "watch"
	case c.method == "GET":
		found.verb = "list"
	default:
		found.verb = map[string]string{"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}[c.method]
	}
	return found, true
}

// refusedFor selects the calls that the API server refused for want of a right.
func refusedFor(r right) matcher {
	return func(c *call) bool {
		found, is := rightOf(c)
		return is && found == r && c.status == http.StatusForbidden
	}
}

func rightsOf(rules []rbacv1.PolicyRule) []right {
	var found []right
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, kind := range rule.Resources {
				for _, verb := range rule.Verbs {
					found = append(found, right{group, kind, verb})
				}
			}
		}
	}
	return found
}

// without removes a right from rules.
func without(rules []rbacv1.PolicyRule, less right) []rbacv1.PolicyRule {
	var found []rbacv1.PolicyRule
	for _, rule := range rules {
		rule := *rule.DeepCopy()
		if slices.Contains(rule.APIGroups, less.group) && slices.Contains(rule.Resources, less.resource) {
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == less.verb })
		}
		if len(rule.Verbs) > 0 {
			found = append(found, rule)
		}
	}
	return found
}

func patchOf(path string, value any) []byte {
	text, err := json.Marshal([]map[string]any{{"op": "replace", "path": path, "value": value}})
	if err != nil {
		panic(err)
	}
	return text
}

// allowed waits until the API server answers so for the account.
func (s *scenario) allowed(r right, want bool) {
	s.Helper()
	s.Eventually("the API server knows the rights", harness.Patience, func() string {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + harness.System + ":" + account, Groups: []string{"system:serviceaccounts", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource, Verb: r.verb, Namespace: harness.System},
		}}
		answer, err := harness.Client.AuthorizationV1().SubjectAccessReviews().Create(s.Context(), review, metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		if answer.Status.Allowed != want {
			return fmt.Sprint(r, ": ", answer.Status.Allowed)
		}
		return ""
	})
}

// probe needs every right, and returns a complaint while something is not done.
func (s *scenario) probe(name string) func() string {
	s.Helper()
	content := s.handed(name, s.handleOf(s.contentOf("taken")), "Retain")
	s.claim(name, "late", from("VolumeSnapshot", "taken"), naming("never-there"))
	s.claim(name+"-cloned", "late", from("PersistentVolumeClaim", "source"))
	full := s.claim(name+"-full", "late", from("PersistentVolumeClaim", "source"), ofSize("10Gi"))
	return func() string {
		for _, claim := range []string{name, name + "-cloned"} {
			if reason := s.TheClaim(claim); reason.Status.Phase != corev1.ClaimBound {
				return claim + " is not bound"
			}
		}
		if s.content(content).GetLabels()[managedBy] == "" {
			return "the content has no label"
		}
		for _, want := range []struct{ kind, name, reason string }{
			{"PersistentVolumeClaim", name, "SteeredToNode"}, {"VolumeSnapshotContent", content, "LabelledWithNode"},
			{"PersistentVolumeClaim", full.Name, "NoRoomOnNode"},
		} {
			if !strings.Contains(s.said(want.kind, want.name), want.reason) {
				return "there is no event " + want.reason
			}
		}
		return ""
	}
}

// grantedAndUsed compares the rights of the account with those that the controller has used, and returns them.
func (s *scenario) grantedAndUsed(rules ...[]rbacv1.PolicyRule) []right {
	s.Helper()
	granted := rightsOf(slices.Concat(rules...))
	var used []right
	for _, c := range rig.fleet.seen(func(*call) bool { return true }) {
		if c.status == http.StatusForbidden {
			s.Errorf("forbidden: %s", &c)
		}
		if found, is := rightOf(&c); is && !slices.Contains(used, found) {
			used = append(used, found)
		}
	}
	for _, r := range granted {
		if !slices.Contains(used, r) {
			s.Errorf("granted and never used: %s", r)
		}
	}
	for _, r := range used {
		if !slices.Contains(granted, r) {
			s.Errorf("used and not granted: %s", r)
		}
	}
	return granted
}

// Proves: F1.
func rightsUsed(s *scenario) {
	s.sources()
	s.asAccount()
	cluster, err := harness.Client.RbacV1().ClusterRoles().Get(s.Context(), account, metav1.GetOptions{})
	s.Must(err)
	own, err := harness.Client.RbacV1().Roles(harness.System).Get(s.Context(), account, metav1.GetOptions{})
	s.Must(err)
	rig.fleet.forget()
	s.control("--steer", "--label")
	s.Eventually("all is done with these rights", harness.Patience, s.probe("whole"))
	granted := s.grantedAndUsed(cluster.Rules, own.Rules)
	restore := func() {
		_, err := harness.Client.RbacV1().ClusterRoles().Patch(backgroundContext, account, types.JSONPatchType, patchOf("/rules", cluster.Rules), metav1.PatchOptions{})
		s.Must(err)
		_, err = harness.Client.RbacV1().Roles(harness.System).Patch(backgroundContext, account, types.JSONPatchType, patchOf("/rules", own.Rules), metav1.PatchOptions{})
		s.Must(err)
	}
	defer restore()
	for i, r := range granted {
		s.uncontrol()
		_, err := harness.Client.RbacV1().ClusterRoles().Patch(s.Context(), account, types.JSONPatchType, patchOf("/rules", without(cluster.Rules, r)), metav1.PatchOptions{})
		s.Must(err)
		_, err = harness.Client.RbacV1().Roles(harness.System).Patch(s.Context(), account, types.JSONPatchType, patchOf("/rules", without(own.Rules, r)), metav1.PatchOptions{})
		s.Must(err)
		s.allowed(r, false)
		s.control("--steer", "--label")
		done := s.probe(fmt.Sprint("less-", i))
		// With all rights it takes about a second.
		for end := time.Now().Add(8 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			if done() == "" {
				// Without a watch it lists again and again, which costs more and comes later.
				if r.verb != "watch" || len(rig.fleet.seen(refusedFor(r))) == 0 {
					s.Errorf("all is done without: %s", r)
				}
				break
			}
			if time.Now().After(end) {
				break
			}
		}
		restore()
		s.allowed(r, true)
		// Their space is for the next ones.
		probe := fmt.Sprint("less-", i)
		s.Kubectl("delete", "pvc", probe, probe+"-cloned", probe+"-full", "--timeout", harness.Patience.String())
	}
	s.control("--steer", "--label")
	s.Eventually("all is done with all rights again", harness.Patience, s.probe("again"))
}

// Proves: F1.
func writesRefused(s *scenario) {
	s.sources()
	config := rest.AnonymousClientConfig(harness.Admin)
	config.BearerToken = s.token()
	core, others := kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config)
	s.uncontrol()
	defer s.control("--steer", "--label")
	ctx := s.Context()
	claims := core.CoreV1().PersistentVolumeClaims(s.Namespace)
	fresh := func(name string, changes ...change) {
		s.claim(name, "late", append(changes, func(claim *corev1.PersistentVolumeClaim) {
			claim.Labels = map[string]string{"old": "label"}
			annotated("old", "annotation")(claim)
		})...)
	}
	fresh("unbound", from("VolumeSnapshot", "taken"))
	fresh("plain")
	fresh("named", from("VolumeSnapshot", "taken"), naming("another"))
	labelled := s.contentOf("taken")
	s.Eventually("the content is labelled", harness.Patience, func() string {
		_, err := objects.Resource(contentKind).Patch(ctx, labelled, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+managedBy+`":"node1"}}}`), metav1.PatchOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	bare := s.handed("bare", s.handleOf(labelled), "Retain")
	foreign := s.Namespace + "-foreign"
	s.create(contentKind, "VolumeSnapshotContent", foreign, map[string]any{
		"driver": "csi.other.example", "deletionPolicy": "Retain", "source": map[string]any{"snapshotHandle": "other"},
		"volumeSnapshotRef": map[string]any{"name": "foreign", "namespace": s.Namespace},
	})
	patch := func(name, text string, subresources ...string) func() error {
		return func() error {
			_, err := claims.Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
			return err
		}
	}
	mark := func(name, text string, subresources ...string) func() error {
		return func() error {
			_, err := others.Resource(contentKind).Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
			return err
		}
	}
	meta := func(field, key, value string) string {
		return fmt.Sprintf(`{"metadata": {%q: {%q: %s}}}`, field, key, value)
	}
	node := meta("annotations", selected, `"node1"`)
	label := meta("labels", managedBy, `"node1"`)
	// The policies are in force a moment after their creation.
	s.Eventually("the policy is in force", harness.Patience, func() string {
		if err := patch("unbound", meta("labels", "new", `"label"`))(); !apierrors.IsForbidden(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
	refusedWrites := map[string]func() error{
		"a claim grows":                  patch("source", `{"spec": {"resources": {"requests": {"storage": "1Gi"}}}}`),
		"a claim grows with the node":    patch("unbound", `{"metadata": {"annotations": {"`+selected+`": "node1"}}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}`),
		"a claim gets a volume":          patch("unbound", `{"spec": {"volumeName": "mine"}}`),
		"a claim gets another class":     patch("unbound", `{"spec": {"volumeAttributesClassName": "mine"}}`),
		"a bound claim gets a node":      patch("source", node),
		"a claim without source, a node": patch("plain", node),
		"a claim gets a label":           patch("unbound", meta("labels", "new", `"label"`)),
		"a claim's label changes":        patch("unbound", meta("labels", "old", `"other"`)),
		"a claim loses a label":          patch("unbound", meta("labels", "old", `null`)),
		"a claim gets an annotation":     patch("unbound", meta("annotations", "new", `"annotation"`)),
		"a claim's annotation changes":   patch("unbound", meta("annotations", "old", `"other"`)),
		"a claim loses an annotation":    patch("unbound", meta("annotations", "old", `null`)),
		"a claim loses its node":         patch("named", meta("annotations", selected, `null`)),
		"a claim's node becomes empty":   patch("named", meta("annotations", selected, `""`)),
		"a claim gets a node and more":   patch("unbound", fmt.Sprintf(`{"metadata": {"annotations": {%q: "node1", "new": "annotation"}}}`, selected)),
		"a claim gets a finalizer":       patch("unbound", `{"metadata": {"finalizers": ["example.com/kept", "kubernetes.io/pvc-protection"]}}`),
		"a claim loses its finalizers":   patch("unbound", `{"metadata": {"finalizers": null}}`),
		"a claim gets an owner":          patch("unbound", `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": "mine"}]}}`),
		"a claim's status changes":       patch("unbound", `{"status": {"phase": "Lost"}}`, "status"),
		"a claim is created": func() error {
			_, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
			}}, metav1.CreateOptions{})
			return err
		},
		"a claim is applied": func() error {
			force := true
			_, err := claims.Patch(ctx, "applied", types.ApplyPatchType, []byte(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "applied"},
				"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}`), metav1.PatchOptions{FieldManager: "mine", Force: &force})
			return err
		},
		"a claim is updated": func() error {
			claim := s.TheClaim("unbound")
			claim.Annotations[selected] = "node1"
			_, err := claims.Update(ctx, claim, metav1.UpdateOptions{})
			return err
		},
		"a claim is deleted": func() error { return claims.Delete(ctx, "unbound", metav1.DeleteOptions{}) },
		"all claims are deleted": func() error {
			return claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"a content's node changes":                mark(labelled, meta("labels", managedBy, `"node2"`)),
		"a content loses its node":                mark(labelled, meta("labels", managedBy, `null`)),
		"a content gets an empty node":            mark(bare, meta("labels", managedBy, `""`)),
		"a content gets another label":            mark(bare, meta("labels", "new", `"label"`)),
		"a content gets a node and a label":       mark(bare, fmt.Sprintf(`{"metadata": {"labels": {%q: "node1", "new": "label"}}}`, managedBy)),
		"a content gets an annotation":            mark(bare, meta("annotations", "new", `"annotation"`)),
		"a content gets a node and an annotation": mark(bare, fmt.Sprintf(`{"metadata": {"labels": {%q: "node1"}, "annotations": {"new": "annotation"}}}`, managedBy)),
		"a content loses its finalizers":          mark(labelled, `{"metadata": {"finalizers": null}}`),
		"a content gets a finalizer and a node":   mark(bare, fmt.Sprintf(`{"metadata": {"labels": {%q: "node1"}, "finalizers": ["example.com/kept"]}}`, managedBy)),
		"a content's policy changes":              mark(bare, `{"spec": {"deletionPolicy": "Delete"}}`),
		"a content's policy changes with a node":  mark(bare, fmt.Sprintf(`{"metadata": {"labels": {%q: "node1"}}, "spec": {"deletionPolicy": "Delete"}}`, managedBy)),
		"a content's status changes":              mark(bare, `{"status": {"readyToUse": true}}`, "status"),
		"a content of another driver gets a node": mark(foreign, label),
		"a content is deleted":                    func() error { return others.Resource(contentKind).Delete(ctx, bare, metav1.DeleteOptions{}) },
		"a snapshot is deleted": func() error {
			return others.Resource(snapshotKind).Namespace(s.Namespace).Delete(ctx, "taken", metav1.DeleteOptions{})
		},
		"a snapshot gets a label": func() error {
			_, err := others.Resource(snapshotKind).Namespace(s.Namespace).Patch(ctx, "taken", types.MergePatchType, []byte(label), metav1.PatchOptions{})
			return err
		},
		"a volume gets a label": func() error {
			_, err := core.CoreV1().PersistentVolumes().Patch(ctx, s.TheClaim("source").Spec.VolumeName, types.MergePatchType, []byte(label), metav1.PatchOptions{})
			return err
		},
		"a volume is deleted": func() error {
			return core.CoreV1().PersistentVolumes().Delete(ctx, s.TheClaim("source").Spec.VolumeName, metav1.DeleteOptions{})
		},
		"a node gets a label": func() error {
			_, err := core.CoreV1().Nodes().Patch(ctx, "node1", types.MergePatchType, []byte(label), metav1.PatchOptions{})
			return err
		},
		"a node is deleted":  func() error { return core.CoreV1().Nodes().Delete(ctx, "node1", metav1.DeleteOptions{}) },
		"a class is deleted": func() error { return core.StorageV1().StorageClasses().Delete(ctx, "late", metav1.DeleteOptions{}) },
		"a pod is created":   func() error { return createPod(s, core) },
		"a secret is read": func() error {
			_, err := core.CoreV1().Secrets(harness.System).List(ctx, metav1.ListOptions{})
			return err
		},
		"a secret is created": func() error { return createSecret(s, core) },
		"a lease is read": func() error {
			_, err := core.CoordinationV1().Leases(harness.System).List(ctx, metav1.ListOptions{})
			return err
		},
		"a token is made": func() error {
			_, err := core.CoreV1().ServiceAccounts(harness.System).CreateToken(ctx, "rootcellar", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		},
		"a role changes": func() error {
			_, err := core.RbacV1().ClusterRoles().Patch(ctx, account, types.MergePatchType, []byte(label), metav1.PatchOptions{})
			return err
		},
		"a capacity is deleted": func() error {
			return core.StorageV1().CSIStorageCapacities(harness.System).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"an event is read": func() error {
			_, err := core.EventsV1().Events(harness.System).List(ctx, metav1.ListOptions{})
			return err
		},
	}
	for what, try := range refusedWrites {
		// Some of these are refused to everybody.
		if err := try(); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			s.Errorf("%s: %v", what, err)
		}
	}
	for what, try := range map[string]func() error{
		"a claim gets its node": patch("unbound", node), "a claim gets another node": patch("named", node), "a content gets its node": mark(bare, label),
	} {
		s.Must(wrap(what, try()))
	}
	// The policies are for the account alone.
	_, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Patch(ctx, "unbound", types.MergePatchType, []byte(meta("labels", "new", `"label"`)), metav1.PatchOptions{})
	s.Must(err)
	_, err = objects.Resource(contentKind).Patch(ctx, labelled, types.MergePatchType, []byte(meta("labels", managedBy, `"node2"`)), metav1.PatchOptions{})
	s.Must(err)
}

// lostRights is the last scenario of its stage, which ran with the rights of the account.
//
// Proves: F1.
func lostRights(s *scenario) {
	cluster, err := harness.Client.RbacV1().ClusterRoles().Get(s.Context(), account, metav1.GetOptions{})
	s.Must(err)
	own, err := harness.Client.RbacV1().Roles(harness.System).Get(s.Context(), account, metav1.GetOptions{})
	s.Must(err)
	if harness.Ended() < lostScenarios-1 {
		s.Log("scenarios of the stage were left out, so the used rights are not compared")
	} else {
		s.grantedAndUsed(cluster.Rules, own.Rules)
	}
	config := rest.AnonymousClientConfig(harness.Admin)
	config.BearerToken = s.token()
	core := kubernetes.NewForConfigOrDie(config)
	s.uncontrol()
	ctx := s.Context()
	bound := s.source("bound", rig.node1)
	s.claim("held", "late", naming("node1"), func(claim *corev1.PersistentVolumeClaim) { claim.Finalizers = []string{"example.com/held"} })
	s.bound("held", rig.node1)
	s.claim("waits", "late", naming("missing"))
	released := s.source("released", rig.node1)
	rig.node1.provisioner.pause(s)
	s.Kubectl("delete", "pvc", "released", "--wait=false")
	s.Eventually("the volume is released", harness.Patience, func() string {
		if found := s.volume(released.Name); found.Status.Phase != corev1.VolumeReleased {
			return string(found.Status.Phase)
		}
		return ""
	})
	volumes, claims := core.CoreV1().PersistentVolumes(), core.CoreV1().PersistentVolumeClaims(s.Namespace)
	patch := func(name, text string) func() error {
		return func() error {
			_, err := volumes.Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
			return err
		}
	}
	of := func(name, text string) func() error {
		return func() error {
			_, err := claims.Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
			return err
		}
	}
	policy := func(policy, claim, more string) string {
		return fmt.Sprintf(`{"metadata": {"annotations": {%q: %s}}, "spec": {"persistentVolumeReclaimPolicy": %q%s}}`, releasedClaim, claim, policy, more)
	}
	uid := fmt.Sprintf("%q", s.TheClaim("bound").UID)
	maps, file := core.CoreV1().ConfigMaps(harness.System), []byte(`{"data": {"mine": "ids"}}`)
	deletes := func(name string) func() error {
		return func() error { return volumes.Delete(ctx, name, metav1.DeleteOptions{}) }
	}
	refused := map[string]func() error{
		"a bound volume is deleted":              deletes(bound.Name),
		"a bound volume loses its finalizers":    patch(bound.Name, `{"metadata": {"finalizers": null}}`),
		"a released one loses its finalizers":    patch(released.Name, `{"metadata": {"finalizers": null}}`),
		"a volume is retained without a note":    patch(bound.Name, `{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`),
		"a volume is retained and more":          patch(bound.Name, policy("Retain", uid, `, "mountOptions": ["suid"]`)),
		"a volume is retained for another":       patch(bound.Name, policy("Retain", uid, `, "claimRef": {"name": "mine"}`)),
		"a volume grows":                         patch(bound.Name, `{"spec": {"capacity": {"storage": "1Ti"}}}`),
		"a volume is retained for another claim": patch(bound.Name, policy("Retain", `"mine"`, "")),
		"a volume is marked and not retained":    patch(bound.Name, policy("Delete", uid, "")),
		"a volume gets a label":                  patch(bound.Name, `{"metadata": {"labels": {"new": "label"}}}`),
		"a volume gets an annotation":            patch(bound.Name, `{"metadata": {"annotations": {"new": "annotation"}}}`),
		"a released volume is retained":          patch(released.Name, policy("Retain", uid, "")),
		"a claim in use by another is deleted":   func() error { return claims.Delete(ctx, "held", metav1.DeleteOptions{}) },
		"an unbound claim is deleted":            func() error { return claims.Delete(ctx, "waits", metav1.DeleteOptions{}) },
		"all claims are deleted":                 func() error { return claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}) },
		"all volumes are deleted":                func() error { return volumes.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}) },
		"a claim without source gets a node":     of("waits", `{"metadata": {"annotations": {"`+selected+`": "node1"}}}`),
		"a bound claim loses its node":           of("bound", `{"metadata": {"annotations": {"`+selected+`": null}}}`),
		"a claim loses its node and a finalizer": of("waits", `{"metadata": {"annotations": {"`+selected+`": null}, "finalizers": null}}`),
		"a claim's finalizers go":                of("held", `{"metadata": {"finalizers": null}}`),
		"a pod is deleted": func() error {
			return core.CoreV1().Pods(harness.System).Delete(ctx, rig.node1.pod(), metav1.DeleteOptions{})
		},
		"another ConfigMap is read": func() error { _, err := maps.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); return err },
		"all ConfigMaps are read":   func() error { _, err := maps.List(ctx, metav1.ListOptions{}); return err },
		"another ConfigMap changes": func() error {
			_, err := maps.Patch(ctx, "kube-root-ca.crt", types.MergePatchType, file, metav1.PatchOptions{})
			return err
		},
		"the memory is deleted": func() error { return maps.Delete(ctx, memory, metav1.DeleteOptions{}) },
		"a ConfigMap is created": func() error {
			_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
			return err
		},
		"the DaemonSets of others are read": func() error {
			_, err := core.AppsV1().DaemonSets(s.Namespace).List(ctx, metav1.ListOptions{})
			return err
		},
		"a DaemonSet is deleted": func() error {
			return core.AppsV1().DaemonSets(harness.System).Delete(ctx, "rootcellar", metav1.DeleteOptions{})
		},
		"a set is deleted": func() error { return core.AppsV1().StatefulSets(s.Namespace).Delete(ctx, "db", metav1.DeleteOptions{}) },
		"a secret is read": func() error {
			_, err := core.CoreV1().Secrets(harness.System).List(ctx, metav1.ListOptions{})
			return err
		},
	}
	for what, try := range refused {
		if err := try(); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			s.Errorf("%s: %v", what, err)
		}
	}
	for _, allowed := range []struct {
		what string
		try  func() error
	}{
		{"retain", patch(bound.Name, policy("Retain", uid, ""))},
		{"forget a node", of("waits", `{"metadata": {"annotations": {"`+selected+`": null}}}`)},
		{"remember a machine", func() error {
			_, err := maps.Patch(ctx, memory, types.MergePatchType, file, metav1.PatchOptions{})
			return err
		}},
		{"delete a claim", func() error { return claims.Delete(ctx, "bound", metav1.DeleteOptions{}) }},
		{"delete a released volume", deletes(released.Name)},
	} {
		s.Must(wrap(allowed.what, allowed.try()))
	}
	// Nothing writes Delete, also for a volume that the controller itself retained.
	begun, retained := s.source("begun", rig.node2), s.source("retained", rig.node2)
	uid = fmt.Sprintf("%q", s.TheClaim("begun").UID)
	s.Must(wrap("retain", patch(begun.Name, policy("Retain", uid, ""))()))
	s.Kubectl("patch", "pv", retained.Name, "--patch", `{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`)
	for _, name := range []string{begun.Name, retained.Name} {
		for _, claim := range []string{"null", uid} {
			if err := patch(name, policy("Delete", claim, ""))(); !apierrors.IsForbidden(err) {
				s.Errorf("a retained volume is to be deleted with its claim: %v", err)
			}
		}
		s.Kubectl("patch", "pv", name, "--patch", `{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`)
	}
	s.Kubectl("patch", "pvc", "held", "--type=merge", "--patch", `{"metadata": {"finalizers": null}}`)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

func createPod(s *scenario, core kubernetes.Interface) error {
	_, err := core.CoreV1().Pods(s.Namespace).Create(s.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: sleeper()}, metav1.CreateOptions{})
	return err
}

func createSecret(s *scenario, core kubernetes.Interface) error {
	_, err := core.CoreV1().Secrets(s.Namespace).Create(s.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
	return err
}
