package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// uninstalling comes last.
var uninstalling = []entry{
	{"uninstalled and installed again, every volume and its data is what it was", uninstalledAndBack},
}

// Proves: K19.
func uninstalledAndBack(s *scenario) {
	var volumes []*corev1.PersistentVolume
	for name, class := range map[string]string{"kept": "rootcellar-retain", "deleted": "rootcellar", "dropped": "rootcellar"} {
		s.worker(name, class, at(node1))
		s.running(name)
		s.says(name, "echo kept > /data/file && cat /data/file", "kept")
		volumes = append(volumes, s.volume(name))
		s.deletePod(name)
	}
	kept, dropped := s.volume("kept"), s.volume("dropped")
	before := s.listing(poolPath("default") + "/volumes")

	s.uninstall()
	s.nothingServes()
	if now := s.listing(poolPath("default") + "/volumes"); now != before {
		s.Fatalf("the volumes are now\n%s\nand were\n%s", now, before)
	}
	for _, volume := range volumes {
		if found := s.volume(volume.Spec.ClaimRef.Name); found.UID != volume.UID {
			s.Fatalf("the claim %s has another volume", volume.Spec.ClaimRef.Name)
		}
	}
	// New claims and pods now wait for a driver. The CSIDriver object, which says that volumes are not attached, is
	// deleted too, so Kubernetes starts to attach the pod's volume and leaves a VolumeAttachment behind.
	s.Cleanup(forgetAttachments)
	s.deleteClaim("dropped")
	s.pod("early", with("deleted", "/data"))
	s.Always("the pod does not start without its volume", 10*time.Second, func() string {
		pod, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), "early", metav1.GetOptions{})
		s.Must(err)
		if pod.Status.Phase != corev1.PodPending {
			return string(pod.Status.Phase)
		}
		return ""
	})
	s.phase(dropped.Name, corev1.VolumeReleased)
	s.directory(node1, "default", dropped.Name)

	s.install()
	s.running("early")
	s.says("early", "cat /data/file", "kept")
	s.volumeGone(dropped.Name)
	s.pod("kept", with("kept", "/data"))
	s.running("kept")
	s.says("kept", "cat /data/file", "kept")

	// A retained volume outlives its claim until an admin deletes it.
	s.dismiss("kept")
	s.deletePod("early")
	s.deleteClaim("deleted")
	s.phase(kept.Name, corev1.VolumeReleased)
	s.directory(node1, "default", kept.Name)
	s.Must(letGo(s.ctx(), kept.Name))
	s.nothingLeft()
}

// forgetAttachments deletes the VolumeAttachments that Kubernetes created while no driver was installed.
func forgetAttachments() {
	attachments := harness.Client.StorageV1().VolumeAttachments()
	_ = attachments.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
}

// nothingServes waits until only the pools of the driver are left on the nodes.
func (s *scenario) nothingServes() {
	s.Helper()
	for _, n := range nodes() {
		s.Eventually("nothing of the driver is on "+n.name, harness.Patience, func() string {
			if pid := processOf(n, driverProcess); pid != 0 {
				return fmt.Sprint("process ", pid)
			}
			if mounts := s.mountLines(n, "kubernetes.io~csi"); mounts != "" {
				return mounts
			}
			info, err := harness.Client.StorageV1().CSINodes().Get(s.ctx(), n.name, metav1.GetOptions{})
			s.Must(err)
			if len(info.Spec.Drivers) > 0 {
				return "in its CSINode"
			}
			return strings.Join(sockets(n), " ")
		})
	}
	s.Eventually("the capacities go with the pods", harness.Patience, func() string {
		list, err := harness.Client.StorageV1().CSIStorageCapacities("").List(s.ctx(), metav1.ListOptions{})
		s.Must(err)
		if len(list.Items) > 0 {
			return fmt.Sprint(len(list.Items))
		}
		return ""
	})
	if left := s.Kubectl("get", "csidrivers,storageclasses,volumesnapshotclasses", "--output", "name"); strings.Contains(left, "rootcellar") {
		s.Fatal(left)
	}
}

// sockets returns the files by which kubelet could believe that the driver is present.
func sockets(n node) []string {
	var found []string
	for _, pattern := range []string{"plugins/" + harness.Driver + "/*", "plugins_registry/" + harness.Driver + "*"} {
		files, _ := filepath.Glob(n.path(filepath.Join(os.Getenv("KUBELET_DIR"), pattern)))
		found = append(found, files...)
	}
	return found
}
