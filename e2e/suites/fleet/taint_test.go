package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rootcellar.dev/e2e/suites/harness"
)

// startup is the taint with which nodes start, and other is one of somebody else.
var (
	startup = corev1.Taint{Key: harness.Driver + "/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}
	other   = corev1.Taint{Key: "example.com/other", Value: "kept", Effect: corev1.TaintEffectNoSchedule}
)

var untainting = []string{"--steer", "--untaint", "--tainted-for=3s"}

var tainted = []entry{
	{"a node keeps the startup taint until its driver is ready, and its other taints for ever", untainted},
	{"a node that changes while its startup taint is removed loses that taint alone", changedMeanwhile},
	{"a node that is made anew keeps the startup taint until its own driver is registered", madeAnew},
	{"the controller is killed while it removes a startup taint, and the next one ends right", killedUntainting},
	{"the account has the rights that the startup taint needs, and every other write to a node is refused", taintRights},
}

// starting is a machine whose Node will have the startup taint.
func (s *scenario) starting(name string) *machine {
	s.Helper()
	m := s.newMachine(name, "400M")
	s.removed(m)
	m.taints = []corev1.Taint{startup, other}
	return m
}

func (s *scenario) taints(m *machine) []corev1.Taint {
	s.Helper()
	node, err := harness.Client.CoreV1().Nodes().Get(s.Context(), m.name, metav1.GetOptions{})
	s.Must(err)
	return node.Spec.Taints
}

// untainted waits until the node has these taints alone.
func (s *scenario) untainted(m *machine, rest ...corev1.Taint) {
	s.Helper()
	s.Eventually("node "+m.name+" loses its startup taint", harness.Patience, func() string {
		if found := s.taints(m); !slices.Equal(found, rest) {
			return fmt.Sprint(found, s.said("Node", m.name))
		}
		return ""
	})
}

// staysTainted checks that the node keeps its startup taint for a while.
func (s *scenario) staysTainted(m *machine, because string) {
	s.Helper()
	s.Always("it has the startup taint, because "+because, 2*time.Second, func() string {
		if found := s.taints(m); !slices.Contains(found, startup) {
			return fmt.Sprint(found)
		}
		return ""
	})
}

func removal(m *machine) matcher { return to(http.MethodPatch, "/nodes/"+m.name) }

// Proves: F14.
func untainted(s *scenario) {
	m := s.starting("starting")
	m.makeNode(s)
	s.claim("data", "late")
	s.pod("waits", []string{"data"}, func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: m.name}
		pod.Spec.Tolerations = []corev1.Toleration{{Key: other.Key, Operator: corev1.TolerationOpExists}}
	})
	if note := s.event("Node", m.name, "StartupTaintStays"); !strings.Contains(note, "no pod of the driver is on it") {
		s.Errorf("the reason: %s", note)
	}
	m.makePod(s)
	m.podIsReady(s, false)
	s.staysTainted(m, "the driver's pod is not ready")
	m.podIsReady(s, true)
	s.staysTainted(m, "the kubelet has not registered the driver")
	m.registerDriver(s)
	s.staysTainted(m, "no capacity is reported")
	if found := s.nodeOf("waits"); found != "" {
		s.Errorf("the pod is on %s", found)
	}
	m.startProvisioner()
	s.untainted(m, other)
	s.event("Node", m.name, "StartupTaintRemoved")
	s.scheduled("waits", m)
	if found := rig.fleet.seen(removal(m)); len(found) != 1 {
		s.Errorf("the writes:%s", listing(found))
	}
	s.Always("the other taint stays", 2*time.Second, func() string {
		if found := s.taints(m); !slices.Equal(found, []corev1.Taint{other}) {
			return fmt.Sprint(found)
		}
		return ""
	})
}

// Proves: F14.
func changedMeanwhile(s *scenario) {
	m := s.starting("changing")
	write := rig.fleet.hold(s, removal(m))
	m.register(s)
	m.startProvisioner()
	held := write.wait(s, "the controller removes the taint")
	added := corev1.Taint{Key: "example.com/added", Value: "later", Effect: corev1.TaintEffectNoExecute}
	s.Kubectl("taint", "node", m.name, "example.com/added=later:NoExecute")
	if status := write.release(s, held); status != http.StatusConflict {
		s.Errorf("the API server answers %d to %s", status, held)
	}
	s.Eventually("the startup taint alone is removed", harness.Patience, func() string {
		found := s.taints(m)
		for i := range found {
			found[i].TimeAdded = nil
		}
		// Kubectl puts a new one before the others.
		if !slices.Equal(found, []corev1.Taint{added, other}) {
			return fmt.Sprint(found)
		}
		return ""
	})
}

// madeAnew has the objects of an earlier node with the same name.
//
// Proves: F14.
func madeAnew(s *scenario) {
	m := s.starting("anew")
	m.register(s)
	m.startProvisioner()
	s.untainted(m, other)
	s.Kubectl("delete", "node", m.name)
	m.makeNode(s)
	s.staysTainted(m, "the CSINode is of the earlier node")
	// The garbage collector deletes it with its owner.
	s.gone("csinode", m.name)
	s.staysTainted(m, "the kubelet has not registered the driver")
	m.registerDriver(s)
	s.untainted(m, other)
}

// Proves: F14.
func killedUntainting(s *scenario) {
	m := s.starting("killing")
	m.register(s)
	m.startProvisioner()
	s.untainted(m, other)
	for _, arrives := range []bool{true, false} {
		write := rig.fleet.hold(s, removal(m))
		s.Kubectl("taint", "node", m.name, startup.Key+":NoSchedule")
		held := write.wait(s, "the controller removes the taint")
		s.uncontrol()
		if arrives {
			write.release(s, held)
		} else {
			write.drop()
		}
		s.control(untainting...)
		s.untainted(m, other)
	}
}

