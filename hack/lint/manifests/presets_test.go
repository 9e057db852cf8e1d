package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	machineconfigurationv1 "github.com/openshift/api/machineconfiguration/v1"
	securityv1 "github.com/openshift/api/security/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func same[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// presetValues passes helm the values of a preset; those of `values` are the chart's defaults.
func presetValues(preset string) string {
	if preset == "values" {
		return "--values=" + filepath.Join(chart, "values.yaml")
	}
	return "--values=" + filepath.Join(presets, preset+".yaml")
}

// everywhere runs a test on the chart's defaults and on every preset, rendered with these arguments.
func everywhere(t *testing.T, test func(t *testing.T, preset string, found []runtime.Object), arguments ...string) {
	files, err := filepath.Glob(filepath.Join(presets, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no presets: %v", err)
	}
	for _, file := range append(files, filepath.Join(chart, "values.yaml")) {
		preset := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(preset, func(t *testing.T) {
			test(t, preset, objects(t, append(arguments, "--set=namespace.create=true", presetValues(preset))...))
		})
	}
}

// The host paths in which the presets differ from the defaults.
var (
	kubeletDirs = map[string]string{"k0s": "/var/lib/k0s/kubelet", "microk8s": "/var/snap/microk8s/common/var/lib/kubelet"}
	poolsDirs   = map[string]string{"talos": "/var/mnt"}
)

func either(places map[string]string, preset, otherwise string) string {
	if place := places[preset]; place != "" {
		return place
	}
	return otherwise
}

// Only the driver is privileged, and no container has more of the host than this list.
func TestThePodHasNoMoreThanItNeeds(t *testing.T) {
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		pod, _ := driver(t, found)
		same(t, []bool{pod.HostNetwork, pod.HostPID, pod.HostIPC, *pod.AutomountServiceAccountToken}, make([]bool, 4))
		same(t, len(pod.InitContainers), 0)
		same(t, pod.PriorityClassName, "system-node-critical")
		same(t, *pod.TerminationGracePeriodSeconds, 60)

		var images []string
		for _, container := range pod.Containers {
			images = append(images, container.Image)
			security := container.SecurityContext
			same(t, *security.ReadOnlyRootFilesystem, true)
			if container.Name == "driver" {
				same(t, *security.Privileged, true)
				continue
			}
			sidecar := corev1.SecurityContext{
				RunAsUser:                new(int64),
				AllowPrivilegeEscalation: new(bool),
				ReadOnlyRootFilesystem:   security.ReadOnlyRootFilesystem,
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
			if preset == "openshift" {
				sidecar.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"}
			}
			same(t, *security, sidecar)
		}
		same(t, images, []string{
			"registry.example/rootcellar:" + chartVersion(t),
			"registry.k8s.io/sig-storage/csi-provisioner:v6.4.0",
			"registry.k8s.io/sig-storage/csi-node-driver-registrar:v2.18.0",
		})
	})
}

// Every volume, its path on the host, and its path in each container.
func TestMounts(t *testing.T) {
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		kubelet := either(kubeletDirs, preset, "/var/lib/kubelet")
		pools := either(poolsDirs, preset, "/var/lib/rootcellar/pools")
		pod, container := driver(t, found)

		places := map[string]string{}
		for _, volume := range pod.Volumes {
			switch {
			case volume.HostPath != nil:
				places[volume.Name] = volume.HostPath.Path + " " + string(*volume.HostPath.Type)
			case volume.Projected != nil:
				places[volume.Name] = "projected"
			}
		}
		same(t, len(pod.Volumes), len(places))
		same(t, places, map[string]string{
			"plugin":       kubelet + "/plugins/csi.rootcellar.dev DirectoryOrCreate",
			"registration": kubelet + "/plugins_registry DirectoryOrCreate",
			"kubelet":      kubelet + " Directory",
			"processes":    "/proc Directory",
			"cgroup":       "/sys/fs/cgroup Directory",
			"state":        "/var/lib/rootcellar/state DirectoryOrCreate",
			"pools":        pools + " DirectoryOrCreate",
			"token":        "projected",
		})

		var mounts []string
		for _, container := range pod.Containers {
			for _, mount := range container.VolumeMounts {
				propagation := corev1.MountPropagationNone
				if mount.MountPropagation != nil {
					propagation = *mount.MountPropagation
				}
				mounts = append(mounts, strings.Join([]string{container.Name, mount.Name, mount.MountPath, string(propagation)}, " "))
			}
		}
		same(t, mounts, []string{
			"driver plugin /csi None",
			"driver state /var/lib/rootcellar/state None",
			"driver pools " + pools + " HostToContainer",
			"driver kubelet " + kubelet + " Bidirectional",
			"driver processes /host/proc None",
			"driver cgroup /host/cgroup None",
			"csi-provisioner plugin /csi None",
			"csi-provisioner token /var/run/secrets/kubernetes.io/serviceaccount None",
			"node-driver-registrar plugin /csi None",
			"node-driver-registrar registration /registration None",
		})
		same(t, container.Args, []string{
			"serve", "--endpoint=unix:///csi/csi.sock", "--state-dir=/var/lib/rootcellar/state",
			"--kubelet-dir=" + kubelet, "--proc=/host/proc", "--cgroups=/host/cgroup", "--http=0.0.0.0:9808", "--log-format=text",
		})
		same(t, pod.Containers[2].Args, []string{
			"--csi-address=/csi/csi.sock",
			"--kubelet-registration-path=" + kubelet + "/plugins/csi.rootcellar.dev/csi.sock",
			"--http-endpoint=0.0.0.0:9809",
		})
	})
}

