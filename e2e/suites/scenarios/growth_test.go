package scenarios

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var growing = []entry{
	{"a pod that fills its volume is refused at the volume's size, and its neighbour writes on", fillsItsVolume},
	{"a claim grows while its pod runs and while it does not, and kubelet tells its new size", claimGrows},
	{"a class that requires enforced sizes goes where they are enforced", requiredGoesWhereItIsEnforced},
}

// resizing lists the scenarios that stop the resizer for the others too.
var resizing = []entry{
	{"a claim that asks to grow while the resizer is away grows when it is back", growsLater},
	{"a growth that is refused without free space comes by itself when there is free space", growsWhenThereIsFreeSpace},
}

// overQuota is the error of btrfs for a write beyond the limit.
const overQuota = "Disk quota exceeded"

// quotaClass creates a class of the pool `quota` with this enforcement, which allows growth. Only node2 enforces sizes
// there.
func (s *scenario) quotaClass(enforcement string) string {
	s.Helper()
	grows := true
	return s.Class(map[string]string{"pool": "quota", "enforcement": enforcement},
		func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = &grows })
}

// fill writes until a write is refused with this message, and returns the MiB written.
func (s *scenario) fill(pod, message string) int {
	s.Helper()
	s.refused(pod, "cat /dev/zero > /data/file", message)
	size, err := s.exec(pod, "wc -c < /data/file")
	s.Must(err)
	bytes, err := strconv.Atoi(size)
	s.Must(err)
	return bytes >> 20
}

// Proves: S2.
func fillsItsVolume(s *scenario) {
	class := s.quotaClass("required")
	s.Claim("greedy", class, "64Mi")
	s.pod("greedy", with("greedy", "/data"))
	neighbour := s.beats("neighbour", class, node2)
	s.running("greedy")

	// A filesystem uses a little of the size for its own trees.
	if filled := s.fill("greedy", overQuota); filled < 60 || filled > 64 {
		s.Fatalf("it was refused after %d MiB", filled)
	}
	s.refused("greedy", "echo more > /data/more && sync /data/more", overQuota)
	neighbour.goesOn()
	s.says("neighbour", "dd if=/dev/zero of=/data/file bs=1M count=16 2>/dev/null && sync /data/file && echo ok", "ok")
	s.poolIs(node2, "quota", "healthy")

	s.says("greedy", "rm /data/file && echo ok", "ok")
	s.Eventually("what was deleted may be written again", harness.Patience, func() string {
		out, err := s.exec("greedy", "sync && dd if=/dev/zero of=/data/file bs=1M count=32 && sync /data/file")
		if err != nil {
			return out
		}
		return ""
	})
	neighbour.goesOn()
}

// growth is a patch of a claim's requested size.
func growth(size string) string {
	return fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": %q}}}}`, size)
}

// ask changes a claim's requested size.
func (s *scenario) ask(claim, size string) {
	s.Helper()
	s.Kubectl("patch", "pvc", claim, "--patch", growth(size))
}

// sizes checks the sizes that Kubernetes shows for a claim whose growth cannot complete.
func (s *scenario) sizes(claim, asked, has string) {
	s.Helper()
	found, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), claim, metav1.GetOptions{})
	s.Must(err)
	volume := s.volume(claim)
	if volume.Spec.Capacity.Storage().String() != asked || found.Status.Capacity.Storage().String() != has {
		s.Fatalf("the PersistentVolume is of %s, and the claim has %s", volume.Spec.Capacity.Storage(), found.Status.Capacity.Storage())
	}
}

// grown waits until Kubernetes' objects and the record on the disk agree on the size of a claim.
func (s *scenario) grown(claim, size string, n node) {
	s.Helper()
	s.Eventually("claim "+claim+" has "+size, harness.Patience, func() string {
		found, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), claim, metav1.GetOptions{})
		s.Must(err)
		status := found.Status
		// Kubernetes 1.37 says here since when no pod uses the claim.
		isResize := func(condition corev1.PersistentVolumeClaimCondition) bool {
			return condition.Type != corev1.PersistentVolumeClaimUnused
		}
		if status.Capacity.Storage().String() != size || slices.ContainsFunc(status.Conditions, isResize) || len(status.AllocatedResourceStatuses) > 0 {
			return fmt.Sprintf("%+v", status)
		}
		return ""
	})
	volume := s.volume(claim)
	if got := volume.Spec.Capacity.Storage().String(); got != size {
		s.Fatalf("the PersistentVolume has %s, not %s", got, size)
	}
	for _, pool := range present(n) {
		for _, dir := range s.directories(n, pool, volume.Name) {
			s.record(n, dir, volume, claim)
			return
		}
	}
	s.Fatalf("%s has no directory of %s", n.name, volume.Name)
}

