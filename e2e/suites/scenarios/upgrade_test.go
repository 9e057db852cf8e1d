package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"rootcellar.dev/e2e/suites/harness"
)

// versions run on a cluster of their own, by `make e2e-upgrade`.
var versions = []entry{
	{"upgraded, rolled back and upgraded again under load, each version serves the volumes and snapshots of the other", backAndForth},
}

// TestUpgrade finds the sources of the previous version in the directory PREVIOUS.
func TestUpgrade(t *testing.T) {
	t.Cleanup(harness.Count)
	for _, entry := range versions {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
}

// upgrade changes the pod template of the DaemonSet, as a new version does, until the scenario ends.
func (s *scenario) upgrade() {
	s.Helper()
	script := filepath.Join(harness.Root, "e2e/cluster/install.sh")
	_, err := s.shell(script, "--set", "log.level=debug", "--wait=false")
	s.Must(err)
	s.Cleanup(func() {
		if _, err := harness.Command(context.Background(), script); err != nil {
			s.Error(err)
		}
	})
}

// rolledOut reports whether every driver has the newest template and is ready.
func (s *scenario) rolledOut() bool {
	s.Helper()
	set, err := harness.Client.AppsV1().DaemonSets(harness.System).Get(s.ctx(), "rootcellar", metav1.GetOptions{})
	s.Must(err)
	status := set.Status
	return status.ObservedGeneration >= set.Generation && status.UpdatedNumberScheduled == status.DesiredNumberScheduled &&
		status.NumberAvailable == status.DesiredNumberScheduled
}

// underLoad changes the version of the driver while claims come and go. It returns the number of claims that it made,
// and the names of those that are left.
func (s *scenario) underLoad(name string, change func()) (made int, kept []string) {
	s.Helper()
	before := map[string]bool{}
	create := func(n node) {
		kept = append(kept, fmt.Sprint(name, made))
		s.worker(kept[len(kept)-1], "rootcellar", at(n))
		made++
	}
	for _, n := range nodes() {
		before[string(s.driverPod(n).UID)] = true
		create(n)
	}
	for _, worker := range kept {
		s.running(worker)
	}
	change()
	end := time.Now().Add(2 * harness.Patience)
	for ; !s.rolledOut(); time.Sleep(500 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatal("the rollout does not finish")
		}
		create(nodes()[made%2])
		// Deleting a claim during the creation of its volume may leave a volume that no object names. That is up to the
		// provisioner.
		if oldest, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), kept[0], metav1.GetOptions{}); err == nil &&
			oldest.Status.Phase == corev1.PodRunning {
			s.dismiss(kept[0])
			kept = kept[1:]
		}
	}
	if deleted := made - len(kept); made < 4 || deleted < 1 {
		s.Fatalf("the rollout was over after %d claims made and %d deleted", made, deleted)
	}
	for _, n := range nodes() {
		if pod := s.driverPod(n); before[string(pod.UID)] {
			s.Fatalf("the driver's pod on %s is the old one", n.name)
		}
	}
	for _, worker := range kept {
		s.running(worker)
	}
	return made, kept
}

// Proves: K19.
func upgraded(s *scenario) {
	writers := []*beating{s.beats("writer1", "rootcellar", node1), s.beats("writer2", "rootcellar", node2)}
	made, kept := s.underLoad("worker", s.upgrade)
	for _, writer := range writers {
		writer.goesOn()
	}
	s.oneVolumeEach(append(kept, "writer1", "writer2"))
	s.Note = fmt.Sprintf(": %d claims, %d of them deleted again", made, made-len(kept))

	for _, name := range append(kept, "writer1", "writer2") {
		s.dismiss(name)
	}
	s.nothingLeft()
}

// previousImage has the name that previous.sh gives it.
const previousImage = "localhost/rootcellar:previous"

// previousInstall returns the script that installs the previous version.
func previousInstall() string {
	script := filepath.Join(os.Getenv("PREVIOUS"), "e2e/cluster/install.sh")
	if _, err := os.Stat(script); err != nil {
		// Before e2e/cluster, it was in e2e itself.
		return filepath.Join(os.Getenv("PREVIOUS"), "e2e/install.sh")
	}
	return script
}