// The flags of the provisioner decide the driver's guarantees, so a change needs one here too.
func TestProvisioner(t *testing.T) {
	everywhere(t, func(t *testing.T, _ string, found []runtime.Object) {
		pod, _ := driver(t, found)
		same(t, pod.Containers[1].Args, []string{
			"--csi-address=/csi/csi.sock", "--node-deployment", "--strict-topology", "--immediate-topology=false",
			"--enable-capacity", "--capacity-poll-interval=5s", "--kube-api-capacity-qps=5", "--kube-api-capacity-burst=20",
			"--capacity-ownerref-level=0", "--extra-create-metadata",
			"--snapshot-orphan-sweep-interval=0", "--worker-threads=64", "--timeout=60s",
			"--kube-api-qps=50", "--kube-api-burst=100", "--http-endpoint=0.0.0.0:9810",
		})
	})
}

// The resizer's pod has no privilege and no path of the host. Only the container that needs the token has it.
func TestResizer(t *testing.T) {
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		deployment := one[*appsv1.Deployment](t, found)
		same(t, *deployment.Spec.Replicas, 1)
		same(t, deployment.Spec.Strategy.Type, appsv1.RecreateDeploymentStrategyType)
		// A selector for the driver's pod of a node must not match this one.
		same(t, deployment.Spec.Template.Labels, map[string]string{"app.kubernetes.io/name": "rootcellar-resizer"})
		same(t, deployment.Spec.Selector.MatchLabels, deployment.Spec.Template.Labels)
		pod := deployment.Spec.Template.Spec
		same(t, pod.ServiceAccountName, "rootcellar-resizer")
		same(t, []bool{pod.HostNetwork, pod.HostPID, pod.HostIPC, *pod.AutomountServiceAccountToken}, make([]bool, 4))
		nobody := int64(65532)
		security := corev1.PodSecurityContext{
			RunAsUser: &nobody, RunAsGroup: &nobody, RunAsNonRoot: new(bool),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
		*security.RunAsNonRoot = true
		if preset == "openshift" {
			security.RunAsUser, security.RunAsGroup = nil, nil
		}
		same(t, *pod.SecurityContext, security)

		var images, mounts []string
		for _, container := range pod.Containers {
			images = append(images, container.Image)
			same(t, *container.SecurityContext, corev1.SecurityContext{
				AllowPrivilegeEscalation: new(bool),
				ReadOnlyRootFilesystem:   security.RunAsNonRoot,
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			})
			for _, mount := range container.VolumeMounts {
				mounts = append(mounts, strings.Join([]string{container.Name, mount.Name, mount.MountPath}, " "))
			}
		}
		same(t, images, []string{"registry.k8s.io/sig-storage/csi-resizer:v2.3.0", "registry.example/rootcellar:" + chartVersion(t)})
		same(t, mounts, []string{
			"csi-resizer plugin /csi",
			"csi-resizer token /var/run/secrets/kubernetes.io/serviceaccount",
			"driver plugin /csi",
			"driver state /var/lib/rootcellar/state",
		})
		for _, volume := range pod.Volumes {
			if volume.EmptyDir == nil && volume.Projected == nil {
				t.Errorf("volume %s is of the host, or of something else", volume.Name)
			}
		}
		same(t, pod.Containers[0].Args, []string{
			"--csi-address=/csi/csi.sock", "--handle-volume-inuse-error=false", "--workers=2", "--timeout=60s",
			"--kube-api-qps=50", "--kube-api-burst=100", "--http-endpoint=0.0.0.0:9812"})
		same(t, pod.Containers[1].Args, []string{
			"serve", "--endpoint=unix:///csi/csi.sock", "--node=resizer", "--state-dir=/var/lib/rootcellar/state",
			"--kubelet-dir=/var/lib/rootcellar", "--http=0.0.0.0:9808", "--log-format=text"})
		same(t, variable(pod.Containers[1], "ROOTCELLAR_POOLS"), "")
	})
}

