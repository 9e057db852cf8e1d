package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

const image = "busybox:1.37"

func mode(mode corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	}
}

// pod creates a pod that sleeps. The changes are applied before.
func (s *scenario) pod(name string, changes ...func(*corev1.Pod)) {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: sleeper()}
	for _, change := range changes {
		change(pod)
	}
	_, err := harness.Client.CoreV1().Pods(s.Namespace).Create(s.ctx(), pod, metav1.CreateOptions{})
	s.Must(err)
}

// sleeper is the pod of every scenario. With a grace of 0 the API would lose it before kubelet has ended and unmounted
// it.
func sleeper() corev1.PodSpec {
	grace := int64(1)
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{
			Name: "main", Image: image, Command: []string{"/bin/sleep", "2147483647"},
		}},
	}
}

// with mounts a claim in the pod.
func with(claim, path string, changes ...func(*corev1.VolumeMount)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		mount := corev1.VolumeMount{Name: claim, MountPath: path}
		for _, change := range changes {
			change(&mount)
		}
		main := &pod.Spec.Containers[0]
		main.VolumeMounts = append(main.VolumeMounts, mount)
		for _, volume := range pod.Spec.Volumes {
			if volume.Name == claim {
				return
			}
		}
		source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source}})
	}
}

// at allows the scheduler only this node.
func at(n node) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.name} }
}

// runs replaces the sleep.
func runs(line string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"/bin/sh", "-c", line} }
}

// running waits for the pod and returns it.
func (s *scenario) running(name string) *corev1.Pod {
	s.Helper()
	var found *corev1.Pod
	s.Eventually("pod "+name+" runs", harness.Patience, func() string {
		pod, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		found = pod
		for _, status := range pod.Status.ContainerStatuses {
			if !status.Ready {
				return fmt.Sprintf("%+v", status.State)
			}
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("%s %+v", pod.Status.Phase, pod.Status.Conditions)
		}
		return ""
	})
	return found
}

// runningOn waits for the pod and returns its node.
func (s *scenario) runningOn(name string) node {
	s.Helper()
	return nodeNamed(s.running(name).Spec.NodeName)
}

// unscheduled waits until the pod's condition PodScheduled says these texts. It does not read the scheduler's event of the
// same text, because an event that the API server refuses, for instance while its storage is slow, is not sent again.
func (s *scenario) unscheduled(pod string, texts ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("pod %s is not scheduled because %q", pod, texts), harness.Patience, func() string {
		found, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), pod, metav1.GetOptions{})
		s.Must(err)
		if found.Spec.NodeName != "" {
			s.Fatalf("pod %s is on %s", pod, found.Spec.NodeName)
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.PodScheduled && holdsAll(condition.Message, texts) {
				return ""
			}
		}
		return fmt.Sprintf("%+v", found.Status.Conditions)
	})
}

// deletePod deletes a pod and waits until it is deleted.
func (s *scenario) deletePod(name string) {
	s.Helper()
	s.Kubectl("delete", "pod", name, "--timeout", harness.Patience.String())
}

// deleteClaim deletes a claim and waits until it is deleted.
func (s *scenario) deleteClaim(name string) {
	s.Helper()
	s.Kubectl("delete", "pvc", name, "--timeout", harness.Patience.String())
}

// deleteWithClaims deletes pods, each with the claim of its name, and waits until they are deleted.
func (s *scenario) deleteWithClaims(names ...string) {
	s.Helper()
	for _, name := range names {
		s.deletePod(name)
		s.deleteClaim(name)
	}
}

// goesTo creates a claim and its pod, and checks that the scheduler chooses the node.
func (s *scenario) goesTo(n node, name, class, size string) {
	s.Helper()
	s.Claim(name, class, size)
	s.pod(name, with(name, "/data"))
	if home := s.runningOn(name); home != n {
		s.Fatalf("pod %s is on %s", name, home.name)
	}
}