// kubeletMetric returns a kubelet metric of a claim's volume, or -1 without one.
func (s *scenario) kubeletMetric(n node, metric, claim string) int64 {
	s.Helper()
	text := s.Kubectl("get", "--raw", "/api/v1/nodes/"+n.name+"/proxy/metrics")
	want := fmt.Sprintf("%s{namespace=%q,persistentvolumeclaim=%q} ", metric, s.Namespace, claim)
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, want); found {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			s.Must(err)
			return int64(number)
		}
	}
	return -1
}

// stats waits until kubelet reports these figures for a claim's volume.
func (s *scenario) stats(n node, claim string, capacity, usedAtLeast int64) {
	s.Helper()
	s.Eventually("kubelet tells the size of claim "+claim, harness.Patience, func() string {
		total := s.kubeletMetric(n, "kubelet_volume_stats_capacity_bytes", claim)
		used := s.kubeletMetric(n, "kubelet_volume_stats_used_bytes", claim)
		left := s.kubeletMetric(n, "kubelet_volume_stats_available_bytes", claim)
		if total != capacity || used < usedAtLeast || used+left != total {
			return fmt.Sprintf("%d bytes, %d used, %d left", total, used, left)
		}
		return ""
	})
}

// container changes when the pod or its container starts again.
func (s *scenario) container(pod string) string {
	s.Helper()
	found := s.running(pod)
	return string(found.UID) + " " + found.Status.ContainerStatuses[0].ContainerID
}

// Proves: S8.
func claimGrows(s *scenario) {
	s.Claim("data", s.quotaClass("required"), "64Mi")
	s.pod("writer", with("data", "/data"))
	home := s.runningOn("writer")
	life, mount := s.container("writer"), s.mountLines(home, s.volume("data").Name+"/mount")
	s.stats(home, "data", 64<<20, 0)
	if filled := s.fill("writer", overQuota); filled > 64 {
		s.Fatalf("64 MiB took %d", filled)
	}

	s.ask("data", "128Mi")
	s.grown("data", "128Mi", home)
	s.says("writer", "dd if=/dev/zero of=/data/file bs=1M count=100 2>/dev/null && sync /data/file && wc -c < /data/file", "104857600")
	s.stats(home, "data", 128<<20, 100<<20)
	if filled := s.fill("writer", overQuota); filled < 124 || filled > 128 {
		s.Fatalf("128 MiB took %d", filled)
	}
	s.says("writer", "rm /data/file; echo kept > /data/file && cat /data/file", "kept")
	s.goesOn("writer", home, life, mount)

	// Without a pod no kubelet does the work. Kubelet does it for the next pod.
	s.deletePod("writer")
	s.ask("data", "192Mi")
	s.Eventually("the PersistentVolume is of the new size", harness.Patience, func() string {
		if got := s.volume("data").Spec.Capacity.Storage().String(); got != "192Mi" {
			return got
		}
		return ""
	})
	s.sizes("data", "192Mi", "128Mi")
	s.pod("writer", with("data", "/data"))
	s.running("writer")
	s.grown("data", "192Mi", home)
	s.says("writer", "cat /data/file", "kept")
	s.stats(home, "data", 192<<20, 0)

	// Kubernetes refuses a request below the present size.
	if out, err := s.shell("kubectl", "--namespace", s.Namespace, "patch", "pvc", "data", "--patch", growth("64Mi")); err == nil {
		s.Fatalf("it may shrink: %s", out)
	}
}

const resizerDeployment = "rootcellar-resizer"

