package scenarios

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// copies follow docs/move.md.
var claims = []entry{
	{"a StatefulSet and a Deployment of local-path move to pools on other nodes, and back", copiedThereAndBack},
	{"the move of a claim is undone after each step", copyUndone},
	{"a claim moves from a directory into an image and back, with all attributes, and becomes smaller", copiedKinds},
	{"a block volume moves to another node and grows", copiedDevice},
	{"a target that is too small is refused before anything stops, and a full one leaves the claim as it was", copyTooLarge},
	{"a PostgreSQL and its replica move to each other's nodes", copiedPostgres},
	{"a local-path volume on btrfs with quota moves into a pool of the same disk", copiedQuota},
	{"a hostPath volume and a mount of the static provisioner move into a pool of another disk", copiedByHand},
	{"a pod without the key of a copy gets no data from it, and cannot give it any", copyAttacked},
}

// interruptions run alone, because they end processes by their command lines.
var interruptions = []entry{
	{"a copy goes on after its pods, its plan, the driver and the kubelet were killed", copyInterrupted},
}

// The steps of a plan that copies a claim, until finish.
var copySteps = []string{"retain", "prepare", "stop", "copy", "swap", "start", "finish"}

// claimPlan is the plan of a claim, by docs/move.md.
type claimPlan struct {
	*scenario
	claim, dir string
}

// copyPlan makes the plan of a claim with the commands of docs/move.md, and these flags in place of the page's. It
// returns what they print, and fails if they fail.
func (s *scenario) copyPlan(claim string, flags ...string) (*claimPlan, string, error) {
	s.Helper()
	dir, err := os.MkdirTemp(harness.Run, "move-")
	s.Must(err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	block := shellBlock.FindStringSubmatch(s.section("docs/move.md", "Plan"))[2]
	words := strings.NewReplacer("storageclasses ", "storageclasses,volumesnapshots ",
		"NAMESPACE/CLAIM --node NODE --class CLASS --size SIZE", s.Namespace+"/"+claim+" "+strings.Join(flags, " "))
	path := "PATH=" + filepath.Join(target, "x86_64-unknown-linux-musl/release") + ":" + os.Getenv("PATH")
	said, failed := s.shell("env", path, "sh", "-euc", "cd "+dir+"\n"+words.Replace(block))
	return &claimPlan{s, claim, dir}, said, failed
}

func (s *scenario) copies(claim string, flags ...string) *claimPlan {
	s.Helper()
	c, said, err := s.copyPlan(claim, flags...)
	if err != nil {
		s.Fatalf("%v\n%s", err, said)
	}
	return c
}

// command is the plan with these arguments and its claim.
func (c *claimPlan) command(arguments ...string) *exec.Cmd {
	arguments = append(append([]string{filepath.Join(c.dir, "move-NAMESPACE-CLAIM.sh")}, arguments...), c.Namespace+"/"+c.claim)
	return exec.CommandContext(c.ctx(), "sh", arguments...)
}

// run runs the plan, which must succeed, and returns its output.
func (c *claimPlan) run(arguments ...string) string {
	c.Helper()
	out, err := c.command(arguments...).CombinedOutput()
	if err != nil {
		c.Fatalf("%q: %v:\n%s", arguments, err, out)
	}
	return string(out)
}

// fails runs the plan, which must fail with these words.
func (c *claimPlan) fails(words string, arguments ...string) {
	c.Helper()
	out, err := c.command(arguments...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), words) {
		c.Fatalf("%q: %v, without %q:\n%s", arguments, err, words, out)
	}
}

// remove deletes the old volume, and waits for its end.
func (c *claimPlan) remove(old string) {
	c.Helper()
	c.run("do", "remove")
	c.volumeGone(old)
	left := c.Kubectl("get", "pod,pvc,pv", "--namespace", harness.System, "--output", "name")
	if strings.Contains(left, c.name()) {
		c.Fatalf("the plan %s leaves\n%s", c.name(), left)
	}
}

