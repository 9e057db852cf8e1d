package main

import (
	"slices"
	"testing"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Additions to the driver's pod follow its own parts, and change nothing else.
func TestExtras(t *testing.T) {
	plain, _ := driver(t, objects(t))
	pod, container := driver(t, objects(t, values(t, `
extraEnv: [{name: TZ, value: UTC}, {name: IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]
extraVolumes: [{name: certificates, configMap: {name: c}}, {name: more, hostPath: {path: /etc/pki}}]
extraVolumeMounts: [{name: certificates, mountPath: /etc/ssl/certs, readOnly: true}]
initContainers: [{name: modules, image: busybox, command: [modprobe, xfs]}]
`)))
	same(t, container.Env, append(plain.Containers[0].Env, corev1.EnvVar{Name: "TZ", Value: "UTC"},
		corev1.EnvVar{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}}))
	same(t, container.VolumeMounts, append(plain.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "certificates", MountPath: "/etc/ssl/certs", ReadOnly: true}))
	same(t, pod.InitContainers, []corev1.Container{{Name: "modules", Image: "busybox", Command: []string{"modprobe", "xfs"}}})
	same(t, len(pod.Volumes), len(plain.Volumes)+2)
	same(t, pod.Volumes[:len(plain.Volumes)], plain.Volumes)
	same(t, pod.Containers[1:], plain.Containers[1:])
}

// Additions that the API server, the kubelet or the driver would trip over are refused.
func TestExtraMistakes(t *testing.T) {
	mount := func(path string) string {
		return "{extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: " + path + "}]}"
	}
	refused(t, []mistake{
		{"variable of the chart", "extraEnv: [{name: RUST_LOG, value: debug}]", "extraEnv: the chart itself sets RUST_LOG; leave it out"},
		{"variable of a flag", "extraEnv: [{name: CSI_ENDPOINT, value: a}]", "extraEnv: the chart itself sets CSI_ENDPOINT"},
		{"number as a variable", "extraEnv: [{name: A, value: 1}]", "at '/extraEnv/0/value'"},
		{"volume of the chart", "extraVolumes: [{name: pools, emptyDir: {}}]",
			"extraVolumes: pools: the chart itself has a volume of this name; choose another"},
		{"two volumes of one name", "extraVolumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]", "extraVolumes: a: two volumes have this name"},
		{"volume without a source", "extraVolumes: [{name: a}]", "at '/extraVolumes/0'"},
		{"mount of nothing", "extraVolumeMounts: [{name: a, mountPath: /a}]", "extraVolumeMounts: no volume is called a; add it to extraVolumes"},
		{"mount in a pool", mount("/var/lib/rootcellar/pools/default"),
			"extraVolumeMounts: /var/lib/rootcellar/pools/default would hide /var/lib/rootcellar/pools of the driver, or be inside it"},
		{"mount in the kubelet's directory", mount("/var/lib/kubelet/a"), "would hide /var/lib/kubelet of the driver"},
		{"mount above the state", mount("/var/lib"), "of the driver, or be inside it; mount it elsewhere"},
		{"mount at the socket", mount("/csi/"), "extraVolumeMounts: /csi would hide /csi of the driver"},
		{"mount of a relative path", mount("a"), "extraVolumeMounts: \"a\" is not absolute"},
		{"container of the chart", "initContainers: [{name: driver, image: a}]", "initContainers: another container of the pod is called driver"},
		{"container without an image", "initContainers: [{name: a}]", "at '/initContainers/0'"},
	})
}

// Another account of the driver has all its rights, made by the chart or not.
func TestServiceAccount(t *testing.T) {
	for create, accounts := range map[string][]string{"true": {"mine", "rootcellar-fleet", "rootcellar-resizer"}, "false": {"rootcellar-fleet", "rootcellar-resizer"}} {
		found := objects(t, presetValues("openshift"), withFleet, withSnapshots, "--set=serviceAccount.name=mine,serviceAccount.create="+create)
		var names, bound []string
		for _, account := range all[*corev1.ServiceAccount](found) {
			names = append(names, account.Name)
		}
		slices.Sort(names)
		same(t, names, accounts)
		pod, _ := driver(t, found)
		same(t, pod.ServiceAccountName, "mine")
		same(t, one[*securityv1.SecurityContextConstraints](t, found).Users, []string{"system:serviceaccount:rootcellar-system:mine"})
		for _, binding := range all[*rbacv1.ClusterRoleBinding](found) {
			bound = append(bound, binding.Name+" "+binding.Subjects[0].Name)
		}
		for _, binding := range all[*rbacv1.RoleBinding](found) {
			bound = append(bound, binding.Name+" "+binding.Subjects[0].Name)
		}
		slices.Sort(bound)
		same(t, bound, []string{"rootcellar-capacity mine", "rootcellar-fleet rootcellar-fleet", "rootcellar-fleet rootcellar-fleet",
			"rootcellar-provisioner mine", "rootcellar-resizer rootcellar-resizer", "rootcellar-snapshots mine"})
	}
	refused(t, []mistake{
		{"account of nobody", "serviceAccount: {create: false}", "serviceAccount.create is false and serviceAccount.name empty; name the account that exists"},
		{"account of the controller", "serviceAccount: {name: rootcellar-fleet}", "serviceAccount.name: rootcellar-fleet is the account of another pod"},
		{"account of every pod", "serviceAccount: {create: false, name: default}", "serviceAccount.name: default is the account of every pod"},
		{"no name of an account", "serviceAccount: {name: A}", "at '/serviceAccount/name'"},
	})
}
