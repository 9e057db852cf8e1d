package scenarios

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var capacities = []entry{
	{"the scheduler knows of every class on every node what the driver would promise", capacityPerNode},
	{"a pool's free space is reserved to the last byte and not beyond", lastByte},
	{"a claim goes where it fits, and says so where it fits nowhere", goesWhereItFits},
	{"a pool that one node has pulls its pods there", poolOfOneNode},
	{"a namespace claims no more of a class than its quota, by the documented example", quotaExample},
}

// scored fill the pool of other scenarios.
var scored = []entry{
	{"a claim goes to the node where it leaves more space, from Kubernetes 1.37 on", goesWhereSpaceIsLeft},
}

// counting is locked by the scenario that uses the pool `fast`, because some scenarios measure its free space.
var counting sync.Mutex

// onFast reserves the pool `fast` for this scenario until it ends.
func (s *scenario) onFast() {
	counting.Lock()
	s.Cleanup(counting.Unlock)
}

// counted creates a class of the pool `fast`, which only node2 has, and returns the free space there.
func (s *scenario) counted(changes ...func(*storagev1.StorageClass)) (string, int64) {
	s.Helper()
	s.onFast()
	class := s.Class(map[string]string{"pool": "fast"}, changes...)
	return class, s.unreserved(node2, "fast", class)
}

// unreserved waits until nothing is reserved in a pool, because the cleanup of the scenario before may still run, and
// until the scheduler sees the free space for the class; it returns that.
func (s *scenario) unreserved(n node, pool, class string) int64 {
	s.Helper()
	return s.besides(n, pool, class, 0)
}

// besides waits until this many bytes are reserved in a pool, and until the scheduler sees the free space for the class;
// it returns that.
func (s *scenario) besides(n node, pool, class string, reserved int64) int64 {
	s.Helper()
	s.Eventually(fmt.Sprintf("%d bytes are reserved in the pool %s", reserved, pool), harness.Patience, func() string {
		if got := s.metric(n, "rootcellar_pool_reserved_bytes", pool); got != reserved {
			return fmt.Sprint(got, " bytes are")
		}
		return ""
	})
	// XFS frees blocks later.
	var left int64
	s.Eventually(fmt.Sprintf("the scheduler sees the free space of %s on %s", pool, n.name), harness.Patience, func() string {
		left = s.metric(n, "rootcellar_pool_available_bytes", pool)
		if got, known := s.capacity(n, class); !known || got != left {
			return fmt.Sprint(got, known, " instead of ", left)
		}
		return ""
	})
	return left
}

// left waits until the scheduler sees exactly this many free bytes for a class on a node.
func (s *scenario) left(n node, class string, want int64) {
	s.Helper()
	s.between(n, class, want, want)
}

// between waits until the scheduler sees a number of free bytes between these for a class on a node.
func (s *scenario) between(n node, class string, least, most int64) {
	s.Helper()
	s.Eventually(fmt.Sprintf("class %s has %d to %d bytes on %s", class, least, most, n.name), harness.Patience, func() string {
		if got, known := s.capacity(n, class); !known || got < least || got > most {
			return fmt.Sprint(got, known)
		}
		return ""
	})
}

// metric returns a metric of the driver for a pool.
func (s *scenario) metric(n node, name, pool string) int64 {
	s.Helper()
	text, err := s.page(n, "/metrics")
	s.Must(err)
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, name+labels(pool)+" "); found {
			number, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			s.Must(err)
			return number
		}
	}
	s.Fatalf("%s tells no %s of pool %s", n.name, name, pool)
	return 0
}

// labels returns the labels of a pool in metrics. A member of a pool set is named as in `set/disk1`.
func labels(pool string) string {
	if set, member, found := strings.Cut(pool, "/"); found {
		return fmt.Sprintf("{pool=%q,member=%q}", set, member)
	}
	return fmt.Sprintf("{pool=%q}", pool)
}

// capacityPerNode compares the scheduler's figures with the driver's own.
//
// Proves: K10.
func capacityPerNode(s *scenario) {
	class := s.Class(map[string]string{"mode": "0700"})
	for _, n := range nodes() {
		s.Eventually("the capacity of the default pool on "+n.name, harness.Patience, func() string {
			// Other scenarios create and delete volumes there, so both are read until they agree.
			reported := s.metric(n, "rootcellar_pool_available_bytes", "default")
			if got, known := s.capacity(n, class); !known || got != reported || got == 0 {
				return fmt.Sprintf("the scheduler knows %d %v, the driver says %d", got, known, reported)
			}
			return ""
		})
	}
	s.capacityObjects(class, 2)
	s.Must(harness.Client.StorageV1().StorageClasses().Delete(s.ctx(), class, metav1.DeleteOptions{}))
	s.capacityObjects(class, 0)
}

