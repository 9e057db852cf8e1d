package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var members = []entry{
	{"12 claims of a pool set at once end two per disk, on a node with four disks and on one with two", twoPerDisk},
	{"a StatefulSet of three gets exclusive disks, and Kubernetes shows their capacity", exclusiveDisks},
	{"an Immediate claim larger than every disk of a set stays Pending, with one CreateVolume per back-off", largerThanDisks},
}

var memberDisks = []entry{
	{"a disk mounted below a pool set is used without a restart", newMember},
	{"a disk of a pool set is pulled under load: pods on the others write on, and it serves when it is back", pulledMember},
}

// placing is locked by scenarios for which the disks of the pool set `set` must be empty.
var placing sync.Mutex

// onSet reserves the pool set for this scenario until it ends, and returns a class of it.
func (s *scenario) onSet(parameters map[string]string) string {
	s.Helper()
	placing.Lock()
	s.Cleanup(placing.Unlock)
	for _, n := range nodes() {
		for _, member := range membersOn(n) {
			// The cleanup of the scenario before may still run.
			s.Eventually(member+" is empty", harness.Patience, func() string {
				return strings.Join(s.directories(n, member, ""), " ")
			})
			s.trashEmpty(n, member)
		}
	}
	all := map[string]string{"pool": "set"}
	maps.Copy(all, parameters)
	return s.Class(all)
}

// perMember returns the number of the scenario's volumes on each member of the set.
func (s *scenario) perMember(n node) map[string]int {
	s.Helper()
	found := map[string]int{}
	for _, member := range membersOn(n) {
		found[member] = len(s.directories(n, member, s.Namespace+"_"))
	}
	return found
}

// memberOf returns the member of the set that has a claim's volume.
func (s *scenario) memberOf(n node, claim string) string {
	s.Helper()
	volume := s.volume(claim).Name
	for _, member := range membersOn(n) {
		if len(s.directories(n, member, volume)) == 1 {
			return member
		}
	}
	s.Fatalf("no member on %s has %s", n.name, volume)
	return ""
}

// Proves: PS2, V11.
func twoPerDisk(s *scenario) {
	class := s.onSet(nil)
	count := map[node]int{node1: 8, node2: 4}
	for _, n := range nodes() {
		for i := range count[n] {
			s.Claim(fmt.Sprint(n.name, "-", i), class, "16Mi", sentTo(n))
		}
	}
	for _, n := range nodes() {
		for i := range count[n] {
			claim := fmt.Sprint(n.name, "-", i)
			attributes := s.volume(claim).Spec.CSI.VolumeAttributes
			named := attributes["pool"] + "/" + attributes["member"]
			if member := s.memberOf(n, claim); named != member {
				s.Errorf("the attributes of %s on %s name %s, and not %s", claim, n.name, named, member)
			}
		}
		found := s.perMember(n)
		for member, volumes := range found {
			if volumes != 2 {
				s.Errorf("%s on %s has %d volumes, of %v", member, n.name, volumes, found)
			}
		}
		if len(found) != count[n]/2 {
			s.Errorf("%s has the members %v", n.name, found)
		}
	}
}

