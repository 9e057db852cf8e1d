package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rootcellar.dev/e2e/suites/harness"
)

var disruption = []entry{
	{"the driver's process is killed: pods write on, and pods made and deleted right after are served", processKilled},
	{"the driver's pod is deleted: pods write on, and pods made and deleted right after are served", podDeleted},
	{"a registration socket that is lost is made again, and kubelet knows the driver again", registrationLost},
	{"kubelet is killed: pods write on, and what was deleted meanwhile is unmounted", kubeletKilled},
	{"a node without its driver: its pods write on, all else there waits and says why, and goes on with the driver", driverAway},
	{"a node is lost: its StatefulSet runs elsewhere, and its disk keeps the data", nodeLost},
	{"an upgrade while pods write and claims come and go", upgraded},
}

// Proves: K19.
func processKilled(s *scenario) { s.disturbed(func() { s.driverKilled(node1) }) }

// Proves: K19.
func podDeleted(s *scenario) {
	s.disturbed(func() {
		old := s.driverPod(node1)
		s.Must(harness.Client.CoreV1().Pods(harness.System).Delete(s.ctx(), old.Name, metav1.DeleteOptions{}))
		s.driverReplaced(old)
	})
}

// driverReplaced waits until the driver has another pod on node1 than this one.
func (s *scenario) driverReplaced(old corev1.Pod) {
	s.Helper()
	s.Eventually("the driver has another pod", harness.Patience, func() string {
		here := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node1.name}
		pods, err := harness.Client.CoreV1().Pods(harness.System).List(s.ctx(), here)
		s.Must(err)
		for _, pod := range pods.Items {
			if pod.UID != old.UID && pod.DeletionTimestamp == nil {
				return ""
			}
		}
		return "none"
	})
}

// registrationLost removes the registration socket, as a driver pod that is deleted by force does to its successor.
//
// Proves: K19.
func registrationLost(s *scenario) {
	socket := node1.path(filepath.Join(os.Getenv("KUBELET_DIR"), "plugins_registry", harness.Driver+"-reg.sock"))
	s.Must(os.Remove(socket))
	s.Eventually("kubelet forgets the driver", harness.Patience, func() string {
		info, err := harness.Client.StorageV1().CSINodes().Get(s.ctx(), node1.name, metav1.GetOptions{})
		s.Must(err)
		if len(info.Spec.Drivers) > 0 {
			return "not yet"
		}
		return ""
	})
	s.driverReady()
	s.worker("new", "rootcellar", at(node1))
	s.running("new")
	s.dismiss("new")
	s.nothingLeft()
}

// driverKilled kills the driver's process and checks that another one runs afterwards.
func (s *scenario) driverKilled(n node) {
	s.Helper()
	before := processOf(n, driverProcess)
	s.kill(n, driverProcess)
	s.Eventually("the driver runs again", harness.Patience, func() string {
		if now := processOf(n, driverProcess); now == 0 || now == before {
			return "not yet"
		}
		return ""
	})
}

// disturbed checks the operations that must work during each disturbance of the driver of node1.
func (s *scenario) disturbed(disturb func()) {
	s.Helper()
	writer := s.beats("writer", "rootcellar", node1)
	s.worker("old", "rootcellar", at(node1))
	old := s.running("old")
	volume := s.volume("old").Name

	disturb()
	// Nothing here waits for the driver to be ready.
	s.worker("new", "rootcellar", at(node1))
	s.dismiss("old")
	s.running("new")
	s.says("new", "echo kept > /data/file && cat /data/file", "kept")
	s.volumeGone(volume)
	s.unmounted(node1, old)
	writer.goesOn()
	s.driverReady()

	s.dismiss("new")
	s.dismiss("writer")
	s.nothingLeft()
}

// unmounted waits until kubelet has nothing of a pod any more.
func (s *scenario) unmounted(n node, pod *corev1.Pod) {
	s.Helper()
	s.Eventually("nothing is mounted for "+pod.Name, harness.Patience, func() string { return s.mountLines(n, string(pod.UID)) })
	s.kubeletForgets(n, pod)
}