// name is that of the pods and claims of the plan.
func (c *claimPlan) name() string {
	c.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "move-NAMESPACE-CLAIM.sh"))
	c.Must(err)
	name := regexp.MustCompile(`rootcellar-move-[0-9a-f]+`).Find(text)
	if name == nil {
		c.Fatal("the plan has no name")
	}
	return string(name)
}

// at checks on which node, in which class and with which size the claim is, and that its policy is as before.
func (c *claimPlan) isAt(n node, class, size string, policy corev1.PersistentVolumeReclaimPolicy) {
	c.Helper()
	claim, volume := c.TheClaim(c.claim), c.volume(c.claim)
	request := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if *claim.Spec.StorageClassName != class || request.String() != size || volume.Spec.PersistentVolumeReclaimPolicy != policy {
		c.Fatalf("claim %s is\n%+v\nof\n%+v", c.claim, claim.Spec, volume.Spec)
	}
	if volume.Spec.CSI != nil && volume.Spec.CSI.Driver == harness.Driver && c.scenario.home(volume) != n {
		c.Fatalf("claim %s is on another node: %+v", c.claim, volume.Spec.NodeAffinity)
	}
}

// copiedThereAndBack moves the claims of tenants as somebody who read docs/move.md alone.
//
// Proves: K1.
func copiedThereAndBack(s *scenario) {
	t := s.tenants(hostPathClass)
	class := s.Class(map[string]string{"pool": "default"})
	for i, m := range t.moves {
		there := s.copies(m.claim, "--node", m.home.other().name, "--class", class)
		there.run("move")
		pod := t.userOf(m.claim)
		s.sameData(pod.Name, t.files[i])
		there.isAt(m.home.other(), class, "64Mi", corev1.PersistentVolumeReclaimDelete)
		if pod.Spec.NodeName != m.home.other().name {
			s.Fatalf("%s is on %s", pod.Name, pod.Spec.NodeName)
		}
		there.remove(m.old.Name)
		if _, err := s.on(m.home, "test", "!", "-e", m.path); err != nil {
			s.Fatalf("local-path leaves %s", m.path)
		}
		renewed := s.volume(m.claim).Name
		back := s.copies(m.claim, "--node", m.home.name, "--class", hostPathClass)
		back.run("move")
		s.sameData(t.userOf(m.claim).Name, t.files[i])
		back.isAt(m.home, hostPathClass, "64Mi", corev1.PersistentVolumeReclaimDelete)
		if found := s.volume(m.claim); found.Spec.HostPath == nil || !strings.HasPrefix(found.Spec.HostPath.Path, localPath) {
			s.Fatalf("the volume is %+v", found.Spec)
		}
		back.remove(renewed)
	}
	if got := t.templates(); got != t.made {
		t.Fatalf("the templates are\n%s\nand not\n%s", got, t.made)
	}
}

// copyUndone takes more steps each time, and goes back.
//
// Proves: K1.
func copyUndone(s *scenario) {
	class := s.Class(map[string]string{"pool": "default", "kind": "image"})
	t := s.tenants(hostPathClass)
	m, files := t.moves[1], t.files[1]
	c := s.copies(m.claim, "--node", m.home.other().name, "--class", class)
	for last := range copySteps {
		for _, step := range copySteps[:last+1] {
			c.run("do", step)
			c.run("do", step)
			c.run("check", step)
		}
		if copySteps[last] == "start" {
			s.sameData(t.userOf(m.claim).Name, files)
		}
		for _, step := range slices.Backward(copySteps[:last+1]) {
			c.run("undo", step)
			c.run("undo", step)
		}
		s.sameData(t.userOf(m.claim).Name, files)
		if found := s.volume(m.claim); found.Name != m.old.Name {
			s.Fatalf("after %s and back, the claim has %s", copySteps[last], found.Name)
		}
		c.isAt(m.home, hostPathClass, "64Mi", corev1.PersistentVolumeReclaimDelete)
		if left := s.Kubectl("get", "pod,pvc,pv", "--all-namespaces", "--output", "name"); strings.Contains(left, c.name()) {
			s.Fatalf("after %s and back, %s is there:\n%s", copySteps[last], c.name(), left)
		}
	}
	c.run("move")
	s.sameData(t.userOf(m.claim).Name, files)
}

