package main

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	withFleet    = "--set=fleet.enabled=true"
	startupTaint = "csi.rootcellar.dev/agent-not-ready"
)

// named returns the object of a type with the name of the controller.
func named[T interface {
	runtime.Object
	GetName() string
}](t *testing.T, found []runtime.Object) T {
	t.Helper()
	objects := all[T](found)
	at := slices.IndexFunc(objects, func(object T) bool { return object.GetName() == "rootcellar-fleet" })
	if at < 0 {
		t.Fatalf("no %T of the controller", *new(T))
	}
	return objects[at]
}

// The controller's pod has the token, no privilege and no path of the host.
func TestFleet(t *testing.T) {
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		deployment := named[*appsv1.Deployment](t, found)
		same(t, *deployment.Spec.Replicas, 1)
		same(t, deployment.Spec.Strategy.Type, appsv1.RecreateDeploymentStrategyType)
		same(t, deployment.Spec.Template.Labels, map[string]string{"app.kubernetes.io/name": "rootcellar-fleet"})
		same(t, deployment.Spec.Selector.MatchLabels, deployment.Spec.Template.Labels)
		pod := deployment.Spec.Template.Spec
		same(t, pod.ServiceAccountName, "rootcellar-fleet")
		same(t, []bool{pod.HostNetwork, pod.HostPID, pod.HostIPC, *pod.AutomountServiceAccountToken}, make([]bool, 4))
		same(t, len(pod.Volumes), 2)
		same(t, pod.Volumes[0].Projected != nil, true)
		same(t, *pod.Volumes[1].Secret.Optional, true)
		// OpenShift assigns the user.
		same(t, *pod.SecurityContext.RunAsNonRoot, true)
		same(t, pod.SecurityContext.RunAsUser == nil, preset == "openshift")

		same(t, len(pod.Containers), 1)
		container := pod.Containers[0]
		same(t, container.Image, "registry.example/rootcellar-fleet:"+chartVersion(t))
		same(t, container.Args, []string{"--steer", "--label", "--compare", "--key=/etc/rootcellar/inventory/key",
			"--absent-for=30m", "--retired-for=5m", "--compare-every=10m", "--http=0.0.0.0:9809", "--log-format=text"})
		same(t, *container.SecurityContext, corev1.SecurityContext{
			AllowPrivilegeEscalation: new(bool),
			ReadOnlyRootFilesystem:   pod.SecurityContext.RunAsNonRoot,
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		})
		same(t, len(container.VolumeMounts), 2)
		same(t, container.VolumeMounts[0].MountPath, "/var/run/secrets/kubernetes.io/serviceaccount")
		same(t, container.LivenessProbe.HTTPGet.Path, "/healthz")
		same(t, container.ReadinessProbe.HTTPGet.Path, "/readyz")

		// Its account, pod, Service and Secret, five objects of RBAC, and two policies with their bindings. Without it nothing
		// of them exists.
		same(t, len(found), len(objects(t, "--set=namespace.create=true", presetValues(preset)))+13)
	}, withFleet)
}

