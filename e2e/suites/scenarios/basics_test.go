package scenarios

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var basics = []entry{
	{"a claim waits for its pod, and every later pod reads what that one wrote", laterPodsReadIt},
	{"a volume says where it is and whose, and no pod gets it on another node", volumeSaysWhereItIs},
	{"helm test writes into a new volume, reads it back, and leaves nothing", helmTested},
	{"the longest names Kubernetes allows, and names alike to the last letter", longestNames},
}

// Proves: K1.
func helmTested(s *scenario) {
	out, err := s.shell("helm", "test", "rootcellar", "--namespace", harness.System, "--timeout", "4m")
	s.Must(err)
	if !strings.Contains(out, "rootcellar-test-read") {
		s.Errorf("it has not read the volume:\n%s", out)
	}
	s.Eventually("nothing is left of the test", harness.Patience, func() string {
		return s.Kubectl("--namespace", harness.System, "get", "pvc,jobs", "--ignore-not-found", "--output", "name")
	})
}

const firstClaim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: rootcellar
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
`

const readers = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: reader}
spec:
  selector: {matchLabels: {app: reader}}
  template:
    metadata: {labels: {app: reader}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: main
          image: ` + image + `
          command: [/bin/sleep, "2147483647"]
          volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// laterPodsReadIt is the basic use of a volume.
//
// Proves: K2.
func laterPodsReadIt(s *scenario) {
	s.Apply(firstClaim)
	s.event("PersistentVolumeClaim", "data", "waiting for first consumer")
	s.Always("no volume without a pod", 5*time.Second, func() string {
		claim, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), "data", metav1.GetOptions{})
		s.Must(err)
		for _, n := range nodes() {
			if found := s.directories(n, "default", s.Namespace); len(found) > 0 {
				return n.name + " has " + found[0]
			}
		}
		if claim.Status.Phase != corev1.ClaimPending {
			return string(claim.Status.Phase)
		}
		return ""
	})

	s.pod("writer", with("data", "/data"))
	home := s.runningOn("writer")
	s.says("writer", "echo kept > /data/file && cat /data/file", "kept")
	s.deletePod("writer")
	s.pod("writer", with("data", "/data"))
	if got := s.runningOn("writer"); got != home {
		s.Fatalf("the pod was on %s and is on %s now", home.name, got.name)
	}
	s.says("writer", "cat /data/file", "kept")

	s.Apply(readers)
	s.Kubectl("rollout", "status", "deployment/reader", "--timeout", harness.Patience.String())
	first := s.live("app=reader", 1)[0]
	s.says(first, "cat /data/file && echo more >> /data/file", "kept")
	s.Kubectl("rollout", "restart", "deployment/reader")
	s.Kubectl("rollout", "status", "deployment/reader", "--timeout", harness.Patience.String())
	second := s.live("app=reader", 1)[0]
	if second == first {
		s.Fatalf("%s was not restarted", first)
	}
	s.says(second, "cat /data/file", "kept\nmore")
	if got := s.runningOn(second); got != home {
		s.Fatalf("the Deployment is on %s, the volume on %s", got.name, home.name)
	}
}

// live waits until this many pods with the label run and no other does, and returns their names.
func (s *scenario) live(selector string, count int) []string {
	s.Helper()
	var names []string
	s.Eventually(fmt.Sprint(count, " pods ", selector), harness.Patience, func() string {
		pods, err := harness.Client.CoreV1().Pods(s.Namespace).List(s.ctx(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err.Error()
		}
		names = nil
		for _, pod := range pods.Items {
			names = append(names, pod.Name)
			if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
				return pod.Name + " is " + string(pod.Status.Phase)
			}
		}
		if len(names) != count {
			return fmt.Sprint(names)
		}
		return ""
	})
	return names
}

// volumeSaysWhereItIs reads the PersistentVolume, and the disk as an admin would.
//
// Proves: K2.
func volumeSaysWhereItIs(s *scenario) {
	s.Claim("orders", "rootcellar", "64Mi")
	s.pod("shop", with("orders", "/data"))
	home := s.runningOn("shop")
	s.says("shop", "echo apples > /data/ledger && cat /data/ledger", "apples")

	volume := s.volume("orders")
	if got := s.home(volume); got != home {
		s.Fatalf("the volume is on %s, the pod on %s", got.name, home.name)
	}
	if size := volume.Spec.Capacity.Storage().Value(); size != 64<<20 {
		s.Fatalf("%s has %d bytes", volume.Name, size)
	}
	hash := s.hash(volume)
	dir := s.directory(home, "default", volume.Name)
	if want := s.Namespace + "_orders_" + volume.Name + "-" + hash; filepath.Base(dir) != want {
		s.Fatalf("the directory is %s, not %s", filepath.Base(dir), want)
	}
	inside, err := filepath.Glob(home.path(dir) + "/*")
	s.Must(err)
	for i := range inside {
		inside[i] = filepath.Base(inside[i])
	}
	if !slices.Equal(inside, []string{"data", "volume.json"}) {
		s.Fatalf("%s holds %q", dir, inside)
	}
	text, err := os.ReadFile(home.path(dir + "/data/ledger"))
	s.Must(err)
	if string(text) != "apples\n" {
		s.Fatalf("on the node's disk it is %q", text)
	}
	s.record(home, dir, volume, "orders")
	if found := s.directories(home.other(), "default", s.Namespace); len(found) > 0 {
		s.Fatalf("%s has %q", home.other().name, found)
	}

	s.pod("stray", with("orders", "/data"), at(home.other()))
	s.unscheduled("stray", "didn't match PersistentVolume's node affinity")
}

// hash is the last part of the volume's id and of its directory's name.
func (s *scenario) hash(volume *corev1.PersistentVolume) string {
	s.Helper()
	source := volume.Spec.CSI
	if source == nil || source.Driver != harness.Driver {
		s.Fatalf("%s is no volume of %s: %+v", volume.Name, harness.Driver, source)
	}
	parts := strings.Split(source.VolumeHandle, "-")
	if len(parts) != 3 || parts[0] != "v1" || len(parts[1]) != 32 || len(parts[2]) != 32 {
		s.Fatalf("%s has the handle %s", volume.Name, source.VolumeHandle)
	}
	return parts[2]
}

// record compares the record in a volume's directory with Kubernetes' objects.
func (s *scenario) record(home node, dir string, volume *corev1.PersistentVolume, claim string) {
	s.Helper()
	text, err := os.ReadFile(home.path(dir + "/volume.json"))
	s.Must(err)
	var record struct {
		ID    string            `json:"id"`
		Name  string            `json:"name"`
		Size  int64             `json:"size_bytes"`
		Claim map[string]string `json:"claim"`
		Modes []string          `json:"access_modes"`
	}
	s.Must(json.Unmarshal(text, &record))
	labels := map[string]string{"namespace": s.Namespace, "claim": claim, "volume": volume.Name}
	if record.ID != volume.Spec.CSI.VolumeHandle || record.Name != volume.Name ||
		record.Size != volume.Spec.Capacity.Storage().Value() || !maps.Equal(record.Claim, labels) ||
		!slices.Equal(record.Modes, []string{"SINGLE_NODE_MULTI_WRITER"}) {
		s.Fatalf("the record of %s: %s", volume.Name, text)
	}
}

// longestNames has two claims whose directory names differ only in the hash at the end.
//
// Proves: K2.
func longestNames(s *scenario) {
	space := s.Namespace + "-" + strings.Repeat("n", 62-len(s.Namespace))
	s.Kubectl("create", "namespace", space)
	long := &scenario{harness.In(s.T, space)}
	// Runs before the scenario's context ends, so that a leftover is a failure.
	defer long.Kubectl("delete", "namespace", space, "--wait=false")

	homes := map[string]string{}
	for _, last := range []string{"a", "b"} {
		claim := strings.Repeat("c", 252) + last
		long.Claim(claim, "rootcellar", "16Mi")
		// A pod's volume has a shorter name than a claim may have.
		long.pod(last, with("data", "/data"), func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = claim
		}, at(node1))
		long.running(last)
		long.says(last, "ls /data; echo "+last+" > /data/name && cat /data/name", last)
		volume := long.volume(claim)
		dir := long.directory(long.home(volume), "default", long.hash(volume))
		name, _ := strings.CutSuffix(filepath.Base(dir), "-"+long.hash(volume))
		if want := (space + "_" + claim)[:160]; name != want {
			s.Fatalf("the directory is %s-…, not %s-…", name, want)
		}
		homes[last] = dir
	}
	long.says("a", "cat /data/name", "a")
	for last, dir := range homes {
		text, err := os.ReadFile(node1.path(dir + "/data/name"))
		s.Must(err)
		if string(text) != last+"\n" {
			s.Fatalf("%s holds %q", dir, text)
		}
	}
}