// backAndForth has each version make volumes and snapshots, and the other one serve them. Images, moved volumes and a
// cordon, which the previous version may not know, survive it.
//
// Proves: K20, MV6, PC2.
func backAndForth(s *scenario) {
	repository, tag, _ := strings.Cut(previousImage, ":")
	_, err := s.shell(previousInstall(), "--values", s.pools(), "--set", "image.repository="+repository, "--set", "image.tag="+tag, "--set", "image.digest=")
	s.Must(err)
	s.driverReady()
	s.runsPrevious(true)
	// It lists the programs in the image that format images. Without them, the driver serves none.
	_, err = os.Stat(filepath.Join(os.Getenv("PREVIOUS"), "THIRD-PARTY.txt"))
	hasImages := err == nil
	_, err = s.inDriver(node1, "volume", "move", "--help")
	hasMoves := err == nil
	sites := s.sites(hasImages)
	older := s.collect("older", sites)
	s.listed()

	claims := s.version("upgrade", false, filepath.Join(harness.Root, "e2e/cluster/install.sh"), "--wait=false")
	s.listed()
	older.goesOn()
	older.serve("newer")
	newer := s.collect("newer", sites)
	kinds := []novelty{
		s.novel("image", s.Class(map[string]string{"kind": "image"}), hasImages),
		s.novel("moved", s.Class(map[string]string{"pool": "set"}), hasMoves).moved(),
	}
	// Without moves, the previous version unmounts no moved volume, so that a deleted pod of one would stay.
	dropped := s.novel("dropped", s.Class(map[string]string{"pool": "set"}), hasMoves).moved()
	s.deletePod(dropped.name)
	s.listed()
	_, err = s.inDriver(node1, "pool", "cordon", "set/disk1")
	s.Must(err)

	claims += s.version("rollback", true, "helm", "rollback", "rootcellar", "--namespace", harness.System)
	older.goesOn()
	newer.goesOn()
	var unknown []string
	for _, kind := range kinds {
		if kind.rolledBack(); !kind.known {
			unknown = append(unknown, kind.id)
		}
	}
	if !hasMoves {
		unknown = append(unknown, dropped.id)
	}
	s.listed(unknown...)
	older.mountAgain()
	newer.serve("older")
	dropped.remove()
	s.listed(unknown...)

	claims += s.version("return", false, filepath.Join(harness.Root, "e2e/cluster/install.sh"), "--wait=false")
	s.Note = fmt.Sprintf(": %d claims meanwhile", claims)
	if !hasMoves {
		// The previous version answered that it is deleted.
		_, err = s.inDriver(node1, "volume", "delete", dropped.id)
		s.Must(err)
	}
	s.listed()
	for _, kind := range kinds {
		kind.restarts()
		kind.serves()
	}
	for _, c := range []*collection{older, newer} {
		c.goesOn()
		c.mountAgain()
	}
	newer.copy("restored-last", "VolumeSnapshot", "snapshot-by-older")
	s.listed()
	// The list fails because of the disk that is not mounted yet.
	if list, _ := s.inDriver(node1, "pool", "list"); !strings.Contains(list, "cordoned") {
		s.Fatalf("the cordon did not survive:\n%s", list)
	}
	_, err = s.inDriver(node1, "pool", "uncordon", "set/disk1")
	s.Must(err)
	older.removeAll()
	newer.removeAll()
	s.deleteWithClaims("image", "moved")
	s.detached()
	s.listed()
}

// novelty is a pod on node1 with a volume of a kind that the previous version may not know.
type novelty struct {
	*scenario
	name, volume, id string
	known            bool
}

func (s *scenario) novel(name, class string, known bool) novelty {
	s.Helper()
	s.worker(name, class, at(node1))
	s.running(name)
	s.says(name, "echo kept > /data/file && sync /data/file && cat /data/file", "kept")
	volume := s.volume(name)
	return novelty{s, name, volume.Name, volume.Spec.CSI.VolumeHandle, known}
}

// moved moves the volume to another member of its set.
func (v novelty) moved() novelty {
	v.Helper()
	v.deletePod(v.name)
	members := slices.DeleteFunc(membersOn(node1), func(member string) bool {
		return len(v.directories(node1, member, v.volume)) > 0
	})
	_, err := v.inDriver(node1, "volume", "move", v.id, "--to", members[len(members)-1])
	v.Must(err)
	v.directory(node1, members[len(members)-1], v.volume)
	v.pod(v.name, with(v.name, "/data"), at(node1))
	v.serves()
	return v
}