// A rule that gains rights must be changed here too.
func TestRules(t *testing.T) {
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	account := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: "rootcellar-system"}}
	}
	everywhere(t, func(t *testing.T, _ string, found []runtime.Object) {
		rules := map[string][]rbacv1.PolicyRule{}
		for _, role := range all[*rbacv1.ClusterRole](found) {
			rules[role.Name] = role.Rules
		}
		same(t, rules, map[string][]rbacv1.PolicyRule{
			"rootcellar-provisioner": {
				rule("", "persistentvolumes", "get", "list", "watch", "create", "patch", "delete"),
				rule("", "persistentvolumeclaims", "get", "list", "watch", "update"),
				rule("storage.k8s.io", "storageclasses", "list", "watch"),
				rule("", "events", "create", "patch"),
			},
			"rootcellar-resizer": {
				rule("", "persistentvolumes", "list", "watch", "patch"),
				rule("", "persistentvolumeclaims", "list", "watch"),
				rule("", "persistentvolumeclaims/status", "patch"),
				rule("", "events", "create", "patch"),
			},
		})
		role := one[*rbacv1.Role](t, found)
		same(t, role.Namespace, "rootcellar-system")
		same(t, role.Rules, []rbacv1.PolicyRule{
			rule("storage.k8s.io", "csistoragecapacities", "list", "watch", "create", "update", "delete"),
			rule("", "pods", "get"),
		})
		bound := map[string][]rbacv1.Subject{}
		for _, binding := range all[*rbacv1.ClusterRoleBinding](found) {
			bound[binding.RoleRef.Name] = binding.Subjects
		}
		same(t, bound, map[string][]rbacv1.Subject{
			"rootcellar-provisioner": account("rootcellar"), "rootcellar-resizer": account("rootcellar-resizer")})
		same(t, one[*rbacv1.RoleBinding](t, found).Subjects, account("rootcellar"))
	})
}

// The chart renders no object beyond this list.
func TestObjects(t *testing.T) {
	more := map[string][]string{
		"bare-metal": {"rootcellar", "rootcellar-exclusive", "rootcellar-retain"},
	}
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		namespace := one[*corev1.Namespace](t, found)
		same(t, namespace.Name, "rootcellar-system")
		for _, mode := range []string{"enforce", "audit", "warn"} {
			same(t, namespace.Labels["pod-security.kubernetes.io/"+mode], "privileged")
		}
		same(t, one[*storagev1.CSIDriver](t, found).Name, "csi.rootcellar.dev")
		var names []string
		for _, class := range all[*storagev1.StorageClass](found) {
			names = append(names, class.Name)
			same(t, *class.VolumeBindingMode, storagev1.VolumeBindingWaitForFirstConsumer)
			same(t, *class.AllowVolumeExpansion, true)
		}
		slices.Sort(names)
		classes := more[preset]
		if classes == nil {
			classes = []string{"rootcellar", "rootcellar-image", "rootcellar-retain"}
		}
		same(t, names, classes)

		// Two accounts, six of RBAC, the DaemonSet and the Deployment.
		count := 2 + len(classes) + 10
		if preset == "openshift" {
			count++
		}
		same(t, len(found), count)
		for _, object := range found {
			if labels := object.(interface{ GetLabels() map[string]string }).GetLabels(); labels["app.kubernetes.io/name"] != "rootcellar" ||
				labels["app.kubernetes.io/version"] != chartVersion(t) || labels["app.kubernetes.io/managed-by"] != "" {
				t.Errorf("the labels of %T: %v", object, labels)
			}
		}
		same(t, one[*appsv1.DaemonSet](t, found).Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(), "10%")
	})
}

// Where no preset prepares a disk for quota, one class enforces sizes on every disk.
func TestImageClass(t *testing.T) {
	everywhere(t, func(t *testing.T, preset string, found []runtime.Object) {
		parameters := map[string]map[string]string{}
		for _, class := range all[*storagev1.StorageClass](found) {
			parameters[class.Name] = class.Parameters
		}
		if preset != "bare-metal" {
			same(t, parameters["rootcellar-image"]["kind"], "image")
			same(t, parameters["rootcellar"], map[string]string{"class": "rootcellar", "reclaimPolicy": "Delete"})
		}
	})
}

