package scenarios

import (
	"fmt"
	"maps"
	"strings"
	"sync"
)

var members = []entry{
	{"12 claims of a pool set at once end two per disk, on a node with four disks and on one with two", twoPerDisk},
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
			s.eventually(member+" is empty", patience, func() string {
				return strings.Join(s.directories(n, member, ""), " ")
			})
			s.trashEmpty(n, member)
		}
	}
	all := map[string]string{"pool": "set"}
	maps.Copy(all, parameters)
	return s.class(all)
}

// perMember returns the number of the scenario's volumes on each member of the set.
func (s *scenario) perMember(n node) map[string]int {
	s.Helper()
	found := map[string]int{}
	for _, member := range membersOn(n) {
		found[member] = len(s.directories(n, member, s.namespace+"_"))
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

// Proves: PS2.
func twoPerDisk(s *scenario) {
	class := s.onSet(nil)
	count := map[node]int{node1: 8, node2: 4}
	for _, n := range nodes() {
		for i := range count[n] {
			s.claim(fmt.Sprint(n.name, "-", i), class, "16Mi", sentTo(n))
		}
	}
	for _, n := range nodes() {
		for i := range count[n] {
			s.volume(fmt.Sprint(n.name, "-", i))
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