// podWithFile creates a claim of 64Mi and its pod, writes "kept" into a file of the volume, and returns the pod's node.
func (s *scenario) podWithFile(name, class string, changes ...func(*corev1.Pod)) node {
	s.Helper()
	s.Claim(name, class, "64Mi")
	s.pod(name, append(changes, with(name, "/data"))...)
	home := s.runningOn(name)
	s.says(name, "echo kept > /data/file && sync && cat /data/file", "kept")
	return home
}

// volume waits until the claim is bound and returns its PersistentVolume.
func (s *scenario) volume(claim string) *corev1.PersistentVolume {
	s.Helper()
	var found *corev1.PersistentVolume
	s.Eventually("claim "+claim+" is bound", harness.Patience, func() string {
		bound, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), claim, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if bound.Status.Phase != corev1.ClaimBound {
			return string(bound.Status.Phase)
		}
		found, err = harness.Client.CoreV1().PersistentVolumes().Get(s.ctx(), bound.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	return found
}

// volumeGone waits until a PersistentVolume is deleted.
func (s *scenario) volumeGone(name string) {
	s.Helper()
	s.gone("PersistentVolume "+name, func() error {
		_, err := harness.Client.CoreV1().PersistentVolumes().Get(s.ctx(), name, metav1.GetOptions{})
		return err
	})
}

// home returns the node in the node affinity of a PersistentVolume.
func (s *scenario) home(volume *corev1.PersistentVolume) node {
	s.Helper()
	affinity := volume.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil || len(affinity.Required.NodeSelectorTerms) != 1 ||
		len(affinity.Required.NodeSelectorTerms[0].MatchExpressions) != 1 {
		s.Fatalf("%s: node affinity %+v", volume.Name, affinity)
	}
	term := affinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if term.Key != harness.TopologyKey || term.Operator != corev1.NodeSelectorOpIn || len(term.Values) != 1 {
		s.Fatalf("%s: node affinity %+v", volume.Name, term)
	}
	return nodeNamed(term.Values[0])
}

// poolPath returns the path of a pool, which is the same on every node.
func poolPath(pool string) string { return "/var/lib/rootcellar/pools/" + pool }

// directories returns the volume directories of a pool on a node whose names contain the text.
func (s *scenario) directories(n node, pool, text string) []string {
	s.Helper()
	names, err := s.list(n, poolPath(pool)+"/volumes")
	s.Must(err)
	var found []string
	for _, name := range names {
		if strings.Contains(name, text) {
			found = append(found, filepath.Join(poolPath(pool), "volumes", name))
		}
	}
	return found
}

// directory returns the only such directory, and fails unless there is exactly one.
func (s *scenario) directory(n node, pool, text string) string {
	s.Helper()
	found := s.directories(n, pool, text)
	if len(found) != 1 {
		s.Fatalf("%s: directories with %q in pool %s: %q", n.name, text, pool, found)
	}
	return found[0]
}

// trashEmpty waits until everything that was deleted is reclaimed.
func (s *scenario) trashEmpty(n node, pool string) {
	s.Helper()
	s.Eventually("the trash of pool "+pool+" is empty", harness.Patience, func() string {
		entries, err := os.ReadDir(n.path(poolPath(pool) + "/.rootcellar/trash"))
		if err != nil {
			return err.Error()
		}
		entries = slices.DeleteFunc(entries, func(entry os.DirEntry) bool {
			return strings.HasPrefix(entry.Name(), "placeholder-")
		})
		if len(entries) > 0 {
			return fmt.Sprint(len(entries), " entries")
		}
		return ""
	})
}

// capacity returns the capacity that the scheduler sees for a class on a node, or false without one.
func (s *scenario) capacity(n node, class string) (int64, bool) {
	s.Helper()
	list, err := harness.Client.StorageV1().CSIStorageCapacities("").List(s.ctx(), metav1.ListOptions{})
	s.Must(err)
	var found []int64
	for _, item := range list.Items {
		if item.StorageClassName != class || item.NodeTopology == nil || item.NodeTopology.MatchLabels[harness.TopologyKey] != n.name {
			continue
		}
		found = append(found, item.Capacity.Value())
	}
	// csi-provisioner may create a second object before it sees the first, and then deletes one.
	if len(found) != 1 {
		return 0, false
	}
	return found[0], true
}
