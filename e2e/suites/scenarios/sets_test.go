package scenarios

import (
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

var sets = []entry{
	{"a StatefulSet spreads over the nodes, and every replica comes back to its own data", setComesBack},
	{"two claims of one pod meet on one node, each with its own data", twoClaims},
	{"an ephemeral volume goes with its pod and the next one is empty", ephemeralGoes},
	{"a claim of many pods is one node's, by a class that allows it", sharedOnOneNode},
	{"two pods of the documented example write to one volume", sharedExample},
}

const fourReplicas = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: shard}
spec:
  replicas: 4
  serviceName: shard
  selector: {matchLabels: {app: shard}}
  template:
    metadata: {labels: {app: shard}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: DoNotSchedule
          labelSelector: {matchLabels: {app: shard}}
      containers:
        - name: main
          image: ` + image + `
          command:
            - /bin/sh
            - -c
            - |
              [ -e /data/born ] || echo $HOSTNAME $(cat /proc/sys/kernel/random/uuid) > /data/born
              exec sleep 2147483647
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        storageClassName: rootcellar
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 16Mi}}
`

// Proves: K2.
func setComesBack(s *scenario) {
	s.Apply(fourReplicas)
	before := s.replicas(4)
	count := map[string]int{}
	for name, replica := range before {
		count[replica.home]++
		if got := replica.born[:min(len(name), len(replica.born))]; got != name {
			s.Fatalf("%s holds %q", name, replica.born)
		}
	}
	if count[node1.name] != 2 || count[node2.name] != 2 {
		s.Fatalf("they are spread %v", count)
	}

	s.Kubectl("scale", "statefulset", "shard", "--replicas", "1")
	s.live("app=shard", 1)
	// The claim of a replica that was scaled down is deleted. Only that replica starts empty.
	lost := s.volume("data-shard-3").Name
	s.deleteClaim("data-shard-3")
	s.volumeGone(lost)
	s.Kubectl("scale", "statefulset", "shard", "--replicas", "4")
	after := s.replicas(4)
	if after["shard-3"].born == before["shard-3"].born {
		s.Fatalf("shard-3 has data of a deleted claim: %s", after["shard-3"].born)
	}
	delete(before, "shard-3")
	delete(after, "shard-3")
	if !maps.Equal(before, after) {
		s.Fatalf("before: %v, after: %v", before, after)
	}
}

// replica records the node of a replica and the data it wrote when its volume was new.
type replica struct{ home, born string }

func (s *scenario) replicas(count int) map[string]replica {
	s.Helper()
	found := map[string]replica{}
	for _, name := range s.live("app=shard", count) {
		born, err := s.exec(name, "cat /data/born")
		s.Must(err)
		found[name] = replica{s.runningOn(name).name, born}
	}
	return found
}

// Proves: K2.
func twoClaims(s *scenario) {
	s.Claim("one", "rootcellar", "16Mi")
	s.Claim("two", "rootcellar", "16Mi")
	s.pod("pod", with("one", "/one"), with("two", "/two"))
	home := s.runningOn("pod")
	s.says("pod", "echo one > /one/file; echo two > /two/file; cat /one/file /two/file", "one\ntwo")
	for _, claim := range []string{"one", "two"} {
		volume := s.volume(claim)
		if got := s.home(volume); got != home {
			s.Fatalf("claim %s is on %s, the pod on %s", claim, got.name, home.name)
		}
		s.holds(home, s.directory(home, "default", volume.Name)+"/data/file", claim+"\n")
	}
	s.deletePod("pod")

	// No node can run one pod with claims on different nodes.
	s.Claim("far", s.Class(nil, immediate, only(home.other().name)), "16Mi")
	s.volume("far")
	s.pod("torn", with("one", "/one"), with("far", "/far"))
	s.unscheduled("torn", "2 node(s) didn't match PersistentVolume's node affinity")
	s.pod("pod", with("one", "/one"), with("two", "/two"))
	s.running("pod")
	s.says("pod", "cat /one/file /two/file", "one\ntwo")
}

// The volume is smaller than in the example, because other scenarios use the pool too.
//
// Proves: K4.
func ephemeralGoes(s *scenario) {
	text, err := os.ReadFile(filepath.Join(harness.Root, "deploy/examples/scratch/runner.yaml"))
	s.Must(err)
	example := strings.Replace(string(text), "storage: 1Gi", "storage: 64Mi", 1)
	s.Apply(example)
	home := s.runningOn("runner")
	s.says("runner", "ls", "started")
	s.refused("runner", "dd if=/dev/zero of=more bs=1M count=64", "No space left on device")
	first := s.volume("runner-scratch").Name
	s.directory(home, "default", first)

	s.deletePod("runner")
	s.gone("the claim of the pod", func() error {
		_, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), "runner-scratch", metav1.GetOptions{})
		return err
	})
	s.volumeGone(first)
	s.reclaimed(home, "default", first)
	s.Apply(example)
	s.running("runner")
	s.says("runner", "ls", "started")
}

// The class is that of the chart with sharedClass.
//
// Proves: A1.
func sharedExample(s *scenario) {
	example := filepath.Join(harness.Root, "deploy/examples/shared")
	s.Kubectl("apply", "-f", example)
	s.Kubectl("rollout", "status", "deployment/shared", "--timeout", harness.Patience.String())
	names := s.live("app=shared", 2)
	home := s.home(s.volume("shared"))
	for _, name := range names {
		if got := s.runningOn(name); got != home {
			s.Fatalf("%s is on %s, the volume on %s", name, got.name, home.name)
		}
	}
	slices.Sort(names)
	// A pod is ready before its first command has ended.
	s.Eventually("both pods have written", harness.Patience, func() string {
		got, err := s.exec(names[0], "sort /data/pods")
		s.Must(err)
		if got != strings.Join(names, "\n") {
			return got
		}
		return ""
	})
	volume := s.volume("shared").Name
	s.Kubectl("delete", "-f", example)
	s.volumeGone(volume)
}

// Proves: A1.
func sharedOnOneNode(s *scenario) {
	class := s.Class(map[string]string{"sharing": "node"})
	s.Claim("data", class, "16Mi", mode(corev1.ReadWriteMany))
	s.pod("one", with("data", "/data"))
	home := s.runningOn("one")
	s.pod("two", with("data", "/data"))
	if got := s.runningOn("two"); got != home {
		s.Fatalf("the pods are on %s and %s", home.name, got.name)
	}
	s.says("one", "echo one > /data/file && cat /data/file", "one")
	s.says("two", "cat /data/file && echo two >> /data/file", "one")
	s.says("one", "cat /data/file", "one\ntwo")
	s.pod("stray", with("data", "/data"), at(home.other()))
	s.unscheduled("stray", "didn't match PersistentVolume's node affinity")

	s.Claim("refused", "rootcellar", "16Mi", mode(corev1.ReadWriteMany))
	s.pod("refused", with("refused", "/data"))
	s.event("PersistentVolumeClaim", "refused", "sharing=node")
	s.pending("refused", 5*time.Second)
}