// copiedKinds moves a directory into an image, into a smaller one, and back.
//
// Proves: K1.
func copiedKinds(s *scenario) {
	directory := s.Class(map[string]string{"pool": "default"})
	image := s.Class(map[string]string{"pool": "default", "kind": "image"})
	s.Claim("orders", directory, "256Mi")
	s.pod("shop", with("orders", "/data"), ofDebian)
	home := s.runningOn("shop")
	_, err := s.exec("shop", oddFiles)
	s.Must(err)
	written := s.oddFilesOf("shop")
	s.snapshotBy(s.snapshotClass("{copy: allowed}"), "kept", "orders")
	s.deletePod("shop")
	for i, to := range []struct{ class, size string }{{image, "256Mi"}, {image, "64Mi"}, {directory, "64Mi"}} {
		old := s.volume("orders").Name
		c, said, err := s.copyPlan("orders", "--class", to.class, "--size", to.size)
		s.Must(err)
		if lists := strings.Contains(said, "kept"); lists != (i == 0) {
			s.Fatalf("move %d: the report is\n%s", i, said)
		}
		c.run("move")
		c.isAt(home, to.class, to.size, corev1.PersistentVolumeReclaimDelete)
		s.pod("shop", with("orders", "/data"), ofDebian)
		s.running("shop")
		if found := s.oddFilesOf("shop"); found != written {
			s.Fatalf("%s has\n%s\nand the original\n%s", to.class, found, written)
		}
		s.deletePod("shop")
		if i == 0 {
			s.deleteSnapshot("kept")
		}
		c.remove(old)
	}
	s.deleteClaim("orders")
}

// Proves: K1.
func copiedDevice(s *scenario) {
	class := s.Class(map[string]string{"pool": "default"})
	s.Claim("disk", class, "64Mi", block)
	s.pod("machine", machine("disk"))
	home := s.runningOn("machine")
	_, err := s.exec("machine", "dd if=/dev/urandom of=/dev/disk bs=1M count=24 seek=8 conv=fsync")
	s.Must(err)
	const sum = "head --bytes=64M /dev/disk | sha256sum"
	written, err := s.exec("machine", sum)
	s.Must(err)
	s.deletePod("machine")
	old := s.volume("disk").Name
	c := s.copies("disk", "--node", home.other().name, "--size", "128Mi")
	c.run("move")
	c.isAt(home.other(), class, "128Mi", corev1.PersistentVolumeReclaimDelete)
	s.pod("machine", machine("disk"))
	s.running("machine")
	s.says("machine", sum, strings.TrimSpace(written))
	s.says("machine", "blockdev --getsize64 /dev/disk", fmt.Sprint(128<<20))
	s.deletePod("machine")
	c.remove(old)
	s.deleteClaim("disk")
}

// Proves: K1.
func copyTooLarge(s *scenario) {
	class := s.Class(map[string]string{"pool": "default", "kind": "image"})
	s.Claim("data", class, "128Mi")
	s.pod("worker", with("data", "/data"))
	s.running("worker")
	_, err := s.exec("worker", "dd if=/dev/urandom of=/data/large bs=1M count=48")
	s.Must(err)
	s.seed("worker")
	uid := s.running("worker").UID
	c := s.copies("data", "--size", "40Mi")
	c.fails("the new volume is too small", "move")
	if s.running("worker").UID != uid {
		s.Fatal("the pod was stopped")
	}
	c.run("undo", "prepare")
	c.run("undo", "retain")

	c = s.copies("data", "--size", "72Mi")
	c.run("do", "retain")
	c.run("do", "prepare")
	_, err = s.exec("worker", "dd if=/dev/urandom of=/data/more bs=1M count=40")
	s.Must(err)
	files := s.summary("worker")
	c.run("do", "stop")
	c.fails("the new volume is too small", "do", "copy")
	for _, step := range []string{"copy", "stop", "prepare", "retain"} {
		c.run("undo", step)
	}
	s.pod("worker", with("data", "/data"))
	s.sameData("worker", files)
}

