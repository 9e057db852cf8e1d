package scenarios

import (
	"fmt"

	"rootcellar.dev/e2e/suites/harness"
)

var full = []entry{
	{"a pod that fills its disk gets ENOSPC, harms no other disk, and the space is free again with its claim deleted", podFillsDisk},
}

// Proves: DK5.
func podFillsDisk(s *scenario) {
	class := s.onLate()
	before := s.freeSpace(node1, class)
	s.worker("greedy", class)
	s.worker("neighbour", class)
	tenant := &scenario{harness.In(s.T, s.Namespace+"-tenant")}
	s.Kubectl("create", "namespace", tenant.Namespace)
	tenant.worker("tenant", class)
	tenant.running("tenant")
	s.running("greedy")
	s.running("neighbour")
	other := s.beats("other", "rootcellar", node1)

	s.refused("greedy", "cat /dev/zero > /data/file", "No space left on device")
	// Sizes are not enforced here, so this volume is affected too: docs/limits.md.
	s.refused("neighbour", "dd if=/dev/zero of=/data/file bs=1M count=1", "No space left on device")
	s.poolIs(node1, "late", "healthy")
	s.left(node1, class, 0)
	s.Claim("sent", class, "25Mi", sentTo(node1))
	s.event("PersistentVolumeClaim", "sent", "pool late has free space for 0 bytes, not for 26214400 bytes")
	snapshots := s.snapshotClass("{copy: allowed}")
	s.snapshotBy(snapshots, "no-space", "neighbour")
	s.forbidden("no-space", "FailedPrecondition", "pool late")
	s.deleteSnapshot("no-space")
	tenant.snapshotBy(snapshots, "no-space", "tenant")
	tenant.forbidden("no-space", "FailedPrecondition", "pool late")
	s.Kubectl("delete", "namespace", tenant.Namespace, "--timeout", harness.Patience.String())
	other.goesOn()
	s.worker("elsewhere", "rootcellar", at(node1))
	s.running("elsewhere")

	s.driverKilled(node1)
	s.poolIs(node1, "late", "healthy")
	s.dismiss("greedy")
	s.Eventually("the neighbour may write again", harness.Patience, func() string {
		out, err := s.exec("neighbour", "dd if=/dev/zero of=/data/file bs=1M count=1 && sync /data/file")
		if err != nil {
			return out
		}
		return ""
	})
	s.dismiss("neighbour")
	// The space that the filesystem's own metadata has taken stays in use.
	s.Eventually("the space is free again", harness.Patience, func() string {
		if free, _ := s.capacity(node1, class); free < before-1<<20 {
			return fmt.Sprint(free, " bytes, and was ", before)
		}
		return ""
	})
	other.goesOn()

	s.dismiss("other")
	s.dismiss("elsewhere")
	s.nothingLeft()
	s.unmountLate()
}