const threeReplicas = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: broker}
spec:
  replicas: 3
  serviceName: broker
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: broker}}
  template:
    metadata: {labels: {app: broker}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node1}
      terminationGracePeriodSeconds: 0
      containers:
        - name: main
          image: ` + image + `
          command: [/bin/sleep, "2147483647"]
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        storageClassName: CLASS
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 16Mi}}
`

// Proves: PS6.
func exclusiveDisks(s *scenario) {
	class := s.onSet(map[string]string{"exclusive": "true"})
	disk := s.largest(node1, class)
	s.left(node1, class, 4*disk)
	s.Apply(strings.Replace(threeReplicas, "CLASS", class, 1))
	s.live("app=broker", 3)
	var homes []string
	for i := range 3 {
		claim := fmt.Sprint("data-broker-", i)
		homes = append(homes, s.memberOf(node1, claim))
		found, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), claim, metav1.GetOptions{})
		s.Must(err)
		shown := found.Status.Capacity.Storage().Value()
		if has := s.volume(claim).Spec.Capacity.Storage().Value(); shown != disk || has != disk {
			s.Errorf("%s shows %d and its PersistentVolume %d bytes, and the disk has %d", claim, shown, has, disk)
		}
	}
	slices.Sort(homes)
	if len(slices.Compact(homes)) != 3 {
		s.Fatalf("the volumes are on %v", homes)
	}
	s.left(node1, class, disk)

	// A volume of another class does not join them, and takes the last disk from the class.
	s.Claim("other", s.Class(map[string]string{"pool": "set"}), "16Mi", sentTo(node1))
	if member := s.memberOf(node1, "other"); slices.Contains(homes, member) {
		s.Fatalf("it is on %s, of %v", member, homes)
	}
	s.left(node1, class, 0)

	s.Kubectl("delete", "statefulset", "broker")
	s.Kubectl("delete", "pvc", "--all")
	s.left(node1, class, 4*disk)
}

// largest waits until the scheduler knows the largest volume of a class on a node, and returns its size.
func (s *scenario) largest(n node, class string) int64 {
	s.Helper()
	var largest int64
	s.Eventually("the largest volume of class "+class+" on "+n.name, harness.Patience, func() string {
		list, err := harness.Client.StorageV1().CSIStorageCapacities("").List(s.ctx(), metav1.ListOptions{})
		s.Must(err)
		for _, item := range list.Items {
			if item.StorageClassName == class && item.NodeTopology.MatchLabels[harness.TopologyKey] == n.name &&
				item.MaximumVolumeSize != nil {
				largest = item.MaximumVolumeSize.Value()
			}
		}
		if largest == 0 {
			return "not known"
		}
		return ""
	})
	return largest
}

// largerThanDisks has claims that no member can have, while the sum of either node's disks is larger. The provisioner
// compares an Immediate claim with the sum, so its attempts reach the driver. With one node only, it may stop to try: it
// keeps an outdated claim in its cache until somebody changes the claim.
//
// Proves: PS2.
func largerThanDisks(s *scenario) {
	class := s.onSet(nil)
	s.Claim("waits", class, "160Mi")
	s.pod("waits", with("waits", "/data"))
	s.unscheduled("waits", "2 node(s) did not have enough free storage")

	s.Claim("large", s.Class(map[string]string{"pool": "set"}, immediate), "160Mi")
	s.Eventually("three attempts, each with one call", harness.Patience, func() string {
		// A call may have no event yet.
		attempts, calls := s.attempts("large"), s.createCalls("large")
		if attempts < 3 || calls != attempts {
			return fmt.Sprintf("%d attempts, %d calls", attempts, calls)
		}
		return ""
	})
	s.event("PersistentVolumeClaim", "large", "ResourceExhausted", "pool set has free space for", "not for 167772160 bytes")
	for _, claim := range []string{"large", "waits"} {
		s.pending(claim, time.Second)
	}
}

// attempts returns how often the provisioners reported that they could not provision a claim.
func (s *scenario) attempts(claim string) int {
	s.Helper()
	events, err := harness.Client.CoreV1().Events(s.Namespace).List(s.ctx(), metav1.ListOptions{})
	s.Must(err)
	var attempts int
	for _, event := range events.Items {
		if event.InvolvedObject.Name == claim && event.Reason == "ProvisioningFailed" {
			attempts += int(event.Count)
		}
	}
	return attempts
}

// createCalls returns how many CreateVolume calls for a claim the drivers have logged.
func (s *scenario) createCalls(claim string) int {
	s.Helper()
	found, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.ctx(), claim, metav1.GetOptions{})
	s.Must(err)
	var calls int
	for _, n := range nodes() {
		log := s.Kubectl("--namespace", harness.System, "logs", s.driverPod(n).Name, "--container", "driver")
		calls += strings.Count(log, `rpc="CreateVolume" volume="pvc-`+string(found.UID)+`"`)
	}
	return calls
}

// Proves: PS4.
func newMember(s *scenario) {
	const member = "set/disk5"
	life := s.driverLife()
	class := s.onSet(nil)
	s.Claim("large", class, "170Mi")
	s.pod("large", with("large", "/data"), at(node1))
	s.unscheduled("large", "1 node(s) did not have enough free storage")

	s.makeDisk("disk5.img", nil)
	_, err := s.on(node1, "mkdir", poolPath(member))
	s.Must(err)
	s.Cleanup(func() {
		_, _ = harness.Command(context.Background(), "nsenter", "-t", node1.pid, "-m", "-p", "--", "rmdir", poolPath(member))
	})
	s.mountAt("disk5.img", poolPath(member))
	s.Eventually("the disk is a member", within, func() string {
		ready, err := s.page(node1, "/readyz")
		if err != nil || !strings.Contains(ready, "pool "+member+": healthy\n") {
			return fmt.Sprint(ready, err)
		}
		return ""
	})
	s.runsPromptly("large")
	if got := s.memberOf(node1, "large"); got != member {
		s.Fatalf("the volume is on %s", got)
	}

	s.dismiss("large")
	s.nothingLeft()
	s.retired(member)
	if now := s.driverLife(); now != life {
		s.Fatalf("the driver is %s, and was %s", now, life)
	}
}

// retired unmounts a member of node1 for good, and waits until it is no longer reported.
func (s *scenario) retired(member string) {
	s.Helper()
	text, err := os.ReadFile(node1.path(poolPath(member) + "/.rootcellar/pool.json"))
	s.Must(err)
	var marker struct{ ID string }
	s.Must(json.Unmarshal(text, &marker))
	_, err = s.on(node1, "umount", poolPath(member))
	s.Must(err)
	s.poolIs(node1, member, notMounted)
	_, err = s.inDriver(node1, "pool", "retire", marker.ID)
	s.Must(err)
	s.Eventually(member+" is not reported", harness.Patience, func() string {
		ready, err := s.page(node1, "/readyz")
		if err != nil || strings.Contains(ready, member) {
			return fmt.Sprint(ready, err)
		}
		return ""
	})
}

// Proves: PS4.
func pulledMember(s *scenario) {
	life := s.driverLife()
	class := s.onSet(nil)
	pulled, other := s.beats("pulled", class, node1), s.beats("other", class, node1)
	member := s.memberOf(node1, "pulled")
	if s.memberOf(node1, "other") == member {
		s.Fatalf("both pods are on %s", member)
	}

	_, err := s.on(node1, "umount", poolPath(member))
	s.Must(err)
	s.poolIs(node1, member, notMounted)
	if list, err := s.inDriver(node1, "pool", "list"); err == nil || !strings.Contains(list, "pool "+member+": nothing is mounted at its path") {
		s.Fatalf("the list is %v\n%s", err, list)
	}
	other.goesOn()
	// Its own mount keeps the disk.
	pulled.goesOn()
	s.pod("second", with("pulled", "/data"))
	s.event("Pod", "second", "pool "+member+", which holds the volume, is "+notMounted)
	next := []string{"next1", "next2", "next3"}
	for _, name := range next {
		s.worker(name, class, at(node1))
	}
	for _, name := range next {
		s.runsPromptly(name)
	}
	s.Eventually("the scheduler knows the capacity of the other disks", harness.Patience, func() string {
		var sum int64
		for _, member := range membersOn(node1) {
			sum += s.metric(node1, "rootcellar_pool_available_bytes", member)
		}
		if free, _ := s.capacity(node1, class); free != sum {
			return fmt.Sprintf("%d bytes, and the disks have %d", free, sum)
		}
		return ""
	})

	s.mount(member+".img", poolPath(member))
	s.poolIs(node1, member, "healthy")
	s.running("second")
	s.says("second", "grep -c '^1 ' /data/beats", "1")
	other.goesOn()
	s.deletePod("second")
	for _, name := range append(next, "pulled", "other") {
		s.dismiss(name)
	}
	s.nothingLeft()
	if now := s.driverLife(); now != life {
		s.Fatalf("the driver is %s, and was %s", now, life)
	}
}