// copiedQuota moves a volume of local-path on a btrfs, which no rename can charge.
//
// Proves: K1.
func copiedQuota(s *scenario) {
	_, err := s.inDriver(node1, "pool", "enable-quota", filepath.Join(filepath.Dir(btrfsPath), "rootcellar"))
	s.Must(err)
	class := s.Class(map[string]string{"pool": "btrfs", "enforcement": "required"})
	s.Claim("data", "local-path-btrfs", "64Mi")
	s.pod("worker", with("data", "/data"), at(node1))
	s.running("worker")
	files := s.seed("worker")
	m := s.moving("data", node1)
	if !strings.HasPrefix(m.path, btrfsPath) {
		s.Fatalf("local-path made %s", m.path)
	}
	s.deletePod("worker")
	s.onceRefused(node1, "rootcellar-migrate claim", "volume", "import", m.path, "--pool", "btrfs", "--name", m.old.Name,
		"--claim", s.Namespace+"/data", "--size", "64Mi")
	c := s.copies("data", "--class", class)
	c.run("move")
	c.isAt(node1, class, "64Mi", corev1.PersistentVolumeReclaimDelete)
	s.pod("worker", with("data", "/data"))
	s.sameData("worker", files)
	s.refused("worker", "dd if=/dev/zero of=/data/full bs=1M count=80 conv=fsync", "quota exceeded")
	c.remove(m.old.Name)
}

// copiedByHand moves volumes from other filesystems than the pool's, so no rename can move them.
//
// Proves: K1.
func copiedByHand(s *scenario) {
	class := s.Class(map[string]string{"pool": "default"})
	const hostPath, mount = "/mnt/by-hand", "/mnt/static"
	_, err := s.on(node1, "sh", "-euc", "mkdir "+hostPath+"; chmod 0777 "+hostPath+" "+mount)
	s.Must(err)
	s.handMade("host", node1, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: hostPath}})
	local := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: mount}}
	s.handMade("static", node1, local, func(volume *corev1.PersistentVolume) {
		volume.Annotations = map[string]string{provisionedBy: "local-volume-provisioner-" + node1.name}
		volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	})
	for _, claim := range []string{"host", "static"} {
		s.pod("worker", with(claim, "/data"))
		s.running("worker")
		files := s.seed("worker")
		s.deletePod("worker")
		m := s.moving(claim, node1)
		s.onceRefused(node1, "rootcellar-migrate claim", m.importArguments()...)
		c := s.copies(claim, "--class", class)
		c.run("move")
		c.isAt(node1, class, "64Mi", m.old.Spec.PersistentVolumeReclaimPolicy)
		if claim == "static" {
			c.removeStatic(m)
		} else if said := c.run("do", "remove"); !strings.Contains(said, "so its files stay: "+hostPath) {
			s.Fatalf("remove said\n%s", said)
		}
		s.pod("worker", with(claim, "/data"))
		s.sameData("worker", files)
		s.deletePod("worker")
	}
	if found, err := s.list(node1, hostPath); err != nil || len(found) == 0 {
		s.Fatalf("%s has %v: %v", hostPath, found, err)
	}
	_, err = s.on(node1, "rm", "-r", hostPath)
	s.Must(err)
}

// removeStatic takes the step remove, and plays the static provisioner, which empties a released mount and makes a
// PersistentVolume with the same name again.
func (c *claimPlan) removeStatic(m *move) {
	c.Helper()
	var out bytes.Buffer
	remove := c.command("do", "remove")
	remove.Stdout, remove.Stderr = &out, &out
	c.Must(remove.Start())
	c.Eventually("the old volume may be deleted", harness.Patience, func() string {
		return strings.TrimPrefix(c.Kubectl("get", "pv", m.old.Name, "--output",
			"jsonpath={.status.phase} {.spec.persistentVolumeReclaimPolicy}"), "Released Delete")
	})
	_, err := c.on(m.home, "find", m.path, "-mindepth", "1", "-delete")
	c.Must(err)
	c.Kubectl("delete", "pv", m.old.Name)
	again := m.old.DeepCopy()
	again.ObjectMeta = metav1.ObjectMeta{Name: again.Name, Annotations: again.Annotations}
	again.Spec.ClaimRef, again.Status = nil, corev1.PersistentVolumeStatus{}
	_, err = harness.Client.CoreV1().PersistentVolumes().Create(c.ctx(), again, metav1.CreateOptions{})
	c.Must(err)
	if err := remove.Wait(); err != nil {
		c.Fatalf("%v:\n%s", err, &out)
	}
	c.Kubectl("delete", "pv", m.old.Name)
}