// Proves: K19.
func kubeletKilled(s *scenario) {
	writer := s.beats("writer", "rootcellar", node1)
	var pods []*corev1.Pod
	for _, name := range []string{"deleted", "forced"} {
		s.worker(name, "rootcellar", at(node1))
		pods = append(pods, s.running(name))
	}
	back := s.kubeletLeaves()
	s.Must(harness.Client.CoreV1().Pods(s.Namespace).Delete(s.ctx(), "deleted", metav1.DeleteOptions{}))
	// Kubelet receives no event for this deletion. After its start it must find the pod on its disk.
	atOnce := int64(0)
	s.Must(harness.Client.CoreV1().Pods(s.Namespace).Delete(s.ctx(), "forced", metav1.DeleteOptions{GracePeriodSeconds: &atOnce}))
	writer.goesOn()
	for _, pod := range pods {
		if s.mountLines(node1, string(pod.UID)) == "" {
			s.Fatalf("nothing is mounted for %s", pod.Name)
		}
	}
	back()
	s.worker("new", "rootcellar", at(node1))
	s.running("new")
	for _, pod := range pods {
		s.unmounted(node1, pod)
	}
	writer.goesOn()
	s.driverReady()

	for _, pod := range pods {
		s.deleteClaim(pod.Name)
	}
	s.dismiss("new")
	s.dismiss("writer")
	s.nothingLeft()
}

// kubeletLeaves kills node1's kubelet. The loop in node.sh starts it again when the returned function is called or the
// scenario ends.
func (s *scenario) kubeletLeaves() (back func()) {
	s.Helper()
	loop, err := strconv.Atoi(node1.pid)
	s.Must(err)
	s.Must(syscall.Kill(loop, syscall.SIGSTOP))
	back = func() { _ = syscall.Kill(loop, syscall.SIGCONT) }
	s.Cleanup(back)
	s.kill(node1, kubeletProcess)
	s.Eventually("kubelet is gone", harness.Patience, func() string {
		if pid := processOf(node1, kubeletProcess); pid != 0 {
			return fmt.Sprint(pid)
		}
		return ""
	})
	return back
}

// driverLeaves removes the driver from node1 until the returned function is called or the scenario ends.
func (s *scenario) driverLeaves() (back func()) {
	s.Helper()
	only := func(host string) {
		patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":%s}}}}}`, host)
		_, err := harness.Client.AppsV1().DaemonSets(harness.System).Patch(context.Background(), "rootcellar", types.StrategicMergePatchType,
			[]byte(patch), metav1.PatchOptions{})
		if err != nil {
			s.Error(err)
		}
	}
	back = func() { only("null") }
	s.Cleanup(back)
	only(`"node2"`)
	s.Eventually("the driver is off the node, and new on the other", harness.Patience, func() string {
		info, err := harness.Client.StorageV1().CSINodes().Get(s.ctx(), node1.name, metav1.GetOptions{})
		s.Must(err)
		if processOf(node1, driverProcess) != 0 || len(info.Spec.Drivers) > 0 || !s.rolledOut() {
			return "not yet"
		}
		return ""
	})
	return back
}

// Proves: K19.
func driverAway(s *scenario) {
	writer := s.beats("writer", "rootcellar", node1)
	s.worker("old", "rootcellar", at(node1))
	s.running("old")
	s.worker("dropped", "rootcellar", at(node1))
	s.running("dropped")
	s.deletePod("dropped")
	dropped := s.volume("dropped").Name

	back := s.driverLeaves()
	writer.goesOn()
	s.pod("again", with("writer", "/data"))
	s.event("Pod", "again", "driver name csi.rootcellar.dev not found in the list of registered CSI drivers")
	s.worker("new", "rootcellar", at(node1))
	s.unscheduled("new", "did not have enough free storage")
	s.worker("free", "rootcellar")
	if home := s.runningOn("free"); home != node2 {
		s.Fatalf("a pod with a new claim is on %s, which has no driver", home.name)
	}
	ended := s.running("old")
	s.Must(harness.Client.CoreV1().Pods(s.Namespace).Delete(s.ctx(), "old", metav1.DeleteOptions{}))
	s.Must(harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(s.ctx(), "dropped", metav1.DeleteOptions{}))
	s.Always("the deleted pod and claim wait", 10*time.Second, func() string {
		if s.mountLines(node1, string(ended.UID)) == "" {
			return "the pod's volume is unmounted"
		}
		if _, err := harness.Client.CoreV1().PersistentVolumes().Get(s.ctx(), dropped, metav1.GetOptions{}); err != nil {
			return fmt.Sprint("the PersistentVolume: ", err)
		}
		return ""
	})
	s.directory(node1, "default", dropped)
	writer.goesOn()

	back()
	s.running("again")
	s.running("new")
	s.gone("the deleted pod", func() error {
		_, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), "old", metav1.GetOptions{})
		return err
	})
	s.unmounted(node1, ended)
	s.volumeGone(dropped)
	writer.goesOn()
	s.driverReady()
	for _, name := range []string{"writer", "new", "free"} {
		s.dismiss(name)
	}
	s.deletePod("again")
	s.deleteClaim("old")
	s.nothingLeft()
}