// restarts deletes the pod and creates it again.
func (v novelty) restarts() {
	v.Helper()
	v.deletePod(v.name)
	v.pod(v.name, with(v.name, "/data"), at(node1))
}

// rolledBack checks that the previous version serves the volume, or quarantines it, leaves its pod alone, and starts no
// other one.
func (v novelty) rolledBack() {
	v.Helper()
	v.says(v.name, "cat /data/file", "kept")
	if v.known {
		v.restarts()
		v.serves()
		return
	}
	// The list fails because of the quarantined volume.
	list, _ := v.inDriver(node1, "volume", "list")
	if !slices.ContainsFunc(strings.Split(list, "\n"), func(line string) bool {
		return strings.Contains(line, "quarantined") && strings.Contains(line, v.volume)
	}) {
		v.Fatalf("%s is not quarantined:\n%s", v.volume, list)
	}
	code := "code = FailedPrecondition"
	if v.name != "image" {
		// The pool in its id does not have it.
		code = "code = NotFound"
	}
	waiting := v.name + "-waiting"
	v.pod(waiting, with(v.name, "/data"), at(node1))
	v.event("Pod", waiting, v.volume, code)
	v.deletePod(waiting)
}

// serves waits for the pod, which reads its data.
func (v novelty) serves() {
	v.Helper()
	v.running(v.name)
	v.says(v.name, "cat /data/file", "kept")
}

// remove deletes the volume, which has no pod. A previous version without moves answers that it is deleted, because its id names another
// pool, and leaves the data alone.
func (v novelty) remove() {
	v.Helper()
	v.deleteClaim(v.name)
	v.volumeGone(v.volume)
	var left int
	for _, member := range membersOn(node1) {
		left += len(v.directories(node1, member, v.volume))
	}
	if (left > 0) == v.known {
		v.Fatalf("%s has %d directories", v.volume, left)
	}
}

// pools writes a values file with the pools of today's disks, which the previous values may call otherwise, without the
// option that the previous version may not know.
func (s *scenario) pools() string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root, "e2e/cluster/values.yaml"))
	s.Must(err)
	var values struct {
		Pools []map[string]any `json:"pools"`
	}
	s.Must(yaml.Unmarshal(text, &values))
	schema, err := os.ReadFile(filepath.Join(os.Getenv("PREVIOUS"), "deploy/chart/values.schema.json"))
	s.Must(err)
	for _, pool := range values.Pools {
		if !strings.Contains(string(schema), `"keep"`) {
			delete(pool, "keep")
		}
	}
	text, err = yaml.Marshal(values)
	s.Must(err)
	// Helm splits the value of --values at commas, which the name of the test has.
	file := filepath.Join(harness.Run, "pools.yaml")
	s.Must(os.WriteFile(file, text, 0o600))
	return file
}

// version has helm change the version while claims with this name come and go. It returns their number.
func (s *scenario) version(load string, previous bool, name string, arguments ...string) int {
	s.Helper()
	made, kept := s.underLoad(load, func() {
		_, err := s.shell(name, arguments...)
		s.Must(err)
	})
	s.driverReady()
	s.runsPrevious(previous)
	for _, worker := range kept {
		s.dismiss(worker)
	}
	return made
}

// runsPrevious checks whether the previous version runs on every node.
func (s *scenario) runsPrevious(want bool) {
	s.Helper()
	for _, n := range nodes() {
		containers := s.driverPod(n).Spec.Containers
		i := slices.IndexFunc(containers, func(container corev1.Container) bool { return container.Name == "driver" })
		if image := containers[i].Image; (image == previousImage) != want {
			s.Fatalf("%s runs %s", n.name, image)
		}
	}
}

// site is a pool on a node, with the classes of its volumes and snapshots.
type site struct {
	name, class, snapshots string
	home                   node
	// grows reports whether volumes grow, and copies are larger than their sources.
	grows bool
}

