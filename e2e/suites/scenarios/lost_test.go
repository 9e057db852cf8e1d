package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// nodeLost deletes node1 with all its containers, as a cloud does for a machine that it has removed, and brings it back with
// its disks.
//
// Proves: F9, F12.
func nodeLost(s *scenario) {
	s.install("--set", "fleet.enabled=true,fleet.finishDeletions=true,fleet.releaseClaims=true,fleet.delays.absent=10s,fleet.delays.compare=10s",
		"--set", `fleet.nodeSelector.kubernetes\.io/hostname=`+node2.name)
	s.Cleanup(func() {
		if _, err := harness.Command(context.Background(), filepath.Join(harness.Root, "e2e/cluster/install.sh")); err != nil {
			s.Error(err)
		}
	})
	class := s.Class(map[string]string{"pool": "default"})
	s.Kubectl("annotate", "storageclass", class, "rootcellar.dev/release-claims=true")
	s.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 1
  serviceName: db
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: %q, resources: {requests: {storage: 25Mi}}}}]
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: [
        {key: kubernetes.io/hostname, operator: In, values: [%q]}]}}]}}
      containers: [{name: main, image: %q, command: [/bin/sleep, "2147483647"], volumeMounts: [{name: data, mountPath: /data}]}]
`, class, node1.name, image))
	if got := s.runningOn("db-0"); got != node1 {
		s.Fatalf("db-0 is on %s", got.name)
	}
	s.says("db-0", "echo precious > /data/file && sync && cat /data/file", "precious")
	volume := s.volume("data-db-0")
	directory := s.directory(node1, "default", volume.Name)

	back := s.powerOff("")
	s.Kubectl("delete", "node", node1.name)
	deleted := time.Now()
	s.Eventually("the pod runs on the other node", 2*harness.Patience, func() string {
		pod, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), "db-0", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if pod.Spec.NodeName != node2.name || pod.Status.Phase != "Running" {
			return fmt.Sprint(pod.Spec.NodeName, " ", pod.Status.Phase)
		}
		return ""
	})
	fmt.Printf("%v from the deletion of the Node to the running pod\n", time.Since(deleted).Round(time.Second))
	s.says("db-0", "ls /data", "")
	s.Kubectl("wait", "pv/"+volume.Name, "--for=delete", "--timeout", harness.Patience.String())

	back()
	s.driverReady()
	text, err := os.ReadFile(node1.path(filepath.Join(directory, "data", "file")))
	s.Must(err)
	if string(text) != "precious\n" {
		s.Fatalf("the file of the lost node has %q", text)
	}
	handle := volume.Spec.CSI.VolumeHandle
	hash := handle[strings.LastIndex(handle, "-")+1:]
	var note string
	s.Eventually("the volume without an object is reported", harness.Patience, func() string {
		list, err := harness.Client.EventsV1().Events(metav1.NamespaceDefault).List(s.ctx(), metav1.ListOptions{})
		s.Must(err)
		for _, event := range list.Items {
			if event.Reason == "VolumeWithoutPersistentVolume" && event.Regarding.Name == node1.name && strings.Contains(event.Note, hash) {
				note = event.Note
				return ""
			}
		}
		return "there is no event"
	})
	// The last command between backquotes deletes the data, if no object names it.
	parts := strings.Split(note, "`")
	_, err = s.shell("sh", "-c", parts[len(parts)-2])
	s.Must(err)
	s.Eventually("the page has no difference", harness.Patience, func() string {
		page := s.Kubectl("get", "--raw", "/api/v1/namespaces/"+harness.System+"/services/rootcellar-fleet:http/proxy/metrics")
		for _, line := range strings.Split(page, "\n") {
			if strings.HasPrefix(line, "rootcellar_fleet_difference{") && strings.Contains(line, "Volume") {
				return line
			}
		}
		return ""
	})
	s.Kubectl("delete", "statefulset", "db")
	s.deleteClaim("data-db-0")
	s.nothingLeft()
}