// The preset k3s renders the same as the defaults.
func TestK3sIsTheDefault(t *testing.T) {
	same(t, objects(t, "--values="+filepath.Join(presets, "k3s.yaml")), objects(t))
}

// OpenShift's constraints allow this DaemonSet and nothing beyond it.
func TestOpenShiftConstraints(t *testing.T) {
	found := objects(t, "--values="+filepath.Join(presets, "openshift.yaml"))
	constraints := one[*securityv1.SecurityContextConstraints](t, found)
	same(t, constraints.Users, []string{"system:serviceaccount:rootcellar-system:rootcellar"})
	same(t, len(constraints.Groups), 0)
	same(t, constraints.Volumes, []securityv1.FSType{securityv1.FSTypeHostPath, securityv1.FSProjected})
	same(t, []bool{constraints.AllowHostNetwork, constraints.AllowHostPID, constraints.AllowHostIPC, constraints.AllowHostPorts},
		make([]bool, 4))
	same(t, []bool{constraints.AllowPrivilegedContainer, constraints.AllowHostDirVolumePlugin, constraints.ReadOnlyRootFilesystem},
		[]bool{true, true, true})
	same(t, len(all[*machineconfigurationv1.MachineConfig](found)), 0)

	// The volumes that other values add to the DaemonSet are allowed too.
	found = objects(t, presetValues("openshift"), withFleet, values(t, "extraVolumes: [{name: a, configMap: {name: a}}, {name: b, configMap: {name: b}}]"))
	constraints = one[*securityv1.SecurityContextConstraints](t, found)
	same(t, constraints.Volumes, []securityv1.FSType{"hostPath", "projected", "secret", "configMap"})
}

// labelling returns the MachineConfig, asked for, and its unit.
func labelling(t *testing.T, arguments ...string) (*machineconfigurationv1.MachineConfig, string) {
	t.Helper()
	config := one[*machineconfigurationv1.MachineConfig](t, objects(t, append(arguments, "--set=openshift.machineConfig.create=true")...))
	var ignition struct {
		Ignition struct {
			Version string `json:"version"`
		} `json:"ignition"`
		Systemd struct {
			Units []struct {
				Name     string `json:"name"`
				Enabled  bool   `json:"enabled"`
				Contents string `json:"contents"`
			} `json:"units"`
		} `json:"systemd"`
	}
	if err := yaml.UnmarshalStrict(config.Spec.Config.Raw, &ignition); err != nil {
		t.Fatal(err)
	}
	same(t, ignition.Ignition.Version, "3.2.0")
	same(t, len(ignition.Systemd.Units), 1)
	unit := ignition.Systemd.Units[0]
	same(t, unit.Enabled, true)
	return config, unit.Contents
}

// hasLines checks that a unit has each of these lines.
func hasLines(t *testing.T, unit string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("no line %q in:\n%s", line, unit)
		}
	}
}

// The unit of the MachineConfig labels every pool.
func TestMachineConfig(t *testing.T) {
	config, unit := labelling(t, "--set=openshift.machineConfig.role=storage,pools[0].name=a,pools[1].name=default,pools[2].name=b,pools[2].path=d-1/b")
	same(t, config.Name, "99-storage-rootcellar")
	same(t, config.Labels["machineconfiguration.openshift.io/role"], "storage")
	hasLines(t, unit,
		// A disk that is absent must not keep the others from their label.
		"RequiresMountsFor=/var/lib/rootcellar/pools",
		`After=var-lib-rootcellar-pools-a.mount var-lib-rootcellar-pools-d\x2d1.mount var-lib-rootcellar-pools-d\x2d1-b.mount var-lib-rootcellar-pools-default.mount`,
		"ExecStart=/usr/bin/chcon -t container_file_t /var/lib/rootcellar/pools",
		"ExecStart=-/usr/bin/chcon -t container_file_t /var/lib/rootcellar/pools/a /var/lib/rootcellar/pools/a/.rootcellar/staging")
}