// sites returns a site for each filesystem and each method of copying, and possibly one for images. One has the chart's
// own class.
func (s *scenario) sites(images bool) []site {
	s.Helper()
	grows := true
	growing := func(class *storagev1.StorageClass) { class.AllowVolumeExpansion = &grows }
	sites := []site{
		{"ext4", s.Class(map[string]string{"copy": "allowed"}, growing), "rootcellar-copies", node1, true},
		{"xfs", "rootcellar", "rootcellar", node2, true},
		{"btrfs", s.Class(map[string]string{"pool": "fast"}, growing), "rootcellar", node2, true},
		{"quota", s.quotaClass("required"), "rootcellar", node2, true},
		{"reflink", s.Class(map[string]string{"pool": "reflink"}, growing), "rootcellar", node1, true},
	}
	if images {
		// An ext4. A mounted one grows only with CAP_SYS_RESOURCE, which not every machine of these tests has, and an XFS
		// is too large for this disk.
		class := s.Class(map[string]string{"pool": "reflink", "kind": "image"})
		sites = append(sites, site{"image", class, "rootcellar", node2, false})
	}
	return sites
}

// collection is a set of objects at every site: a pod that writes, snapshots of its volume, and copies of it with pods
// that sleep.
type collection struct {
	*scenario
	name              string
	sites             []site
	writers           []*beating
	copies, snapshots []string
}

// of is the name of an object of the collection at a site.
func (c *collection) of(p site, object string) string { return c.name + "-" + p.name + "-" + object }

// collect has the running version make one object of each kind at every site.
func (s *scenario) collect(name string, sites []site) *collection {
	s.Helper()
	c := &collection{scenario: s, name: name, sites: sites}
	for _, p := range sites {
		writer := s.beats(c.of(p, "writer"), p.class, p.home)
		s.says(writer.pod, "echo kept > /data/file && sync /data/file && cat /data/file", "kept")
		c.writers = append(c.writers, writer)
	}
	c.take("snapshot")
	c.copy("restored", "VolumeSnapshot", "snapshot")
	c.copy("cloned", "PersistentVolumeClaim", "writer")
	c.grow("50Mi")
	return c
}

// serve has the running version, of which this is the name, do the work of Kubernetes on the objects of the other one.
func (c *collection) serve(version string) {
	c.Helper()
	c.mountAgain()
	c.usage()
	c.take("snapshot-by-" + version)
	c.copy("restored-by-"+version, "VolumeSnapshot", "snapshot")
	c.copy("again-by-"+version, "VolumeSnapshot", "snapshot-by-"+version)
	c.copy("cloned-by-"+version, "PersistentVolumeClaim", "writer")
	c.grow("75Mi")
	for _, p := range c.sites {
		if p.name == "quota" {
			c.stats(p.home, c.of(p, "writer"), 75<<20, 0)
		}
	}
	c.remove("cloned")
	c.removeSnapshots("snapshot")
}

// goesOn checks that every pod wrote all the time.
func (c *collection) goesOn() {
	c.Helper()
	for _, writer := range c.writers {
		writer.goesOn()
	}
}

// take takes a snapshot of every writer.
func (c *collection) take(snapshot string) {
	c.Helper()
	c.snapshots = append(c.snapshots, snapshot)
	for _, p := range c.sites {
		c.snapshotBy(p.snapshots, c.of(p, snapshot), c.of(p, "writer"))
	}
	for _, p := range c.sites {
		c.taken(c.of(p, snapshot))
	}
}

// copy creates a copy at every site, with a pod.
func (c *collection) copy(name, kind, source string) {
	c.Helper()
	c.copies = append(c.copies, name)
	for _, p := range c.sites {
		size := "25Mi"
		if p.grows {
			size = "50Mi"
		}
		c.Claim(c.of(p, name), p.class, size, from(kind, c.of(p, source)))
	}
	c.mount(name)
}

// mount starts a pod for each of the copies, and checks their data.
func (c *collection) mount(copies ...string) {
	c.Helper()
	for _, p := range c.sites {
		for _, name := range copies {
			c.pod(c.of(p, name), with(c.of(p, name), "/data"), at(p.home))
		}
	}
	for i, p := range c.sites {
		for _, name := range copies {
			c.running(c.of(p, name))
			c.says(c.of(p, name), "cat /data/file", "kept")
			if beats := c.writers[i].prefix(c.of(p, name)); beats == 0 {
				c.Fatalf("%s holds no beat", c.of(p, name))
			}
		}
	}
}

// mountAgain has the running version unmount and mount every copy.
func (c *collection) mountAgain() {
	c.Helper()
	pods := []string{"delete", "pod", "--timeout", harness.Patience.String()}
	for _, p := range c.sites {
		for _, name := range c.copies {
			pods = append(pods, c.of(p, name))
		}
	}
	c.Kubectl(pods...)
	c.mount(c.copies...)
}

