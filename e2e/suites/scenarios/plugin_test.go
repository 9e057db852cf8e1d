package scenarios

// plugin runs deploy/kubectl-rootcellar, which cluster.sh has put on the PATH of kubectl.
func (s *scenario) plugin(arguments ...string) (string, error) {
	return s.shell("kubectl", append([]string{"rootcellar"}, arguments...)...)
}

// prints runs the plugin, which must succeed and print each of the texts.
func (s *scenario) prints(texts []string, arguments ...string) {
	s.Helper()
	out, err := s.plugin(arguments...)
	s.Must(err)
	if !holdsAll(out, texts) {
		s.Fatalf("kubectl rootcellar %q prints, without %q,\n%s", arguments, texts, out)
	}
}

// complains runs the plugin, which must fail and print each of the texts.
func (s *scenario) complains(texts []string, arguments ...string) {
	s.Helper()
	out, err := s.plugin(arguments...)
	if err == nil || !holdsAll(out, texts) {
		s.Fatalf("kubectl rootcellar %q: %v, and it prints, without %q,\n%s", arguments, err, texts, out)
	}
}

// undeleteClaim deletes a claim by mistake. The disk `late` is away, so what asks all pools prints them and fails.
//
// Proves: K1, UD2.
func undeleteClaim(s *scenario) {
	home := s.podWithFile("data", s.keptClass())
	volume := s.volume("data")
	claim := s.Namespace + "/data"
	undelete := []string{"undelete", "data", "--namespace", s.Namespace}

	s.prints([]string{home.name, volume.Spec.CSI.VolumeHandle, "kept, at "}, "where", claim)
	s.complains([]string{"NODE ", node1.name + " ", node2.name + " ", "pool late: "}, "pools")
	s.complains([]string{claim, volume.Name}, "volumes")
	s.complains([]string{node1.name + "  ", node2.name + "  "}, "check")
	s.prints([]string{volume.Name + "  " + claim + "  Bound"}, "claims", home.name, "kept")
	s.prints([]string{"-"}, "pool-id", home.name, "kept")
	s.prints([]string{volume.Name}, "exec", home.name, "--", "volume", "show", volume.Name)
	s.complains([]string{"no pod of the driver is on node elsewhere", node1.name}, "exec", "elsewhere", "--", "check")
	s.complains([]string{"cannot look for the driver"}, "pools", "--context", "none")
	s.complains([]string{"no node has a pod of the driver"}, "check", "--driver-namespace", s.Namespace)
	s.complains([]string{"no node has a deleted volume of claim " + claim}, append(undelete, "--yes")...)

	s.deletePod("data")
	s.deleteClaim("data")
	s.volumeGone(volume.Name)
	s.complains([]string{"was deleted", "undelete data"}, "where", claim)
	s.complains([]string{"claim " + claim, volume.Name, "node " + home.name, "nothing is changed"}, undelete...)
	if claims := s.Kubectl("get", "pvc", "--output", "name"); claims != "" {
		s.Fatalf("the plan has made %s", claims)
	}
	s.prints([]string{"claim " + claim + " has its volume again"}, append(undelete, "--yes")...)
	s.pod("data", with("data", "/data"))
	if got := s.runningOn("data"); got != home || s.volume("data").Name != volume.Name {
		s.Fatalf("the pod is on %s, with %s", got.name, s.volume("data").Name)
	}
	s.says("data", "cat /data/file", "kept")

	// A claim that was made again has another volume, which stays.
	s.Must(letGo(s.ctx(), volume.Name))
	s.deleteWithClaims("data")
	s.volumeGone(volume.Name)
	s.podWithFile("data", s.Namespace+"-kept")
	other := s.volume("data").Name
	s.complains([]string{"claim " + claim + ": it exists", "volume undelete " + volume.Spec.CSI.VolumeHandle}, append(undelete, "--yes")...)
	if got := s.volume("data").Name; got != other {
		s.Fatalf("claim data is bound to %s, and was to %s", got, other)
	}
	s.deleteWithClaims("data")
	s.volumeGone(other)
	s.complains([]string{"claim data had several volumes", volume.Name, other}, append(undelete, "--yes")...)
	s.purgeKept()
}