// capacityObjects waits until a class has this many objects, and checks that each belongs to one node.
func (s *scenario) capacityObjects(class string, count int) {
	s.Helper()
	s.Eventually(fmt.Sprintf("class %s has %d capacities", class, count), harness.Patience, func() string {
		list, err := harness.Client.StorageV1().CSIStorageCapacities("").List(s.ctx(), metav1.ListOptions{})
		s.Must(err)
		seen := map[string]bool{}
		for _, item := range list.Items {
			if item.StorageClassName != class {
				continue
			}
			topology := item.NodeTopology
			if topology == nil || len(topology.MatchLabels) != 1 || len(topology.MatchExpressions) != 0 {
				return fmt.Sprintf("%+v", item)
			}
			home := topology.MatchLabels[harness.TopologyKey]
			if seen[home] {
				return "two of node " + home
			}
			seen[home] = true
		}
		if len(seen) != count {
			return fmt.Sprint(seen)
		}
		return ""
	})
}

// lastByte takes all the free space of a pool with two claims.
//
// Proves: K10.
func lastByte(s *scenario) {
	class, _ := s.counted()
	const size = 1 << 30
	s.Claim("small", class, "1Gi")
	s.pod("small", with("small", "/data"))
	s.running("small")
	// Now the pool is not empty, so the driver no longer measures what others use.
	left := s.besides(node2, "fast", class, size)
	// The total of a btrfs grows with its metadata, so the smallest figure seen counts.
	if rule := s.rule(node2, "fast", size); left > rule || rule-left > 1<<20 {
		s.Fatalf("by docs/semantics.md %d bytes are left, by the driver %d", rule, left)
	}

	s.Claim("rest", class, strconv.FormatInt(left, 10))
	s.pod("rest", with("rest", "/data"))
	s.running("rest")
	s.left(node2, class, 0)

	s.Claim("late", class, "1Mi")
	s.pod("late", with("late", "/data"))
	s.unscheduled("late", "did not have enough free storage")
	// The pod waits, and starts by itself when there is free space again.
	s.deletePod("rest")
	s.deleteClaim("rest")
	s.running("late")
	s.left(node2, class, left-1<<20)
}

// rule computes, by docs/semantics.md, the free space of a pool that has no options.
func (s *scenario) rule(n node, pool string, reserved int64) int64 {
	s.Helper()
	var disk syscall.Statfs_t
	s.Must(syscall.Statfs(n.path(poolPath(pool)), &disk))
	text, err := os.ReadFile(n.path(poolPath(pool) + "/.rootcellar/pool.json"))
	s.Must(err)
	var marker struct {
		Other int64 `json:"other_bytes"`
	}
	s.Must(json.Unmarshal(text, &marker))
	free := int64(disk.Bavail) * disk.Frsize
	total := int64(disk.Blocks-disk.Bfree)*disk.Frsize + free
	kept := min(total/100, 64<<20)
	return min(free-kept, total-marker.Other-kept-reserved)
}

// goesWhereItFits relies on the disks of disks.sh: 4 GiB on node1, 6 GiB on node2.
//
// Proves: K10.
func goesWhereItFits(s *scenario) {
	s.Claim("large", "rootcellar", "5Gi")
	s.pod("pinned", with("large", "/data"), at(node1))
	s.unscheduled("pinned", "1 node(s) did not have enough free storage")
	s.deletePod("pinned")
	s.pod("free", with("large", "/data"))
	if home := s.runningOn("free"); home != node2 {
		s.Fatalf("it is on %s", home.name)
	}

	s.Claim("larger", "rootcellar", "7Gi")
	s.pod("nowhere", with("larger", "/data"))
	s.unscheduled("nowhere", "0/2 nodes are available", "2 node(s) did not have enough free storage")
	s.event("PersistentVolumeClaim", "larger", "waiting for pod nowhere to be scheduled")
}

// goesWhereSpaceIsLeft relies on disks of equal size. Their pods differ in nothing else that the scheduler counts.
//
// Proves: K10.
func goesWhereSpaceIsLeft(s *scenario) {
	version, err := harness.Client.Discovery().ServerVersion()
	s.Must(err)
	if minor, err := strconv.Atoi(version.Minor); err != nil || minor < 37 {
		s.Skip("Kubernetes " + version.GitVersion + " does not count the space that is left; 1.37 does")
	}
	class := s.Class(map[string]string{"pool": "reflink"})
	for _, full := range nodes() {
		free := s.unreserved(full, "reflink", class)
		most, rest := "most-of-"+full.name, "rest-of-"+full.name
		s.Claim(most, class, strconv.FormatInt(free/4*3, 10))
		s.pod(most, with(most, "/data"), at(full))
		s.running(most)
		s.between(full, class, 0, free/3)
		s.goesTo(full.other(), rest, class, strconv.FormatInt(free/5, 10))
		s.deleteWithClaims(most, rest)
		s.between(full, class, free/4*3, free*2)
	}
}

// Proves: K10.
func poolOfOneNode(s *scenario) {
	class, _ := s.counted()
	s.left(node1, class, 0)
	for _, name := range []string{"one", "two", "three"} {
		s.goesTo(node2, name, class, "16Mi")
		s.directory(node2, "fast", s.volume(name).Name)
	}
	s.Claim("pinned", class, "16Mi")
	s.pod("pinned", with("pinned", "/data"), at(node1))
	s.unscheduled("pinned", "1 node(s) did not have enough free storage")
}