// Each function has its own flag, rules and policy.
func TestFleetRules(t *testing.T) {
	rule := func(group string, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	const snapshots = "snapshot.storage.k8s.io"
	events, classes := rule("events.k8s.io", "events", "create"), rule("storage.k8s.io", "storageclasses", "list", "watch")
	rules := func(volumes, claims, contents []string, more ...rbacv1.PolicyRule) []rbacv1.PolicyRule {
		found := []rbacv1.PolicyRule{rule("", "nodes", "get", "list", "watch"), rule("", "persistentvolumes", volumes...), events}
		if claims != nil {
			found = append(found, rule("", "persistentvolumeclaims", claims...), classes)
		}
		if len(more) > 0 && more[0].Resources[0] == "volumesnapshots" {
			found, more = append(found, more[0]), more[1:]
		}
		return slices.Concat(found, []rbacv1.PolicyRule{rule(snapshots, "volumesnapshotcontents", contents...)}, more)
	}
	read, write := []string{"list", "watch"}, []string{"list", "watch", "patch"}
	steered := rule(snapshots, "volumesnapshots", read...)
	capacities, pods := rule("storage.k8s.io", "csistoragecapacities", read...), rule("", "pods", read...)
	machines := rule("", "configmaps", "get", "patch")
	machines.ResourceNames = []string{"rootcellar-fleet-machines"}
	lost := []string{"rootcellar-fleet-volumes", "rootcellar-fleet-volumes-deleted"}
	for set, want := range map[string]struct {
		flags    []string
		rules    []rbacv1.PolicyRule
		here     []rbacv1.PolicyRule
		policies []string
	}{
		"fleet.oldSnapshots=true": {[]string{"--steer", "--label", "--label-old", "--compare"}, rules(read, write, write, steered),
			[]rbacv1.PolicyRule{capacities, pods}, []string{"rootcellar-fleet-claims", "rootcellar-fleet-contents"}},
		"fleet.labels=false,fleet.inventory=false": {[]string{"--steer"}, rules(read, write, read, steered), []rbacv1.PolicyRule{capacities},
			[]string{"rootcellar-fleet-claims"}},
		"fleet.steering=false,fleet.inventory=false": {[]string{"--label"}, rules(read, nil, write), nil, []string{"rootcellar-fleet-contents"}},
		"fleet.steering=false,fleet.labels=false":    {[]string{"--compare"}, rules(read, nil, read), []rbacv1.PolicyRule{pods}, nil},
		"fleet.steering=false,fleet.labels=false,fleet.inventory=false,fleet.finishDeletions=true": {[]string{"--finish"},
			rules([]string{"list", "watch", "patch", "delete"}, write, write), nil,
			slices.Concat([]string{"rootcellar-fleet-claims"}, lost, []string{"rootcellar-fleet-contents"})},
		"fleet.steering=false,fleet.labels=false,fleet.releaseClaims=true": {[]string{"--compare", "--release"},
			rules([]string{"get", "list", "watch", "patch", "delete"}, []string{"list", "watch", "delete"}, read,
				rule("", "pods", "list"), rule("apps", "statefulsets", "get")), []rbacv1.PolicyRule{pods, rule("apps", "daemonsets", "list"), machines},
			slices.Concat([]string{"rootcellar-fleet-claims-deleted"}, lost)},
		"fleet.steering=false,fleet.labels=false,fleet.inventory=false,fleet.startupTaint=true": {[]string{"--untaint"},
			[]rbacv1.PolicyRule{rule("", "nodes", "get", "list", "watch", "patch"), rule("storage.k8s.io", "csinodes", read...),
				rule("", "persistentvolumes", read...), events, classes, rule(snapshots, "volumesnapshotcontents", read...)},
			[]rbacv1.PolicyRule{capacities, pods}, []string{"rootcellar-fleet-nodes"}},
	} {
		t.Run(set, func(t *testing.T) {
			found := objects(t, withFleet, "--set="+set)
			arguments := named[*appsv1.Deployment](t, found).Spec.Template.Spec.Containers[0].Args
			arguments = slices.DeleteFunc(arguments, func(argument string) bool { return strings.Contains(argument, "=") })
			same(t, arguments, want.flags)
			same(t, named[*rbacv1.ClusterRole](t, found).Rules, want.rules)
			account := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "rootcellar-fleet", Namespace: "rootcellar-system"}}
			same(t, named[*rbacv1.ClusterRoleBinding](t, found).Subjects, account)
			if want.here != nil {
				same(t, named[*rbacv1.Role](t, found).Rules, want.here)
				same(t, named[*rbacv1.RoleBinding](t, found).Subjects, account)
			}
			// Each driver has the key of its page, and the others no Secret.
			driver := all[*appsv1.DaemonSet](found)[0].Spec.Template.Spec
			// Nobody but the controller removes the taint of the first node.
			tolerated := named[*appsv1.Deployment](t, found).Spec.Template.Spec.Tolerations
			tolerates := slices.Contains(tolerated, corev1.Toleration{Key: startupTaint, Operator: corev1.TolerationOpExists})
			same(t, tolerates, slices.Contains(want.flags, "--untaint"))
			reads := slices.Contains(want.flags, "--compare")
			same(t, slices.Contains(driver.Containers[0].Args, "--inventory-key=/etc/rootcellar/inventory/key"), reads)
			same(t, len(all[*corev1.Secret](found)) == 1, reads)
			// The memory of the machines, which the account may write and not make.
			remembers := slices.ContainsFunc(all[*corev1.ConfigMap](found), func(one *corev1.ConfigMap) bool { return one.Name == machines.ResourceNames[0] })
			same(t, remembers, slices.Contains(want.flags, "--release"))

			var policies, bound []string
			for _, policy := range all[*admissionv1.ValidatingAdmissionPolicy](found) {
				policies = append(policies, policy.Name)
				same(t, *policy.Spec.FailurePolicy, admissionv1.Fail)
				same(t, len(policy.Spec.MatchConditions), 1)
				same(t, policy.Spec.MatchConditions[0].Expression,
					"request.userInfo.username == 'system:serviceaccount:rootcellar-system:rootcellar-fleet'")
			}
			for _, binding := range all[*admissionv1.ValidatingAdmissionPolicyBinding](found) {
				bound = append(bound, binding.Spec.PolicyName)
				same(t, binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny})
			}
			same(t, policies, want.policies)
			same(t, bound, want.policies)
		})
	}
}

// The settings of the controller reach it, and so do those that it shares with the driver.
func TestFleetValues(t *testing.T) {
	found := objects(t, values(t, `
fleet:
  enabled: true
  image: {repository: my/f, tag: v9, pullPolicy: Always}
  resources: {limits: {memory: 2Gi}}
  priorityClassName: its
  nodeSelector: {role: control}
  tolerations: [{key: g, operator: Exists}]
  affinity: {podAffinity: {}}
  delays: {absent: 1h, retired: 1m, compare: 2m}
  key: {secretName: mine}
imagePullSecrets: [{name: s}]
serviceAccount: {annotations: {e: f}}
log: {format: json, level: debug}
httpAddress: "[::]"
`))
	pod := named[*appsv1.Deployment](t, found).Spec.Template.Spec
	same(t, pod.PriorityClassName, "its")
	same(t, pod.NodeSelector, map[string]string{"role": "control", "kubernetes.io/os": "linux"})
	same(t, pod.Tolerations, []corev1.Toleration{{Key: "g", Operator: "Exists"}})
	same(t, pod.Affinity.PodAffinity != nil, true)
	same(t, pod.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "s"}})
	container := pod.Containers[0]
	same(t, container.Image, "my/f:v9")
	same(t, container.ImagePullPolicy, corev1.PullAlways)
	same(t, container.Args[4:], []string{"--absent-for=1h", "--retired-for=1m", "--compare-every=2m", "--http=[::]:9809", "--log-format=json"})
	same(t, len(all[*corev1.Secret](found)), 0)
	same(t, pod.Volumes[1].Secret.SecretName, "mine")
	same(t, variable(container, "RUST_LOG"), "debug")
	same(t, container.Env[0].ValueFrom.FieldRef.FieldPath, "metadata.namespace")
	same(t, container.Resources.Limits.Memory().String(), "2Gi")
	for _, account := range all[*corev1.ServiceAccount](found) {
		same(t, account.Annotations, map[string]string{"e": "f"})
	}
}