// The unit labels the disks of every set, by their names on the node.
func TestMachineConfigOfSets(t *testing.T) {
	_, unit := labelling(t, values(t, `{pools: [], poolSets: [{name: a, path: d/e}, {name: b, match: "n*"}], storageClasses: []}`))
	hasLines(t, unit,
		"After=var-lib-rootcellar-pools-d.mount var-lib-rootcellar-pools-d-e.mount var-lib-rootcellar-pools-b.mount",
		"ExecStart=-/usr/bin/sh -c 'chcon -t container_file_t /var/lib/rootcellar/pools/d/e /var/lib/rootcellar/pools/d/e/* /var/lib/rootcellar/pools/d/e/*/.rootcellar/staging'",
		"ExecStart=-/usr/bin/sh -c 'chcon -t container_file_t /var/lib/rootcellar/pools/b /var/lib/rootcellar/pools/b/n* /var/lib/rootcellar/pools/b/n*/.rootcellar/staging'")
	_, unit = labelling(t, values(t, `{pools: [], poolSets: [{name: a, path: .}]}`))
	hasLines(t, unit, "ExecStart=-/usr/bin/sh -c 'chcon -t container_file_t /var/lib/rootcellar/pools /var/lib/rootcellar/pools/* /var/lib/rootcellar/pools/*/.rootcellar/staging'")
	if strings.Contains(unit, ".mount") {
		t.Errorf("it waits for a mount that is no pool's:\n%s", unit)
	}
}

// The disks of bare-metal are prepared to enforce sizes, and a class there takes no disk that does not. One set has them
// all, also with the preset of a distribution.
func TestBareMetal(t *testing.T) {
	for _, beside := range []string{"values", "k0s", "openshift"} {
		found := objects(t, presetValues(beside), presetValues("bare-metal"))
		exclusive := map[string]string{"rootcellar": "", "rootcellar-retain": "", "rootcellar-exclusive": "true"}
		for _, class := range all[*storagev1.StorageClass](found) {
			same(t, class.Parameters["enforcement"], "required")
			same(t, class.Parameters["pool"], "disks")
			same(t, class.Parameters["exclusive"], exclusive[class.Name])
			delete(exclusive, class.Name)
		}
		same(t, len(exclusive), 0)
		_, container := driver(t, found)
		same(t, variable(container, "ROOTCELLAR_POOLS"), "")
		same(t, variable(container, "ROOTCELLAR_POOL_SETS"), "disks=/var/lib/rootcellar/pools/disks,init")
	}
}

// The settings in docs/distributions.md for disks that are mounted elsewhere: as on Talos and by clouds.
func TestBareMetalElsewhere(t *testing.T) {
	for set, want := range map[string]string{
		"poolsDir=/var/mnt,poolSets[0].path=.,poolSets[0].match=disk*": "disks=/var/mnt,match=disk*,init",
		"poolsDir=/mnt/disks,poolSets[0].path=.":                       "disks=/mnt/disks,init",
	} {
		text, err := os.ReadFile("../../../docs/distributions.md")
		if err != nil || !strings.Contains(string(text), "`--set '"+set+"'`") {
			t.Errorf("docs/distributions.md does not have %s: %v", set, err)
		}
		_, container := driver(t, objects(t, presetValues("bare-metal"), "--set="+set))
		same(t, variable(container, "ROOTCELLAR_POOL_SETS"), want)
	}
}

// The example of a StatefulSet uses a class of every preset, and its claims ask for one.
func TestStatefulSetExample(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/examples/statefulset/statefulset.yaml")
	found := decoded(t, text, err)
	set := one[*appsv1.StatefulSet](t, found)
	same(t, set.Spec.ServiceName, one[*corev1.Service](t, found).Name)
	same(t, *set.Spec.Replicas, 4)
	same(t, *set.Spec.VolumeClaimTemplates[0].Spec.StorageClassName, "rootcellar")
	everywhere(t, func(t *testing.T, _ string, found []runtime.Object) {
		classes := all[*storagev1.StorageClass](found)
		if !slices.ContainsFunc(classes, func(class *storagev1.StorageClass) bool { return class.Name == "rootcellar" }) {
			t.Error("it has no class rootcellar")
		}
	})
}

// The example for k3s installs the preset, from the chart of this version.
func TestHelmChartExample(t *testing.T) {
	var example struct {
		Spec struct{ Chart, TargetNamespace, ValuesContent string }
	}
	text, err := os.ReadFile(examples + "k3s/helmchart.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &example)
	}
	if err != nil {
		t.Fatal(err)
	}
	same(t, objects(t, values(t, example.Spec.ValuesContent)), objects(t, presetValues("k3s")))
	same(t, filepath.Base(example.Spec.Chart), "rootcellar-"+chartVersion(t)+".tgz")
	same(t, example.Spec.TargetNamespace, "rootcellar-system")
}