// scaleResizer scales the resizer and waits until this many replicas are ready, or none is left.
func (s *scenario) scaleResizer(replicas int) {
	s.Helper()
	s.Kubectl("--namespace", harness.System, "scale", "deployment", resizerDeployment, "--replicas", strconv.Itoa(replicas))
	s.Eventually(fmt.Sprint(replicas, " resizers"), harness.Patience, func() string {
		pods, err := harness.Client.CoreV1().Pods(harness.System).List(s.ctx(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + resizerDeployment})
		s.Must(err)
		ready := 0
		for _, pod := range pods.Items {
			for _, condition := range pod.Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if len(pods.Items) != replicas || ready != replicas {
			return fmt.Sprintf("%d, of them %d ready", len(pods.Items), ready)
		}
		return ""
	})
}

// Proves: S8.
func growsLater(s *scenario) {
	s.Claim("data", s.quotaClass("auto"), "64Mi")
	s.pod("writer", with("data", "/data"))
	home := s.runningOn("writer")
	s.scaleResizer(0)
	s.ask("data", "96Mi")
	s.event("PersistentVolumeClaim", "data", "waiting for an external controller to expand this PVC")
	s.Always("nothing grows it", 5*time.Second, func() string {
		if got := s.volume("data").Spec.Capacity.Storage().String(); got != "64Mi" {
			return got
		}
		return ""
	})
	s.scaleResizer(1)
	s.grown("data", "96Mi", home)
	s.deletePod("writer")
	s.deleteClaim("data")
	s.nothingLeft()
}

// growsWhenThereIsFreeSpace has another claim take nearly all the space that the growth needs.
//
// Proves: S8.
func growsWhenThereIsFreeSpace(s *scenario) {
	class := s.quotaClass("required")
	s.Claim("data", class, "64Mi")
	s.pod("writer", with("data", "/data"))
	home, life := s.runningOn("writer"), s.container("writer")
	s.left(home, class, s.metric(home, "rootcellar_pool_available_bytes", "quota"))
	s.Claim("taker", class, fmt.Sprint(s.freeSpace(home, class)>>20-32, "Mi"))
	s.pod("taker", with("taker", "/data"))
	s.running("taker")

	s.ask("data", "128Mi")
	s.event("Pod", "writer", "OutOfRange", "pool quota has free space for")
	s.sizes("data", "128Mi", "64Mi")
	s.deletePod("taker")
	s.deleteClaim("taker")
	s.grown("data", "128Mi", home)
	if now := s.container("writer"); now != life {
		s.Fatalf("the pod is %s, and was %s", now, life)
	}
	s.deletePod("writer")
	s.deleteClaim("data")
	s.nothingLeft()
}

// enforcement returns the enforcement in the record on the disk of a claim's volume.
func (s *scenario) enforcement(n node, claim string) string {
	s.Helper()
	text, err := os.ReadFile(n.path(s.directory(n, "quota", s.volume(claim).Name) + "/volume.json"))
	s.Must(err)
	var record struct {
		Enforcement string `json:"enforcement"`
	}
	s.Must(json.Unmarshal(text, &record))
	return record.Enforcement
}

// Proves: S7.
func requiredGoesWhereItIsEnforced(s *scenario) {
	required, auto, none := s.quotaClass("required"), s.quotaClass("auto"), s.quotaClass("none")
	for _, class := range []string{required, auto, none} {
		s.freeSpace(node2, class)
	}
	s.freeSpace(node1, auto)
	s.freeSpace(node1, none)
	s.left(node1, required, 0)

	for _, name := range []string{"one", "two", "three"} {
		s.goesTo(node2, name, required, "32Mi")
		if got := s.enforcement(node2, name); got != "squota" {
			s.Fatalf("the size of %s is enforced by %s", name, got)
		}
	}
	s.Claim("pinned", required, "32Mi")
	s.pod("pinned", with("pinned", "/data"), at(node1))
	s.unscheduled("pinned", "1 node(s) did not have enough free storage")
	s.Claim("sent", required, "32Mi", sentTo(node1))
	s.event("PersistentVolumeClaim", "sent", "pool quota cannot enforce sizes, and the class has enforcement=required")

	// A class that does not require enforcement gets a volume without it, and the record says so.
	for name, want := range map[string]struct {
		class       string
		home        node
		enforcement string
	}{"ext4": {auto, node1, "none"}, "btrfs": {auto, node2, "squota"}, "waived": {none, node2, "none"}} {
		s.Claim(name, want.class, "32Mi")
		s.pod(name, with(name, "/data"), at(want.home))
		s.running(name)
		if got := s.enforcement(want.home, name); got != want.enforcement {
			s.Fatalf("the size of %s is enforced by %s, not by %s", name, got, want.enforcement)
		}
		write := "dd if=/dev/zero of=/data/file bs=1M count=40 && sync /data/file"
		if want.enforcement == "none" {
			_, err := s.exec(name, write)
			s.Must(err)
		} else {
			s.refused(name, write, overQuota)
		}
	}
}

// goesOn expects that the container of a pod and the mount of the claim "data" are the same as before.
func (s *scenario) goesOn(pod string, home node, life, mount string) {
	s.Helper()
	if now := s.container(pod); now != life {
		s.Fatalf("the pod is %s, and was %s", now, life)
	}
	if now := s.mountLines(home, s.volume("data").Name+"/mount"); now != mount || mount == "" {
		s.Fatalf("the mount is\n%sand was\n%s", now, mount)
	}
}