// grow expands the volume of every writer that can grow.
func (c *collection) grow(size string) {
	c.Helper()
	growing := slices.DeleteFunc(slices.Clone(c.sites), func(p site) bool { return !p.grows })
	for _, p := range growing {
		c.ask(c.of(p, "writer"), size)
	}
	for _, p := range growing {
		c.grown(c.of(p, "writer"), size, p.home)
	}
}

// remove deletes a copy at every site.
func (c *collection) remove(name string) {
	c.Helper()
	c.copies = slices.DeleteFunc(c.copies, func(other string) bool { return other == name })
	for _, p := range c.sites {
		c.dismiss(c.of(p, name))
	}
}

func (c *collection) removeSnapshots(name string) {
	c.Helper()
	c.snapshots = slices.DeleteFunc(c.snapshots, func(other string) bool { return other == name })
	for _, p := range c.sites {
		c.deleteSnapshot(c.of(p, name))
	}
}

func (c *collection) removeAll() {
	c.Helper()
	for _, name := range append(slices.Clone(c.copies), "writer") {
		c.remove(name)
	}
	for _, name := range slices.Clone(c.snapshots) {
		c.removeSnapshots(name)
	}
}

// usage asks the running version for the usage of every copy, as kubelet does.
func (c *collection) usage() {
	c.Helper()
	for _, p := range c.sites {
		driver := csi.NewNodeClient(c.serving(p.home))
		for _, name := range c.copies {
			volume, pod := c.volume(c.of(p, name)), c.running(c.of(p, name))
			answer, err := driver.NodeGetVolumeStats(c.ctx(), &csi.NodeGetVolumeStatsRequest{
				VolumeId: volume.Spec.CSI.VolumeHandle,
				VolumePath: filepath.Join(os.Getenv("KUBELET_DIR"), "pods", string(pod.UID), "volumes/kubernetes.io~csi",
					volume.Name, "mount"),
			})
			c.Must(err)
			for _, usage := range answer.Usage {
				if usage.Unit == csi.VolumeUsage_BYTES && (usage.Used == 0 || usage.Used > usage.Total) {
					c.Fatalf("the usage of %s is %v", c.of(p, name), answer.Usage)
				}
			}
		}
	}
}

// serving connects to the driver that runs on a node until the scenario ends.
func (s *scenario) serving(n node) *grpc.ClientConn {
	s.Helper()
	socket := n.path(filepath.Join(os.Getenv("KUBELET_DIR"), "plugins", harness.Driver, "csi.sock"))
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.Must(err)
	s.Cleanup(func() { _ = connection.Close() })
	return connection
}

// listed waits until the drivers list exactly the volumes and snapshots of Kubernetes' objects, each once. A driver that
// cannot read an object does not list it: these volumes must be in no list.
func (s *scenario) listed(unknown ...string) {
	s.Helper()
	var drivers []csi.ControllerClient
	for _, n := range nodes() {
		drivers = append(drivers, csi.NewControllerClient(s.serving(n)))
	}
	s.Eventually("every volume and every snapshot is listed once", harness.Patience, func() string {
		var named, listed []string
		volumes, err := harness.Client.CoreV1().PersistentVolumes().List(s.ctx(), metav1.ListOptions{})
		s.Must(err)
		for _, volume := range volumes.Items {
			if id := volume.Spec.CSI.VolumeHandle; !slices.Contains(unknown, id) {
				named = append(named, id)
			}
		}
		handles := s.Kubectl("get", "volumesnapshotcontents", "--output", "jsonpath={.items[*].status.snapshotHandle}")
		named = append(named, strings.Fields(handles)...)
		for _, controller := range drivers {
			volumes, err := controller.ListVolumes(s.ctx(), &csi.ListVolumesRequest{})
			if err != nil {
				return err.Error()
			}
			for _, entry := range volumes.Entries {
				listed = append(listed, entry.Volume.VolumeId)
			}
			snapshots, err := controller.ListSnapshots(s.ctx(), &csi.ListSnapshotsRequest{})
			if err != nil {
				return err.Error()
			}
			for _, entry := range snapshots.Entries {
				listed = append(listed, entry.Snapshot.SnapshotId)
			}
		}
		slices.Sort(named)
		slices.Sort(listed)
		if !slices.Equal(named, listed) {
			return fmt.Sprintf("Kubernetes has %q, and the drivers list %q", named, listed)
		}
		return ""
	})
}