// Proves: F1, F14.
func taintRights(s *scenario) {
	cluster, err := harness.Client.RbacV1().ClusterRoles().Get(s.Context(), account, metav1.GetOptions{})
	s.Must(err)
	own, err := harness.Client.RbacV1().Roles(harness.System).Get(s.Context(), account, metav1.GetOptions{})
	s.Must(err)
	s.uncontrol()
	rig.fleet.forget()
	s.control(untainting...)
	m := s.starting("rights")
	m.register(s)
	m.startProvisioner()
	s.untainted(m, other)
	s.event("Node", m.name, "StartupTaintRemoved")
	s.source("source", rig.node1)
	s.claim("cloned", "late", from("PersistentVolumeClaim", "source"), naming("never-there"))
	s.bound("cloned", rig.node1)
	s.event("PersistentVolumeClaim", "cloned", "SteeredToNode")
	s.grantedAndUsed(cluster.Rules, own.Rules)

	s.uncontrol()
	s.Kubectl("label", "node", m.name, "old=label")
	s.Kubectl("annotate", "node", m.name, "old=annotation")
	s.Kubectl("taint", "node", m.name, startup.Key+":NoSchedule", startup.Key+":NoExecute")
	config := rest.AnonymousClientConfig(harness.Admin)
	config.BearerToken = s.token()
	core := kubernetes.NewForConfigOrDie(config)
	ctx := s.Context()
	patch := func(name, text string, subresources ...string) func() error {
		return func() error {
			_, err := core.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
			return err
		}
	}
	// with removes the startup taint, and changes more.
	with := func(more string) func() error {
		text, err := json.Marshal([]corev1.Taint{other})
		s.Must(err)
		return patch(m.name, fmt.Sprintf(`{"spec": {"taints": %s%s`, text, more))
	}
	s.Eventually("the policy is in force", harness.Patience, func() string {
		if err := patch(m.name, `{"metadata": {"labels": {"new": "label"}}}`)(); !apierrors.IsForbidden(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
	refused := map[string]func() error{
		"all taints go":                   patch(m.name, `{"spec": {"taints": null}}`),
		"another taint goes":              patch(m.name, fmt.Sprintf(`{"spec": {"taints": [{"key": %q, "effect": "NoSchedule"}, {"key": %[1]q, "effect": "NoExecute"}]}}`, startup.Key)),
		"one of two startup taints goes":  patch(m.name, fmt.Sprintf(`{"spec": {"taints": [{"key": %q, "effect": "NoSchedule"}, {"key": %q, "value": %q, "effect": "NoSchedule"}]}}`, startup.Key, other.Key, other.Value)),
		"another taint changes":           patch(m.name, fmt.Sprintf(`{"spec": {"taints": [{"key": %q, "value": "mine", "effect": "NoSchedule"}]}}`, other.Key)),
		"a taint comes":                   patch(m.name, fmt.Sprintf(`{"spec": {"taints": [{"key": %q, "value": %q, "effect": "NoSchedule"}, {"key": "mine", "effect": "NoExecute"}]}}`, other.Key, other.Value)),
		"the taint of a node without it":  patch(rig.node1.name, `{"spec": {"taints": []}}`),
		"a node gets the taint":           patch(rig.node1.name, fmt.Sprintf(`{"spec": {"taints": [{"key": %q, "effect": "NoSchedule"}]}}`, startup.Key)),
		"a node is cordoned":              patch(rig.node1.name, `{"spec": {"unschedulable": true}}`),
		"the node is cordoned too":        with(`, "unschedulable": true}}`),
		"the node gets a provider id too": with(`, "providerID": "mine"}}`),
		"the node gets addresses too":     with(`, "podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}`),
		"the node gets a label too":       with(`}, "metadata": {"labels": {"new": "label"}}}`),
		"the node loses a label too":      with(`}, "metadata": {"labels": {"old": null}}}`),
		"a label changes too":             with(`}, "metadata": {"labels": {"old": "other"}}}`),
		"the node gets an annotation too": with(`}, "metadata": {"annotations": {"new": "annotation"}}}`),
		"an annotation changes too":       with(`}, "metadata": {"annotations": {"old": "other"}}}`),
		"the node gets a finalizer too":   with(`}, "metadata": {"finalizers": ["example.com/mine"]}}`),
		"the node gets an owner too":      with(`}, "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": "mine"}]}}`),
		"its status changes":              patch(m.name, `{"status": {"capacity": {"cpu": "1000"}}}`, "status"),
		"a node is updated": func() error {
			node, err := harness.Client.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
			s.Must(err)
			node.Spec.Taints = []corev1.Taint{other}
			_, err = core.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
			return err
		},
		"a node is created": func() error {
			_, err := core.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
			return err
		},
		"a node is deleted": func() error { return core.CoreV1().Nodes().Delete(ctx, m.name, metav1.DeleteOptions{}) },
		"a registration changes": func() error {
			_, err := core.StorageV1().CSINodes().Patch(ctx, m.name, types.MergePatchType, []byte(`{"spec": {"drivers": []}}`), metav1.PatchOptions{})
			return err
		},
	}
	for what, try := range refused {
		if err := try(); !apierrors.IsForbidden(err) {
			s.Errorf("%s: %v", what, err)
		}
	}
	s.Must(wrap("both startup taints are removed", with("}}")()))
	if found := s.taints(m); !slices.Equal(found, []corev1.Taint{other}) {
		s.Errorf("the taints: %v", found)
	}
	// The policy is for the account alone.
	s.Kubectl("cordon", m.name)
	s.control(untainting...)
}
