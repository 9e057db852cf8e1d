package scenarios

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// moving runs the commands of docs/migration.md for a claim that moves by a copy.
type moving struct {
	*scenario
	// blocks copy a claim and give it the new volume, and end the way back.
	blocks [][]string
	// settings are the variables that the page asks for.
	dir, settings string
}

func (s *scenario) moves(claim, class, size string) *moving {
	s.Helper()
	blocks := shellBlock.FindAllStringSubmatch(s.section("docs/migration.md", "From LVMS, TopoLVM and OpenEBS"), -1)
	if len(blocks) != 2 {
		s.Fatalf("the section has %d blocks", len(blocks))
	}
	settings := "NAMESPACE=" + s.namespace + " CLAIM=" + claim + " CLASS=" + class + " SIZE=" + size + "\n"
	return &moving{s, blocks, s.clone(), settings}
}

// runs runs commands, which know the variable of the first block.
func (m *moving) runs(commands string) string {
	m.Helper()
	return m.administrator(m.dir, m.settings+"move=deploy/examples/copy/move-claim.sh\n"+commands)
}

// refuses runs commands that must fail with these words.
func (m *moving) refuses(commands, words string) {
	m.Helper()
	said := m.runs("if { " + commands + "; } 2>&1; then echo it succeeded; fi")
	if !strings.Contains(said, words) || strings.Contains(said, "it succeeded") {
		m.Fatalf("%s says %s, not %q", commands, said, words)
	}
}

// copied moves a claim into another class, goes back, and ends it.
//
// Proves: K1.
func copied(s *scenario) {
	from := s.class(map[string]string{"pool": "reflink", "kind": "image"})
	s.claim("orders", from, "64Mi")
	s.pod("shop", with("orders", "/data"), ofDebian)
	home := s.runningOn("shop")
	_, err := s.exec("shop", oddFiles)
	s.must(err)
	written := s.oddFilesOf("shop")
	s.deletePod("shop")
	old := s.volume("orders").Name
	holds := func(pv string) {
		if found := s.volume("orders"); found.Name != pv {
			s.Fatalf("the claim has %s of class %s, not %s", found.Name, found.Spec.StorageClassName, pv)
		}
		s.pod("shop", with("orders", "/data"), ofDebian)
		if found := s.runningOn("shop"); found != home {
			s.Fatalf("the volume is on %s", found.name)
		}
		if found := s.oddFilesOf("shop"); found != written {
			s.Fatalf("%s has\n%s\nand the original\n%s", pv, found, written)
		}
		s.deletePod("shop")
	}

	c := s.moves("orders", s.class(map[string]string{"pool": "default"}), "64Mi")
	s.pod("shop", with("orders", "/data"), ofDebian)
	s.running("shop")
	c.refuses(`"$move" copy "$NAMESPACE" "$CLAIM" "$CLASS" "$SIZE"`, "pods use the claim orders: shop")
	s.deletePod("shop")
	c.refuses(`"$move" give "$NAMESPACE" "$CLAIM" new`, "first: move-claim.sh copy")
	c.runs(c.blocks[0][2])
	renewed := s.volume("orders").Name
	if renewed == old {
		s.Fatalf("the claim still has %s", old)
	}
	holds(renewed)
	c.refuses(`"$move" copy "$NAMESPACE" "$CLAIM" "$CLASS" "$SIZE"`, "a copy was begun")
	for _, step := range []struct{ to, pv string }{{"old", old}, {"new", renewed}, {"new", renewed}} {
		c.runs(`"$move" give "$NAMESPACE" "$CLAIM" ` + step.to)
		holds(step.pv)
	}
	c.runs(c.blocks[1][2])
	s.volumeGone(old)
	if policy := s.volume("orders").Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimDelete {
		s.Fatalf("the new volume has the policy %s", policy)
	}
	s.deleteClaim("orders")
	s.volumeGone(renewed)
}

// copiedBlock moves a block volume into a larger one in the same way.
//
// Proves: K1.
func copiedBlock(s *scenario) {
	class := s.class(map[string]string{"pool": "reflink"})
	s.claim("disk", class, "64Mi", block)
	s.pod("machine", machine("disk"))
	s.running("machine")
	const sum = "head --bytes=64M /dev/disk | sha256sum"
	_, err := s.exec("machine", "dd if=/dev/urandom of=/dev/disk bs=1M count=64 conv=fsync")
	s.must(err)
	written, err := s.exec("machine", sum)
	s.must(err)
	s.deletePod("machine")
	c := s.moves("disk", class, "128Mi")
	c.runs(c.blocks[0][2] + c.blocks[1][2])
	s.pod("machine", machine("disk"))
	s.running("machine")
	s.says("machine", sum, strings.TrimSpace(written))
	s.deletePod("machine")
	s.deleteClaim("disk")
	s.detached()
}