// copiedPostgres moves a PostgreSQL and its replica. Each one's claim is on a node of its own.
//
// Proves: K1.
func copiedPostgres(s *scenario) {
	class := s.Class(map[string]string{"pool": "default", "kind": "image"})
	s.Claim("primary", class, databaseSize)
	s.Claim("replica", class, databaseSize)
	start := func(name string, n node, changes ...func(*corev1.Pod)) {
		s.Helper()
		s.pod(name, append(changes, with(name, "/data"), at(n))...)
		s.Eventually("PostgreSQL "+name+" serves", harness.Patience, func() string {
			if out, err := s.exec(name, "pg_isready"); err != nil {
				return out
			}
			return ""
		})
	}
	start("primary", node1, postgres)
	_, err := s.exec("primary", `printf 'host replication postgres 0.0.0.0/0 trust\n' >>/data/postgres/pg_hba.conf &&
		psql -qc "alter system set listen_addresses = '*'" -c "create table inserts (n integer primary key)" &&
		pgbench --initialize --quiet --scale 2`)
	s.Must(err)
	s.deletePod("primary")
	address := func() string {
		return s.Kubectl("get", "pod", "primary", "--output", "jsonpath={.status.podIP}")
	}
	listens := func(pod *corev1.Pod) {
		postgres(pod)
		main := &pod.Spec.Containers[0]
		main.Command[2] = strings.Replace(main.Command[2], "-c listen_addresses= ", "", 1)
	}
	start("primary", node1, listens)
	nobody := int64(65534)
	s.pod("copies", with("replica", "/data"), at(node2), ofDebian, func(pod *corev1.Pod) {
		main := &pod.Spec.Containers[0]
		main.SecurityContext = &corev1.SecurityContext{RunAsUser: &nobody, RunAsGroup: &nobody}
	})
	s.running("copies")
	_, err = s.exec("copies", "/usr/lib/postgresql/15/bin/pg_basebackup --host "+address()+
		" --username postgres --pgdata /data/postgres --write-recovery-conf --checkpoint fast")
	s.Must(err)
	s.deletePod("copies")
	follows := func(n int) {
		s.Helper()
		_, err := s.exec("replica", `psql -qc "alter system set primary_conninfo = 'host=`+address()+` user=postgres'" -c "select pg_reload_conf()"`)
		s.Must(err)
		_, err = s.exec("primary", fmt.Sprintf("psql -qc 'insert into inserts values (%d)'", n))
		s.Must(err)
		s.Eventually("the replica has the insert", harness.Patience, func() string {
			out, err := s.exec("replica", "psql -Atc 'select count(*), pg_is_in_recovery() from inserts'")
			if err != nil || out != fmt.Sprintf("%d|t", n) {
				return out
			}
			return ""
		})
	}
	start("replica", node2, listens)
	follows(1)
	for _, name := range []string{"replica", "primary"} {
		home := s.runningOn(name)
		s.deletePod(name)
		old := s.volume(name).Name
		c := s.copies(name, "--node", home.other().name)
		c.run("move")
		start(name, home.other(), listens)
		c.remove(old)
	}
	follows(2)
	_, err = s.exec("primary", "cd /data/postgres && psql -qc checkpoint && ! grep -h 'invalid page\\|checksum' log/* 2>/dev/null")
	s.Must(err)
	out, err := s.exec("primary", "psql -Atc 'select count(*) from pgbench_accounts'")
	s.Must(err)
	if out != "200000" {
		s.Fatalf("the table has %s rows", out)
	}
}
